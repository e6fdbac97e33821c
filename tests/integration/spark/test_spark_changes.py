"""What happens to topics and brokers under a running query, and how the query takes it."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau import Broker
from moldau.client.admin import create_partitions, create_topic, delete_records, delete_topics
from moldau.errors import DataLossError
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import uuid_to_text
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.spark.test_spark_stream import numbers, ranges, reader_of, through_json
from tests.integration.spark.topics import FLUSH_S, Copy, numbered, produce, sentence, stream
from tests.integration.waiting import eventually

ALL = ReadAllAvailable()
STREAM_S = 60


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "checkpoint")


def test_new_partitions_and_topics_join_a_running_query(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy
) -> None:
    topic = new_topic()
    with copy.of(stream(spark, bootstrap, subscribePattern=f"^{topic}")) as query:
        eventually(lambda: query.lastProgress is not None, "the first batch is done", STREAM_S)
        with cluster_at(bootstrap) as cluster:
            create_partitions(cluster, {topic: 3})
        produce(bootstrap, topic, numbered(0, 5, partition=2))
        produce(bootstrap, new_topic(name=f"{topic}-new"), numbered(5, 10))
        eventually(lambda: len(copy.rows) >= 10, "rows of new partitions and topics arrive", STREAM_S)
        query.processAllAvailable()
    assert copy.rows == numbers(10)


def test_a_partition_joins_at_its_first_record_and_a_replay_finds_it_there(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    reader = reader_of(bootstrap, subscribePattern=f"^{topic}", startingOffsets="latest")
    start = reader.latestOffset({}, ALL)
    grown = new_topic(name=f"{topic}-old")
    produce(bootstrap, grown, numbered(0, 20))
    delete(bootstrap, grown, 5)
    end = reader.latestOffset(through_json(start), ALL)
    delete(bootstrap, grown, 10)
    again = reader_of(bootstrap, subscribePattern=f"^{topic}")
    assert ranges(reader, start, end) == ranges(again, start, end) == [(0, 5, 20)]


def delete(bootstrap: str, topic: str, before: int) -> None:
    with cluster_at(bootstrap) as cluster:
        assert delete_records(cluster, {TopicPartition(topic, 0): before}) == {(topic, 0): before}


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_deleted_under_a_query_fails_it_unless_told_not_to(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy, fails: bool
) -> None:
    gone, kept = new_topic(), new_topic()
    produce(bootstrap, gone, numbered(0, 5))
    df = stream(
        spark, bootstrap, subscribe=f"{gone},{kept}", startingOffsets="earliest", failOnDataLoss=str(fails).lower()
    )
    with copy.of(df) as query:
        eventually(lambda: len(copy.rows) == 5, "rows arrive", STREAM_S)
        with cluster_at(bootstrap) as cluster:
            delete_topics(cluster, [gone])
        if fails:
            with pytest.raises(Exception, match="Records may have been lost") as raised:
                query.awaitTermination(STREAM_S)
            line = sentence(raised.value)
            assert f"{gone}-0 (read up to offset 5)" in line
            assert line.endswith("To continue with the remaining ones, set the option failOnDataLoss=false")
            return
        produce(bootstrap, kept, numbered(5, 10))
        eventually(lambda: len(copy.rows) == 10, "the query goes on with the other topic", STREAM_S)
        assert query.isActive


def test_a_topic_created_again_is_read_from_its_start(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    strict, lenient = reader_of(bootstrap, **options), reader_of(bootstrap, **options, failOnDataLoss="false")
    produce(bootstrap, topic, numbered(0, 5))
    start = lenient.latestOffset({}, ALL)
    assert strict.latestOffset({}, ALL) == start
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(0, 7))  # more than before: offsets alone do not tell
    with pytest.raises(DataLossError, match="created again"):
        strict.latestOffset(start, ALL)
    end = lenient.latestOffset(start, ALL)
    assert ranges(lenient, start, end) == [(0, 0, 7)]
    assert lenient.latestOffset(through_json(end), ALL) == end


def id_of(bootstrap: str, topic: str) -> str:
    with cluster_at(bootstrap) as cluster:
        return uuid_to_text(cluster.metadata([topic]).topics[topic].topic_id)


def create_again(bootstrap: str, topic: str) -> None:
    with cluster_at(bootstrap) as cluster:
        delete_topics(cluster, [topic])
        create_topic(cluster, topic, partitions=1)


def test_a_topic_created_again_while_the_query_was_down_is_noticed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy
) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    produce(bootstrap, topic, numbered(0, 5))
    copy.run(stream(spark, bootstrap, **options))
    old_id = id_of(bootstrap, topic)
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(100, 107))  # more than before: offsets alone do not tell
    with pytest.raises(StreamingQueryException) as raised:
        copy.run(stream(spark, bootstrap, **options))
    assert f"its id was {old_id} and is {id_of(bootstrap, topic)}" in sentence(raised.value)
    assert sentence(raised.value).endswith("set the option failOnDataLoss=false")
    copy.run(stream(spark, bootstrap, **options, failOnDataLoss="false"))
    assert copy.batches == {0: numbers(5), 1: numbers(107, start=100)}
    produce(bootstrap, topic, numbered(107, 110))
    copy.run(stream(spark, bootstrap, **options))
    assert copy.batches[2] == numbers(110, start=107)


def test_a_batch_that_a_restart_finds_unfinished_is_not_read_from_another_topic(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    produce(bootstrap, topic, numbered(0, 5))
    end = through_json(reader_of(bootstrap, **options).latestOffset({}, ALL))
    assert ranges(reader_of(bootstrap, **options), {}, end) == [(0, 0, 5)]
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(0, 7))
    with pytest.raises(DataLossError, match="created again"):
        reader_of(bootstrap, **options).partitions({}, end)
    lenient = reader_of(bootstrap, **options, failOnDataLoss="false")
    assert ranges(lenient, {}, end) == []
    assert ranges(lenient, end, lenient.latestOffset(end, ALL)) == [(0, 0, 7)]


def test_a_task_does_not_read_a_topic_that_was_created_again_since_it_was_planned(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 5))
    reader = reader_of(bootstrap, subscribe=topic, startingOffsets="earliest")
    (task,) = reader.partitions({}, reader.latestOffset({}, ALL))
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(100, 107))
    with pytest.raises(DataLossError, match="offsets 0 to 4 are lost: the topic is gone"):
        list(reader.read(task))


def test_a_topic_created_again_is_read_from_its_start_by_a_query_that_waits_for_more(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = reader_of(bootstrap, **options, minOffsetsPerTrigger=100)
    limit = reader.getDefaultReadLimit()
    produce(bootstrap, topic, numbered(0, 5))
    start = through_json(reader.latestOffset({}, limit))
    assert reader.latestOffset(start, limit) == start  # the delay begins
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(0, 7))
    assert ranges(reader, start, reader.latestOffset(start, limit)) == [(0, 0, 7)]


def test_a_topic_created_again_with_as_many_records_is_read_again(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    reader = reader_of(bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    produce(bootstrap, topic, numbered(0, 5))
    start = through_json(reader.latestOffset({}, ALL))
    create_again(bootstrap, topic)
    produce(bootstrap, topic, numbered(0, 5))
    end = through_json(reader.latestOffset(start, ALL))
    assert end != start  # Spark makes no batch of equal offsets
    assert ranges(reader, start, end) == [(0, 0, 5)]
    assert reader.latestOffset(end, ALL) == end


def test_a_query_continues_at_the_end_of_a_log_that_was_cut_short(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    strict, lenient = reader_of(bootstrap, **options), reader_of(bootstrap, **options, failOnDataLoss="false")
    produce(bootstrap, topic, numbered(0, 7))
    assert lenient.latestOffset({}, ALL) == strict.latestOffset({}, ALL)
    longer = {topic: {"0": 9}}  # what the same topic had before an unclean election
    with pytest.raises(DataLossError, match="cut short"):
        strict.latestOffset(longer, ALL)
    end = lenient.latestOffset(longer, ALL)
    assert ranges(lenient, longer, end) == []
    produce(bootstrap, topic, numbered(7, 12))
    assert ranges(lenient, end, lenient.latestOffset(through_json(end), ALL)) == [(0, 7, 12)]


@pytest.mark.parametrize("available_now", [True, False])
def test_a_query_that_read_uncommitted_records_goes_on_with_committed_ones(
    bootstrap: str, new_topic: NewTopic, available_now: bool
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 3))
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(FLUSH_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(FLUSH_S)
    dirty = reader_of(
        bootstrap, subscribe=topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_uncommitted"}
    )
    start = through_json(dirty.latestOffset({}, ALL))
    assert start[topic] == {"0": 4}
    reader = reader_of(bootstrap, subscribe=topic)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ALL) == start
    producer.commit_transaction(FLUSH_S)


def test_a_partition_that_not_every_broker_knows_yet_is_waited_for(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    reader = reader_of(bootstrap, subscribe=topic)

    def grow() -> None:
        with cluster_at(bootstrap) as cluster:
            create_partitions(cluster, {topic: 2})

    timer = Timer(0.3, grow)
    timer.start()
    start = {topic: {"0": 0, "1": 0}}
    assert reader.latestOffset(start, ALL) == start
    timer.join()


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_retention_took_fail_a_query_unless_told_not_to(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy, fails: bool
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 5))
    options: dict[str, Any] = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": str(fails).lower()}
    copy.run(stream(spark, bootstrap, **options))
    produce(bootstrap, topic, numbered(5, 20))
    delete(bootstrap, topic, 10)
    if fails:
        with pytest.raises(Exception, match="failOnDataLoss") as raised:
            copy.run(stream(spark, bootstrap, **options))
        line = str(raised.value)  # the batch's own function failed with it
        assert f"{topic}-0: offsets 5 to 9 are lost" in line
        assert "set the option failOnDataLoss=false" in line
    else:
        copy.run(stream(spark, bootstrap, **options))
        assert copy.batches == {0: numbers(5), 1: numbers(20, start=10)}


def test_a_broker_that_restarts_does_not_end_a_query(spark: SparkSession, tmp_path: Path, copy: Copy) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        bootstrap, port = broker.bootstrap_servers, broker.port
        topic = make_topic(bootstrap)
        with copy.of(stream(spark, bootstrap, subscribe=topic, startingOffsets="earliest")) as query:
            produce(bootstrap, topic, numbered(0, 5))
            eventually(lambda: len(copy.rows) == 5, "rows arrive", STREAM_S)
            broker.stop()
            with Broker(data_dir=tmp_path / "data", port=port):
                produce(bootstrap, topic, numbered(5, 10))
                eventually(lambda: len(copy.rows) == 10, "rows arrive again", STREAM_S)
                assert query.isActive
                query.stop()
    assert copy.rows == numbers(10)
