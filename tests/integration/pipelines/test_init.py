"""What `moldau pipeline init` writes passes its own test and runs, with nothing but a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.cli.main import main
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.cases import run_cases
from tests.integration.pipelines.processes import PipelineProcess, read_topic


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "first-counts.yaml"
    assert main(["pipeline", "init", str(path)]) == 0
    return path


def test_the_example_passes_its_test(spark: SparkSession, example: Path) -> None:
    pipeline = load_pipeline(example)
    results = list(run_cases(spark, [(pipeline, case) for case in pipeline.tests]))
    assert [result.failures for result in results] == [()]


@pytest.mark.timeout(240)
def test_the_example_runs_as_it_is(bootstrap: str, example: Path) -> None:
    with PipelineProcess(example.parent, example.name, "--bootstrap-server", bootstrap) as run:
        run.until(lambda: read_topic(bootstrap, "first-counts"), "counts of a window")
        assert run.stop() == 0
    counts = [record.json for record in read_topic(bootstrap, "first-counts")]
    assert {count["page"] for count in counts} <= {"/", "/cart", "/checkout"}
    assert all(count["views"] > 0 for count in counts)
