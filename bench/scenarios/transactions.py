"""Transactions: how many fit into a second, what one costs the broker, and what reading only committed ones costs."""

from __future__ import annotations

import itertools

from bench.drive import Drive
from bench.metrics import Metric, Sample, ratio_at_least
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.topics import temporary_topic

PARTITIONS = 4
RECORDS = 200
SMALL_RECORD_BYTES = 100

_numbers = itertools.count(1)


def transact(
    bench: Bench, server: ServerProcess, topic: str, records: int, record_bytes: int = SMALL_RECORD_BYTES
) -> Drive:
    """As many transactions as a run takes, of so many records each."""
    job = {
        "topic": topic,
        "transactional_id": f"bench-{next(_numbers)}",
        "transactions": bench.sizes.transactions,
        "records": records,
        "record_bytes": record_bytes,
    }
    return bench.drivers.run(server, "transact", job)


class Transactions(Scenario):
    """librdkafka, one producer, four partitions: begin, 200 records, commit, and again."""

    phase = Phase.LOAD

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        size = "100 B" if record_bytes == 100 else "1 KB"
        self.name = f"transactions_{record_bytes}b"
        self._rate = Metric(
            f"transactions_{record_bytes}b",
            f"produce {size} in transactions of 200",
            "records/s",
            "higher",
            ratio_at_least(1.0),
        )
        self._cpu = Metric(
            f"transactions_cpu_{record_bytes}b", f"broker CPU of a transaction of 200 × {size}", "CPU ms", "lower"
        )
        self.metrics = (self._rate, self._cpu)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        count = bench.sizes.transactions
        with temporary_topic(server, PARTITIONS) as topic:
            drive = transact(bench, server, topic, RECORDS, self._record_bytes)
        return [
            Sample(self._rate, count * RECORDS / drive.seconds, drive.is_client_bound),
            Sample(self._cpu, drive.broker_cpu_s / count * 1000),
        ]


class SmallTransactions(Scenario):
    """Transactions of a single record: nearly all of it is the coordinator's work, and the client's waiting."""

    name = "transactions_small"
    phase = Phase.LOAD
    rate = Metric("transactions_per_second", "transactions of one record, one producer", "transactions/s", "higher")
    metrics = (rate,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        with temporary_topic(server) as topic:
            drive = transact(bench, server, topic, 1)
        return [Sample(self.rate, bench.sizes.transactions / drive.seconds)]


class ReadCommitted(Scenario):
    """librdkafka reads the same committed transactions of 200 records with both isolation levels in turns, several
    times over; the value is the time with read_committed over the time with read_uncommitted."""

    name = "read_committed"
    phase = Phase.LOAD
    rate = Metric("read_committed_100b", "consume 100 B in transactions of 200, read_committed", "records/s", "higher")
    overhead = Metric("read_committed_overhead", "… time over that of read_uncommitted", "×", "lower")
    metrics = (rate, overhead)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        passes = bench.sizes.transaction_passes
        # The producer's first transaction, before its clock runs, holds one record.
        records = bench.sizes.transactions * RECORDS + 1
        with temporary_topic(server, PARTITIONS) as topic:
            transact(bench, server, topic, RECORDS)
            job = {"topic": topic, "partitions": PARTITIONS, "records": records, "passes": passes}
            drive = bench.drivers.run(server, "consume_transactions", job)
        level_s = drive.result["level_s"]
        return [
            Sample(self.rate, records * passes / level_s["read_committed"], drive.is_client_bound),
            Sample(self.overhead, level_s["read_committed"] / level_s["read_uncommitted"]),
        ]
