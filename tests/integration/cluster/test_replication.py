"""Three real brokers, a topic with three replicas: what is acknowledged is kept, whoever dies, stalls or comes back."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import moldau
from moldau.local_cluster import BrokerProcess
from tests.integration.waiting import eventually

LAG_TIME_MAX_MS = 2000
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_TIME_MAX_MS),
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "leader.imbalance.check.interval.seconds": "3600",
    "broker.session.timeout.ms": "20000",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.Cluster]:
    cluster = moldau.Cluster(3, config=SETTINGS)
    for broker in cluster.brokers:
        broker.properties["broker.rack"] = f"rack-{broker.node_id}"
    with cluster:
        cluster.wait_until_ready()
        yield cluster
        for broker in cluster.brokers:
            with suppress(Exception):
                broker.resume()


@pytest.fixture
def admin(cluster: moldau.Cluster) -> AdminClient:
    for broker in cluster.brokers:
        if not broker.is_alive:
            broker.start()
    cluster.wait_until_ready()
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def topic(cluster: moldau.Cluster, admin: AdminClient) -> str:
    name = f"replicated-{uuid.uuid4().hex[:8]}"
    new = NewTopic(name, num_partitions=1, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[name].result(30)
    eventually(lambda: len(isr_of(admin, name)) == 3, "all replicas are in sync")
    return name


def isr_of(admin: AdminClient, topic: str) -> set[int]:
    try:
        return set(admin.list_topics(topic, 5).topics[topic].partitions[0].isrs)
    except (KafkaException, KeyError):
        return set()


def producer(cluster: moldau.Cluster, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
            "message.timeout.ms": 30_000,
            **settings,
        }
    )


class Acked:
    """What was sent, and what the brokers acknowledged."""

    def __init__(self, cluster: moldau.Cluster, topic: str, **settings: object) -> None:
        self.values: list[str] = []
        self.errors: list[str] = []
        self._producer = producer(cluster, **settings)
        self._topic = topic
        self._count = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, str(self._count).encode(), on_delivery=self._delivered)
            self._count += 1
            self._producer.poll(0)

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            value = message.value()
            assert isinstance(value, bytes)
            self.values.append(value.decode())
        else:
            self.errors.append(str(error))

    def settle(self) -> None:
        assert self._producer.flush(40) == 0
        assert not self.errors


def read(cluster: moldau.Cluster, topic: str, upto: int, **settings: object) -> list[str]:
    """Everything, as soon as record `upto` is there."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **settings,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []

        def consumed() -> bool:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value.decode())
            return str(upto) in values

        eventually(consumed, f"record {upto} is read")
        return values


def log_hash(broker: BrokerProcess, topic: str) -> str:
    digest = hashlib.sha256()
    for segment in sorted(Path(broker.data_dir).rglob(f"{topic}-0/*.log")):
        digest.update(segment.read_bytes())
    return digest.hexdigest()


def assert_logs_become_equal(cluster: moldau.Cluster, topic: str) -> None:
    eventually(lambda: len({log_hash(broker, topic) for broker in cluster.brokers}) == 1, "the logs are byte-identical")


def followers_of(cluster: moldau.Cluster, topic: str) -> list[BrokerProcess]:
    leader = cluster.leader_of(topic)
    return [broker for broker in cluster.brokers if broker.node_id != leader.node_id]


def test_acked_records_are_on_all_replicas_byte_for_byte(cluster: moldau.Cluster, topic: str) -> None:
    acked = Acked(cluster, topic)
    acked.send(500)
    acked.settle()
    assert read(cluster, topic, 499) == [str(number) for number in range(500)]
    assert_logs_become_equal(cluster, topic)


def test_a_killed_leader_loses_and_duplicates_nothing(cluster: moldau.Cluster, admin: AdminClient, topic: str) -> None:
    acked = Acked(cluster, topic)
    acked.send(300)
    leader = cluster.leader_of(topic)
    leader.kill()
    acked.send(300)
    acked.settle()
    assert cluster.leader_of(topic).node_id != leader.node_id
    assert read(cluster, topic, 599) == [str(number) for number in range(600)]
    leader.start()
    eventually(lambda: len(isr_of(admin, topic)) == 3, "the killed one is in sync again")
    assert_logs_become_equal(cluster, topic)


def test_a_stalled_follower_leaves_the_in_sync_set_and_comes_back(
    cluster: moldau.Cluster, admin: AdminClient, topic: str
) -> None:
    acked = Acked(cluster, topic)
    acked.send(100)
    acked.settle()
    stalled = followers_of(cluster, topic)[0]
    stalled.pause()
    try:
        acked.send(100)
        acked.settle()  # only once the in-sync set has shrunk
        eventually(lambda: stalled.node_id not in isr_of(admin, topic), "every broker knows that it left")
    finally:
        stalled.resume()
    eventually(lambda: len(isr_of(admin, topic)) == 3, "it is in sync again")
    assert read(cluster, topic, 199) == [str(number) for number in range(200)]
    assert_logs_become_equal(cluster, topic)


def test_with_too_few_replicas_acks_all_is_refused_and_reading_goes_on(
    cluster: moldau.Cluster, admin: AdminClient, topic: str
) -> None:
    acked = Acked(cluster, topic)
    acked.send(50)
    acked.settle()
    # The brokers that the cluster can spare: one has to stay, to lead and to control.
    stalled = followers_of(cluster, topic)
    for broker in stalled:
        broker.kill()
    eventually(lambda: len(isr_of(admin, topic)) == 1, "the leader is alone")
    refused: list[str] = []
    short = producer(cluster, **{"message.timeout.ms": 2000, "enable.idempotence": False, "retries": 0})
    short.produce(topic, b"no", on_delivery=lambda error, _: refused.append(error.name() if error else "acked"))
    assert short.flush(20) == 0
    assert refused == ["NOT_ENOUGH_REPLICAS"]
    assert len(read(cluster, topic, 49)) == 50
    for broker in stalled:
        broker.start()
    eventually(lambda: len(isr_of(admin, topic)) == 3, "all are back")
    acked.send(50)
    acked.settle()
    assert read(cluster, topic, 99) == [str(number) for number in range(100)]
    assert_logs_become_equal(cluster, topic)


def test_what_only_a_dead_leader_had_is_cut_off_when_it_returns(
    cluster: moldau.Cluster, admin: AdminClient, topic: str
) -> None:
    """acks=1: the leader takes records that no follower has, and dies."""
    acked = Acked(cluster, topic)
    acked.send(20)
    acked.settle()
    leader = cluster.leader_of(topic)
    followers = followers_of(cluster, topic)
    for broker in followers:
        broker.pause()
    lonely = producer(cluster, acks=1, **{"enable.idempotence": False})
    lonely.produce(topic, b"answers the fetches that wait at the leader, so followers may find it when they go on")
    assert lonely.flush(10) == 0
    for number in range(30):
        lonely.produce(topic, b"lost %d" % number)
    assert lonely.flush(10) == 0
    leader.kill()
    for broker in followers:
        broker.resume()
    acked.send(20)
    acked.settle()
    leader.start()
    eventually(lambda: len(isr_of(admin, topic)) == 3, "all are in sync")
    values = read(cluster, topic, 39)
    assert [value for value in values if value.isdigit()] == [str(number) for number in range(40)]
    assert not [value for value in values if value.startswith("lost")]
    assert_logs_become_equal(cluster, topic)


def test_a_cluster_that_was_killed_at_once_has_every_acked_record(
    cluster: moldau.Cluster, admin: AdminClient, topic: str
) -> None:
    acked = Acked(cluster, topic)
    acked.send(400)
    acked.settle()
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.start()
    cluster.wait_until_ready()
    acked.send(100)
    acked.settle()
    assert read(cluster, topic, 499) == [str(number) for number in range(500)]
    assert_logs_become_equal(cluster, topic)


def test_deleted_records_are_deleted_on_followers_too(cluster: moldau.Cluster, admin: AdminClient, topic: str) -> None:
    acked = Acked(cluster, topic)
    acked.send(30)
    acked.settle()
    deleted = admin.delete_records([TopicPartition(topic, 0, 20)])
    assert next(iter(deleted.values())).result(10).low_watermark == 20
    cluster.leader_of(topic).stop()
    acked.send(1)
    acked.settle()
    assert read(cluster, topic, 30) == [str(number) for number in range(20, 31)]


def test_a_consumer_reads_from_the_in_sync_replica_in_its_rack(cluster: moldau.Cluster, topic: str) -> None:
    acked = Acked(cluster, topic)
    acked.send(50)
    acked.settle()
    near = followers_of(cluster, topic)[0]
    sources: list[int] = []

    def note_source(statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(topic, {}).get("partitions", {})
        if "0" in partitions:
            sources.append(partitions["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "client.rack": f"rack-{near.node_id}",
            "statistics.interval.ms": 50,
            "stats_cb": note_source,
            "log_level": 0,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes | str | None] = []

        def read_nearby() -> bool:
            values.extend(message.value() for message in consumer.consume(100, 0.05))
            return near.node_id in sources and len(values) >= 50

        eventually(read_nearby, "the records come from the replica nearby")
        acked.send(50)
        acked.settle()
        eventually(lambda: read_nearby() and len(values) == 100, "so do those that are written now")
    assert values == [b"%d" % number for number in range(100)]
