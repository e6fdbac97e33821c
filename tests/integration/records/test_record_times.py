"""The timestamp of the record at an offset, whatever its batch looks like."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from moldau.client.record_times import record_timestamps
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import IsolationLevel
from moldau.wire.topic_partition import TopicPartition
from tests.integration.conftest import NewTopic, cluster_at

BEGAN_MS = 1_700_000_000_000
RECORDS = 1000


def send(bootstrap: str, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
    for number in range(RECORDS):
        producer.produce(topic, b"x" * 100, partition=0, timestamp=BEGAN_MS + number)
    assert producer.flush(30) == 0


def timestamp(bootstrap: str, topic: str, offset: int) -> int | KafkaError | None:
    key = TopicPartition(topic, 0)
    with cluster_at(bootstrap) as cluster:
        return record_timestamps(cluster, {key: offset}, IsolationLevel.READ_COMMITTED)[key]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_any_offset_has_the_time_of_its_record(bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    send(bootstrap, topic, codec)
    for offset in (0, 1, RECORDS // 2, RECORDS - 1):
        assert timestamp(bootstrap, topic, offset) == BEGAN_MS + offset


def test_where_no_record_is_there_is_no_time(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert timestamp(bootstrap, topic, 0) is None
    beyond = timestamp(bootstrap, topic, 5)
    assert isinstance(beyond, KafkaError)
    assert beyond.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_time_of_the_log_counts_where_the_topic_says_so(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    send(bootstrap, topic, "none")
    found = timestamp(bootstrap, topic, 0)
    assert isinstance(found, int)
    assert found > BEGAN_MS + RECORDS
