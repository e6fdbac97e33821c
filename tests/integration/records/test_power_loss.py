"""The power fails for all brokers at once: with `flush.messages=1`, what anybody was told of is on the disks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import moldau
from moldau.client.admin import create_topic
from moldau.testing.power_loss import broker_command, hold, replace_by_left_over
from soak.log_end import log_end
from tests.integration.conftest import cluster_at
from tests.integration.waiting import eventually

TOPIC = "synced"
LEADER = 1


@pytest.fixture(params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[moldau.Cluster]:
    brokers = moldau.Cluster(request.param, data_dir=tmp_path / "cluster")
    plug_in(brokers, boot=0)
    with brokers:
        yield brokers
        for broker in brokers.brokers:
            broker.kill()  # nothing has to be handed over


def shadow_of(cluster: moldau.Cluster, node_id: int, boot: int) -> Path:
    return cluster.data_dir / f"synced-{node_id}-{boot}"


def plug_in(cluster: moldau.Cluster, boot: int) -> None:
    for broker in cluster.brokers:
        broker.command = broker_command(broker.data_dir, shadow_of(cluster, broker.node_id, boot))


def lose_power(cluster: moldau.Cluster) -> None:
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        replace_by_left_over(broker.data_dir, shadow_of(cluster, broker.node_id, boot=0))
    plug_in(cluster, boot=1)
    for broker in cluster.brokers:
        broker.start()
    cluster.wait_until_ready()


class Clients:
    """A producer, and a reader of all that is there."""

    def __init__(self, cluster: moldau.Cluster) -> None:
        common = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        self.acked: list[bytes] = []
        self.read: list[bytes] = []
        self.producer = Producer({**common, "acks": "all", "linger.ms": 0})
        self._consumer = Consumer({**common, "group.id": "reader", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def send(self, value: bytes) -> None:
        self.producer.produce(TOPIC, value, on_delivery=self._delivered)
        self.producer.poll(0)

    def _delivered(self, error: object, message: Message) -> None:
        value = message.value()
        if error is None and isinstance(value, bytes):
            self.acked.append(value)

    def look(self) -> None:
        self.producer.poll(0)
        self.read += [
            value
            for message in self._consumer.consume(100, 0.05)
            if message.error() is None and isinstance(value := message.value(), bytes)
        ]

    def has(self, *values: bytes) -> bool:
        self.look()
        return set(values) <= set(self.read)

    @property
    def high_watermark(self) -> int:
        return log_end(self._consumer, TopicPartition(TOPIC, 0))

    def close(self) -> None:
        self.producer.purge()
        self._consumer.close()


def has_in_its_log(cluster: moldau.Cluster, node_id: int, value: bytes, *, synced: bool = False) -> bool:
    folder = cluster.broker(node_id).data_dir / f"{TOPIC}-0"
    segment = next(iter(folder.glob("*.log")))
    if synced:
        segment = shadow_of(cluster, node_id, boot=0) / "synced" / str(segment.stat().st_ino)
    return segment.exists() and value in segment.read_bytes()


def test_whatever_was_acknowledged_or_read_is_there_after_the_power_failed(cluster: moldau.Cluster) -> None:
    with cluster_at(cluster.bootstrap_servers) as admin:
        replicas = [broker.node_id for broker in cluster.brokers]
        create_topic(admin, TOPIC, assignments={0: replicas}, configs={"flush.messages": "1"})
    with closing(Clients(cluster)) as clients:
        clients.send(b"before")
        eventually(lambda: clients.has(b"before") and clients.acked == [b"before"], "a record is acknowledged and read")
        hold(shadow_of(cluster, LEADER, boot=0))
        clients.send(b"unsynced")
        eventually(lambda: has_in_its_log(cluster, LEADER, b"unsynced"), "the leader has written it")
        eventually(
            lambda: all(has_in_its_log(cluster, each, b"unsynced", synced=True) for each in replicas[1:]),
            "the followers have it on their disks",
        )
        for _ in range(3):
            clients.look()
            assert clients.high_watermark == 1, "nobody is told of what is not on the leader's disk"
        assert (clients.acked, clients.read) == ([b"before"], [b"before"])
    lose_power(cluster)
    with closing(Clients(cluster)) as clients:
        clients.send(b"after")
        eventually(lambda: clients.has(b"before", b"after"), "what was acknowledged or read is there, and more can be")
        assert clients.read[0] == b"before"
