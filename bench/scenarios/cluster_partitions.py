"""Thousands of partitions with three replicas each: created, idle, and moved while somebody writes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.cluster_topics import CONFIG, await_in_sync, awaited, create_topic, partitions_of
from bench.drive import Client as Driver
from bench.metrics import Metric, Sample, ratio_at_most
from bench.scenarios.cluster_load import PARTITIONS, RECORD_BYTES, paced_job
from bench.scenarios.scenario import Bench, ClusterScenario, Phase
from bench.servers.cluster import NODES, ServerCluster
from bench.stats import percentile
from moldau.client.cluster import ClusterClient, PartitionMetadata
from moldau.client.cluster_admin import alter_reassignments, elect_leaders, list_reassignments
from moldau.wire.constants import ElectionType
from moldau.wire.topic_partition import TopicPartition

# A cluster that has just made thousands of replicas is still tidying up, and a JVM compiling.
SETTLE_S = 15.0


class ClusterPartitions(ClusterScenario):
    """3,000 partitions, 9,000 replicas: from the request until each has acknowledged a record; their CPU when idle.

    Then all are moved to their replicas in another order, and led by the first of them: from the request to the last
    partition that is where it was sent. Meanwhile a producer writes 1,000 records a second to another topic.
    """

    name = "cluster_partitions"
    phase = Phase.ALONE
    repeats_itself = True
    created = Metric("cluster_create", "3,000 partitions × 3: created and written to", "s", "lower", ratio_at_most(1.0))
    idle = Metric("cluster_idle_cpu", "… CPU of all brokers, idle for a minute", "CPU s", "lower", ratio_at_most(0.8))
    moved = Metric("cluster_move", "… all moved to other replicas and leaders", "s", "lower", ratio_at_most(1.0))
    writes_p99 = Metric("cluster_move_p99", "… produce p99 meanwhile", "ms", "lower", ratio_at_most(1.0))
    metrics = (created, idle, moved, writes_p99)

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        cluster.start()
        partitions = bench.sizes.cluster_partitions
        other = create_topic(cluster, PARTITIONS)
        topic = "many"
        new = {"new_topic": topic, "partitions": partitions, "replicas": NODES, "config": CONFIG}
        job = {**new, "topic": other, "record_bytes": RECORD_BYTES}
        created_s = bench.drivers.run(cluster, "create_and_write", job).seconds
        idle_cpu_s = idle_cpu_per_minute(cluster, bench.sizes.cluster_idle_seconds)
        job = paced_job(other, bench.sizes.cluster_move_seconds)
        with bench.drivers.client(cluster, "produce_paced", job) as producer:
            moved_s, p99_ms = self._move(cluster, topic, producer)
        return [
            Sample(self.created, created_s),
            Sample(self.idle, idle_cpu_s),
            Sample(self.moved, moved_s),
            Sample(self.writes_p99, p99_ms),
        ]

    def _move(self, cluster: ServerCluster, topic: str, producer: Driver) -> tuple[float, float]:
        producer.go()
        with cluster.client() as client:
            before = time.perf_counter()
            move_all(client, topic)
            after = time.perf_counter()
        result = producer.result()
        return after - before, percentile(between(result, before, after), 99)


def idle_cpu_per_minute(cluster: ServerCluster, seconds: float) -> float:
    time.sleep(SETTLE_S)
    cpu_before_s = cluster.cpu_seconds()
    time.sleep(seconds)
    return (cluster.cpu_seconds() - cpu_before_s) / seconds * 60


def move_all(client: ClusterClient, topic: str) -> None:
    """Every partition to its replicas rotated by one, and led by the first of them."""
    before = partitions_of(client, topic)
    targets = {TopicPartition(topic, each.partition): rotated(each.replicas) for each in before}
    if refused := alter_reassignments(client, targets):
        raise RuntimeError(f"{len(refused)} reassignments were refused: {next(iter(refused.values()))}")
    awaited(lambda: list_reassignments(client), lambda under_way: not under_way, "all reassignments complete")
    elect_leaders(client, ElectionType.PREFERRED, targets)

    def have_arrived(found: Sequence[PartitionMetadata]) -> bool:
        return all(
            each.replicas == targets[TopicPartition(topic, each.partition)] and each.leader == each.replicas[0]
            for each in found
        )

    awaited(lambda: partitions_of(client, topic), have_arrived, "all partitions where they were sent")
    await_in_sync(client, topic, len(before))


def rotated(replicas: tuple[int, ...]) -> tuple[int, ...]:
    return replicas[1:] + replicas[:1]


def between(result: dict[str, list[float]], start: float, end: float) -> list[float]:
    """The latencies of the records that were due meanwhile."""
    return [ms for due, ms in zip(result["due_at"], result["latencies_ms"], strict=True) if start <= due <= end]
