"""Small requests: how many a second from four pipelining producers, and how long one takes alone."""

from __future__ import annotations

from bench.drive import Drive
from bench.metrics import Metric, Sample, ratio_at_least, ratio_at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import percentile
from bench.topics import expect_records, temporary_topic

PRODUCERS = 4
# What librdkafka and the Java client keep in flight when they are idempotent.
IN_FLIGHT = 5
RECORD_BYTES = 100


class PipelinedRequests(Scenario):
    """Four processes on plain sockets, five requests of one record in flight each, acks=all.

    Plain sockets and not librdkafka, which on two cores would itself be the limit for both brokers.
    """

    name = "requests"
    phase = Phase.LOAD
    rate = Metric(
        "requests_per_second",
        "single-record produce requests, 4 pipelined producers",
        "requests/s",
        "higher",
        ratio_at_least(1.5),
    )
    metrics = (rate,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        drive = pipeline(bench, server, bench.sizes.pipeline_seconds)
        total = sum(result["requests"] for result in drive.results)
        return [Sample(self.rate, total / drive.seconds)]


def pipeline(bench: Bench, server: ServerProcess, seconds: float) -> Drive:
    with temporary_topic(server, PRODUCERS) as topic:
        job = {"topic": topic, "seconds": seconds, "in_flight": IN_FLIGHT, "record_bytes": RECORD_BYTES}
        drive = bench.drivers.run(
            server, "pipeline_requests", *({**job, "partition": index} for index in range(PRODUCERS))
        )
        expect_records(server, topic, PRODUCERS, sum(result["records_in_log"] for result in drive.results))
    return drive


class SynchronousProduce(Scenario):
    """librdkafka, linger 0, idempotent, acks=all: one record and a flush, then the next."""

    name = "latency"
    phase = Phase.LOAD
    p50 = Metric("sync_produce_p50", "synchronous produce, p50", "ms", "lower")
    p99 = Metric("sync_produce_p99", "synchronous produce, p99", "ms", "lower", ratio_at_most(1.0))
    metrics = (p50, p99)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        drive = one_by_one(bench, server, bench.sizes.one_by_one_records)
        latencies_ms = drive.result["latencies_ms"]
        return [
            Sample(self.p50, percentile(latencies_ms, 50)),
            Sample(self.p99, percentile(latencies_ms, 99)),
        ]


def one_by_one(bench: Bench, server: ServerProcess, records: int) -> Drive:
    with temporary_topic(server) as topic:
        job = {"topic": topic, "records": records, "record_bytes": RECORD_BYTES}
        drive = bench.drivers.run(server, "produce_one_by_one", job)
        expect_records(server, topic, 1, records + 1)
    return drive
