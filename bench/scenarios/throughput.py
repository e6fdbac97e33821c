"""Bulk throughput, and what it costs the broker: librdkafka, idempotent, acks=all, four partitions.

The Python clients often are the limit here; then the broker had room, the sample is marked client-bound, and
the CPU seconds tell the brokers apart.
"""

from __future__ import annotations

from bench.drive import Drive
from bench.metrics import Metric, Sample, ratio_at_least, ratio_at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.topics import temporary_topic

PARTITIONS = 4


class Throughput(Scenario):
    phase = Phase.LOAD

    def __init__(self, record_bytes: int, codec: str) -> None:
        self._record_bytes = record_bytes
        self._codec = codec
        size = "100 B" if record_bytes == 100 else "1 KB"
        suffix = f"{record_bytes}b_{codec}"
        self.name = f"throughput_{suffix}"
        self._produced = Metric(
            f"produce_{suffix}", f"produce {size}, {codec}", "records/s", "higher", ratio_at_least(1.0)
        )
        self._consumed = Metric(
            f"consume_{suffix}", f"consume {size}, {codec}", "records/s", "higher", ratio_at_least(1.0)
        )
        self._cpu = Metric(
            f"cpu_{suffix}",
            f"broker CPU, 1 M records of {size} in and out, {codec}",
            "CPU s",
            "lower",
            ratio_at_most(0.7) if suffix == "100b_none" else None,
        )
        self.metrics = (self._produced, self._consumed, self._cpu)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        records = bench.sizes.records_100b if self._record_bytes == 100 else bench.sizes.records_1kb
        produced, consumed = produce_and_consume(bench, server, records, self._record_bytes, self._codec)
        cpu_s = (produced.broker_cpu_s + consumed.broker_cpu_s) / records * 1_000_000
        return [
            Sample(self._produced, records / produced.seconds, produced.is_client_bound),
            Sample(self._consumed, records / consumed.seconds, consumed.is_client_bound),
            Sample(self._cpu, cpu_s),
        ]


def produce_and_consume(
    bench: Bench, server: ServerProcess, records: int, record_bytes: int, codec: str
) -> tuple[Drive, Drive]:
    with temporary_topic(server, PARTITIONS) as topic:
        job = {"topic": topic, "records": records, "record_bytes": record_bytes, "codec": codec}
        produced = bench.drivers.run(server, "produce", job)
        # The producer's first record, which it sends before the clock runs, is there too.
        expected = {"topic": topic, "partitions": PARTITIONS, "records": records + 1}
        consumed = bench.drivers.run(server, "consume", expected)
    return produced, consumed
