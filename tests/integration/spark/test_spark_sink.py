"""Rows written through Spark are the records that every Kafka client reads: whole, in their partitions, once each."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import moldau.spark
from moldau.client.transactions import list_transactions
from tests.integration.conftest import NewTopic, cluster_at
from tests.integration.spark.sinks import READ_S, options, read, values
from tests.integration.spark.topics import sentence

AT_MS = 1_700_000_000_000
STREAM_S = 60


def write(df: DataFrame, bootstrap: str, topic: str | None, **given: object) -> None:
    df.write.format("moldau").options(**options(bootstrap, topic, given)).mode("append").save()


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    return moldau.spark.register(spark.newSession())


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(3)


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
    assert words in sentence(failure.value)


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
