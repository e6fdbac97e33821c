"""Many partitions: a clean restart with a thousand, and the first record in each of two thousand."""

from __future__ import annotations

import time

from bench.metrics import Metric, Sample, at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import percentile
from bench.topics import await_topic, create_topic, expect_records

RECORD_BYTES = 100
# Enough requests for a JVM to have compiled its produce path.
WARM_UP_REQUESTS = 10_000


class PartitionsStart(Scenario):
    """Start after a clean stop until every partition answers with its end offset."""

    name = "partitions_start"
    phase = Phase.ALONE
    until_served = Metric("start_1000_partitions", "start with 1,000 partitions, clean stop", "s", "lower", at_most(2))
    metrics = (until_served,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        partitions = bench.sizes.partitions_start
        server.start()
        topic = create_topic(server, partitions)
        bench.drivers.run(server, "produce_to_each_partition", _job(topic, partitions, rounds=1))
        server.stop()
        before = time.perf_counter()
        server.start()
        offsets = await_topic(server, topic, partitions)
        seconds = time.perf_counter() - before
        if offsets != [1] * partitions:
            raise AssertionError(f"{server.title} lost records over a clean stop")
        server.stop()
        return [Sample(self.until_served, seconds)]


class PartitionsProduce(Scenario):
    """p99 of the first record in each of 2,000 partitions, against as many records in one partition.

    Plain sockets, one request at a time: librdkafka walks over all its partitions for every request.
    """

    name = "partitions_produce"
    phase = Phase.ALONE
    many_p99 = Metric("produce_2000_partitions_p99", "produce p99, first record of 2,000 partitions", "ms", "lower")
    times_one = Metric("produce_2000_over_1", "… over the p99 of one partition", "×", "lower", at_most(2))
    metrics = (many_p99, times_one)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        partitions = bench.sizes.partitions_produce
        server.start()
        one, many = create_topic(server), create_topic(server, partitions)
        bench.drivers.run(server, "produce_to_each_partition", _job(one, 1, rounds=WARM_UP_REQUESTS))
        one_p99_ms = self._p99_ms(bench, server, _job(one, 1, rounds=partitions))
        many_p99_ms = self._p99_ms(bench, server, _job(many, partitions, rounds=1))
        expect_records(server, many, partitions, partitions)
        server.stop()
        return [Sample(self.many_p99, many_p99_ms), Sample(self.times_one, many_p99_ms / one_p99_ms)]

    def _p99_ms(self, bench: Bench, server: ServerProcess, job: dict[str, object]) -> float:
        drive = bench.drivers.run(server, "produce_to_each_partition", job)
        return percentile(drive.result["latencies_ms"], 99)


def _job(topic: str, partitions: int, *, rounds: int) -> dict[str, object]:
    return {"topic": topic, "partitions": partitions, "rounds": rounds, "record_bytes": RECORD_BYTES}
