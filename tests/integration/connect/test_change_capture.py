"""Change capture from a real PostgreSQL: what it promises, with the reader itself and through Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.errors import ConfigError, DataLossError
from moldau.pipelines.connectors.change_capture import source as source_module
from moldau.pipelines.connectors.change_capture.forms import JsonForm
from moldau.pipelines.connectors.change_capture.source import CaptureSpec, CaptureStreamReader, pickled
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.model.options import Given
from tests.integration.connect.logical_postgres import LogicalDatabase, logical_postgres
from tests.integration.pipelines.parts import copy, forget_commit, read_batch, run, start
from tests.integration.pipelines.processes import read_topic
from tests.integration.waiting import eventually

Offset = dict[str, Any]
ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, name TEXT)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with logical_postgres(tmp_path_factory.mktemp("logical")) as url:
        yield url


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[LogicalDatabase]:
    name = f"db_{abs(hash(request.node.name))}"
    LogicalDatabase(server, "postgres").run(f"CREATE DATABASE {name}")
    database = LogicalDatabase(server, name)
    yield database
    database.drop_slots()


def spec(database: LogicalDatabase, **changed: Any) -> CaptureSpec:
    plain = CaptureSpec(
        tables=[r"public\.orders"],
        slot=f"s_{database.name}"[:60],
        publication="captured",
        publication_mode="filtered",
        snapshot="initial",
        excluded=[],
        batch_bytes_max=64 * 1024 * 1024,
        heartbeat_ms=10_000,
        heartbeat_query="",
        form=pickled(JsonForm()),
    )
    return replace(plain, **changed)


class Reading:
    """A query without Spark: one reader, driven as Spark does with `availableNow`."""

    def __init__(self, database: LogicalDatabase, start: Offset | None = None, **changed: Any) -> None:
        self.reader = CaptureStreamReader(spec(database, **changed), database.url)
        self.offset: Offset = start or {}

    def plan(self) -> tuple[Offset, Offset]:
        """The next batch."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        start, self.offset = self.offset, end
        return start, end

    def rows(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        parts = self.reader.partitions(start, end)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def all_rows(self) -> list[dict[str, Any]]:
        self.reader.prepareForTriggerAvailableNow()
        found: list[dict[str, Any]] = []
        while (batch := self.plan())[0] != batch[1]:
            found += self.rows(*batch)
            self.reader.commit(batch[1])
        return found

    def close(self) -> None:
        self.reader.stop()


def brief(rows: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(row["op"], json.loads(row["after"] or row["before"])) for row in rows]


def test_a_snapshot_and_the_changes_after_it_have_each_row_once(database: LogicalDatabase) -> None:
    database.run(ORDERS, "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    reading = Reading(database)
    batch = reading.plan()
    database.run("UPDATE orders SET name = 'later' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    snapshot = reading.rows(*batch)  # as it was when the batch was planned
    assert brief(snapshot) == [("r", {"id": 1, "name": "a"}), ("r", {"id": 2, "name": "b"})]
    assert brief(reading.all_rows()) == [("u", {"id": 1, "name": "later"}), ("d", {"id": 2, "name": None})]
    reading.close()


def test_an_interrupted_batch_is_read_again_and_is_the_same(database: LogicalDatabase) -> None:
    database.run(ORDERS)
    reading = Reading(database)
    reading.all_rows()
    database.run("INSERT INTO orders SELECT g, 'x' FROM generate_series(1, 100) g")
    reading.reader.prepareForTriggerAvailableNow()
    batch = reading.plan()
    first = reading.rows(*batch)
    reading.close()
    database.run("DELETE FROM orders", "INSERT INTO orders VALUES (1, 'new')")  # none of this is in the batch
    again = Reading(database, batch[0])
    assert len(first) == 100
    assert again.rows(*batch) == first
    again.close()


def test_a_snapshot_that_is_interrupted_loses_nothing(database: LogicalDatabase) -> None:
    database.run(ORDERS, "INSERT INTO orders VALUES (1, 'a')")
    reading = Reading(database)
    batch = reading.plan()
    reading.close()
    database.run("UPDATE orders SET name = 'b'", "INSERT INTO orders VALUES (2, 'c')")
    again = Reading(database, batch[1])
    rows = again.rows(*batch) + again.all_rows()
    assert {row["key"]: json.loads(row["after"])["name"] for row in rows} == {'{"id":1}': "b", '{"id":2}': "c"}
    again.close()


def test_changes_come_in_the_order_of_commits_and_a_late_commit_is_not_lost(database: LogicalDatabase) -> None:
    database.run(ORDERS)
    reading = Reading(database)
    reading.all_rows()
    late = database.connect()
    late.execute("BEGIN")
    late.execute("INSERT INTO orders VALUES (1, 'began first')")
    database.run("INSERT INTO orders VALUES (2, 'committed first')", "INSERT INTO orders VALUES (3, 'x')")
    assert [row["key"] for row in reading.all_rows()] == ['{"id":2}', '{"id":3}']
    late.execute("INSERT INTO orders VALUES (4, 'same transaction')")
    late.execute("COMMIT")
    rows = reading.all_rows()
    assert [(row["key"], row["seq"]) for row in rows] == [('{"id":1}', 0), ('{"id":4}', 1)]
    assert len({(row["lsn"], row["xid"]) for row in rows}) == 1
    late.close()
    reading.close()


def test_a_table_that_is_added_later_gets_its_snapshot(
    database: LogicalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(ORDERS)
    reading = Reading(database)
    reading.all_rows()
    reading.close()
    database.run("CREATE TABLE users (id INT PRIMARY KEY)", "INSERT INTO users VALUES (1)")
    late = database.connect()
    late.execute("BEGIN")
    late.execute("INSERT INTO users VALUES (2)")  # before the table is published
    monkeypatch.setattr(source_module, "_BARRIER_S", 0.2)
    tables = [r"public\.orders", r"public\.users"]
    waiting = Reading(database, reading.offset, tables=tables)
    database.run("INSERT INTO orders VALUES (1, 'goes on')")
    assert [row["table"] for row in waiting.all_rows()] == ["orders"]
    waiting.close()
    late.execute("COMMIT")
    late.close()
    after = Reading(database, waiting.offset, tables=tables)
    database.run("INSERT INTO users VALUES (3)", "INSERT INTO orders VALUES (2, 'x')")
    rows = after.all_rows()
    assert [(row["op"], row["key"]) for row in rows if row["table"] == "users"] == [
        ("r", '{"id":1}'),
        ("r", '{"id":2}'),
        ("r", '{"id":3}'),
    ]
    assert [row["key"] for row in rows if row["table"] == "orders"] == ['{"id":2}']
    database.run("DELETE FROM users WHERE id = 3")
    assert [(row["op"], row["key"]) for row in after.all_rows()] == [("d", '{"id":3}')]
    after.close()


def test_nothing_is_lost_when_snapshots_are_taken_under_writes(database: LogicalDatabase) -> None:
    database.run(ORDERS)
    stopped = threading.Event()

    def write() -> None:
        connection = database.connect()
        for number in range(100_000):
            if stopped.is_set():
                break
            connection.execute(f"INSERT INTO orders VALUES ({number}, 'x')")
            connection.execute(f"DELETE FROM orders WHERE id = {number - 7}")
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    kept: dict[str, str | None] = {}
    try:
        eventually(lambda: database.ask("SELECT max(id) > 20 FROM orders")[0][0], "rows")
        reading = Reading(database)
        batches = [reading.all_rows() for _ in range(5)]
    finally:
        stopped.set()
        writer.join()
    for row in [row for batch in (*batches, reading.all_rows()) for row in batch]:
        assert row["op"] == "d" or row["key"] not in kept, "a row came twice"
        kept |= {row["key"]: row["after"]}
        if row["op"] == "d":
            del kept[row["key"]]
    assert {json.loads(key)["id"] for key in kept} == {key for (key,) in database.ask("SELECT id FROM orders")}
    reading.close()


def test_a_large_transaction_does_not_make_the_readers_memory_grow(database: LogicalDatabase) -> None:
    database.run(ORDERS)
    reading = Reading(database, batch_bytes_max=2**40)
    reading.all_rows()
    database.run("INSERT INTO orders SELECT g, repeat('x', 1000) FROM generate_series(1, 100000) g")
    reading.reader.prepareForTriggerAvailableNow()
    (part,) = reading.reader.partitions(*reading.plan())
    process, sizes, rows = psutil.Process(), list[int](), 0
    for batch in reading.reader.read(part):
        sizes.append(process.memory_info().rss)
        rows += len(batch)
        assert batch.nbytes < 16 * 1024 * 1024
    assert rows == 100_000
    assert max(sizes) - sizes[0] < 50 * 1024 * 1024  # of 100 MB
    reading.close()


def test_what_is_wrong_is_said_with_what_to_do(database: LogicalDatabase) -> None:
    database.run(ORDERS, "CREATE TABLE keyless (id INT)")
    with pytest.raises(ConfigError, match=r"no table public\.order,"):
        Reading(database, tables=[r"public\.order"]).plan()
    with pytest.raises(ConfigError, match=r"keyless has no primary key.*REPLICA IDENTITY"):
        Reading(database, tables=[r"public\.keyless"]).plan()
    with pytest.raises(ConfigError, match="publication captured does not exist: run CREATE PUBLICATION"):
        Reading(database, publication_mode="disabled").plan()
    reading = Reading(database)
    reading.all_rows()
    database.run("INSERT INTO orders VALUES (1, 'x')")
    slot = spec(database).slot
    other = Reading(database, reading.offset)
    assert len(other.all_rows()) == 1
    other.all_rows()  # advances the slot
    database.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with pytest.raises(DataLossError, match="something else has advanced it"):
        reading.all_rows()
    database.run(f"SELECT pg_drop_replication_slot('{slot}')")
    with pytest.raises(DataLossError, match=r"does not exist anymore.*new snapshot"):
        other.all_rows()
    reading.close()
    other.close()


def test_a_user_without_rights_is_told_which_are_missing(database: LogicalDatabase) -> None:
    role = f"weak_{database.name}"[:60]
    database.run(ORDERS, f"CREATE ROLE {role} LOGIN")
    weak = f"{database.url}&user={role}".replace("postgres:@", "@")
    reader = CaptureStreamReader(spec(database), weak)
    with pytest.raises(ConfigError, match=f'ALTER ROLE "{role}" REPLICATION'):
        reader.latestOffset({}, ReadAllAvailable())
    database.run(f"ALTER ROLE {role} REPLICATION")
    reader = CaptureStreamReader(spec(database), weak)
    with pytest.raises(ConfigError, match="permission denied"):
        reader.latestOffset({}, ReadAllAvailable())
    reader.stop()


TYPES = {
    "small SMALLINT": ("7", 7),
    "large BIGINT": ("9223372036854775807", 2**63 - 1),
    "price NUMERIC(10,2)": ("12.50", 12.50),
    "ratio DOUBLE PRECISION": ("0.1", 0.1),
    "paid BOOLEAN": ("true", True),
    "day DATE": ("'2026-11-18'", "2026-11-18"),
    "local TIMESTAMP": ("'2026-11-18 01:02:03.5'", "2026-11-18T01:02:03.500"),
    "at TIMESTAMPTZ": ("'2026-11-18 01:02:03.5+00'", "2026-11-18T01:02:03.500Z"),
    "raw BYTEA": ("'\\x00ff'", "AP8="),
    "doc JSONB": ("'{\"a\": [1]}'", '{"a": [1]}'),
    "ref UUID": ("'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
    "tags TEXT[]": ("'{a,b}'", "{a,b}"),
    "empty TEXT": ("NULL", None),
}


def test_a_pipeline_gets_typed_rows_of_one_table_exactly_once(
    spark: SparkSession, tmp_path: Path, database: LogicalDatabase
) -> None:
    columns = ", ".join(TYPES)
    literals = ", ".join(literal for literal, _ in TYPES.values())
    row = {name.split()[0]: value for name, (_, value) in TYPES.items()}
    database.run(f"CREATE TABLE orders (id INT PRIMARY KEY, {columns})", f"INSERT INTO orders VALUES (1, {literals})")
    slot = spec(database).slot
    source = {"connector": "cdc", "url": database.url, "tables": "orders", "slot": slot}
    settings = {"spark": {"spark.sql.session.timeZone": "UTC"}}
    pipeline = copy(tmp_path, source, {"connector": "lines", "path": "out.jsonl"}, settings=settings)
    run(spark, pipeline)
    database.run(f"INSERT INTO orders VALUES (2, {literals})", "UPDATE orders SET id = 3 WHERE id = 2")
    run(spark, pipeline)
    checkpoint = tmp_path / "checkpoints/copy/out"
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    forget_commit(checkpoint / "commits", last)  # the last batch is read and written again
    database.run("DELETE FROM orders WHERE id = 3")
    run(spark, pipeline)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["op"], each["key"]["id"]) for each in rows] == [("r", 1), ("c", 2), ("d", 2), ("c", 3), ("d", 3)]
    assert [each["after"] for each in rows[:2]] == [{"id": 1, **row}, {"id": 2, **row}]
    assert read_batch(spark, pipeline).select("key.id").collect() == [(1,)]


def test_a_quiet_table_lets_postgresql_free_its_log(
    spark: SparkSession, tmp_path: Path, database: LogicalDatabase
) -> None:
    database.run(ORDERS, "CREATE TABLE busy (id INT)")
    slot = spec(database).slot
    source = {"connector": "cdc", "url": database.url, "tables": "orders", "slot": slot, "heartbeat": "100 ms"}
    pipeline = copy(tmp_path, source, {"connector": "lines", "path": "out.jsonl"}, settings={"trigger": "0 seconds"})
    query = start(spark, pipeline)
    try:
        position = f"SELECT confirmed_flush_lsn > '%s' FROM pg_replication_slots WHERE slot_name = '{slot}'"
        eventually(lambda: database.ask(position % "0/0") == [(True,)], "the slot")
        database.run("INSERT INTO busy SELECT generate_series(1, 10000)")
        ((end,),) = database.ask("SELECT pg_current_wal_lsn()")

        def is_freed() -> bool:
            database.run("INSERT INTO busy VALUES (1)")
            return bool(database.ask(position % end) == [(True,)])

        eventually(is_freed, "the slot moves past what was written to another table")
    finally:
        query.stop()


def test_debeziums_configuration_writes_debeziums_events(
    spark: SparkSession, tmp_path: Path, bootstrap: str, database: LogicalDatabase
) -> None:
    database.run(ORDERS, "CREATE TABLE users (name TEXT PRIMARY KEY, born DATE, score NUMERIC(5,1))")
    database.run("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO users VALUES ('eva', '1970-01-11', 12.5)")
    prefix = f"p{database.name}"
    config = {
        "connector.class": "PostgresConnector",
        "database.hostname": quote(database.url.partition("host=")[2], safe=""),
        "database.user": "postgres",
        "database.dbname": database.name,
        "topic.prefix": prefix,
        "table.include.list": "public.orders,public.users",
        "publication.autocreate.mode": "filtered",
        "slot.name": spec(database).slot,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    worker = {"bootstrap.servers": bootstrap}
    pipeline = to_pipeline("changes", config, worker, str(tmp_path / "checkpoints"), tmp_path)
    pipeline = replace(pipeline, settings={**pipeline.settings, "trigger": Given("available now")})
    run(spark, pipeline)
    database.run("BEGIN; UPDATE orders SET name = 'b'; DELETE FROM orders; COMMIT")
    run(spark, pipeline)
    orders = read_topic(bootstrap, f"{prefix}.public.orders")
    assert [record.key for record in orders] == [b'{"id":1}'] * 4
    payloads = [record.json and record.json["payload"] for record in orders]
    assert [payload and payload["op"] for payload in payloads] == ["r", "u", "d", None]
    assert payloads[1]["after"] == {"id": 1, "name": "b"}
    assert payloads[1]["source"]["txId"] == payloads[2]["source"]["txId"]
    assert orders[0].json["schema"]["name"] == f"{prefix}.public.orders.Envelope"
    (user,) = read_topic(bootstrap, f"{prefix}.public.users")
    assert user.json["payload"]["after"] == {"name": "eva", "born": 10, "score": "fQ=="}
    fields = {field["field"]: field for field in user.json["schema"]["fields"]}
    names = {field["field"]: field.get("name") for field in fields["after"]["fields"]}
    assert names["born"] == "io.debezium.time.Date"
