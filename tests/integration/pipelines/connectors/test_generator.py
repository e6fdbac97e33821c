"""The generator in a stream: its rate, its end, and a batch that is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from moldau.pipelines.engine.queries import Settings, read_request
from moldau.pipelines.model.options import Given
from tests.integration.pipelines.parts import copy, read_batch
from tests.integration.waiting import eventually

GENERATOR: dict[str, Any] = {
    "connector": "generator",
    "schema": "id BIGINT, page STRING, at TIMESTAMP",
    "rows per second": 500,
    "rows": 1200,
    "fields": {"id": {"sequence": 0}, "page": {"choices": ["/", "/cart"]}},
}


def test_a_stream_has_each_row_once_and_a_repeated_batch_has_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    from moldau.pipelines.connectors.registry import connector

    pipeline = copy(tmp_path, GENERATOR, {"connector": "topic", "topic": "unused"})
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    frame = connector("generator").read(read_request(session, pipeline, pipeline.sources[0], Settings.of(pipeline)))
    seen: list[tuple[int, list[Any]]] = []

    def keep(rows: DataFrame, batch: int) -> None:
        seen.append((batch, sorted(rows.collect())))
        if len(seen) == 2:
            raise RuntimeError("this batch is to be repeated")

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    eventually(lambda: not query.isActive, "the second batch failed")
    query = writer.start()
    try:
        eventually(lambda: sum(len(rows) for _, rows in seen[:1] + seen[2:]) >= 1200, "all rows")
    finally:
        query.stop()
    assert seen[1] == seen[2]  # timestamps as well
    rows = [row for _, batch in seen[:1] + seen[2:] for row in batch]
    assert [row.id for row in rows] == list(range(1200))
    assert [row.at for row in rows] == sorted(row.at for row in rows)


def test_a_preview_has_some_rows_although_there_is_no_end(spark: SparkSession, tmp_path: Path) -> None:
    endless = {name: value for name, value in GENERATOR.items() if name != "rows"}
    pipeline = copy(tmp_path, endless, {"connector": "topic", "topic": "unused"})
    assert read_batch(spark, pipeline).count() == 1000
    assert isinstance(pipeline.sources[0].options["schema"], Given)
