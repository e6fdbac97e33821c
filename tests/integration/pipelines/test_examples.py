"""The examples of pipelines: their tests pass without a broker, and say what comes out of topics with one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.doors.yaml_file import load_pipeline, pipeline_files
from moldau.pipelines.engine.case_rows import compare
from moldau.pipelines.engine.queries import Settings, plan_queries, start_query
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Case, Pipeline, Sink, Source
from moldau.pipelines.model.watermark import Watermark
from soak.broker_process import command
from tests.integration.spark.sinks import read
from tests.integration.spark.topics import produce

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
FILES = pipeline_files([EXAMPLES])
GENERATED = "website_visitors"  # it makes its rows itself
TEST_S = 300
RUN_S = 120
LAST = "2200-01-01T00:00:00Z"  # later than all windows of the examples
OF_THE_RECORD = ("key", "partition", "timestamp", "offset")


def test_all_tests_of_the_examples_pass_without_a_broker() -> None:
    done = subprocess.run(
        [command("moldau"), "pipeline", "test", str(EXAMPLES), "--json"],
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [(result["pipeline"], result["test"]) for result in json.loads(done.stdout) if result["passed"]]
    assert passed == [(pipeline.name, case.name) for pipeline in map(load_pipeline, FILES) for case in pipeline.tests]
    assert {name for name, _ in passed} == {load_pipeline(file).name for file in FILES}


@pytest.mark.parametrize("file", [file for file in FILES if file.stem != GENERATED], ids=lambda file: file.stem)
def test_topics_get_what_the_test_of_an_example_says(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path, file: Path
) -> None:
    example = load_pipeline(file)
    case = max(example.tests, key=lambda case: max(map(len, case.given.values())))
    pipeline = _with_topics(example, bootstrap, new_topic, tmp_path)
    for batch in range(max(map(len, case.given.values()))):
        for source in pipeline.sources:
            rows = [row for rows in case.given.get(source.name, ())[batch : batch + 1] for row in rows]
            produce(bootstrap, _topic(source), [_record(row) for row in rows])
        _run(spark, pipeline)
    waits = any(sink.mode == "append" for sink in pipeline.sinks)
    watermarks = [source for source in pipeline.sources if waits and "watermark" in source.options]
    for source in watermarks:
        column = Watermark.parse(source.options["watermark"].value).column
        produce(bootstrap, _topic(source), [_record({column: LAST})])
    if watermarks:
        _run(spark, pipeline)
    for sink, expected in _expected(pipeline, case):
        assert compare([_comparable(row) for row in expected], _rows(bootstrap, _topic(sink))) == []


def _with_topics(pipeline: Pipeline, bootstrap: str, new_topic: Callable[..., str], folder: Path) -> Pipeline:
    """With topics of its own. Those that a sink creates have a name only."""

    def moved(options: Mapping[str, Given], *, exists: bool) -> dict[str, Given]:
        topic = new_topic() if exists else f"{options['topic'].value}-{folder.name}"
        return {**options, "topic": Given(topic)}

    settings = {"trigger": "available now", "checkpoint": str(folder), "kafka.bootstrap.servers": bootstrap}
    if "dead letters" in pipeline.settings:
        settings["dead letters"] = new_topic()
    return replace(
        pipeline,
        sources=tuple(replace(one, options=moved(one.options, exists=True)) for one in pipeline.sources),
        sinks=tuple(replace(one, options=moved(one.options, exists=False)) for one in pipeline.sinks),
        settings={**pipeline.settings, **{name: Given(value) for name, value in settings.items()}},
    )


def _topic(part: Source | Sink) -> str:
    return str(part.options["topic"].value)


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the record are the broker's to give."""
    value = {name: field for name, field in row.items() if name not in OF_THE_RECORD}
    return {"value": json.dumps(value).encode(), "key": row.get("key")}


def _run(spark: SparkSession, pipeline: Pipeline) -> None:
    """All queries, until they have read all there is."""
    settings = Settings.of(pipeline)
    queries = [start_query(spark, plan, settings) for plan in plan_queries(pipeline)]
    for query in queries:
        try:
            assert query.awaitTermination(RUN_S), query.status
        finally:
            query.stop()


def _expected(pipeline: Pipeline, case: Case) -> Iterator[tuple[Sink, tuple[Mapping[str, Any], ...]]]:
    for target, rows in case.expect.items():
        (sink,) = [sink for sink in pipeline.sinks if target in (sink.name, sink.view)]
        yield sink, rows


def _rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Records as rows: the fields of the value, and the columns of the record. Without the row that ended it all."""
    found = []
    for record in read(bootstrap, topic):
        if LAST[:10].encode() in (record.value or b""):
            continue
        value = json.loads(record.value) if record.value is not None else None
        fields = {"value": value, "key": record.key and record.key.decode(), "partition": record.partition}
        written = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
        found.append({**_comparable({**(value or {}), **fields}), "timestamp": written})
    return found


def _comparable(value: Any) -> Any:
    """Values of a file and of JSON in one form: numbers, times and text."""
    if isinstance(value, Mapping):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
