"""Tables of real PostgreSQL and SQLite: read with all their types, and written exactly once."""

from __future__ import annotations

import datetime
import json
import random
import time
import uuid
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.errors import MoldauError
from moldau.pipelines.connectors.database.sessions import opened
from moldau.pipelines.connectors.database.sink import TableSink
from moldau.pipelines.connectors.database.source import TableSpec, TableStreamReader
from moldau.pipelines.connectors.database.source_sql import SourceSql, relation
from moldau.pipelines.connectors.database.urls import database
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.engine.queries import Settings, read_request, read_source
from moldau.pipelines.model.options import Given
from soak.broker_process import BrokerProcess
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.connect.postgres import postgres
from tests.integration.pipelines.parts import copy, forget_commit, read_batch, run
from tests.integration.pipelines.processes import PipelineProcess, read_topic
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

__all__ = ["postgres"]

UTC = datetime.UTC
JSON = "org.apache.kafka.connect.json.JsonConverter"
SLOW_S = 250.0


@pytest.fixture
def table() -> str:
    return f"t_{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["postgres", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of each kind."""
    return str(request.getfixturevalue("postgres") if request.param == "postgres" else tmp_path / "shop.db")


def kind(url: str) -> str:
    return database(url).dialect


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with opened(database(url)) as session:
        for statement in statements:
            found = session.rows(statement)
        session.commit()
        return found


def streamed(spark: SparkSession, folder: Path, url: str, **options: Any) -> list[Row]:
    """All rows of a stream that takes what is there, in small batches."""
    named = {name.replace("_", " "): value for name, value in options.items()}
    pipeline = copy(folder, {"connector": kind(url), "url": url, **named}, {"connector": "console"})
    (source,) = pipeline.sources
    frame = read_source(read_request(spark, pipeline, source, Settings.of(pipeline)), source, pipeline).frame
    name = f"q_{uuid.uuid4().hex[:8]}"
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return spark.table(name).collect()


TYPES = {  # the type, a value as SQL, and what it is in Python
    "id": ("bigint PRIMARY KEY", "1", 1),
    "i2": ("smallint", "-32768", -32768),
    "i4": ("int", "2147483647", 2147483647),
    "i8": ("bigint", "9223372036854775807", 9223372036854775807),
    "b": ("boolean", "true", True),
    "f4": ("real", "1.5", 1.5),
    "f8": ("double precision", "0.1", 0.1),
    "n": ("numeric", "12345678901234567890.123456789", "12345678901234567890.123456789"),
    "n2": (
        "numeric(38,10)",
        "-1234567890123456789012345678.0123456789",
        Decimal("-1234567890123456789012345678.0123456789"),
    ),
    "n3": ("numeric(5,0)", "10000", Decimal("10000")),
    "s": ("text", "'Příliš'", "Příliš"),
    "ch": ("char(3)", "'a'", "a  "),
    "by": ("bytea", r"'\x00ff'", b"\x00\xff"),
    "d": ("date", "'1969-12-31'", datetime.date(1969, 12, 31)),
    "ti": ("time", "'10:11:12.5'", "10:11:12.5"),
    "ts": ("timestamp", "'2026-03-29 02:30:00.000001'", datetime.datetime(2026, 3, 29, 2, 30, 0, 1)),
    "tz": ("timestamptz", "'2026-03-29 02:30:00.5+02'", datetime.datetime(2026, 3, 29, 0, 30, 0, 500000, UTC)),
    "iv": ("interval", "'1 day 2 hours'", "1 day 02:00:00"),
    "u": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "j": ("jsonb", """'{"a": [1, null]}'""", '{"a": [1, null]}'),
    "ar": ("text[]", "ARRAY['a,b', NULL]", '{"a,b",NULL}'),
    "odd name": ("int", "7", 7),
}


def python_values(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()
    }
    if values.get("tz"):
        values["tz"] = values["tz"].astimezone(UTC)
    return values


@pytest.mark.parametrize("mode", [{}, {"mode": "incrementing", "incrementing_column": "id", "safety_lag": "0 ms"}])
def test_every_type_of_postgresql_arrives_value_by_value(
    spark: SparkSession, postgres: str, table: str, tmp_path: Path, mode: dict[str, str]
) -> None:
    columns = ", ".join(f'"{name}" {declared}' for name, (declared, *_) in TYPES.items())
    values = ", ".join(value for _, value, _ in TYPES.values())
    with psycopg.connect(postgres) as connection:
        connection.execute(f"CREATE TABLE {table} ({columns})".encode())
        connection.execute(f"INSERT INTO {table} VALUES ({values})".encode())
        connection.execute(f"INSERT INTO {table} (id) VALUES (2)".encode())
        # What Arrow and Spark have no value for is null.
        connection.execute(
            f"INSERT INTO {table} (id, n2, d, ts, tz) VALUES (3, 'NaN', 'infinity', '-infinity', 'infinity')".encode()
        )
    rows = sorted(streamed(spark, tmp_path, postgres, table=table, **mode), key=lambda row: row["id"])
    empty = dict.fromkeys(TYPES, None)
    assert [python_values(row) for row in rows] == [
        {name: expected for name, (_, _, expected) in TYPES.items()},
        empty | {"id": 2},
        empty | {"id": 3},
    ]


def test_rows_of_sqlite_arrive_with_their_declared_types(spark: SparkSession, table: str, tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    execute(
        url,
        f"CREATE TABLE {table} "
        "(id INTEGER PRIMARY KEY, n DECIMAL(10,2), s TEXT, r REAL, b BLOB, at TIMESTAMP, ok BOOLEAN)",
        f"INSERT INTO {table} VALUES (1, NULL, NULL, NULL, NULL, NULL, NULL), "
        f"(2, 1.25, 'x', 0.5, x'00ff', '2026-01-31 12:00:00', 1)",
    )
    rows = streamed(spark, tmp_path, url, query=f"SELECT * FROM {table}", mode="incrementing", incrementing_column="id",
                    maxRowsPerTrigger=1, safety_lag="0 ms")  # fmt: skip
    moment = datetime.datetime(2026, 1, 31, 12)
    assert [tuple(row) for row in rows] == [
        (1, *[None] * 6),
        (2, Decimal("1.25"), "x", 0.5, bytearray(b"\x00\xff"), moment, True),
    ]


def reader_of(postgres: str, table: str, mode: str, lag_ms: int) -> TableStreamReader:
    found = database(postgres)
    with opened(found) as session:
        columns = session.columns(relation(table, None))
    statements = SourceSql.of(
        "postgres", relation(table, None), columns, mode=mode, incrementing="id", timestamps=["at"], lag_ms=lag_ms
    )
    return TableStreamReader(TableSpec(found, statements, 0, 100))


def take(reader: TableStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [number for batch in batches for number in batch.column("id").to_pylist()], end


@pytest.mark.parametrize("mode", ["incrementing", "timestamp", "timestamp+incrementing"])
@pytest.mark.parametrize(("lag_ms", "expected"), [(1_000, [1, 2]), (0, [2])])
def test_rows_committed_late_arrive_if_the_safety_lag_is_longer_than_their_transaction(
    postgres: str, table: str, mode: str, lag_ms: int, expected: list[int]
) -> None:
    execute(postgres, f"CREATE TABLE {table} (id bigint, at timestamptz DEFAULT clock_timestamp())")
    reader, offset, found = reader_of(postgres, table, mode, lag_ms), dict[str, Any](), list[int]()

    def look() -> list[int]:
        nonlocal offset
        rows, offset = take(reader, offset)
        found.extend(rows)
        return found

    with psycopg.connect(postgres) as late:
        late.execute(f"INSERT INTO {table} VALUES (1)".encode())
        execute(postgres, f"INSERT INTO {table} VALUES (2)")
        look()
        if lag_ms == 0:
            eventually(look, "the row that was committed is read")
    eventually(lambda: len(look()) == len(expected), "what can be read is read")
    look()
    assert found == expected
    assert execute(postgres, f"SELECT count(*) FROM {table}") == [(2,)]


def test_a_batch_can_be_read_again_and_in_parts(postgres: str, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} AS SELECT 3 * n AS id, now() AS at FROM generate_series(1, 250000) AS n")
    reader = reader_of(postgres, table, "incrementing", 0)
    reader._spec = replace(reader._spec, rows_max=240_000)
    end = reader.latestOffset({}, ReadAllAvailable())
    assert len(reader.partitions({}, end)) == 3
    execute(postgres, f"INSERT INTO {table} VALUES (900000)")
    again = reader_of(postgres, table, "incrementing", 0)  # after a restart
    for each in (reader, again):
        parts = [
            [n for batch in each.read(part) for n in batch.column("id").to_pylist()]
            for part in each.partitions({}, end)
        ]
        assert [number for part in parts for number in part] == list(range(3, 720_001, 3))


def test_the_first_batch_of_a_pipeline_that_starts_now_is_the_same_when_it_is_repeated(
    postgres: str, table: str
) -> None:
    execute(postgres, f"CREATE TABLE {table} (id bigint, at timestamptz DEFAULT clock_timestamp())")
    execute(postgres, f"INSERT INTO {table} VALUES (1)")
    reader = reader_of(postgres, table, "timestamp", 0)
    reader._spec = replace(reader._spec, initial="now")
    start = reader.initialOffset()
    execute(postgres, f"INSERT INTO {table} VALUES (2)")
    found, end = take(reader, start)
    assert found == [2]
    later = reader.initialOffset()  # Spark asks again
    assert later != start
    again = [batch for part in reader.partitions(later, end) for batch in reader.read(part)]
    assert [number for batch in again for number in batch.column("id").to_pylist()] == [2]


def sink(url: str, table: str, **options: Any) -> TableSink:
    return TableSink(database(url), "out", table, **options)


def test_all_types_are_written_to_a_table_made_for_them_and_come_back(
    spark: SparkSession, where: str, table: str, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT 1L AS id, true AS b, 1Y AS i1, 2S AS i2, 3 AS i4, 1.5F AS f4, 0.1D AS f8, "
        "CAST('-1234567890.0123456789' AS DECIMAL(38,10)) AS n, 'Příliš' AS s, X'00ff' AS by, DATE'1969-12-31' AS d, "
        "TIMESTAMP'2026-03-29 02:30:00.000001Z' AS tz, TIMESTAMP_NTZ'2026-03-29 02:30:00' AS ts, "
        "array(1, null) AS ar, struct('x' AS y) AS st, 7 AS `odd \"name`"
    )
    frame = frame.unionByName(spark.sql("SELECT 2L AS id"), allowMissingColumns=True)
    sink(where, table, creates=True, keys=("id",)).write(frame, 0)
    source = {"connector": kind(where), "url": where, "table": table}
    rows = sorted(
        read_batch(spark, copy(tmp_path, source, {"connector": "console"})).collect(), key=lambda row: row["id"]
    )
    first = python_values(rows[0])
    is_postgres = kind(where) == "postgres"
    expected = python_values(frame.where("id = 1").collect()[0]) | {
        "ar": "[1, null]" if is_postgres else "[1,null]",
        "st": '{"y": "x"}' if is_postgres else '{"y":"x"}',
    }
    if not is_postgres:  # it has no zones
        first["tz"] = first["tz"].replace(tzinfo=UTC)
        expected["n"] = first["n"]  # nor decimals: numbers of that many digits are rounded
        assert float(first["n"]) == pytest.approx(-1234567890.0123456789)
    assert first == expected
    assert {*rows[1].asDict().values()} == {2, None}


def test_rows_fit_the_types_of_a_table_that_is_there(spark: SparkSession, postgres: str, table: str) -> None:
    execute(
        postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, u uuid, j jsonb, ar int[], n numeric(12,3), v varchar(3))"
    )
    uid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    good = spark.sql(f"SELECT 1L AS id, '{uid}' AS u, '[1]' AS j, array(1, null, 3) AS ar, 1.5BD AS n, 'abc' AS v")
    sink(postgres, table).write(good, 0)
    with psycopg.connect(postgres) as connection:
        found = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
    assert found == [(1, uuid.UUID(uid), [1], [1, None, 3], Decimal("1.500"), "abc")]
    with pytest.raises(MoldauError, match="value too long for type character varying"):  # and not cut
        sink(postgres, table).write(spark.sql("SELECT 2 AS id, 'abcd' AS v"), 1)


def test_modes_of_a_sink_and_its_repeated_batches(spark: SparkSession, where: str, table: str) -> None:
    def frame(*rows: tuple[int, str | None, bool]) -> Any:
        return spark.createDataFrame(rows, "id INT, name STRING, gone BOOLEAN").coalesce(1)

    def found() -> list[tuple[Any, ...]]:
        return execute(where, f"SELECT id, name FROM {table} ORDER BY id")

    with pytest.raises(MoldauError, match=f"there is no table {table}: create it, or set `auto create: true`"):
        sink(where, table).write(frame((1, "a", False)), 0)
    upserts = sink(where, table, mode="upsert", keys=("id",), delete="gone", exclude=("gone",), creates=True)
    upserts.write(frame((1, "a", False), (2, "b", False), (1, "c", False), (3, "d", False), (3, None, True)), 0)
    assert found() == [(1, "c"), (2, "b")]
    upserts.write(frame((1, "again", False)), 0)  # a repeated batch
    assert found() == [(1, "c"), (2, "b")]
    upserts.write(frame((2, None, True), (1, None, False), (4, "e", False)), 1)
    assert found() == [(1, None), (4, "e")]
    updates = sink(where, table, mode="update", keys=("id",), exclude=("gone",))
    updates.write(frame((1, "f", False), (9, "g", False)), 2)
    assert found() == [(1, "f"), (4, "e")]
    inserts = sink(where, table, exclude=("gone",))
    for _ in range(2):
        inserts.write(frame((5, "h", False)), 3)
    assert found() == [(1, "f"), (4, "e"), (5, "h")]
    with pytest.raises(MoldauError, match=r"(?i)unique"):
        inserts.write(frame((6, "new", False), (5, "double", False)), 4)
    assert (6, "new") not in found()  # all of a batch or nothing
    with pytest.raises(MoldauError, match="has no column 'gone'"):
        sink(where, table).write(frame((7, "i", False)), 4)
    sink(where, table, evolves=True).write(frame((7, "i", True)), 4)
    assert execute(where, f"SELECT id FROM {table} WHERE gone") == [(7,)]
    with opened(database(where)) as session:
        assert session.tables("moldau_stage_") == []


def test_a_pipeline_repeats_a_batch_whose_commit_was_lost(
    spark: SparkSession, where: str, table: str, tmp_path: Path
) -> None:
    execute(where, f"CREATE TABLE {table}_from (id BIGINT PRIMARY KEY)")
    execute(where, f"INSERT INTO {table}_from VALUES (1), (2), (3)")
    database_options = {"connector": kind(where), "url": where}
    source = database_options | {
        "table": f"{table}_from", "mode": "incrementing", "incrementing column": "id", "maxRowsPerTrigger": 2,
    }  # fmt: skip
    pipeline = copy(tmp_path, source, database_options | {"table": table, "auto create": True})
    run(spark, pipeline)
    forget_commit(tmp_path / "checkpoints" / "copy" / "out" / "commits", 1)
    execute(where, f"INSERT INTO {table}_from VALUES (4)")
    run(spark, pipeline)
    assert execute(where, f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,), (4,)]


def run_connector(spark: SparkSession, folder: Path, bootstrap: str, name: str, config: dict[str, str]) -> None:
    worker = {"bootstrap.servers": bootstrap, "key.converter": JSON, "value.converter": JSON}
    made = to_pipeline(name, config, worker, str(folder / "checkpoints"), folder)
    run(spark, replace(made, settings={**made.settings, "trigger": Given("available now")}))


def test_connects_source_and_sink_copy_a_table_through_a_topic(
    spark: SparkSession, bootstrap: str, where: str, table: str, tmp_path: Path
) -> None:
    execute(where, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name TEXT, price NUMERIC(10,2))")
    execute(where, f"INSERT INTO {table} VALUES (1, 'a', 1.25), (2, NULL, NULL)")
    make_topic(bootstrap, name=f"shop-{table}")
    url = {"connection.url": where}
    run_connector(spark, tmp_path, bootstrap, "from", url | {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector", "mode": "incrementing",
        "incrementing.column.name": "id", "table.whitelist": table, "topic.prefix": "shop-",
        "numeric.mapping": "best_fit",
    })  # fmt: skip
    records = read_topic(bootstrap, f"shop-{table}")
    assert [record.json["payload"] for record in records] == [
        {"id": 1, "name": "a", "price": 1.25},
        {"id": 2, "name": None, "price": None},
    ]
    assert {record.key for record in records} == {None}
    run_connector(spark, tmp_path, bootstrap, "to", url | {
        "connector.class": "JdbcSink", "topics": f"shop-{table}", "table.name.format": "copy_of_${topic}",
        "insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id", "auto.create": "true",
    })  # fmt: skip
    assert execute(where, f'SELECT id, name, price FROM "copy_of_shop-{table}" ORDER BY id') == [
        (1, "a", 1.25),
        (2, None, None),
    ]


def test_tombstones_delete_and_each_topic_has_its_table(
    spark: SparkSession, bootstrap: str, where: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    orders, people = new_topic(), new_topic()

    def record(key: int, value: dict[str, Any] | None) -> dict[str, Any]:
        return {"key": json.dumps({"id": key}).encode(), "value": None if value is None else json.dumps(value).encode()}

    produce(bootstrap, orders, [record(1, {"item": "a"}), record(2, {"item": "b"}), record(1, None)])
    produce(bootstrap, people, [record(1, {"name": "Ann"})])
    config = {
        "connector.class": "io.aiven.connect.jdbc.JdbcSinkConnector", "connection.url": where,
        "topics": f"{orders},{people}", "pk.mode": "record_key", "delete.enabled": "true", "insert.mode": "upsert",
        "auto.create": "true", "key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false",
        "key.converter": JSON, "value.converter": JSON,
    }  # fmt: skip
    run_connector(spark, tmp_path, bootstrap, "deletes", config)
    assert execute(where, f'SELECT id, item FROM "{orders}"') == [(2, "b")]
    assert execute(where, f'SELECT id, name FROM "{people}"') == [(1, "Ann")]
    produce(bootstrap, orders, [record(2, None), record(3, {"item": "c"})])
    run_connector(spark, tmp_path, bootstrap, "deletes", config)
    assert execute(where, f'SELECT id, item FROM "{orders}"') == [(3, "c")]


KILLED = """
sources:
  orders: {connector: postgres, url: "%(url)s", table: orders_in, mode: incrementing, incrementing column: id,
           safety lag: 300 ms, poll: 50 ms, maxRowsPerTrigger: 100}
  copied: {connector: topic, topic: copied, format: json, schema: "id BIGINT, name STRING", maxOffsetsPerTrigger: 150}
sinks:
  to_topic: {connector: topic, topic: copied, from: orders}
  to_table: {connector: postgres, url: "%(url)s", table: orders_out, from: copied, auto create: true}
"""


@pytest.mark.timeout(600)
def test_each_row_is_once_in_topic_and_table_over_kills(postgres: str, tmp_path: Path) -> None:
    draw = random.Random(7)
    execute(postgres, "CREATE TABLE orders_in (id bigserial PRIMARY KEY, name text)")
    (tmp_path / "orders.yaml").write_text(KILLED % {"url": postgres})

    def insert(count: int) -> None:
        execute(postgres, f"INSERT INTO orders_in (name) SELECT 'n' || n FROM generate_series(1, {count}) AS n")

    def written() -> int:
        with opened(database(postgres)) as session:
            return session.rows("SELECT count(*) FROM orders_out")[0][0] if session.targets("orders_out") else 0

    def is_more_than(before: int) -> bool:
        return written() > before

    with BrokerProcess(tmp_path / "broker", log_level="WARNING") as broker:
        make_topic(broker.bootstrap, 2, name="copied")
        arguments = ("orders.yaml", "--bootstrap-server", broker.bootstrap)
        for _ in range(2):
            insert(500)
            before = written()
            with PipelineProcess(tmp_path, *arguments) as process:
                process.until(partial(is_more_than, before), "rows arrive", SLOW_S)
                insert(300)
                time.sleep(draw.uniform(0, 1))  # anywhere in a batch
                process.kill()
        with PipelineProcess(tmp_path, *arguments) as process:
            process.until(lambda: written() >= 1600, "all rows have arrived", SLOW_S)
            assert process.stop() == 0
        copied = [record.json["id"] for record in read_topic(broker.bootstrap, "copied")]
    assert sorted(copied) == list(range(1, 1601))
    assert execute(postgres, "SELECT id FROM orders_out ORDER BY id") == [(number,) for number in range(1, 1601)]
