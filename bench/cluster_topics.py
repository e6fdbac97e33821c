"""Topics of a cluster: three replicas each, ready when all of them are in sync, by the same calls on both servers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers.cluster import NODES, ServerCluster
from moldau.client.cluster import ClusterClient, PartitionMetadata
from moldau.client.cluster_admin import describe_quorum

# Apache Kafka makes thousands of replicas on a busy machine in less.
READY_TIMEOUT_S = 180
POLL_S = 0.05
# Kafka keeps the files of a deleted topic open for a minute; the next scenario needs the room sooner.
CONFIG = {"file.delete.delay.ms": "1000", "min.insync.replicas": "2"}
_numbers = itertools.count(1)

T = TypeVar("T")


def awaited(ask: Callable[[], T], holds: Callable[[T], bool], what: str, poll_s: float = POLL_S) -> T:
    deadline = time.perf_counter() + READY_TIMEOUT_S
    while not holds(answer := ask()):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{what}: not within {READY_TIMEOUT_S} s")
        time.sleep(poll_s)
    return answer


def create_topic(cluster: ServerCluster, partitions: int) -> str:
    """A new topic, returned once every partition has a leader and all of its replicas in sync."""
    name = f"bench-{next(_numbers)}"
    admin = _admin(cluster)
    topic = NewTopic(name, partitions, NODES, config=CONFIG)
    admin.create_topics([topic], request_timeout=READY_TIMEOUT_S)[name].result(READY_TIMEOUT_S)
    with cluster.client() as client:
        await_in_sync(client, name, partitions)
    return name


def await_in_sync(client: ClusterClient, topic: str, partitions: int) -> None:
    def in_sync(found: list[PartitionMetadata]) -> bool:
        return len(found) == partitions and all(each.leader > 0 and len(each.isr) == NODES for each in found)

    awaited(lambda: partitions_of(client, topic), in_sync, f"all replicas of {topic} in sync")


def partitions_of(client: ClusterClient, topic: str) -> list[PartitionMetadata]:
    """By partition; none while the broker that is asked has not heard of the topic."""
    found = client.metadata([topic]).topics.get(topic)
    return sorted(found.partitions) if found else []


def controller_of(client: ClusterClient) -> int:
    """By the state of the quorum: what Apache Kafka's metadata calls the controller is any broker."""
    return describe_quorum(client).leader_id


def delete_topic(cluster: ServerCluster, topic: str) -> None:
    # Kept by name: a client that is collected takes its unfinished calls with it.
    admin = _admin(cluster)
    admin.delete_topics([topic])[topic].result(READY_TIMEOUT_S)


@contextlib.contextmanager
def temporary_topic(cluster: ServerCluster, partitions: int) -> Iterator[str]:
    topic = create_topic(cluster, partitions)
    yield topic
    delete_topic(cluster, topic)


def _admin(cluster: ServerCluster) -> AdminClient:
    # Errors only: librdkafka tells of the end of every short-lived client.
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 3})
