"""`kafka-get-offsets`: the first, the last, or a timestamp's offset of partitions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.cli.common import (
    CommandParser,
    at_terminal,
    connect,
    did_you_mean,
    print_json,
    print_table,
    run,
    topic_pattern,
    warn,
)
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.constants import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    INTERNAL_TOPICS,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --topic orders --time earliest
{prog} --bootstrap-server localhost:9092 --topic-partitions orders:0,payments:2-5"""
_TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
    "earliest-pending-upload": EARLIEST_PENDING_UPLOAD,
}
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

PartitionFilter = Callable[[str, int], bool]


def main(argv: Sequence[str] | None = None, prog: str = "kafka-get-offsets") -> int:
    parser = CommandParser(prog, "Print the offsets of partitions as topic:partition:offset.", _EXAMPLE)
    parser.add_connection(old_name="--broker-list")
    parser.add_command_config()
    parser.add_argument("--topic", metavar="REGEX", help="topics to show (default: all)")
    parser.add_argument("--partitions", metavar="0,1,…", help="partitions to show (default: all)")
    parser.add_argument(
        "--topic-partitions",
        metavar="RULES",
        help="list of topics and partitions, for example topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3",
    )
    parser.add_argument(
        "--time",
        metavar="TIME",
        default="latest",
        help="milliseconds since 1970, or latest (-1), earliest (-2), max-timestamp (-3); default: latest",
    )
    parser.add_flag("--exclude-internal-topics", "exclude internal topics")
    parser.add_json()
    args = parser.parse_args(argv)
    parser.require_connection(args)
    if args.topic_partitions and (args.topic or args.partitions):
        parser.error("--topic-partitions cannot be used with --topic or --partitions")

    def work() -> int:
        timestamp = parse_time(args.time)
        is_wanted = partition_filter(args.topic_partitions, args.topic, args.partitions)
        with connect(args) as cluster:
            return _print_offsets(cluster, args, timestamp, is_wanted)

    return run(prog, work, prefix="Error occurred: ")


def _print_offsets(cluster: ClusterClient, args: argparse.Namespace, timestamp: int, is_wanted: PartitionFilter) -> int:
    from moldau.client import admin

    wanted = {
        TopicPartition(topic.name, p.partition): timestamp
        for topic in cluster.metadata().topics.values()
        if not (args.exclude_internal_topics and (topic.is_internal or topic.name in INTERNAL_TOPICS))
        for p in topic.partitions
        if is_wanted(topic.name, p.partition)
    }
    if not wanted:
        hint = did_you_mean(args.topic, cluster.metadata().topics) if args.topic else ""
        message = f"Could not match any topic-partitions with the specified filters{hint}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    rows = []
    failed = 0
    for (topic, partition), result in sorted(admin.list_offsets(cluster, wanted).items()):
        if isinstance(result, KafkaError):
            failed += 1
            warn(f"Skip getting offsets for topic-partition {topic}-{partition} due to error: {result}")
        elif result.offset >= 0:
            rows.append((topic, partition, result.offset))
    if args.json:
        print_json([{"topic": topic, "partition": partition, "offset": at} for topic, partition, at in rows])
    elif at_terminal():
        print_table(("Topic", "Partition", "Offset"), rows)
    else:
        for row in rows:
            print(":".join(map(str, row)))
    return 1 if failed else 0


def parse_time(text: str) -> int:
    if text in _TIMES:
        return _TIMES[text]
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"Malformed time argument {text}: use -1 or latest, -2 or earliest, -3 or max-timestamp, "
            "or milliseconds since 1970"
        ) from None


def partition_filter(rules: str | None, topic: str | None, partitions: str | None) -> PartitionFilter:
    if rules is not None:
        accepts = [_rule(rule) for rule in rules.split(",")]
        return lambda name, partition: any(accept(name, partition) for accept in accepts)
    pattern = topic_pattern(topic or ".*")
    try:
        numbers = {int(number) for number in partitions.split(",")} if partitions else None
    except ValueError:
        raise ConfigError(f"--partitions {partitions}: expected a comma-separated list of numbers") from None
    return lambda name, partition: bool(pattern.fullmatch(name)) and (numbers is None or partition in numbers)


def _rule(text: str) -> PartitionFilter:
    """One of `topic`, `topic:1`, `topic:1-3` (3 not included), `topic:1-`, `topic:-3`, `:1`."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ConfigError(f"Invalid rule specification: {text}")
    topic, single, low, high = match.groups()
    pattern = topic_pattern(topic or ".*")
    first = int(single or low or 0)
    end = first + 1 if single else int(high) if high else None
    return lambda name, partition: (
        bool(pattern.fullmatch(name)) and first <= partition and (end is None or partition < end)
    )
