"""`kafka-leader-election`: give partitions back to their preferred leaders, or, knowingly, to replicas that lag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.cli.admin.reassignment_json import names, parse_partitions
from moldau.cli.common import CommandParser, load_text, run_with_cluster
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import ElectionType
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --election-type preferred --all-topic-partitions
{prog} --bootstrap-server localhost:9092 --election-type unclean --topic orders --partition 0"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-leader-election") -> int:
    parser = CommandParser(
        prog,
        "Elect the preferred leaders of partitions. With --election-type unclean, elect any replica that is alive "
        "if\nno in-sync replica is left; records that only the other replicas have are lost.",
        _EXAMPLE,
    )
    parser.add_connection()
    parser.add_command_config()
    parser.add_argument("--admin.config", dest="command_config", help=argparse.SUPPRESS)
    parser.add_argument(
        "--election-type", type=str.lower, choices=["preferred", "unclean"], help="the type of election"
    )
    parser.add_argument("--topic", metavar="NAME", help="the topic of one partition")
    parser.add_argument("--partition", metavar="N", type=int, help="the partition of --topic")
    parser.add_flag("--all-topic-partitions", "all partitions that need an election")
    parser.add_argument(
        "--path-to-json-file", metavar="FILE", help='{"partitions": [{"topic": "orders", "partition": 0}]}'
    )
    args = parser.parse_args(argv)
    _check(parser, args)
    return run_with_cluster(prog, args, _elect)


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    parser.require_connection(args)
    parser.require(args, "--election-type")
    if (args.topic is not None) + args.all_topic_partitions + (args.path_to_json_file is not None) != 1:
        parser.error(
            "One and only one of the following options is required: topic, all-topic-partitions, path-to-json-file"
        )
    if args.topic is not None:
        parser.require(args, "--partition")
    parser.allow_with(args, "--partition", "--topic")


def _elect(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client.cluster_admin import elect_leaders

    partitions: list[TopicPartition] | None = None
    if args.topic is not None:
        partitions = [TopicPartition(args.topic, args.partition)]
    elif args.path_to_json_file is not None:
        partitions = parse_partitions(load_text(args.path_to_json_file))
    kind = ElectionType[args.election_type.upper()]
    results = elect_leaders(cluster, kind, partitions)
    elected = [partition for partition, error in results.items() if error is None]
    if elected:
        print(f"Successfully completed leader election ({kind.name}) for partitions {names(elected, ', ')}")
    needless = [partition for partition, error in results.items() if _is_needless(error)]
    if needless:
        print(f"Valid replica already elected for partitions {names(needless, ', ')}")
    failed = {partition: error for partition, error in results.items() if error and not _is_needless(error)}
    for partition, error in sorted(failed.items()):
        print(f"Error completing leader election ({kind.name}) for partition: {names([partition])}: {error}")
    if failed:
        raise KafkaError(next(iter(failed.values())).code, f"{len(failed)} replica(s) could not be elected")
    return 0


def _is_needless(error: KafkaError | None) -> bool:
    return error is not None and error.code == ErrorCode.ELECTION_NOT_NEEDED
