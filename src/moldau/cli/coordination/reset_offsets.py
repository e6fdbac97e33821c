"""Where a group is to go on reading: what `--reset-offsets` asks for, worked out for each partition.

Shared by `kafka-consumer-groups` and `kafka-share-groups`. Here offsets are only planned: who plans for a
consumer group commits them, who plans for a share group alters its start offsets.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from moldau.cli.common import load_text, missing_topic, warn
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.constants import EARLIEST, LATEST
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient

    Offsets = dict[TopicPartition, int]

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_S = (86_400, 3_600, 60, 1)


def parse_datetime(text: str) -> int:
    """`2026-01-31T12:00:00.000` in milliseconds since 1970; UTC unless it names its own zone."""
    try:
        if "T" not in text:
            raise ValueError("'T' is missing between date and time")
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--to-datetime {text}: expected YYYY-MM-DDThh:mm:ss.sss ({error})") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def parse_duration(text: str) -> int:
    """`P1DT2H3M4.5S` in milliseconds, as Java's Duration reads it."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()[1:]):
        raise ConfigError(f"--by-duration {text}: expected PnDTnHnMnS, for example PT1H for an hour")
    sign, *parts = match.groups()
    seconds = sum(
        float(part.replace(",", ".")) * unit for part, unit in zip(parts, _UNITS_S, strict=True) if part is not None
    )
    return round(seconds * 1000) * (-1 if sign == "-" else 1)


def read_plan(path: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """A CSV file of `topic,partition,offset`, or of `group,topic,partition,offset` for several groups."""
    plan: dict[str, Offsets] = {}
    for number, row in enumerate(csv.reader(io.StringIO(load_text(path))), 1):
        if not row:
            continue
        try:
            group = groups[0] if len(row) == 3 and len(groups) == 1 else row[-4]
            topic, partition, offset = row[-3], int(row[-2]), int(row[-1])
        except (IndexError, ValueError):
            columns = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise ConfigError(f"{path}, line {number}: expected {columns}") from None
        plan.setdefault(group, {})[TopicPartition(topic, partition)] = offset
    return plan


def write_plan(plan: Mapping[str, Offsets], *, with_group: bool) -> str:
    """What `read_plan` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, offsets in sorted(plan.items()):
        for (topic, partition), offset in sorted(offsets.items()):
            writer.writerow(([group] if with_group else []) + [topic, partition, offset])
    return text.getvalue()


def named_partitions(cluster: ClusterClient, arguments: Iterable[str]) -> list[TopicPartition]:
    """`orders` is all its partitions, `orders:0,2` is two of them."""
    partitions: list[TopicPartition] = []
    for argument in arguments:
        topic, colon, numbers = argument.partition(":")
        if not colon:
            partitions += all_partitions(cluster, topic)
            continue
        try:
            partitions += [TopicPartition(topic, int(number)) for number in numbers.split(",")]
        except ValueError:
            raise ConfigError(
                f"--topic {argument}: expected a topic and partitions, for example orders:0,1,2"
            ) from None
    return partitions


def all_partitions(cluster: ClusterClient, topic: str) -> list[TopicPartition]:
    found = cluster.metadata([topic]).topics.get(topic)
    if found is None or found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise missing_topic(cluster, topic)
    return [TopicPartition(topic, p.partition) for p in found.partitions]


def leaders(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> Offsets:
    """The leader of each partition that exists; -1 where there is none at the moment."""
    topics = cluster.metadata(sorted({topic for topic, _ in partitions})).topics.values()
    return {TopicPartition(topic.name, p.partition): p.leader for topic in topics for p in topic.partitions}


def require_leaders(cluster: ClusterClient, partitions: Sequence[TopicPartition]) -> None:
    known = leaders(cluster, partitions)
    for code, words, wrong in (
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "do not exist", [tp for tp in partitions if tp not in known]),
        (ErrorCode.LEADER_NOT_AVAILABLE, "have no leader", [tp for tp in partitions if known.get(tp, 0) < 0]),
    ):
        if wrong:
            names = ",".join(map(str, wrong))
            raise KafkaError(code, f'The partitions "{names}" {words}')


def plan_reset(
    cluster: ClusterClient,
    args: argparse.Namespace,
    partitions: Sequence[TopicPartition],
    committed: Callable[[], Offsets],
) -> Offsets:
    """The new offset of each partition, by the one scenario that `args` name (but for `--from-file`)."""
    require_leaders(cluster, partitions)
    if args.to_earliest:
        return log_offsets(cluster, partitions, EARLIEST)
    if args.to_latest:
        return log_offsets(cluster, partitions, LATEST)
    if args.to_datetime is not None:
        return _offsets_at(cluster, partitions, parse_datetime(args.to_datetime))
    if args.by_duration is not None:
        return _offsets_at(cluster, partitions, round(time.time() * 1000) - parse_duration(args.by_duration))
    if args.to_offset is not None:
        return within_logs(cluster, dict.fromkeys(partitions, args.to_offset))
    current = committed()
    if args.shift_by is not None:
        return within_logs(cluster, shifted(current, partitions, args.shift_by))
    missing = [tp for tp in partitions if tp not in current]
    return {tp: current[tp] for tp in partitions if tp in current} | log_offsets(cluster, missing, LATEST)


def shifted(current: Offsets, partitions: Iterable[TopicPartition], by: int) -> Offsets:
    requested: Offsets = {}
    for partition in partitions:
        if partition not in current:
            raise ConfigError(
                f"Cannot shift offset for partition {partition} since there is no current committed offset"
            )
        requested[partition] = current[partition] + by
    return requested


def within_logs(cluster: ClusterClient, requested: Offsets) -> Offsets:
    """The requested offsets, moved into what their logs hold."""
    starts = log_offsets(cluster, requested, EARLIEST)
    ends = log_offsets(cluster, requested, LATEST)
    return {tp: _clamp(tp, offset, starts[tp], ends[tp]) for tp, offset in requested.items()}


def _clamp(partition: TopicPartition, offset: int, start: int, end: int) -> int:
    name = f"topic partition {partition}"
    if offset > end:
        warn(f"WARN New offset ({offset}) is higher than latest offset for {name}. Value will be set to {end}")
        return end
    if offset < start:
        warn(f"WARN New offset ({offset}) is lower than earliest offset for {name}. Value will be set to {start}")
        return start
    return offset


def _offsets_at(cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
    found = log_offsets(cluster, partitions, timestamp_ms)
    too_late = [tp for tp, offset in found.items() if offset < 0]
    for topic, partition in too_late:
        warn(f"WARN Partition {partition} from topic {topic} is empty. Falling back to latest known offset.")
    return found | log_offsets(cluster, too_late, LATEST)


def log_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int) -> Offsets:
    from moldau.client import admin

    offsets: Offsets = {}
    wanted = dict.fromkeys(partitions, timestamp)
    for tp, result in (admin.list_offsets(cluster, wanted) if wanted else {}).items():
        if isinstance(result, KafkaError):
            raise KafkaError(result.code, f"Error getting offset of topic partition {tp}: {result}")
        offsets[tp] = result.offset
    return offsets
