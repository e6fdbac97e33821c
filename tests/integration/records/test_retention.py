"""What a log forgets, and what a client sees of it: retention, DeleteRecords, deleted and recreated topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau import Broker
from moldau.client.admin import Resource, alter_configs, delete_records, delete_topics
from moldau.errors import ErrorCode
from moldau.wire.constants import ResourceType
from moldau.wire.topic_partition import TopicPartition
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of
from tests.integration.waiting import eventually

CONFLUENT = CLIENTS[0]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that looks after its logs all the time instead of every five minutes."""
    config = {"log.retention.check.interval.ms": 50, "log.segment.delete.delay.ms": 0}
    with Broker(config, data_dir=tmp_path_factory.mktemp("quick")) as broker:
        yield broker


def files_of(broker: Broker, topic: str) -> list[Path]:
    return sorted((broker.data_dir / f"{topic}-0").glob("*.log*"))


def test_records_older_than_the_retention_time_go(quick: Broker) -> None:
    bootstrap = quick.bootstrap_servers
    topic = make_topic(bootstrap, configs={"retention.ms": HOUR_MS, "segment.bytes": 1 << 20})
    now_ms = time.time_ns() // 1_000_000
    with RawClient(bootstrap) as client:
        for _ in range(30):
            client.produce(topic, batch_of(bytes(100_000), timestamp_ms=now_ms - 2 * HOUR_MS))
        for _ in range(15):
            client.produce(topic, batch_of(bytes(100_000), timestamp_ms=now_ms))
    first, end = CONFLUENT.first_and_end_offset(bootstrap, topic)
    eventually(lambda: CONFLUENT.first_and_end_offset(bootstrap, topic)[0] >= 20, "old segments are gone")
    first, end = CONFLUENT.first_and_end_offset(bootstrap, topic)
    assert 20 <= first <= 30, "whole segments go, and none that holds a young record"
    assert end == 45
    with RawClient(bootstrap) as client:
        assert client.fetch(topic, first - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert CONFLUENT.read(bootstrap, topic, start=first, count=end - first)[-1].offset == 44
    eventually(lambda: len(files_of(quick, topic)) <= 3, "their files, too")


def test_when_all_is_old_all_goes_and_offsets_go_on(quick: Broker) -> None:
    bootstrap = quick.bootstrap_servers
    topic = make_topic(bootstrap, configs={"retention.ms": HOUR_MS})
    old_ms = time.time_ns() // 1_000_000 - 2 * HOUR_MS
    with RawClient(bootstrap) as client:
        client.produce(topic, batch_of(b"a", b"b", b"c", timestamp_ms=old_ms))
    eventually(lambda: CONFLUENT.first_and_end_offset(bootstrap, topic) == (3, 3), "an empty log that ends at 3")
    assert CONFLUENT.produce(bootstrap, topic, [Message(b"next", partition=0)]) == [(0, 3)]


def test_a_log_over_its_size_loses_its_oldest_segments(quick: Broker) -> None:
    bootstrap = quick.bootstrap_servers
    topic = make_topic(bootstrap, configs={"retention.bytes": 3 << 20, "segment.bytes": 1 << 20})
    with RawClient(bootstrap) as client:
        for _ in range(100):
            client.produce(topic, batch_of(bytes(100_000)))
    eventually(lambda: CONFLUENT.first_and_end_offset(bootstrap, topic)[0] >= 60, "about 3 MB are left")
    first, end = CONFLUENT.first_and_end_offset(bootstrap, topic)
    assert end == 100
    assert (end - first) * 100_000 >= 3_000_000 - 100_000, "never less than the size that is to be kept"
    assert len(CONFLUENT.read(bootstrap, topic, start=first, count=end - first)) == end - first


def test_a_retention_made_shorter_works_at_once(quick: Broker) -> None:
    bootstrap = quick.bootstrap_servers
    topic = make_topic(bootstrap)
    with RawClient(bootstrap) as client:
        client.produce(topic, batch_of(b"v", timestamp_ms=time.time_ns() // 1_000_000 - HOUR_MS))
    assert CONFLUENT.first_and_end_offset(bootstrap, topic) == (0, 1)
    with cluster_at(bootstrap) as cluster:
        alter_configs(cluster, Resource(ResourceType.TOPIC, topic), set_values={"retention.ms": "1000"})
    eventually(lambda: CONFLUENT.first_and_end_offset(bootstrap, topic) == (1, 1), "the old record is gone")


def test_deleted_records_are_out_of_range_for_every_client(tmp_path: Path) -> None:
    config = {"log.segment.delete.delay.ms": 0}
    with Broker(config, data_dir=tmp_path) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap)
        CONFLUENT.produce(bootstrap, topic, [Message(b"%d" % number, partition=0) for number in range(100)])
        with cluster_at(bootstrap) as cluster:
            assert delete_records(cluster, {TopicPartition(topic, 0): 42}) == {(topic, 0): 42}
        for client in CLIENTS:
            assert client.first_and_end_offset(bootstrap, topic) == (42, 100), client.name
            assert client.read(bootstrap, topic, start=42, count=1)[0].value == b"42"
        with RawClient(bootstrap) as raw:
            assert raw.fetch(topic, 41).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    with Broker(data_dir=tmp_path) as broker:  # and stay so after a restart
        assert CONFLUENT.first_and_end_offset(broker.bootstrap_servers, topic) == (42, 100)
        with cluster_at(broker.bootstrap_servers) as cluster:
            assert delete_records(cluster, {TopicPartition(topic, 0): -1}) == {(topic, 0): 100}
        assert CONFLUENT.first_and_end_offset(broker.bootstrap_servers, topic) == (100, 100)
        assert CONFLUENT.produce(broker.bootstrap_servers, topic, [Message(b"v", partition=0)]) == [(0, 100)]


def test_a_deleted_topic_is_gone_and_one_of_the_same_name_starts_empty(tmp_path: Path) -> None:
    config = {"log.segment.delete.delay.ms": 0, "auto.create.topics.enable": False}
    with Broker(config, data_dir=tmp_path) as broker:
        bootstrap = broker.bootstrap_servers
        ids = set()
        for attempt in range(5):
            make_topic(bootstrap, 2, name="again")
            with RawClient(bootstrap) as client:
                ids.add(client.topic_id("again"))
                assert client.fetch("again", 0).high_watermark == 0
                for partition in (0, 1):
                    client.produce("again", batch_of(b"%d" % attempt), partition)
                    (record,) = CONFLUENT.read(bootstrap, "again", partition, count=1)
                    assert record.value == b"%d" % attempt
                with cluster_at(bootstrap) as cluster:
                    delete_topics(cluster, ["again"])
                    assert "again" not in cluster.metadata().topics
                assert client.fetch("again", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert client.produce("again", batch_of(b"late")).error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert len(ids) == 5
        eventually(lambda: not list(tmp_path.glob("again-*")), "no folder of it is left")


def test_a_topic_deleted_just_before_a_crash_stays_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 3, name="doomed")
        CONFLUENT.produce(broker.bootstrap, "doomed", [Message(b"v", partition=0)])
        with cluster_at(broker.bootstrap) as cluster:
            delete_topics(cluster, ["doomed"])
        broker.kill()
        broker.start()
        with cluster_at(broker.bootstrap) as cluster:
            assert "doomed" not in cluster.metadata().topics
        make_topic(broker.bootstrap, 1, name="doomed")
        assert CONFLUENT.first_and_end_offset(broker.bootstrap, "doomed") == (0, 0)
