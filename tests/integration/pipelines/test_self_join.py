"""A source that a query reads twice."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from moldau.pipelines import Pipeline, generator
from moldau.pipelines.connectors.base import BatchSink, Connector, WriteRequest
from moldau.pipelines.doors.python_api import connector
from moldau.pipelines.engine.queries import Settings, plan_queries, start_query
from moldau.pipelines.model.options import OptionTable

ROWS: list[tuple[int, int]] = []


class Collect(Connector):
    name = "collect"
    summary = "Rows in a list."
    sink_options = OptionTable.of()

    def write(self, request: WriteRequest) -> BatchSink:
        return BatchSink(lambda rows, _: ROWS.extend((row.a, row.b) for row in rows.collect()))


def test_a_self_join_runs_and_continues_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    def pairs(limit: int) -> Pipeline:
        source = generator(
            "n BIGINT, at TIMESTAMP",
            name="numbers",
            rows=limit,
            rows_per_second=1_000_000,
            fields={"n": {"sequence": 0}},
            watermark="at 1 minute",
        )
        return (
            Pipeline("pairs")
            .source(source)
            .step("SELECT n, at FROM numbers WHERE n % 2 = 0", name="even")
            .step("SELECT l.n AS a, r.n AS b FROM numbers l JOIN even r ON l.n = r.n + 1", name="pairs")
            .to(connector(f"{__name__}:Collect"), name="out")
            .settings(trigger="available now", checkpoint=str(tmp_path))
        )

    ROWS.clear()
    for limit in (10, 20):
        pipeline = pairs(limit)
        (plan,) = plan_queries(pipeline.model)
        start_query(spark, plan, Settings.of(pipeline.model)).awaitTermination()
    assert sorted(ROWS) == [(n + 1, n) for n in range(0, 20, 2)]
