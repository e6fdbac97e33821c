"""`kafka-cluster`: the cluster's id, its endpoints, a broker that will not come back; and `moldau cluster status`.

The status is one look at all that can be wrong with a cluster, with an exit code for machines.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from moldau.cli.common import CommandParser, at_terminal, print_json, print_table, run_with_cluster, styled
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import ResourceType
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient, PartitionMetadata
    from moldau.client.cluster_admin import ClusterDescription, Member, Reassignment

T = TypeVar("T")

EXIT_DEGRADED = 3
_LISTED_MAX = 20  # partitions of each kind: a cluster in trouble has thousands, and the rest is in --json

_EXAMPLE = """\
{prog} status --bootstrap-server localhost:9092
{prog} cluster-id --bootstrap-server localhost:9092
{prog} unregister --bootstrap-server localhost:9092 --id 3

Exit codes of status: 0 healthy, 1 no broker responds, 2 wrong usage, 3 degraded: a broker is fenced or missing, or a
partition is offline, under-replicated or below min.insync.replicas."""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-cluster") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.error(f"Missing a command: one of {', '.join(_COMMANDS)}")
    parser.require_connection(args)
    if args.command == "unregister":
        parser.require(args, "--id")
    elif args.id is not None:
        parser.error("Option --id can be used only with unregister")
    if args.include_fenced_brokers and args.command != "list-endpoints":
        parser.error("Option --include-fenced-brokers can be used only with list-endpoints")

    return run_with_cluster(prog, args, _COMMANDS[args.command])


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog, "Show the status of a cluster, its id and its brokers, or unregister a broker.", _EXAMPLE
    )
    parser.add_argument("command", nargs="?", choices=list(_COMMANDS), help="the action")
    parser.add_connection(old_name="-b")
    parser.add_command_config()
    parser.add_argument("-c", "--config", dest="command_config", help=argparse.SUPPRESS)
    parser.add_argument("-i", "--id", type=int, metavar="N", help="the broker to unregister")
    parser.add_flag("--include-fenced-brokers", "also list brokers that are registered but fenced")
    parser.add_json()
    return parser


def _cluster_id(cluster: ClusterClient, args: argparse.Namespace) -> int:
    cluster_id = cluster.metadata(()).cluster_id
    if args.json:
        print_json({"clusterId": cluster_id})
    elif cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {cluster_id}")
    return 0


def _unregister(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client.cluster_admin import unregister_broker

    unregister_broker(cluster, args.id)
    if args.json:
        print_json({"unregistered": args.id})
    else:
        print(f"Broker {args.id} is no longer registered.")
    return 0


def _list_endpoints(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client.cluster_admin import describe_cluster

    members = describe_cluster(cluster, include_fenced=args.include_fenced_brokers).members
    if args.json:
        print_json([member._asdict() for member in members])
        return 0
    host = max((len(member.host) for member in members), default=100)
    rack = max((len(member.rack) for member in members if member.rack), default=10)

    def line(*cells: object) -> str:
        widths = (10, host, 10, rack, 10, 15)
        return " ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))

    print(line("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"))
    for each in members:
        state = "fenced" if each.is_fenced else "unfenced"
        print(line(each.id, each.host, each.port, each.rack or "null", state, "broker"))
    return 0


# -- status


class Status(NamedTuple):
    cluster: ClusterDescription
    expected: int  # brokers that the cluster has by its configuration; 0: it does not say
    led: Mapping[int, int]  # partitions by leader
    hosted: Mapping[int, int]  # replicas by broker
    topics: int
    partitions: int
    offline: list[TopicPartition]
    under_replicated: list[TopicPartition]
    under_min_isr: list[TopicPartition]
    reassignments: Mapping[TopicPartition, Reassignment]

    @property
    def fenced(self) -> list[int]:
        return [member.id for member in self.cluster.members if member.is_fenced]

    @property
    def missing(self) -> int:
        """Brokers that never came: a fenced one is registered, and counts as fenced."""
        return max(0, self.expected - len(self.cluster.members))

    @property
    def is_healthy(self) -> bool:
        troubles = (self.fenced, self.missing, self.offline, self.under_replicated, self.under_min_isr)
        return self.cluster.controller_id >= 0 and not any(troubles)


def _status(cluster: ClusterClient, args: argparse.Namespace) -> int:
    status = find_status(cluster)
    if args.json:
        print_json(_as_json(status))
    else:
        _print_status(status)
    return 0 if status.is_healthy else EXIT_DEGRADED


def find_status(cluster: ClusterClient) -> Status:
    topics = cluster.metadata().topics
    described = _described(cluster)
    alive = {member.id for member in described.members if not member.is_fenced}
    found = {TopicPartition(topic.name, p.partition): p for topic in topics.values() for p in topic.partitions}
    # While nobody is the controller, nobody could tell of moves: the rest is worth telling at once.
    moving = _reassignments(cluster) if described.controller_id >= 0 else {}
    min_isr = _min_isr(cluster, sorted(topics))

    def those(is_so: Callable[[TopicPartition, PartitionMetadata], bool]) -> list[TopicPartition]:
        return sorted(partition for partition, p in found.items() if is_so(partition, p))

    def due(partition: TopicPartition, p: PartitionMetadata) -> int:
        """Replicas that should be in sync: those that are only being added are not yet."""
        return len(p.replicas) - (len(moving[partition].adding) if partition in moving else 0)

    return Status(
        described,
        _expected_brokers(cluster, alive),
        Counter(p.leader for p in found.values()),
        Counter(broker for p in found.values() for broker in p.replicas),
        len(topics),
        len(found),
        offline=those(lambda _, p: p.leader not in alive),
        under_replicated=those(lambda partition, p: len(p.isr) < due(partition, p)),
        under_min_isr=those(lambda partition, p: len(p.isr) < min(min_isr.get(partition[0], 1), len(p.replicas))),
        reassignments=moving,
    )


def _described(cluster: ClusterClient) -> ClusterDescription:
    from moldau.client.cluster_admin import describe_cluster

    return _or_if_unsupported(lambda: describe_cluster(cluster, include_fenced=True), lambda: describe_cluster(cluster))


def _expected_brokers(cluster: ClusterClient, alive: Iterable[int]) -> int:
    from moldau.client.admin import Resource, describe_configs

    for broker_id in sorted(alive):
        with suppress(KafkaError):  # it just died, perhaps: the next one knows as well
            described = describe_configs(cluster, [Resource(ResourceType.BROKER, str(broker_id))])
            entries = (entry for found in described.values() for entry in found)
            return next((int(one.value or 0) for one in entries if one.name == "moldau.cluster.brokers"), 0)
    return 0


def _reassignments(cluster: ClusterClient) -> dict[TopicPartition, Reassignment]:
    from moldau.client.cluster_admin import list_reassignments

    return _or_if_unsupported(lambda: list_reassignments(cluster), dict)


def _or_if_unsupported(ask: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Older brokers know less of themselves."""
    try:
        return ask()
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return otherwise()


def _min_isr(cluster: ClusterClient, topics: Iterable[str]) -> dict[str, int]:
    from moldau.client.admin import Resource, describe_configs

    resources = [Resource(ResourceType.TOPIC, topic) for topic in topics]
    described = describe_configs(cluster, resources) if resources else {}
    return {
        resource.name: int(entry.value)
        for resource, entries in described.items()
        for entry in entries
        if entry.name == "min.insync.replicas" and entry.value
    }


def _print_status(status: Status) -> None:
    health = styled("healthy", "32") if status.is_healthy else styled("degraded", "31")
    print(f"Cluster {status.cluster.cluster_id}: {health}")
    headers = ("Broker", "Address", "Rack", "State", "Leads", "Replicas")
    rows = [_broker_cells(status, member) for member in status.cluster.members]
    if at_terminal():
        print_table(headers, rows)
    else:
        for row in rows:
            print("\t".join(f"{name}: {cell}" for name, cell in zip(headers, row, strict=True)))
    if status.missing:
        there = len(status.cluster.members)
        print(styled(f"Missing brokers: {status.missing} ({there} of {status.expected} have joined)", "31"))
    print(f"Controller: {status.cluster.controller_id if status.cluster.controller_id >= 0 else 'none'}")
    print(f"Topics: {status.topics}\tPartitions: {status.partitions}")
    _print_partitions("Offline partitions", status.offline, "31")
    _print_partitions("Under-min-ISR partitions", status.under_min_isr, "31")
    _print_partitions("Under-replicated partitions", status.under_replicated, "33")
    _print_partitions("Reassignments in progress", sorted(status.reassignments), "33")


def _broker_cells(status: Status, member: Member) -> tuple[object, ...]:
    state = "fenced" if member.is_fenced else "alive"
    led, hosted = status.led.get(member.id, 0), status.hosted.get(member.id, 0)
    return member.id, f"{member.host}:{member.port}", member.rack or "-", state, led, hosted


def _print_partitions(title: str, partitions: Sequence[TopicPartition], style: str) -> None:
    count = styled(str(len(partitions)), style) if partitions else "0"
    shown = " ".join(map(str, partitions[:_LISTED_MAX]))
    more = f" and {len(partitions) - _LISTED_MAX} more" if len(partitions) > _LISTED_MAX else ""
    print(f"{title}: {count}" + (f" ({shown}{more})" if partitions else ""))


def _as_json(status: Status) -> dict[str, Any]:
    def listed(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        return [{"topic": topic, "partition": index} for topic, index in partitions]

    return {
        "clusterId": status.cluster.cluster_id,
        "healthy": status.is_healthy,
        "controllerId": status.cluster.controller_id,
        "brokers": [
            {
                **member._asdict(),
                "leads": status.led.get(member.id, 0),
                "replicas": status.hosted.get(member.id, 0),
            }
            for member in status.cluster.members
        ],
        "missingBrokers": status.missing,
        "topics": status.topics,
        "partitions": status.partitions,
        "offlinePartitions": listed(status.offline),
        "underReplicatedPartitions": listed(status.under_replicated),
        "underMinIsrPartitions": listed(status.under_min_isr),
        "reassignments": [
            {"topic": topic, "partition": index, **each._asdict()}
            for (topic, index), each in sorted(status.reassignments.items())
        ],
    }


_COMMANDS: dict[str, Callable[[Any, argparse.Namespace], int]] = {
    "status": _status,
    "cluster-id": _cluster_id,
    "unregister": _unregister,
    "list-endpoints": _list_endpoints,
}
