"""Consumer groups: how soon a consumer has its first record, fifty members that rebalance, a thousand groups."""

from __future__ import annotations

import itertools

from bench.drive import Drive
from bench.metrics import KAFKA, Metric, Sample
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import median
from bench.topics import create_topic, temporary_topic

PARTITIONS = 4
RECORD_BYTES = 100
PROTOCOLS = ("classic", "consumer")
# Two for each of fifty members.
REBALANCED_PARTITIONS = 100
# Clients wait 3 s and more between heartbeats, by which they learn of a rebalance. That would be all that is
# seen here, of both brokers alike.
HEARTBEAT_S = 0.02
KAFKA_DEFAULT_DELAY_MS = 3_000
MB = 1_000_000

_numbers = itertools.count(1)


def new_group() -> str:
    return f"bench-group-{next(_numbers)}"


def subscribe_waits_ms(bench: Bench, server: ServerProcess, topic: str, protocol: str, consumers: int) -> list[float]:
    job = {"topic": topic, "group": new_group(), "protocol": protocol, "consumers": consumers}
    waits_ms: list[float] = bench.drivers.run(server, "subscribe", job).result["waits_ms"]
    return waits_ms


def fill(bench: Bench, server: ServerProcess, topic: str) -> None:
    """Records in every partition: a fetch of an empty one would wait at the broker, and all others behind it."""
    job = {"topic": topic, "partitions": PARTITIONS, "rounds": 10, "record_bytes": RECORD_BYTES}
    bench.drivers.run(server, "produce_to_each_partition", job)


class Subscribe(Scenario):
    """librdkafka, already connected: from `subscribe()` to the first record, the first consumer of a new group on
    a topic with records; the median of several. With either broker 100 ms of it are librdkafka's own wait before it
    asks where a partition begins. Apache Kafka runs with group.initial.rebalance.delay.ms=0."""

    name = "subscribe"
    phase = Phase.LOAD
    classic = Metric("subscribe_classic", "subscribe() to first record, classic protocol", "ms", "lower")
    consumer = Metric("subscribe_consumer", "subscribe() to first record, consumer protocol", "ms", "lower")
    metrics = (classic, consumer)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        samples: list[Sample] = []
        with temporary_topic(server, PARTITIONS) as topic:
            fill(bench, server, topic)
            for metric, protocol in zip(self.metrics, PROTOCOLS, strict=True):
                waits_ms = subscribe_waits_ms(bench, server, topic, protocol, bench.sizes.subscribes)
                samples.append(Sample(metric, median(waits_ms)))
        return samples


class SubscribeByDefault(Scenario):
    """The same with group.initial.rebalance.delay.ms as each broker has it by default: 3 s in Kafka, 0 here."""

    name = "subscribe_default"
    phase = Phase.ALONE
    repeats_itself = True
    first_record = Metric("subscribe_by_default", "subscribe() to first record, classic, all defaults", "ms", "lower")
    metrics = (first_record,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        if server.name == KAFKA:
            server.extra = {"group.initial.rebalance.delay.ms": KAFKA_DEFAULT_DELAY_MS}
        server.start()
        topic = create_topic(server, PARTITIONS)
        fill(bench, server, topic)
        # The first of all pays for the topic of the offsets.
        _, wait_ms = subscribe_waits_ms(bench, server, topic, PROTOCOLS[0], 2)
        server.stop()
        return [Sample(self.first_record, wait_ms)]


class Rebalance(Scenario):
    """Fifty members of one group on plain sockets in one process, with heartbeats every 20 ms: fifty librdkafkas
    on two cores would measure themselves. Stable is a group whose members hold all partitions in one generation.
    """

    phase = Phase.LOAD

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self.name = f"rebalance_{protocol}"
        self._start = Metric(
            f"rebalance_50_start_{protocol}", f"50 members start at once until stable, {protocol}", "ms", "lower"
        )
        self._leave = Metric(
            f"rebalance_50_leave_{protocol}", f"one of 50 members leaves until stable, {protocol}", "ms", "lower"
        )
        self.metrics = (self._start, self._leave)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        result = rebalance(bench, server, self._protocol)
        return [Sample(self._start, result["start_s"] * 1000), Sample(self._leave, result["leave_s"] * 1000)]


def rebalance(bench: Bench, server: ServerProcess, protocol: str) -> dict[str, float]:
    with temporary_topic(server, REBALANCED_PARTITIONS) as topic:
        job = {
            "topic": topic,
            "partitions": REBALANCED_PARTITIONS,
            "group": new_group(),
            "protocol": protocol,
            "members": bench.sizes.members,
            "heartbeat_s": HEARTBEAT_S,
        }
        return bench.drivers.run(server, "rebalance", job).result


class ManyGroups(Scenario):
    """A thousand groups of one classic member each, every member on a connection of its own: all join at once;
    then each sends heartbeat and commit in turns, one at a time; memory is that of the whole broker then."""

    name = "groups"
    phase = Phase.LOAD
    start = Metric("groups_1000_start", "1,000 groups start at once until stable", "s", "lower")
    rate = Metric("groups_1000_rate", "heartbeats and commits of 1,000 groups", "requests/s", "higher")
    memory = Metric("groups_1000_memory", "resident memory with 1,000 groups", "MB", "lower")
    metrics = (start, rate, memory)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        drive = many_groups(bench, server, bench.sizes.groups)
        result = drive.result
        return [
            Sample(self.start, result["start_s"]),
            Sample(self.rate, result["answers"] / result["busy_s"], drive.is_client_bound),
            Sample(self.memory, server.rss_bytes() / MB),
        ]


def many_groups(bench: Bench, server: ServerProcess, count: int) -> Drive:
    with temporary_topic(server, PARTITIONS) as topic:
        job = {"topic": topic, "partitions": PARTITIONS, "group": new_group(), "groups": count}
        return bench.drivers.run(server, "groups", {**job, "seconds": bench.sizes.groups_seconds})
