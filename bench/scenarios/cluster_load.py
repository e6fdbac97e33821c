"""Three brokers, three replicas, acks=all, min.insync.replicas=2: throughput, latency, CPU and memory of all three.

The same librdkafka, idempotent, for both. Three partitions: each broker leads one and follows two.
"""

from __future__ import annotations

from bench.cluster_topics import temporary_topic
from bench.drive import Drive
from bench.metrics import Metric, Sample, ratio_at_least, ratio_at_most
from bench.scenarios.scenario import Bench, ClusterScenario, Phase
from bench.servers.cluster import ServerCluster
from bench.stats import percentile

PARTITIONS = 3
RECORD_BYTES = 100
PACED_RATE = 1_000
MB = 1_000_000


class ClusterThroughput(ClusterScenario):
    phase = Phase.LOAD

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        size = "100 B" if record_bytes == 100 else "1 KB"
        self.name = f"cluster_throughput_{record_bytes}b"
        self.is_quick = record_bytes == 100
        self._produced = Metric(
            f"cluster_produce_{record_bytes}b",
            f"3 replicas: produce {size}",
            "records/s",
            "higher",
            ratio_at_least(1.0),
        )
        self._consumed = Metric(
            f"cluster_consume_{record_bytes}b",
            f"3 replicas: consume {size}",
            "records/s",
            "higher",
            ratio_at_least(1.0),
        )
        self._cpu = Metric(
            f"cluster_cpu_{record_bytes}b",
            f"3 replicas: CPU of all brokers, 1 M records of {size} in and out",
            "CPU s",
            "lower",
            ratio_at_most(0.8),
        )
        self.metrics = (self._produced, self._consumed, self._cpu)

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        records = bench.sizes.records_100b if self._record_bytes == 100 else bench.sizes.records_1kb
        produced, consumed = produce_and_consume(bench, cluster, records, self._record_bytes)
        cpu_s = (produced.broker_cpu_s + consumed.broker_cpu_s) / records * 1_000_000
        return [
            Sample(self._produced, records / produced.seconds, produced.is_client_bound),
            Sample(self._consumed, records / consumed.seconds, consumed.is_client_bound),
            Sample(self._cpu, cpu_s),
        ]


class ClusterLatency(ClusterScenario):
    """One record and a flush, then the next; and 1,000 records a second, each from when it was due. Linger 0."""

    name = "cluster_latency"
    phase = Phase.LOAD
    is_quick = True
    p50 = Metric("cluster_sync_p50", "3 replicas: synchronous produce, p50", "ms", "lower", ratio_at_most(1.0))
    p99 = Metric("cluster_sync_p99", "3 replicas: synchronous produce, p99", "ms", "lower", ratio_at_most(1.0))
    paced_p50 = Metric("cluster_paced_p50", "3 replicas: 1,000 records/s, p50", "ms", "lower", ratio_at_most(1.0))
    paced_p99 = Metric("cluster_paced_p99", "3 replicas: 1,000 records/s, p99", "ms", "lower", ratio_at_most(1.0))
    metrics = (p50, p99, paced_p50, paced_p99)

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        alone_ms = one_by_one(bench, cluster).result["latencies_ms"]
        paced_ms = at_a_pace(bench, cluster).result["latencies_ms"]
        return [
            Sample(self.p50, percentile(alone_ms, 50)),
            Sample(self.p99, percentile(alone_ms, 99)),
            Sample(self.paced_p50, percentile(paced_ms, 50)),
            Sample(self.paced_p99, percentile(paced_ms, 99)),
        ]


class ClusterMemory(ClusterScenario):
    """The proportional set size of all brokers: what they share counts once."""

    name = "cluster_memory"
    phase = Phase.AFTER
    is_quick = True
    repeats_itself = True
    resident = Metric(
        "cluster_memory", "3 replicas: memory of all brokers, after the load", "MB", "lower", ratio_at_most(0.2)
    )
    metrics = (resident,)

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        return [Sample(self.resident, cluster.pss_bytes() / MB)]


def produce_and_consume(bench: Bench, cluster: ServerCluster, records: int, record_bytes: int) -> tuple[Drive, Drive]:
    with temporary_topic(cluster, PARTITIONS) as topic:
        job = {"topic": topic, "records": records, "record_bytes": record_bytes, "codec": "none"}
        produced = bench.drivers.run(cluster, "produce", job)
        # The producer's first record, which it sends before the clock runs, is there too.
        consumed = bench.drivers.run(
            cluster, "consume", {"topic": topic, "partitions": PARTITIONS, "records": records + 1}
        )
    return produced, consumed


def one_by_one(bench: Bench, cluster: ServerCluster) -> Drive:
    with temporary_topic(cluster, 1) as topic:
        job = {"topic": topic, "records": bench.sizes.one_by_one_records, "record_bytes": RECORD_BYTES}
        return bench.drivers.run(cluster, "produce_one_by_one", job)


def at_a_pace(bench: Bench, cluster: ServerCluster) -> Drive:
    with temporary_topic(cluster, PARTITIONS) as topic:
        return bench.drivers.run(cluster, "produce_paced", paced_job(topic, bench.sizes.paced_seconds))


def paced_job(topic: str, seconds: float) -> dict[str, object]:
    return {"topic": topic, "rate": PACED_RATE, "seconds": seconds, "record_bytes": RECORD_BYTES}
