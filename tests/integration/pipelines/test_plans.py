"""Pipelines pay for what they use: those that only move or filter rows have no shuffle and no state."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.model.pipeline import Step
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.parts import copy, run
from tests.integration.spark.topics import produce

FILTER = "SELECT upper(page) AS page, at FROM rows WHERE page <> '/b'"
COUNT = "SELECT window.start AS minute, count(*) AS views FROM rows GROUP BY window(at, '1 minute')"


@pytest.mark.parametrize("sql", [None, FILTER, COUNT], ids=["move", "filter", "count"])
def test_only_stateful_steps_shuffle(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, sql: str | None
) -> None:
    is_stateful = sql == COUNT
    topic = new_topic(2)
    produce(bootstrap, topic, [{"value": b'{"page": "/a", "at": "2026-01-01T00:00:00Z"}'}])
    source = {"connector": "topic", "topic": topic, "format": "json", "schema": "page STRING, at TIMESTAMP"}
    source |= {"watermark": "at 1 minute"} if is_stateful else {}
    steps = [Step("changed", sql=sql, inputs=("rows",))] if sql else []
    settings = {"kafka.bootstrap.servers": bootstrap}
    sink = {"connector": "topic", "topic": new_topic()}
    query = run(spark, copy(tmp_path, source, sink, *steps, settings=settings))
    plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert ("Exchange" in plan) == is_stateful, plan
    assert ("StateStore" in plan) == is_stateful, plan
    assert query.lastProgress is not None
    assert bool(query.lastProgress["stateOperators"]) == is_stateful
    assert _file_system(spark) == "moldau.LocalFiles"
    (commit,) = tmp_path.rglob("commits/0")
    assert stat.S_IMODE(commit.stat().st_mode) == 0o644
    assert stat.S_IMODE(commit.parent.stat().st_mode) == 0o755


def _file_system(spark: SparkSession) -> str:
    """The class with which Hadoop, and so Spark, writes local files."""
    java: Any = spark._jvm
    uri = java.java.net.URI("file:///")
    return str(java.org.apache.hadoop.fs.FileSystem.get(uri, spark._jsc.hadoopConfiguration()).getClass().getName())
