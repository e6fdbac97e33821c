"""Batch reads through a real Spark: the records are those that were written, and no more is read than asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

import moldau.spark
from moldau import Broker
from moldau.errors import ConfigError
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.spark.topics import FLUSH_S, frame, numbered, produce, sentence, source, values
from tests.integration.waiting import eventually

AT_MS = 1_700_000_000_000
PARTITIONS = 3
RECORDS = [
    {
        "key": None if number % 5 == 0 else b"key-%d" % number,
        "value": None if number % 7 == 0 else b"value-%d" % number,
        "headers": [("n", b"%d" % number), ("empty", None)] if number % 2 else None,
        "timestamp": AT_MS + number,
        "partition": number % PARTITIONS,
    }
    for number in range(300)
]
EVERY_PARTITION = {"0": 0, "1": 0, "2": 0}


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    return moldau.spark.register(spark.newSession())


@pytest.fixture(scope="module")
def topic(kafka_broker: Broker) -> str:
    name = make_topic(kafka_broker.bootstrap_servers, PARTITIONS)
    produce(kafka_broker.bootstrap_servers, name, RECORDS)
    return name


def test_records_come_as_confluent_kafka_wrote_them(registered: SparkSession, bootstrap: str, topic: str) -> None:
    df = frame(registered, bootstrap, subscribe=topic, includeHeaders=True)
    got = {
        (row.partition, row.offset): {
            "key": row.key,
            "value": row.value,
            "headers": [(header.key, header.value) for header in row.headers] if row.headers is not None else None,
            "timestamp": round(row.timestamp.timestamp() * 1000),
            "partition": row.partition,
        }
        for row in df.collect()
    }
    expected = {(number % PARTITIONS, number // PARTITIONS): record for number, record in enumerate(RECORDS)}
    assert got == expected
    assert {(row.topic, row.timestampType) for row in df.select("topic", "timestampType").distinct().collect()} == {
        (topic, 0)
    }


def test_spark_finds_the_source_without_being_told(spark: SparkSession, bootstrap: str, topic: str) -> None:
    fresh = spark.newSession()
    df = frame(fresh, bootstrap, subscribe=topic)
    assert df.where("partition = 1 and offset >= 90").count() == 10
    assert fresh.conf.get("spark.sql.python.filterPushdown.enabled") == "false"


def test_a_schema_reads_its_columns_alone(registered: SparkSession, bootstrap: str, topic: str) -> None:
    df = frame(registered, bootstrap, "timestamp timestamp, offset bigint", assign=f'{{"{topic}":[2]}}')
    row = df.orderBy("offset").first()
    assert row is not None
    assert (list(row.asDict()), row.offset, df.count()) == (["timestamp", "offset"], 0, 100)


def of(topic: str, offsets: dict[str, int]) -> str:
    return str({topic: offsets}).replace("'", '"')


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"startingOffsets": {"0": 90, "1": -2, "2": 99}}, 10 + 100 + 1),
        ({"endingOffsets": {"0": 5, "1": -1, "2": 0}}, 5 + 100),
        ({"startingTimestamp": AT_MS + 270}, 30),
        ({"endingTimestamp": AT_MS + 270}, 270),
        ({"startingOffsetsByTimestamp": {"0": AT_MS + 297, "1": AT_MS, "2": AT_MS + 240}}, 1 + 100 + 20),
        ({"endingOffsetsByTimestamp": {"0": AT_MS + 3, "1": AT_MS + 1, "2": AT_MS + 10**9}}, 1 + 0 + 100),
        ({"startingTimestamp": AT_MS + 10**9, "startingOffsetsByTimestampStrategy": "latest"}, 0),
        ({"maxOffsetsPerTrigger": 1, "groupIdPrefix": "of no use"}, 300),
        ({"kafka.isolation.level": "read_uncommitted", "kafka.max.partition.fetch.bytes": 1000}, 300),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else "",
)
def test_options_say_where_to_start_and_to_end(
    registered: SparkSession, bootstrap: str, topic: str, given: dict[str, Any], rows: int
) -> None:
    options = {name: of(topic, value) if isinstance(value, dict) else value for name, value in given.items()}
    assert frame(registered, bootstrap, "offset bigint", subscribe=topic, **options).count() == rows


@pytest.mark.parametrize(
    ("given", "tasks"),
    [({}, 3), ({"minPartitions": 6}, 6), ({"maxRecordsPerPartition": 30}, 12), ({"minPartitions": 2}, 3)],
    ids=str,
)
def test_tasks_are_as_many_as_asked_for(
    registered: SparkSession, bootstrap: str, topic: str, given: dict[str, int], tasks: int
) -> None:
    df = frame(registered, bootstrap, "offset bigint", subscribe=topic, **given)
    assert (df.rdd.getNumPartitions(), df.count()) == (tasks, len(RECORDS))


def test_a_pattern_reads_all_topics_it_is_found_in(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    stem = new_topic()
    produce(bootstrap, stem, [b"1"])
    produce(bootstrap, new_topic(name=f"x-{stem}-y"), [b"2"])
    assert values(frame(registered, bootstrap, subscribePattern=f"{stem}(-y)?$")) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("condition", "expected"),  # rows, tasks, and whether Spark still filters
    [
        ("partition = 1", (100, 1, False)),
        ("partition in (0, 2) and offset >= 10 and offset < 20", (20, 2, False)),
        ("topic = 'another'", (0, 1, False)),  # Spark has at least one task
        ("topic like 'topic-%' and not partition = 0", (200, 2, False)),
        ("offset in (3, 50)", (6, 3, True)),
        (f"timestamp >= timestamp_millis({AT_MS + 299})", (1, 1, True)),
        (f"timestamp < timestamp_millis({AT_MS + 3})", (3, 3, True)),
    ],
)
def test_filters_choose_partitions_and_offsets(
    registered: SparkSession, bootstrap: str, topic: str, condition: str, expected: tuple[int, int, bool]
) -> None:
    df = frame(registered, bootstrap, subscribe=topic, pushDownPredicate=True).where(condition)
    plan = df._jdf.queryExecution().executedPlan().toString()
    still_filters = "Filter (" in plan or "Filter offset" in plan
    assert (df.count(), df.rdd.getNumPartitions(), still_filters) == expected


def test_one_dataframe_answers_queries_with_different_filters(
    registered: SparkSession, bootstrap: str, topic: str
) -> None:
    df = frame(registered, bootstrap, "partition int", subscribe=topic)
    both = df.where("partition = 0").union(df.where("partition = 1")).groupBy("partition").count()
    assert sorted(map(tuple, both.collect())) == [(0, 100), (1, 100)]
    assert (df.where("partition = 2").count(), df.count()) == (100, 300)


def test_filters_leave_ranges_of_what_has_to_be_fetched(bootstrap: str, topic: str) -> None:
    wanted = source(bootstrap, subscribe=topic, pushDownPredicate=True)
    reader = wanted.reader(wanted.schema())
    at = datetime.fromtimestamp(AT_MS / 1000 + 0.150, UTC)
    filters = [EqualTo(("partition",), 1), LessThan(("offset",), 80), GreaterThanOrEqual(("timestamp",), at)]
    assert reader.pushFilters(filters) == filters[2:]
    assert [part.value[:4] for part in reader.partitions()] == [(topic, 1, 50, 80)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_topics_are_read(registered: SparkSession, bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 500), **{"compression.codec": codec})
    assert values(frame(registered, bootstrap, subscribe=topic)) == sorted(b"%d" % number for number in range(500))


def test_an_empty_topic_has_no_rows(registered: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    assert frame(registered, bootstrap, subscribe=new_topic(2)).count() == 0


def test_aborted_records_never_appear_and_open_ones_not_yet(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(FLUSH_S)
    for value in (b"committed", b"aborted", b"open"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(FLUSH_S)
        if value != b"open":
            (producer.commit_transaction if value == b"committed" else producer.abort_transaction)(FLUSH_S)
    dirty = {"kafka.isolation.level": "read_uncommitted"}
    assert values(frame(registered, bootstrap, subscribe=topic)) == [b"committed"]
    assert values(frame(registered, bootstrap, subscribe=topic, **dirty)) == [b"aborted", b"committed", b"open"]
    producer.commit_transaction(FLUSH_S)
    assert values(frame(registered, bootstrap, subscribe=topic)) == [b"committed", b"open"]


@pytest.fixture
def eager_broker() -> Iterator[Broker]:
    with Broker({"log.cleaner.backoff.ms": 50}) as broker:
        yield broker


def test_what_compaction_took_is_no_loss(registered: SparkSession, eager_broker: Broker) -> None:
    bootstrap = eager_broker.bootstrap_servers
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": 20_000, "min.cleanable.dirty.ratio": 0.01}
    topic = make_topic(bootstrap, configs=configs)
    records = [{"key": b"%d" % (number % 10), "value": b"%d" % number * 20} for number in range(3000)]
    produce(bootstrap, topic, records, **{"batch.num.messages": 100})
    wanted = source(bootstrap, subscribe=topic)

    def rows() -> int:
        reader = wanted.reader(wanted.schema())
        return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))

    eventually(lambda: rows() < 1500, "old records of a key are cleaned away")
    newest = frame(registered, bootstrap, subscribe=topic).groupBy("key").agg({"offset": "max"}).collect()
    assert {row[0]: row[1] for row in newest} == {b"%d" % (number % 10): number for number in range(2990, 3000)}


class WebServer(BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1024)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_port_that_is_not_kafkas_is_told_on_the_first_line(registered: SparkSession, topic: str) -> None:
    with TCPServer(("127.0.0.1", 0), WebServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(PySparkException) as raised:
                frame(registered, f"127.0.0.1:{server.server_address[1]}", subscribe=topic).count()
        finally:
            server.shutdown()
    assert "is an HTTP server, not a Kafka broker: check the port" in sentence(raised.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset': did you mean 'startingOffsets'?"),
        ({"schema": "value string"}, "column value is binary, not string: use binary in the schema and cast it"),
        (
            {"subscribe": "no-such-topic"},
            "create it with kafka-topics --create --topic no-such-topic --bootstrap-server 127.0.0.1:",
        ),
        ({"subscribe": "no-such-topic", "value.format": "json"}, "create it with kafka-topics --create"),
        (
            {"kafka.bootstrap.servers": "localhost:1", "kafka.default.api.timeout.ms": "100"},
            "Connection refused; check the option kafka.bootstrap.servers, and that the broker runs",
        ),
    ],
    ids=["option", "schema", "topic", "sample", "address"],
)
def test_an_error_in_spark_begins_with_what_to_do(
    registered: SparkSession, bootstrap: str, topic: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        frame(registered, **({"bootstrap": bootstrap, "subscribe": topic} | given)).count()
    assert words in sentence(raised.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": '{"t":{"0":5}}'}, "must name exactly the partitions that are read: it names t-0"),
        ({"startingTimestamp": AT_MS + 10**9}, "or start at the end there with startingOffsetsByTimestampStrategy"),
        ({"startingTimestamp": AT_MS + 9, "endingTimestamp": AT_MS}, "lower its startingTimestamp or raise"),
    ],
    ids=["partitions", "no match", "order"],
)
def test_a_start_that_topics_do_not_have_is_told(bootstrap: str, topic: str, given: dict[str, Any], words: str) -> None:
    wanted = source(bootstrap, subscribe=topic, **given)
    with pytest.raises(ConfigError, match=words):
        wanted.reader(wanted.schema()).partitions()
