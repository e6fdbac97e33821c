"""Queries through source and sink: whatever their first batches hold, what comes later is written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

import moldau.spark
from moldau.client.transactions import list_transactions
from moldau.spark.sink.writers import StreamWriter
from tests.integration.conftest import NewTopic, cluster_at
from tests.integration.spark.sinks import Sink, options, values
from tests.integration.spark.topics import numbered, produce, stream
from tests.integration.waiting import eventually

START_MS = 1_700_000_000_000
WAIT_S = 60

Into = Callable[[DataFrame, str, str], DataStreamWriter]


def sink(df: DataFrame, bootstrap: str, topic: str) -> DataStreamWriter:
    return df.writeStream.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)


def batch_sink(df: DataFrame, bootstrap: str, topic: str) -> DataStreamWriter:
    return df.writeStream.foreachBatch(moldau.spark.batch_sink(topic=topic, **{"kafka.bootstrap.servers": bootstrap}))


@pytest.mark.parametrize("into", [sink, batch_sink])
def test_a_query_started_on_an_empty_topic_writes_what_comes_later_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, into: Into
) -> None:
    topic, copy = new_topic(2), new_topic(2)
    rows = stream(spark, bootstrap, subscribe=topic, startingOffsets="latest").select("key", "value")
    writer = into(rows, bootstrap, copy).option("checkpointLocation", str(tmp_path))
    for start in (0, 100):  # the second time, the query is started again
        query = writer.start()
        try:
            eventually(lambda query=query: query.lastProgress is not None, "the query looked at its topic", WAIT_S)
            assert not values(bootstrap, copy)[start:]
            produce(bootstrap, topic, numbered(start, start + 100))
            eventually(partial(_is_there, bootstrap, copy, range(start + 100)), "rows arrive", WAIT_S)
        finally:
            query.stop()


def _is_there(bootstrap: str, topic: str, numbers: range) -> bool:
    return values(bootstrap, topic) == list(numbers)


def test_a_query_whose_first_batches_give_no_rows_writes_those_of_later_ones_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, copy = new_topic(), new_topic()
    produce(bootstrap, topic, [{"value": b"%d" % n, "timestamp": START_MS + 1000 * n} for n in range(6)])
    counted = (
        stream(spark, bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
        .withWatermark("timestamp", "2 seconds")
        .groupBy(F.window("timestamp", "1 second"))
        .agg(F.max("value").alias("value"))
        .coalesce(1)
    )
    writer = sink(counted.select("value"), bootstrap, copy).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert values(bootstrap, copy) == [0, 1, 2]


def test_a_batch_that_is_stopped_leaves_no_transaction_of_a_killed_task_open(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    tasks = Sink(bootstrap, topic)
    done, _killed = tasks.write(0, 0, range(10)), tasks.write(0, 1, range(10))
    StreamWriter(options(bootstrap, topic, {}), StructType().add("value", "binary")).abort([done, None], 0)
    with cluster_at(bootstrap) as cluster:
        states = {one.state for one in list_transactions(cluster) if one.transactional_id.startswith(tasks.app)}
    assert states
    assert "Ongoing" not in states
