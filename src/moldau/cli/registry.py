"""Every command once: its name, where its main function lives, and the Java class Kafka runs for it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple, cast

_SERVER = "moldau.cli.server"  # its commands name themselves in their help


class Command(NamedTuple):
    name: str  # after `moldau`; Kafka's own command is the same with `kafka-` in front
    target: str  # module:function
    summary: str
    java_class: str | None = None  # the last part of the class name, whatever package it lived in

    def run(self, argv: Sequence[str], prog: str) -> int:
        module, function = self.target.split(":")
        main = getattr(importlib.import_module(module), function)
        return cast(int, main(argv) if module == _SERVER else main(argv, prog))


COMMANDS = (
    Command("start", f"{_SERVER}:start_main", "start a broker", "Kafka"),
    Command("stop", f"{_SERVER}:stop_main", "stop a broker"),
    Command("topics", "moldau.cli.topics:main", "create, list, describe, alter, delete topics", "TopicCommand"),
    Command("configs", "moldau.cli.configs:main", "describe and alter configurations", "ConfigCommand"),
    Command(
        "console-producer",
        "moldau.cli.console_producer:main",
        "send lines of standard input",
        "ConsoleProducer",
    ),
    Command("console-consumer", "moldau.cli.console_consumer:main", "print records", "ConsoleConsumer"),
    Command(
        "console-share-consumer",
        "moldau.cli.console_share_consumer:main",
        "print records as a member of a share group",
        "ConsoleShareConsumer",
    ),
    Command("groups", "moldau.cli.groups:main", "list groups of all types", "GroupsCommand"),
    Command(
        "consumer-groups",
        "moldau.cli.consumer_groups:main",
        "lag, members and offsets of consumer groups",
        "ConsumerGroupCommand",
    ),
    Command(
        "share-groups",
        "moldau.cli.share_groups:main",
        "lag, members and offsets of share groups",
        "ShareGroupCommand",
    ),
    Command("transactions", "moldau.cli.transactions:main", "look into and end transactions", "TransactionsCommand"),
    Command("get-offsets", "moldau.cli.get_offsets:main", "print offsets of partitions", "GetOffsetShell"),
    Command("delete-records", "moldau.cli.delete_records:main", "forget old records", "DeleteRecordsCommand"),
    Command("log-dirs", "moldau.cli.log_dirs:main", "sizes of log directories", "LogDirsCommand"),
    Command("dump-log", "moldau.cli.dump_log:main", "print log segments and indexes", "DumpLogSegments"),
    Command("producer-perf-test", "moldau.cli.producer_perf:main", "measure producing", "ProducerPerformance"),
    Command("consumer-perf-test", "moldau.cli.consumer_perf:main", "measure consuming", "ConsumerPerformance"),
    Command(
        "reassign-partitions",
        "moldau.cli.reassign_partitions:main",
        "move replicas between brokers",
        "ReassignPartitionsCommand",
    ),
    Command("leader-election", "moldau.cli.leader_election:main", "elect leaders", "LeaderElectionCommand"),
    Command("cluster", "moldau.cli.cluster:main", "status, id and members of the cluster", "ClusterTool"),
    Command(
        "metadata-quorum",
        "moldau.cli.metadata_quorum:main",
        "who keeps the metadata, and how far others have read it",
        "MetadataQuorumCommand",
    ),
    Command(
        "broker-api-versions",
        "moldau.cli.api_versions:main",
        "what brokers serve",
        "BrokerApiVersionsCommand",
    ),
    Command("run-class", "moldau.cli.run_class:main", "run a command by its Java class name"),
)

BY_NAME = {command.name: command for command in COMMANDS}
BY_JAVA_CLASS = {command.java_class: command for command in COMMANDS if command.java_class}
