"""Rows written through Spark are the records that every Kafka client reads: whole, in their partitions, once each.

Where it matters who dies when, tasks and driver are called one after the other, without Spark, on the real broker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import moldau.spark
from moldau import Broker
from moldau.client.groups import delete_groups
from moldau.client.transactions import list_transactions
from moldau.errors import ErrorCode, InDoubtError, KafkaError
from moldau.spark.connections import close_idle
from moldau.spark.exactly_once import Job, TaskMessage, commit_tasks, write_task
from moldau.spark.row_sink import send_idempotently, send_in_transaction
from moldau.spark.write_options import WriteOptions
from tests.integration.clients import CODECS
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.spark.topics import last_line
from tests.integration.waiting import eventually

AT_MS = 1_700_000_000_000
READ_S = 30.0
STREAM_S = 60


class Read(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Read]:
    """All there is, partition by partition, with confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation, "enable.partition.eof": True}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions]
        )
        found: list[Read] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(READ_S)
            assert message is not None, "the broker sends nothing"
            if message.error():
                ended.add(message.partition())
                continue
            headers = tuple(message.headers() or ())
            found.append(Read(message.partition(), message.key(), message.value(), headers, message.timestamp()[1]))
        return sorted(found, key=lambda record: record.partition)
    finally:
        consumer.close()


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[int]:
    return sorted(int(record.value or b"-1") for record in read(bootstrap, topic, isolation))


def options(bootstrap: str, topic: str | None, given: dict[str, object]) -> dict[str, str]:
    named = {name.replace("__", "."): str(value) for name, value in given.items()}
    return {"kafka.bootstrap.servers": bootstrap} | ({} if topic is None else {"topic": topic}) | named


def write(df: DataFrame, bootstrap: str, topic: str | None, **given: object) -> None:
    df.write.format("moldau").options(**options(bootstrap, topic, given)).mode("append").save()


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    return moldau.spark.register(spark.newSession())


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(3)


# --- through Spark


def test_keys_values_headers_timestamps_and_nulls_arrive_where_kafka_s_producer_would_put_them(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, theirs = new_topic(5), new_topic(5)
    rows = [
        (
            f"key-{number}" if number % 3 else None,
            None if number % 7 == 0 else f"value-{number}".encode(),
            [("n", str(number).encode()), ("none", None)] if number % 2 else None,
            datetime.fromtimestamp((AT_MS + number) / 1000, UTC),
        )
        for number in range(300)
    ]
    ddl = "key string, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp"
    write(registered.createDataFrame(rows, ddl), bootstrap, topic)
    found = read(bootstrap, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key, *_ in rows:
        producer.produce(theirs, key=key, value=b"")
    producer.flush(READ_S)
    places = {record.key: record.partition for record in read(bootstrap, theirs) if record.key is not None}
    assert sorted(record[1:] for record in found if record.key) == sorted(
        (key.encode(), value, tuple(headers or ()), AT_MS + number)
        for number, (key, value, headers, _) in enumerate(rows)
        if key is not None
    )
    assert all(record.partition == places[record.key] for record in found if record.key is not None)
    assert len(found) == len(rows)
    assert sum(record.value is None for record in found) == sum(row[1] is None for row in rows)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_by_librdkafka(bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    sink = Sink(bootstrap, topic, kafka__compression__type=codec, kafka__batch__size=20_000)
    sink.commit(0, [sink.write(0, 0, range(5000))])
    assert [int(record.value or b"") for record in read(bootstrap, topic)] == list(range(5000))


def test_rows_choose_their_topic_and_partition(registered: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    topics = [new_topic(3), new_topic(3)]
    df = registered.range(60).select(
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 2 == 0, topics[0]).otherwise(topics[1]).alias("topic"),
        (F.col("id") % 3).cast("int").alias("partition"),
    )
    write(df, bootstrap, None)
    for odd, topic in enumerate(topics):
        found = [(record.partition, int(record.value or b"")) for record in read(bootstrap, topic)]
        assert sorted(found) == sorted((number % 3, number) for number in range(odd, 60, 2))


def test_at_least_once_writes_without_transactions(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    df = registered.range(0, 1000, 1, 3).select(F.col("id").cast("string").alias("value"))
    write(df, bootstrap, topic, processing__guarantee="at_least_once")
    assert values(bootstrap, topic) == list(range(1000))


def test_a_job_that_fails_leaves_nothing_and_no_open_transaction(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    df = registered.range(0, 20_000, 1, 2).select(
        F.when(F.col("id") == 19_999, F.raise_error(F.lit("enough")))
        .otherwise(F.col("id"))
        .cast("string")
        .alias("value")
    )
    with pytest.raises(PySparkException, match="enough"):
        write(df, bootstrap, topic, transactionalIdPrefix=topic)
    assert values(bootstrap, topic) == []
    with cluster_at(bootstrap) as cluster:
        assert {found.state for found in list_transactions(cluster) if found.transactional_id.startswith(topic)} <= {
            "Empty",
            "CompleteAbort",
        }


def test_a_version_of_an_app_is_written_once(registered: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    df = registered.range(0, 100, 1, 2).select(F.col("id").cast("string").alias("value"))
    for version in (5, 5, 4, 6):
        write(df, bootstrap, topic, txnAppId=topic, txnVersion=version)
    assert values(bootstrap, topic) == sorted([*range(100), *range(100)])


@pytest.mark.parametrize(
    ("columns", "given", "words"),
    [
        (["value", "CAST(7 AS INT) AS partition"], {"topic": "here"}, "has partitions 0 to 2"),
        (["value", "CAST(NULL AS STRING) AS topic"], {"topic": None}, "a row has no topic"),
        (["REPEAT(value, 2000000) AS value"], {"topic": "here"}, "raise it"),
        (["id AS value"], {"topic": "here"}, "is bigint, not string or binary"),
        (["value"], {"topic": "here", "kafka__transaction__timeout__ms": 999_999_999}, "lower it"),
    ],
)
def test_rows_that_cannot_be_written_are_told_with_what_to_do(
    registered: SparkSession, bootstrap: str, topic: str, *, columns: list[str], given: dict[str, Any], words: str
) -> None:
    where = topic if given["topic"] == "here" else None
    df = registered.range(0, 2, 1, 1).selectExpr("id", "CAST(id AS STRING) AS value").selectExpr(*columns)
    with pytest.raises(PySparkException) as failure:
        write(df, bootstrap, where, **{name: value for name, value in given.items() if name != "topic"})
    assert words in last_line(failure.value)


def test_a_stream_writes_each_batch_once_however_often_it_is_replayed(
    registered: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(3)
    files = tmp_path / "files"
    files.mkdir()
    for number in range(3):
        lines = "\n".join(str(value) for value in range(100 * number, 100 * number + 100))
        (files / f"{number}.txt").write_text(lines)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        source = registered.readStream.option("maxFilesPerTrigger", 1).text(str(files)).repartition(2)
        writer = source.writeStream.format("moldau").options(**options(bootstrap, topic, {}))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(STREAM_S)
        finally:
            query.stop()

    run()
    assert values(bootstrap, topic) == list(range(300))
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for commit in (checkpoint / "commits").glob(f"*{last}*"):
        commit.unlink()
    run()
    assert values(bootstrap, topic) == list(range(300))
    (files / "3.txt").write_text("300\n301")
    run()
    assert values(bootstrap, topic) == list(range(302))


# --- tasks and driver, one after the other


class Sink:
    """A query whose tasks and driver do what they are told, and die when they are told."""

    def __init__(self, bootstrap: str, topic: str, **given: object) -> None:
        self._bootstrap = bootstrap
        self.options = WriteOptions.parse(options(bootstrap, topic, given))
        self.app = f"app-{topic}"

    def write(
        self, batch_id: int | None, task: int, numbers: range, before: Callable[[int], None] = lambda number: None
    ) -> TaskMessage:
        """`before` is called with the first number of each Arrow batch."""

        def rows() -> Iterator[pa.RecordBatch]:
            for start in range(numbers.start, numbers.stop, 500):
                before(start)
                part = range(start, min(start + 500, numbers.stop))
                yield pa.record_batch([pa.array([b"%d" % number for number in part], pa.binary())], ["value"])

        job = Job(self.app, batch_id, is_stream=True)
        return write_task(job, task, self.options, rows(), partial(send_in_transaction, self.options))

    def commit(self, batch_id: int | None, messages: list[TaskMessage]) -> None:
        with cluster_at(self._bootstrap) as cluster:
            commit_tasks(cluster, batch_id, self.options, messages)

    def commit_and_die(self, batch_id: int, messages: list[TaskMessage]) -> None:
        """After the first transaction."""
        with cluster_at(self._bootstrap) as cluster, pytest.MonkeyPatch.context() as patch:
            patch.setattr("moldau.spark.exactly_once._end", partial(_end_first, _end=_end_of_module()))
            with pytest.raises(Died):
                commit_tasks(cluster, batch_id, self.options, messages)


class Died(Exception):
    pass


def _end_of_module() -> Callable[..., None]:
    from moldau.spark import exactly_once

    return exactly_once._end


def _end_first(*arguments: Any, _end: Callable[..., None]) -> None:
    _end(*arguments)
    raise Died


@pytest.fixture
def sink(bootstrap: str, topic: str) -> Sink:
    return Sink(bootstrap, topic)


def test_committed_readers_see_nothing_until_the_driver_commits(bootstrap: str, topic: str, sink: Sink) -> None:
    messages = [sink.write(0, task, range(task * 1000, task * 1000 + 1000)) for task in range(3)]
    assert values(bootstrap, topic) == []
    assert values(bootstrap, topic, "read_uncommitted") == list(range(3000))
    sink.commit(0, messages)
    assert values(bootstrap, topic) == list(range(3000))


def test_a_driver_that_dies_before_its_commit_leaves_a_batch_to_be_written_again(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    for task in range(2):
        sink.write(0, task, range(task * 100, task * 100 + 100))
    sink.commit(0, [sink.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)])
    assert values(bootstrap, topic) == list(range(200))


def test_a_driver_that_dies_within_its_commit_leaves_a_batch_to_be_completed(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(task * 100, task * 100 + 100) for task in range(4)]
    sink.commit_and_die(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    replay = [sink.write(0, task, part) for task, part in enumerate(parts)]
    assert [message.done is not None for message in replay] == [True, False, False, False]
    sink.commit(0, replay)
    assert values(bootstrap, topic) == list(range(400))


def test_a_driver_that_dies_after_its_commit_leaves_a_batch_that_is_done(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(0), range(100), range(0)]
    for _ in range(3):
        sink.commit(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    assert values(bootstrap, topic) == list(range(100))


def test_a_batch_cut_into_other_tasks_or_rows_is_never_completed_by_guessing(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(task * 100, task * 100 + 100) for task in range(4)]
    sink.commit_and_die(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    fewer = [sink.write(0, 0, range(200)), sink.write(0, 1, range(200, 400))]
    with pytest.raises(InDoubtError, match="written by 4 tasks"):
        sink.commit(0, fewer)
    others = [sink.write(0, 0, range(90)), *(sink.write(0, task, parts[task]) for task in (1, 2, 3))]
    with pytest.raises(InDoubtError, match="committed 100 rows"):
        sink.commit(0, others)
    sink.commit(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    assert values(bootstrap, topic) == list(range(400))


def test_a_task_that_fails_leaves_nothing_and_its_next_attempt_one_copy(bootstrap: str, topic: str, sink: Sink) -> None:
    def fail(start: int) -> None:
        if start >= 1000:
            raise Died

    with pytest.raises(Died):
        sink.write(0, 0, range(2000), before=fail)
    sink.commit(0, [sink.write(0, 0, range(2000))])
    assert values(bootstrap, topic) == list(range(2000))


def test_an_attempt_that_was_given_up_cannot_write_any_more(bootstrap: str, topic: str) -> None:
    sink = Sink(bootstrap, topic, kafka__batch__size=1024)
    later: list[TaskMessage] = []

    def overtake(start: int) -> None:
        if start == 1000:
            later.append(sink.write(0, 0, range(2000)))

    with pytest.raises(KafkaError) as fenced:
        sink.write(0, 0, range(2000), before=overtake)
    assert fenced.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    sink.commit(0, later)
    assert values(bootstrap, topic) == list(range(2000))


def _is_over(bootstrap: str, message: TaskMessage) -> bool:
    assert message.transaction is not None
    with cluster_at(bootstrap) as cluster:
        states = {found.transactional_id: found.state for found in list_transactions(cluster)}
    return states[message.transaction.transactional_id] == "CompleteAbort"


def test_a_batch_that_takes_too_long_fails_whole_and_can_be_written_again() -> None:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap, 3)
        slow = Sink(bootstrap, topic, kafka__transaction__timeout__ms=100)
        messages = [slow.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)]

        for message in messages:
            eventually(partial(_is_over, bootstrap, message), "the broker aborts what takes too long")
        with pytest.raises(KafkaError, match=r"kafka\.transaction\.timeout\.ms=100, raise it"):
            slow.commit(0, messages)
        usual = Sink(bootstrap, topic)
        usual.commit(0, [usual.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)])
        assert values(bootstrap, topic) == list(range(200))

        job = [slow.write(None, 2, range(100)), usual.write(None, 3, range(100))]
        eventually(partial(_is_over, bootstrap, job[0]), "the broker aborts the first task's transaction")
        with pytest.raises(KafkaError, match=r"1 transactions could not be committed.*CompleteAbort"):
            usual.commit(None, job)
        assert values(bootstrap, topic) == list(range(200))
        close_idle()


def test_a_query_whose_record_was_deleted_does_not_guess(bootstrap: str, topic: str, sink: Sink) -> None:
    sink.commit(0, [sink.write(0, 0, range(100))])
    with cluster_at(bootstrap) as cluster:
        delete_groups(cluster, [f"{sink.app}-0"])
    with pytest.raises(InDoubtError, match="failOnDoubt=false"):
        sink.write(1, 0, range(100, 200))
    daring = Sink(bootstrap, topic, failOnDoubt="false")
    daring.commit(1, [daring.write(1, 0, range(100, 200))])
    sink.commit(2, [sink.write(2, 0, range(200, 300))])
    assert values(bootstrap, topic) == list(range(300))


def test_a_checkpoint_older_than_the_topic_is_refused(sink: Sink) -> None:
    for batch_id in range(3):
        sink.commit(batch_id, [sink.write(batch_id, 0, range(10))])
    with pytest.raises(InDoubtError, match="holds batch 2 of this query, but Spark is at batch 1"):
        sink.write(1, 0, range(10))


def test_a_topic_that_takes_only_small_batches_gets_small_batches(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2, **{"max.message.bytes": 5000})
    sink = Sink(bootstrap, topic)
    sink.commit(0, [sink.write(0, 0, range(20_000))])
    assert values(bootstrap, topic) == list(range(20_000))


@pytest.mark.parametrize("rows", [range(100), range(0)])
def test_a_topic_that_is_not_there_is_created(bootstrap: str, rows: range) -> None:
    topic = f"made-by-the-sink-{len(rows)}"
    sink = Sink(bootstrap, topic)
    sink.commit(0, [sink.write(0, 0, rows)])
    sink.commit(1, [sink.write(1, 0, range(100, 200))])
    assert values(bootstrap, topic) == [*rows, *range(100, 200)]


def test_a_topic_that_brokers_do_not_create_is_told() -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        sink = Sink(broker.bootstrap_servers, "not-there", kafka__max__block__ms=100)
        with pytest.raises(KafkaError, match="'not-there' does not exist: create it first"):
            sink.write(0, 0, range(10))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_survive_a_restart_of_the_broker_once_each_and_in_order(tmp_path: Path, guarantee: str) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        bootstrap, port = broker.bootstrap_servers, broker.port
        topic = make_topic(bootstrap, 1)
        sink = Sink(bootstrap, topic, kafka__batch__size=4096, processing__guarantee=guarantee)
        restarted: list[Broker] = []

        def restart(start: int) -> None:
            if start == 5000:
                broker.stop()
                restarted.append(Broker(data_dir=tmp_path / "data", port=port))
                threading.Timer(0.3, restarted[0].start).start()

        if guarantee == "exactly_once":
            sink.commit(0, [sink.write(0, 0, range(10_000), before=restart)])
        else:
            batches = (
                pa.record_batch([pa.array([b"%d" % n for n in range(start, start + 500)], pa.binary())], ["value"])
                for start in range(0, 10_000, 500)
                if restart(start) is None
            )
            assert send_idempotently(sink.options, batches) == 10_000
        found = [int(record.value or b"") for record in read(bootstrap, topic)]
        restarted[0].stop()
    close_idle()
    assert found == list(range(10_000))
