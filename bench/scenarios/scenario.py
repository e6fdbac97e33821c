"""What a scenario is, what it gets to work with, and how large it is in a full and in a quick run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.drive import Drivers
from bench.metrics import KAFKA, MOLDAU, Metric, Sample
from bench.servers.cluster import NODES

BOTH = (MOLDAU, KAFKA)


class Phase(StrEnum):
    """When a scenario runs. The first three share one pair of servers, which alternate round by round."""

    IDLE = "idle"  # started, nothing asked of it yet
    LOAD = "load"  # warm
    AFTER = "after"  # once all the load is over
    ALONE = "alone"  # on a server of its own, not started yet, discarded afterwards


@dataclass(frozen=True)
class Sizes:
    """How much work a run does. A quick run shows that everything works; only a full one is worth quoting."""

    warms_up_fully: bool
    warm_up_records: int
    records_100b: int
    records_1kb: int
    pipeline_seconds: float
    one_by_one_records: int
    connections_seconds: float
    partitions_start: int
    partitions_produce: int
    long_log_bytes: int
    fetches_per_place: int
    recovery_bytes: int
    embedded_starts: int
    subscribes: int
    members: int
    groups: int
    groups_seconds: float
    commits_seconds: float
    one_by_one_commits: int
    transactions: int
    transaction_passes: int
    compaction_bytes_1kb: int
    compaction_bytes_100b: int
    compactions: int
    spark_records: int
    spark_write_rows: int
    pipeline_records: int
    pipeline_idle_seconds: float
    paced_seconds: float
    cluster_partitions: int
    cluster_idle_seconds: float
    cluster_move_seconds: float


FULL = Sizes(
    warms_up_fully=True,
    warm_up_records=3_000_000,
    records_100b=2_000_000,
    records_1kb=500_000,
    pipeline_seconds=5,
    one_by_one_records=5_000,
    connections_seconds=4,
    partitions_start=1_000,
    partitions_produce=2_000,
    long_log_bytes=5 << 30,
    fetches_per_place=200,
    recovery_bytes=1 << 30,
    embedded_starts=20,
    subscribes=5,
    members=50,
    groups=1_000,
    groups_seconds=2,
    commits_seconds=2,
    one_by_one_commits=2_000,
    transactions=400,
    transaction_passes=10,
    compaction_bytes_1kb=200_000_000,
    compaction_bytes_100b=50_000_000,
    compactions=2,
    spark_records=4_000_000,
    spark_write_rows=2_000_000,
    pipeline_records=2_000_000,
    pipeline_idle_seconds=30,
    paced_seconds=10,
    cluster_partitions=3_000,
    cluster_idle_seconds=30,
    cluster_move_seconds=30,
)
QUICK = Sizes(
    warms_up_fully=False,
    warm_up_records=500_000,
    records_100b=400_000,
    records_1kb=100_000,
    pipeline_seconds=1.5,
    one_by_one_records=1_000,
    connections_seconds=1,
    partitions_start=200,
    partitions_produce=400,
    long_log_bytes=256 << 20,
    fetches_per_place=30,
    recovery_bytes=128 << 20,
    embedded_starts=5,
    subscribes=3,
    members=20,
    groups=200,
    groups_seconds=1,
    commits_seconds=1,
    one_by_one_commits=500,
    transactions=100,
    transaction_passes=10,
    compaction_bytes_1kb=24_000_000,
    compaction_bytes_100b=20_000_000,
    compactions=1,
    spark_records=500_000,
    spark_write_rows=250_000,
    pipeline_records=400_000,
    pipeline_idle_seconds=15,
    paced_seconds=2,
    cluster_partitions=300,
    cluster_idle_seconds=5,
    cluster_move_seconds=10,
)


@dataclass(frozen=True)
class Bench:
    """The means of a run, the same for every scenario and both servers."""

    drivers: Drivers
    sizes: Sizes
    repeat: int
    say: Callable[[str], None]


class Scenario(ABC):
    """One question asked of a server. Its metrics carry their goals."""

    name: str
    phase: Phase
    metrics: tuple[Metric, ...]
    servers: tuple[str, ...] = BOTH
    # How many brokers the server it is run against is made of.
    brokers = 1
    # Part of a quick run that names no scenarios.
    is_quick = True
    # Takes its several samples in one call, because what it builds first is dear.
    repeats_itself = False

    def obstacle(self, say: Callable[[str], None]) -> str | None:
        """Why it cannot run on this machine, or None."""
        return None

    @abstractmethod
    def run(self, bench: Bench, server: Any, /) -> list[Sample]:
        """`server` is a `ServerProcess`, or a `ServerCluster` where there are several brokers."""

    def rounds(self, repeat: int) -> int:
        """How often the runner calls it."""
        return 1 if self.repeats_itself else repeat


class ClusterScenario(Scenario):
    brokers = NODES
    is_quick = False
