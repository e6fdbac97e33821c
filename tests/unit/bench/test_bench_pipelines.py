"""The pipeline part of the bench: files that are pipelines, clicks that look as the jobs expect, and fair figures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import kafka_streams
from bench.metrics import JVM, JVM_BEST, MOLDAU, STREAMS, Outcome
from bench.pipeline_work import WORKS, Topics, write_pipeline
from bench.scenarios.pipelines import PipelineThroughput, expect_same_rows
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.model.common_options import SOURCE_OPTIONS

TOPICS = Topics("localhost:9092", "clicks", "users", "output")


@pytest.mark.parametrize("work", [*WORKS, "move"])
def test_the_files_are_pipelines(tmp_path: Path, work: str) -> None:
    path = write_pipeline(tmp_path, "bench", work, TOPICS, {"trigger": "available now"}, maxOffsetsPerTrigger=5)
    pipeline = load_pipeline(path)
    (source, _), (sink,) = pipeline.sources, pipeline.sinks
    table = connector("topic").source_options
    assert table is not None
    assert list((table + SOURCE_OPTIONS).check(source.options, "source clicks", None)) == []
    assert ("watermark" in source.options) == (work == "count")
    assert pipeline.sources_of(sink.view) == (pipeline.sources if work == "join" else (source,))


def test_one_pass_of_ours_counts_against_each_rival() -> None:
    scenario = PipelineThroughput()
    outcomes = {metric.key: Outcome(metric) for metric in scenario.metrics}
    for contender, seconds in ((MOLDAU, 1.0), (JVM, 2.0), (JVM_BEST, 1.0), (STREAMS, 4.0)):
        measured = {"contender": contender, "rows": 900_000, "seconds": seconds, "cpu_s": seconds}
        for sample in scenario._samples("count", 1_000_000, measured):
            outcomes[sample.metric.key].add(str(sample.of), sample)
    ratios = {outcome.metric.key: outcome.ratio for outcome in outcomes.values() if outcome.ratio is not None}
    assert ratios == {
        "pipeline_count_jvm": 2.0,
        "pipeline_count_jvm_best": 1.0,
        "pipeline_count_streams": 4.0,
        "pipeline_count_jvm_cpu": 0.5,
        "pipeline_count_streams_cpu": 0.25,
    }
    assert outcomes["pipeline_count_jvm"].verdict.value == "met"


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [({MOLDAU: [7, 1], JVM: [7, 2]}, "different rows"), ({MOLDAU: [6, 1], JVM: [6, 1]}, "6 rows were written")],
    ids=["rows differ", "a row is missing"],
)
def test_contenders_that_write_different_things_are_not_compared(outputs: dict[str, list[int]], complaint: str) -> None:
    expect_same_rows("join", {MOLDAU: [7, 1], JVM: [7, 1]}, 7)
    with pytest.raises(AssertionError, match=complaint):
        expect_same_rows("join", outputs, 7)


def test_kafka_streams_comes_with_what_it_logs_with() -> None:
    namespace = "{http://maven.apache.org/POM/4.0.0}"
    found = [each.text for each in ElementTree.fromstring(kafka_streams.POM).iter(f"{namespace}artifactId")]
    assert found[1:] == ["kafka-streams", "slf4j-simple"]
