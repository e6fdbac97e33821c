"""Every command once: its name, where its main function lives, and the Java class Kafka runs for it.

`scripts` are the names that are installed; `pyproject.toml` takes them from here when the package is built, so this
module imports nothing but Python's own. Commands of Kafka's that are not here are in `MISSING`, with what to use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

_SERVER = "servers.broker"  # its commands name themselves in their help
_ZOOKEEPER = "servers.zookeeper"
_ENTRY = "moldau.cli.entry"


class Command(NamedTuple):
    name: str  # after `moldau`; Kafka's own command is the same with `kafka-` in front
    target: str  # module:function, below `moldau.cli`
    summary: str
    java_class: str | None = None  # the last part of the class name, whatever package it lived in
    script: str | None = ""  # the installed name where it is not `kafka-<name>`; None: `moldau <name>` alone

    def run(self, argv: Sequence[str], prog: str) -> int:
        main = _load(self.target)
        return main(argv) if self.target.startswith(f"{_SERVER}:") else main(argv, prog)


COMMANDS = (
    Command("start", f"{_SERVER}:start_main", "start a broker", "Kafka", script=None),
    Command("stop", f"{_SERVER}:stop_main", "stop a broker", script="kafka-server-stop"),
    Command("topics", "admin.topics:main", "create, list, describe, alter and delete topics", "TopicCommand"),
    Command("configs", "admin.configs:main", "describe and alter configurations", "ConfigCommand"),
    Command("console-producer", "records.console_producer:main", "send lines from standard input", "ConsoleProducer"),
    Command("console-consumer", "records.console_consumer:main", "print records", "ConsoleConsumer"),
    Command(
        "console-share-consumer",
        "records.console_share_consumer:main",
        "print records as a member of a share group",
        "ConsoleShareConsumer",
    ),
    Command("groups", "coordination.groups:main", "list groups of all types", "GroupsCommand"),
    Command(
        "consumer-groups",
        "coordination.consumer_groups:main",
        "show and change consumer groups, their lag and offsets",
        "ConsumerGroupCommand",
    ),
    Command(
        "share-groups",
        "coordination.share_groups:main",
        "show and change share groups, their lag and offsets",
        "ShareGroupCommand",
    ),
    Command(
        "transactions", "coordination.transactions:main", "list, describe and abort transactions", "TransactionsCommand"
    ),
    Command("get-offsets", "admin.get_offsets:main", "print offsets of partitions", "GetOffsetShell"),
    Command("delete-records", "admin.delete_records:main", "delete old records", "DeleteRecordsCommand"),
    Command("log-dirs", "admin.log_dirs:main", "show log directories and their sizes", "LogDirsCommand"),
    Command("dump-log", "records.dump_log:main", "print log segments and indexes", "DumpLogSegments"),
    Command("producer-perf-test", "records.producer_perf:main", "measure producing", "ProducerPerformance"),
    Command("consumer-perf-test", "records.consumer_perf:main", "measure consuming", "ConsumerPerformance"),
    Command(
        "reassign-partitions",
        "admin.reassign_partitions:main",
        "move replicas between brokers",
        "ReassignPartitionsCommand",
    ),
    Command("leader-election", "admin.leader_election:main", "elect leaders", "LeaderElectionCommand"),
    Command("cluster", "admin.cluster:main", "show the status, id and brokers of a cluster", "ClusterTool"),
    Command(
        "metadata-quorum",
        "admin.metadata_quorum:main",
        "show the controller and how far brokers have read the metadata",
        "MetadataQuorumCommand",
    ),
    Command(
        "broker-api-versions",
        "admin.api_versions:main",
        "show the APIs that brokers support",
        "BrokerApiVersionsCommand",
    ),
    Command("run-class", "run_class:main", "run a command by its Java class name"),
    Command(
        "config-samples",
        "config_samples:main",
        "write sample configuration files",
        script=None,
    ),
    Command("pipeline", "pipelines.main:main", "write, check, test and run pipelines on Spark", script=None),
    Command("worker", "worker:main", "keep connectors and pipelines running, with Kafka Connect's REST", script=None),
    Command(
        "connect-distributed",
        "worker:distributed_main",
        "start a worker with Kafka Connect's arguments",
        "ConnectDistributed",
        script="connect-distributed",
    ),
    Command(
        "connect-standalone",
        "connect.standalone:main",
        "run Kafka Connect's connectors in this process",
        "ConnectStandalone",
        script="connect-standalone",
    ),
    Command("spark-archive", "spark_archive:main", "make Spark sessions start faster", script=None),
    Command(
        "zookeeper-server-start",
        f"{_ZOOKEEPER}:start_main",
        "start a ZooKeeper server",
        "QuorumPeerMain",
        script="zookeeper-server-start",
    ),
    Command(
        "zookeeper-server-stop",
        f"{_ZOOKEEPER}:stop_main",
        "stop the ZooKeeper servers on this machine",
        script="zookeeper-server-stop",
    ),
    Command(
        "zookeeper-shell",
        f"{_ZOOKEEPER}:shell_main",
        "run a command of ZooKeeper's shell",
        "ZooKeeperMain",
        script="zookeeper-shell",
    ),
    Command("zkServer", f"{_ZOOKEEPER}:zk_server_main", "start, stop or check a ZooKeeper server", script="zkServer"),
)

BY_NAME = {command.name: command for command in COMMANDS}
BY_JAVA_CLASS = {command.java_class: command for command in COMMANDS if command.java_class}


class Missing(NamedTuple):
    """A command of Kafka's that is not here."""

    use: str
    java_classes: tuple[str, ...] = ()


_CONNECT = "run Kafka Connect of Apache Kafka against this broker, or use Spark (docs/spark.md)"
_STREAMS = "Kafka Streams keeps its state in the client: use the tool of its own release with this broker"
_METRICS = "brokers export Prometheus metrics: set moldau.metrics.port (docs/monitoring.md)"
_MIRROR_MAKER = "run MirrorMaker 2 of Apache Kafka against this broker"
_PERF = "use kafka-producer-perf-test and kafka-consumer-perf-test"
_ZK_OFFSETS = "offsets are in __consumer_offsets, not in ZooKeeper: use kafka-consumer-groups --reset-offsets"
_AT_OFFSET = "use kafka-console-consumer --topic T --partition N --offset O"

MISSING = {
    "connect-mirror-maker": Missing(_MIRROR_MAKER, ("MirrorMaker", "MirrorMaker2")),
    "connect-plugin-path": Missing(_CONNECT, ("ConnectPluginPath",)),
    "kafka-acls": Missing("the broker has no authorizer: listen on 127.0.0.1 or a network you trust", ("AclCommand",)),
    "kafka-client-metrics": Missing(_METRICS, ("ClientMetricsCommand",)),
    "kafka-delegation-tokens": Missing("the broker has no authentication", ("DelegationTokenCommand",)),
    "kafka-e2e-latency": Missing(_PERF, ("EndToEndLatency",)),
    "kafka-features": Missing(
        "features are fixed by the release; kafka-broker-api-versions lists the APIs", ("FeatureCommand",)
    ),
    "kafka-jmx": Missing(_METRICS, ("JmxTool",)),
    "kafka-metadata-shell": Missing(
        "use kafka-metadata-quorum describe --status and moldau cluster status", ("MetadataShell",)
    ),
    "kafka-mirror-maker": Missing(_MIRROR_MAKER),
    "kafka-preferred-replica-election": Missing(
        "use kafka-leader-election --election-type preferred --all-topic-partitions",
        ("PreferredReplicaLeaderElectionCommand",),
    ),
    "kafka-replay-log-producer": Missing(
        "pipe kafka-console-consumer --from-beginning into kafka-console-producer", ("ReplayLogProducer",)
    ),
    "kafka-replica-verification": Missing(
        "use kafka-topics --describe --under-replicated-partitions", ("ReplicaVerificationTool",)
    ),
    "kafka-simple-consumer-shell": Missing(_AT_OFFSET, ("SimpleConsumerShell",)),
    "kafka-storage": Missing("log directories need no formatting: start the broker", ("StorageTool",)),
    "kafka-streams-application-reset": Missing(_STREAMS, ("StreamsResetter",)),
    "kafka-streams-groups": Missing("streams groups (KIP-1071) are not supported", ("StreamsGroupCommand",)),
    "kafka-verifiable-consumer": Missing(_PERF, ("VerifiableConsumer",)),
    "kafka-verifiable-producer": Missing(_PERF, ("VerifiableProducer",)),
    "kafka-verifiable-share-consumer": Missing(_PERF, ("VerifiableShareConsumer",)),
    "trogdor": Missing(_PERF, ("Trogdor",)),
    "zookeeper-security-migration": Missing("ACLs in ZooKeeper are not supported", ("ZkSecurityMigrator",)),
    "zkCli": Missing("use zookeeper-shell localhost:2181"),
}
_MISSING_CLASSES = {
    "ConsumerOffsetChecker": "use kafka-consumer-groups --describe --group G",
    "ExportZkOffsets": _ZK_OFFSETS,
    "ImportZkOffsets": _ZK_OFFSETS,
    "UpdateOffsetsInZK": _ZK_OFFSETS,
    "VerifyConsumerRebalance": "use kafka-consumer-groups --describe --group G --members",
    "StateChangeLogMerger": "the controller logs changes of leaders and in-sync replicas",
    "KafkaMigrationTool": "start the broker on a copy of the data directory of Apache Kafka",
    "SimpleConsumerPerformance": _PERF,
    "TestEndToEndLatency": _PERF,
}
MISSING_CLASSES = _MISSING_CLASSES | {
    java_class: missing.use for missing in MISSING.values() for java_class in missing.java_classes
}


def _load(target: str) -> Callable[..., int]:
    module, function = target.split(":")
    return cast(Callable[..., int], getattr(importlib.import_module(f"moldau.cli.{module}"), function))


def load(entry: str) -> Callable[[], int]:
    """The main function of the installed command that has this function in `moldau.cli.entry`."""
    return _load(next(target for name, target in _installed().items() if _entry(name) == entry))


def scripts() -> dict[str, str]:
    """Installed name → module:function. Kafka's own names exist with and without `.sh`."""
    return {
        installed: f"{_ENTRY}:{_entry(name)}"
        for name in _installed()
        for installed in ([name] if name == "moldau" else [name, f"{name}.sh"])
    }


def _entry(name: str) -> str:
    return name.replace("-", "_")


def _installed() -> dict[str, str]:
    """Name → where its main function lives."""
    return {
        "moldau": "main:main",
        "kafka-server-start": f"{_SERVER}:kafka_server_start_main",
        **{
            command.script or f"kafka-{command.name}": command.target
            for command in COMMANDS
            if command.script is not None
        },
        **dict.fromkeys(MISSING, "missing:main"),
    }
