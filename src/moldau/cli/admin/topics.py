"""`kafka-topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import (
    CommandParser,
    at_terminal,
    bold,
    missing_topic,
    parse_key_values,
    print_json,
    print_table,
    run_with_cluster,
    topic_pattern,
    warn,
)
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.constants import INTERNAL_TOPICS, ResourceType
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient, PartitionMetadata, TopicMetadata
    from moldau.client.cluster_admin import Reassignment
    from moldau.config.entries import ConfigEntry

    Shown = list[tuple[PartitionMetadata, Reassignment | None]]

_REPORTS = (
    "--under-replicated-partitions",
    "--unavailable-partitions",
    "--under-min-isr-partitions",
    "--at-min-isr-partitions",
)
_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --create --topic orders --partitions 3 --config retention.ms=86400000
{prog} --bootstrap-server localhost:9092 --describe --topic orders"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-topics") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    work = parser.choose(
        args,
        {"--create": _create, "--list": _list, "--describe": _describe, "--alter": _alter, "--delete": _delete},
    )
    _check(parser, args)
    return run_with_cluster(prog, args, work, prefix="Error while executing topic command : ")


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Create, list, describe, alter or delete topics.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_flag("--create", "create a topic")
    parser.add_flag("--list", "list topics")
    parser.add_flag("--describe", "show partitions, replicas and configuration")
    parser.add_flag("--alter", "increase the number of partitions")
    parser.add_flag("--delete", "delete topics")
    parser.add_argument(
        "--topic", metavar="NAME", help="the topic; with --create a name, otherwise a regular expression"
    )
    parser.add_argument("--topic-id", metavar="ID", help="the topic's id, with --describe")
    parser.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="configuration of the new topic"
    )
    parser.add_argument("--delete-config", metavar="KEY", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--partitions", metavar="N", type=int, help="number of partitions (default: the broker's)")
    parser.add_argument(
        "--replication-factor", metavar="N", type=int, help="replication factor (default: the broker's)"
    )
    parser.add_argument(
        "--replica-assignment",
        metavar="ID:ID,ID:ID",
        help="the brokers of each partition, instead of --partitions and --replication-factor",
    )
    parser.add_flag("--under-replicated-partitions", "describe only under-replicated partitions")
    parser.add_flag("--unavailable-partitions", "describe only partitions without a leader")
    parser.add_flag(
        "--under-min-isr-partitions", "describe only partitions with fewer in-sync replicas than min.insync.replicas"
    )
    parser.add_flag(
        "--at-min-isr-partitions", "describe only partitions with exactly min.insync.replicas in-sync replicas"
    )
    parser.add_flag("--topics-with-overrides", "describe only topics with configuration overrides")
    parser.add_flag("--if-exists", "do nothing if the topic does not exist")
    parser.add_flag("--if-not-exists", "do nothing if the topic already exists")
    parser.add_flag("--exclude-internal", "exclude internal topics")
    parser.add_argument(
        "--partition-size-limit-per-response", metavar="N", type=int, default=2000, help=argparse.SUPPRESS
    )
    parser.add_json()
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    parser.require_connection(args)
    if args.create or args.alter or args.delete:
        parser.require(args, "--topic")
    if args.alter:
        if args.config:
            parser.error("Option --config cannot be used with --alter: use kafka-configs")
        parser.require(args, "--partitions")
    if args.delete_config:
        parser.error("Option --delete-config was removed in Kafka 4.0: use kafka-configs")
    if args.describe and args.if_exists and args.topic is None and args.topic_id is None:
        parser.error("--topic or --topic-id is required to describe a topic with --if-exists")
    parser.allow_with(args, "--config", "--create")
    parser.allow_with(args, "--partitions", "--create", "--alter")
    parser.allow_with(args, "--replication-factor", "--create")
    parser.allow_with(args, "--replica-assignment", "--create", "--alter")
    parser.allow_with(args, "--if-not-exists", "--create")
    parser.allow_with(args, "--if-exists", "--alter", "--delete", "--describe")
    parser.allow_with(args, "--exclude-internal", "--list", "--describe")
    for report in (*_REPORTS, "--topics-with-overrides"):
        parser.allow_with(args, report, "--describe")
    if args.create and args.replica_assignment and (args.partitions or args.replication_factor):
        parser.error("Option --replica-assignment cannot be used with --partitions or --replication-factor")
    if args.topics_with_overrides and _is_report(args):
        parser.error(f"Option --topics-with-overrides cannot be used with {', '.join(_REPORTS)}")


def _create(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import admin
    from moldau.wire.uuids import uuid_to_text

    if args.replication_factor is not None and not 1 <= args.replication_factor <= 32767:
        raise ConfigError("The replication factor must be between 1 and 32767 inclusive")
    if args.partitions is not None and args.partitions < 1:
        raise ConfigError("The partitions must be greater than 0")
    configs = {key: value.strip() for key, value in parse_key_values(args.config).items()}
    assignment = parse_replica_assignment(args.replica_assignment or "")
    if "." in args.topic or "_" in args.topic:
        warn(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
            "could collide. To avoid issues it is best to use either, but not both."
        )
    try:
        topic_id = admin.create_topic(
            cluster,
            args.topic,
            partitions=args.partitions,
            replication_factor=args.replication_factor,
            assignments=assignment,
            configs=configs,
        )
    except KafkaError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or not args.if_not_exists:
            raise
        if args.json:
            print_json({"topic": args.topic, "created": False})
        return
    if args.json:
        print_json({"topic": args.topic, "created": True, "topicId": uuid_to_text(topic_id)})
    else:
        print(f"Created topic {args.topic}.")


def parse_replica_assignment(text: str) -> dict[int, list[int]]:
    """`0:1,1:2` as partition → brokers; every partition has as many replicas as the first."""
    assignment: dict[int, list[int]] = {}
    for partition, part in enumerate(text.split(",") if text else ()):
        try:
            brokers = [int(broker) for broker in part.split(":")]
        except ValueError:
            raise ConfigError(f"--replica-assignment {text}: '{part}' is not a list of broker ids") from None
        if len(set(brokers)) != len(brokers):
            raise ConfigError(f"Partition replica lists may not contain duplicate entries: {part}")
        if assignment and len(brokers) != len(assignment[0]):
            raise ConfigError(f"Partition {partition} has different replication factor: {brokers}")
        assignment[partition] = brokers
    return assignment


def _list(cluster: ClusterClient, args: argparse.Namespace) -> None:
    names = _matching(cluster, args)
    if args.json:
        print_json(names)
    elif names:
        print("\n".join(names))


def _alter(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import admin

    assignment = list(parse_replica_assignment(args.replica_assignment or "").values())
    names = _existing(cluster, args)
    if names:
        new = None
        if assignment:
            topics = cluster.metadata(names).topics
            new = {name: assignment[len(topics[name].partitions) :] for name in names}
        admin.create_partitions(cluster, dict.fromkeys(names, args.partitions), new)
    if args.json:
        print_json({"topics": names, "partitions": args.partitions})


def _delete(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import admin

    names = _existing(cluster, args)
    if names:
        admin.delete_topics(cluster, names)
    if args.json:
        print_json({"deleted": names})


def _matching(cluster: ClusterClient, args: argparse.Namespace) -> list[str]:
    pattern = None if args.topic is None else topic_pattern(args.topic)
    return sorted(
        topic.name
        for topic in cluster.metadata().topics.values()
        if (pattern is None or pattern.fullmatch(topic.name))
        and not (args.exclude_internal and (topic.is_internal or topic.name in INTERNAL_TOPICS))
    )


def _existing(cluster: ClusterClient, args: argparse.Namespace) -> list[str]:
    names = _matching(cluster, args)
    if args.topic and not names and not args.if_exists:
        raise missing_topic(cluster, args.topic, " as expected")
    return names


def _names_by_id(cluster: ClusterClient, args: argparse.Namespace) -> list[str]:
    from moldau.wire.uuids import uuid_from_text

    try:
        wanted = uuid_from_text(args.topic_id)
    except ValueError as error:
        raise ConfigError(f"--topic-id: {error}") from error
    names = [topic.name for topic in cluster.metadata().topics.values() if topic.topic_id == wanted]
    if not names and not args.if_exists:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"TopicId '{args.topic_id}' does not exist as expected")
    return names


def _describe(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import admin

    names = _names_by_id(cluster, args) if args.topic_id else _existing(cluster, args)
    topics = []
    configs = {}
    if names:
        topics = admin.describe_topics(cluster, names, partitions_per_answer=args.partition_size_limit_per_response)
        resources = [admin.Resource(ResourceType.TOPIC, name) for name in names]
        configs = {r.name: entries for r, entries in admin.describe_configs(cluster, resources).items()}
    live = set(cluster.brokers())
    moving = _reassignments(cluster)
    described = []
    for topic in topics:
        entries = configs[topic.name]
        shown = [
            (p, move)
            for p in topic.partitions
            for move in [moving.get(TopicPartition(topic.name, p.partition))]
            if _is_shown(args, p, entries, live, move)
        ]
        overrides = {entry.name: entry.value for entry in entries if not entry.is_default}
        if args.topics_with_overrides:
            shown = []
            if not overrides:
                continue
        if args.json:
            described.append(_as_json(topic, shown, overrides))
        else:
            _print_topic(topic, shown, overrides, head=not _is_report(args))
    if args.json:
        print_json(described)


def _reassignments(cluster: ClusterClient) -> dict[TopicPartition, Reassignment]:
    """The reassignments of all topics: they are few, while there may be tens of thousands of partitions."""
    from moldau.client.cluster_admin import list_reassignments

    try:
        return list_reassignments(cluster)
    except KafkaError as error:
        if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return {}


def _is_report(args: argparse.Namespace) -> bool:
    return any(getattr(args, report.removeprefix("--").replace("-", "_")) for report in _REPORTS)


def _is_shown(
    args: argparse.Namespace,
    partition: PartitionMetadata,
    configs: list[ConfigEntry],
    live: set[int],
    moving: Reassignment | None,
) -> bool:
    min_isr = next((int(e.value) for e in configs if e.name == "min.insync.replicas" and e.value), 1)
    in_sync = len(partition.isr)
    due = len(partition.replicas) - (len(moving.adding) if moving else 0)
    return (
        not _is_report(args)
        or (args.under_replicated_partitions and in_sync < due)
        or (args.unavailable_partitions and partition.leader not in live)
        or (args.under_min_isr_partitions and (partition.leader < 0 or in_sync < min_isr))
        or (args.at_min_isr_partitions and in_sync == min_isr)
    )


def _print_topic(topic: TopicMetadata, shown: Shown, overrides: dict[str, str | None], *, head: bool) -> None:
    from moldau.wire.uuids import ZERO_UUID, uuid_to_text

    if head:
        topic_id = "" if topic.topic_id == ZERO_UUID else f"\tTopicId: {uuid_to_text(topic.topic_id)}"
        configs = ",".join(f"{name}={value}" for name, value in overrides.items())
        print(
            bold(
                f"Topic: {topic.name}{topic_id}\tPartitionCount: {len(topic.partitions)}"
                f"\tReplicationFactor: {_replication_factor(topic, shown)}\tConfigs: {configs}"
            )
        )
    if at_terminal() and shown:
        rows = [(topic.name, p.partition, *_partition_cells(p), _moving_text(moving, " ")) for p, moving in shown]
        print_table(("Topic", "Partition", "Leader", "Replicas", "Isr", "Elr", "LastKnownElr", ""), rows)
        return
    for partition, moving in shown:
        leader, replicas, isr, elr, last_known_elr = _partition_cells(partition)
        sys.stdout.write(
            f"\tTopic: {topic.name}\tPartition: {partition.partition}\tLeader: {leader}\tReplicas: {replicas}"
            f"\tIsr: {isr}{_moving_text(moving)}\tElr: {elr}\tLastKnownElr: {last_known_elr}\n"
        )


def _moving_text(moving: Reassignment | None, separator: str = "\t") -> str:
    if moving is None:
        return ""
    adding, removing = (",".join(map(str, ids)) for ids in (moving.adding, moving.removing))
    return f"{separator}Adding Replicas: {adding}{separator}Removing Replicas: {removing}"


def _partition_cells(partition: PartitionMetadata) -> tuple[str, str, str, str, str]:
    def ids(values: Sequence[int] | None) -> str:
        return "N/A" if values is None else ",".join(map(str, values))

    leader = "none" if partition.leader < 0 else str(partition.leader)
    elr, last_known_elr = ids(partition.elr), ids(partition.last_known_elr)
    return leader, ids(partition.replicas), ids(partition.isr), elr, last_known_elr


def _replication_factor(topic: TopicMetadata, shown: Shown) -> int:
    """The replication factor of the first partition; replicas that are being added do not count."""
    if not topic.partitions:
        return 0
    first = topic.partitions[0]
    moving = next((moving for partition, moving in shown if partition is first), None)
    return len(first.replicas) - (len(moving.adding) if moving else 0)


def _as_json(topic: TopicMetadata, shown: Shown, overrides: dict[str, str | None]) -> dict[str, Any]:
    from moldau.wire.uuids import uuid_to_text

    return {
        "topic": topic.name,
        "topicId": uuid_to_text(topic.topic_id),
        "partitionCount": len(topic.partitions),
        "replicationFactor": _replication_factor(topic, shown),
        "configs": overrides,
        "partitions": [
            {
                "partition": p.partition,
                "leader": None if p.leader < 0 else p.leader,
                "replicas": p.replicas,
                "isr": p.isr,
                "elr": p.elr,
                "lastKnownElr": p.last_known_elr,
                **({"adding": moving.adding, "removing": moving.removing} if moving else {}),
            }
            for p, moving in shown
        ],
    }
