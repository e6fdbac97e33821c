"""Formats of Spark's passed through, and tables that a stream is joined with."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from moldau.pipelines.model.pipeline import Pipeline, Source, Step
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.parts import copy, given, problems, run, start
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually


def test_any_format_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    rate = {"connector": "spark", "spark.format": "rate-micro-batch", "rowsPerBatch": 5, "numPartitions": 1}
    for write in ("stream", "batch"):
        sink = {"connector": "spark", "spark.format": "orc", "path": f"{write}.orc", "write": write}
        settings = {"checkpoint": write, "trigger": "0 seconds"}
        query = start(spark, copy(tmp_path, rate, sink, settings=settings))
        try:
            eventually(lambda query=query: query.recentProgress[2:], "two batches")
        finally:
            query.stop()
        values = sorted(row.value for row in spark.read.orc(str(tmp_path / f"{write}.orc")).collect())
        assert values == list(range(len(values)))
        assert len(values) >= 10
    assert "list: an option of a Spark format is text" in "\n".join(problems("spark", list=[1]))


def test_a_stream_is_joined_with_a_compacted_topic_and_a_directory_as_tables(
    spark: SparkSession, tmp_path: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    users = new_topic(2)

    def user(name: str, **fields: object) -> dict[str, object]:
        return {"key": name.encode(), "value": json.dumps(fields).encode() if fields else None}

    produce(
        bootstrap,
        users,
        [user("a", city="Praha"), user("b", city="Písek"), user("a", city="Plzeň"), user("c", city="x")],
    )
    produce(bootstrap, users, [user("c")])
    (tmp_path / "levels").mkdir()
    (tmp_path / "levels/1.csv").write_text("Plzeň,west\nPísek,south\n")
    clicks = tmp_path / "clicks.log"
    clicks.write_text('{"name": "a"}\n{"name": "b"}\n{"name": "c"}\n')
    step = Step(
        "joined",
        sql="SELECT name, city, side FROM rows JOIN users ON name = key JOIN sides USING (city)",
        inputs=("rows", "users", "sides"),
    )
    pipeline = copy(
        tmp_path,
        {"connector": "lines", "path": "clicks.log", "format": "json", "schema": "name STRING"},
        {"connector": "lines", "path": "out"},
        step,
        settings={"kafka.bootstrap.servers": bootstrap, "trigger": "0 seconds"},
    )
    topic = {"topic": users, "format": "json", "schema": "city STRING", "metadata": "key", "static": True}
    files = {"path": "levels", "format": "csv", "schema": "city STRING, side STRING", "static": True}
    tables = (Source("users", "topic", given(topic)), Source("sides", "directory", given(files)))
    pipeline = Pipeline(**{**vars(pipeline), "sources": (*pipeline.sources, *tables)})

    def lines() -> list[dict[str, str]]:
        out = tmp_path / "out"
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    query = start(spark, pipeline)
    try:
        eventually(lambda: len(lines()) == 2, "the first clicks")
        assert {row["name"]: row["city"] for row in lines()} == {"a": "Plzeň", "b": "Písek"}  # c was deleted
        produce(bootstrap, users, [user("c", city="Písek")])
        with clicks.open("a") as file:
            file.write('{"name": "c"}\n')
        eventually(lambda: len(lines()) == 3, "a click of a user who came after the query")
    finally:
        query.stop()
    assert lines()[-1] == {"name": "c", "city": "Písek", "side": "south"}


def test_a_batch_of_a_table_is_all_of_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = {"connector": "generator", "schema": "id BIGINT", "rows": 3, "fields": {"id": {"sequence": 0}}}
    run(spark, copy(tmp_path, rows, {"connector": "spark", "spark.format": "json", "path": "out"}))
    assert sorted(row.id for row in spark.read.json(str(tmp_path / "out")).collect()) == [0, 1, 2]
