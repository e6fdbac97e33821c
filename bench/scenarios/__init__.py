"""All scenarios, in the order in which they are reported, and the warm-up before those of the load."""

from __future__ import annotations

from collections.abc import Callable

from bench.drive import Drive
from bench.metrics import KAFKA
from bench.scenarios import cluster_load
from bench.scenarios.cluster_failover import ClusterFailover, ClusterStart
from bench.scenarios.cluster_load import ClusterLatency, ClusterMemory, ClusterThroughput
from bench.scenarios.cluster_partitions import ClusterPartitions
from bench.scenarios.commits import PipelinedCommits, SynchronousCommit, commit_one_by_one, pipeline_commits
from bench.scenarios.compaction import Compaction
from bench.scenarios.groups import (
    PROTOCOLS,
    ManyGroups,
    Rebalance,
    Subscribe,
    SubscribeByDefault,
    many_groups,
    rebalance,
)
from bench.scenarios.long_log import FetchAnywhere, Recovery
from bench.scenarios.many_connections import ManyConnections
from bench.scenarios.memory import IdleMemory, LoadedMemory
from bench.scenarios.partitions import PartitionsProduce, PartitionsStart
from bench.scenarios.pipelines import PipelineFirstResult, PipelineIdle, PipelineThroughput
from bench.scenarios.requests import PipelinedRequests, SynchronousProduce, one_by_one, pipeline
from bench.scenarios.scenario import Bench, Scenario
from bench.scenarios.spark import SparkFirstResult, SparkThroughput
from bench.scenarios.start import EmbeddedStart, ProcessStart
from bench.scenarios.throughput import Throughput, produce_and_consume
from bench.scenarios.transactions import ReadCommitted, SmallTransactions, Transactions, transact
from bench.servers.cluster import ServerCluster
from bench.servers.server import ServerProcess
from bench.topics import temporary_topic

SCENARIOS: tuple[Scenario, ...] = (
    Throughput(100, "none"),
    Throughput(100, "lz4"),
    Throughput(1_000, "none"),
    Throughput(1_000, "lz4"),
    PipelinedRequests(),
    SynchronousProduce(),
    ManyConnections(),
    Subscribe(),
    SubscribeByDefault(),
    Rebalance("classic"),
    Rebalance("consumer"),
    ManyGroups(),
    PipelinedCommits(),
    SynchronousCommit(),
    Transactions(100),
    Transactions(1_000),
    SmallTransactions(),
    ReadCommitted(),
    IdleMemory(),
    LoadedMemory(),
    ProcessStart(),
    EmbeddedStart(),
    PartitionsStart(),
    PartitionsProduce(),
    FetchAnywhere(),
    Recovery(),
    Compaction(),
    ClusterThroughput(100),
    ClusterThroughput(1_000),
    ClusterLatency(),
    ClusterMemory(),
    ClusterStart(),
    ClusterFailover(9_000),
    ClusterFailover(3_000),
    ClusterPartitions(),
    SparkThroughput("plain", 2, ("read", "hash", "stream", "window", "write")),
    SparkThroughput("plain", 1, ("read", "stream", "write"), servers=(KAFKA,)),
    SparkThroughput("moldau", 2, ("read", "write"), servers=(KAFKA,)),
    SparkFirstResult(),
    PipelineThroughput(),
    PipelineFirstResult(),
    PipelineIdle(),
)


# A pass that costs hardly less than the one before has nothing left to warm.
WARM_FROM = 0.95
WARM_UP_PASSES_MAX = 6


def warm_up(bench: Bench, server: ServerProcess | ServerCluster) -> None:
    """Every path of the load phase, until a pass costs no less CPU than the last: a JVM compiles for long.

    The same rule for both servers.
    """
    if isinstance(server, ServerCluster):
        warm_up_cluster(bench, server)
    else:
        warm_up_broker(bench, server)


def warm_up_broker(bench: Bench, server: ServerProcess) -> None:
    sizes = bench.sizes
    until_warm(bench, lambda: produce_and_consume(bench, server, sizes.warm_up_records, 100, "none"))
    produce_and_consume(bench, server, sizes.warm_up_records // 10, 1_000, "lz4")
    pipeline(bench, server, sizes.pipeline_seconds)
    one_by_one(bench, server, sizes.one_by_one_records)
    warm_up_coordinators(bench, server)


def warm_up_cluster(bench: Bench, cluster: ServerCluster) -> None:
    records = bench.sizes.warm_up_records // 2
    until_warm(bench, lambda: cluster_load.produce_and_consume(bench, cluster, records, 100))
    cluster_load.one_by_one(bench, cluster)
    cluster_load.at_a_pace(bench, cluster)


def until_warm(bench: Bench, run_pass: Callable[[], tuple[Drive, ...]]) -> None:
    cpu_before_s = float("inf")
    for _ in range(WARM_UP_PASSES_MAX if bench.sizes.warms_up_fully else 1):
        cpu_s = sum(drive.broker_cpu_s for drive in run_pass())
        if cpu_s > WARM_FROM * cpu_before_s:
            break
        cpu_before_s = cpu_s


def warm_up_coordinators(bench: Bench, server: ServerProcess) -> None:
    for protocol in PROTOCOLS:
        rebalance(bench, server, protocol)
    many_groups(bench, server, bench.sizes.groups)
    pipeline_commits(bench, server)
    commit_one_by_one(bench, server)
    with temporary_topic(server) as topic:
        transact(bench, server, topic, 1)
