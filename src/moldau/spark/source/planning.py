"""From options to ranges: which partitions exist, where to start and end, and how to divide that into tasks.

`TopicOffsets` asks the cluster. It lives on the driver as long as the query, also through restarts of brokers.
`split` only computes: equal ranges give equal tasks, so that a replayed batch is the same batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from moldau.client.admin import OffsetInfo, epoch_end_offsets, list_offsets
from moldau.client.cluster import ClusterClient
from moldau.client.connection import to_error
from moldau.config.keys import nearest
from moldau.errors import RETRIABLE, ConfigError, ErrorCode, KafkaError
from moldau.spark.connections import ask_patiently
from moldau.spark.source.offsets import Offsets
from moldau.spark.source.read_options import Boundary, ReadOptions
from moldau.spark.source.read_plan import OffsetRange
from moldau.wire.constants import EARLIEST, LATEST, IsolationLevel
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

# Long enough for a new topic or a new leader to be known everywhere, short enough for a name that is wrong.
_ASKED_AGAIN_AFTER_MS = (200, 500, 1_000)

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

R = TypeVar("R")


class TopicOffsets:
    """What of the subscribed topics there is now. Holds no connection, so it can be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reached = False
        self._missing: set[str | TopicPartition] = set()  # topics and partitions that did not appear in time
        # As of the last look at the ends; brokers that are older than these have none.
        self.topic_ids: dict[str, UUID] = {}
        self.leader_epochs: dict[TopicPartition, int] = {}

    def ends_now(self, known: Offsets = MappingProxyType({})) -> dict[TopicPartition, int]:
        """The partitions to read and where their records end: with read_committed, the last stable offsets.

        Asked for again where a topic or partition is missing or ends before a position `known`: it may only look so
        while it is created or its leader changes.
        """
        subscription = self._options.subscription
        named: set[str | TopicPartition] = {*subscription.topics, *subscription.partitions, *known}
        for pause_ms in (0, *_ASKED_AGAIN_AFTER_MS):
            time.sleep(pause_ms / 1000)
            found = self._look_up(dict.fromkeys(self.ask(self._partitions), LATEST), self._options.isolation)
            self.leader_epochs = {tp: info.leader_epoch for tp, info in found.items() if info.leader_epoch >= 0}
            ends = self.settled({tp: info.offset for tp, info in found.items()}, known)
            missing = named - ends.keys() - {topic for topic, _ in ends}
            if missing <= self._missing and all(ends.get(tp, offset) >= offset for tp, offset in known.items()):
                break
        self._missing = missing
        return ends

    def settled(self, ends: Offsets, known: Offsets) -> dict[TopicPartition, int]:
        """The ends, but none before a position `known` that the log still has: a query that read uncommitted records
        is ahead of the last stable offset. Nothing is lost there, and nothing to be read yet."""
        ahead = [tp for tp, offset in known.items() if ends.get(tp, offset) < offset]
        high_watermarks = self.at(dict.fromkeys(ahead, LATEST), IsolationLevel.READ_UNCOMMITTED)
        return {**ends, **{tp: known[tp] for tp, offset in high_watermarks.items() if offset >= known[tp]}}

    def refuse_missing(self, ends: Offsets) -> None:
        subscription = self._options.subscription
        topics = {*subscription.topics, *(topic for topic, _ in subscription.partitions)} - {topic for topic, _ in ends}
        if topics:
            meant = nearest(min(topics), self.ask(lambda cluster: cluster.metadata(None).topics))
            check = f"did you mean '{meant}'? If not," if meant else "check the name, or"
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"no such topic: {', '.join(sorted(topics))}; {check} create it with"
                f" kafka-topics --create --topic {min(topics)}"
                f" --bootstrap-server {self._options.client.bootstrap_server}",
            )
        partitions = set(subscription.partitions) - ends.keys()
        if partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"no such partition: {_names(partitions)}; check the option assign",
            )

    def _partitions(self, cluster: ClusterClient) -> set[TopicPartition]:
        subscription = self._options.subscription
        names: list[str] | None = None
        if subscription.pattern is None:
            names = sorted({*subscription.topics, *(topic for topic, _ in subscription.partitions)})
        topics = list(cluster.metadata(names).topics.values())
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            topics = [topic for topic in topics if not topic.is_internal and pattern.search(topic.name)]
        for topic in topics:
            if topic.error and topic.error not in RETRIABLE:
                raise KafkaError(topic.error, f"topic {topic.name} cannot be read: {to_error(topic.error).message}")
        self.topic_ids = {t.name: t.topic_id for t in topics if t.partitions and t.topic_id != ZERO_UUID}
        found = {TopicPartition(topic.name, partition.partition) for topic in topics for partition in topic.partitions}
        return found.intersection(subscription.partitions) if subscription.partitions else found

    def resolve(self, boundary: Boundary, there: Collection[TopicPartition], latest_without_match: bool) -> Offsets:
        """A boundary's offset in each partition. Where no record is as late as its time: the latest or an error."""
        given = boundary.offsets if boundary.offsets is not None else boundary.times
        if given is not None and given.keys() != set(there):
            raise ConfigError(_other_partitions(boundary, given, there))
        if boundary.offsets is not None:
            asked = {tp: offset for tp, offset in boundary.offsets.items() if offset < 0}
            return dict(boundary.offsets) | self.at(asked)
        times = boundary.times or dict.fromkeys(there, boundary.time or 0)
        found = self.at(times)
        later = {tp: times[tp] for tp, offset in found.items() if offset < 0}
        if later and not latest_without_match:
            (topic, index), timestamp = min(later.items())
            raise ConfigError(
                f"option {boundary.option}: no record of {topic}-{index} is from {timestamp} or later: start earlier,"
                " or start at the end there with startingOffsetsByTimestampStrategy=latest"
            )
        return found | self.at(dict.fromkeys(later, LATEST))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self.at(dict.fromkeys(partitions, EARLIEST))

    def at(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, int]:
        """The first offsets at or after these times, -1 where there is none. A partition that is gone is left out."""
        level = self._options.isolation if isolation is None else isolation
        return {tp: info.offset for tp, info in self._look_up(timestamps, level).items()}

    def cuts(self, positions: Offsets, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where logs were cut below a position since these leader epochs. Asked only where there is a new epoch."""
        moved = {tp: epoch for tp, epoch in epochs.items() if self.leader_epochs.get(tp, epoch) != epoch}
        if not moved:
            return {}
        ends = _answered(self.ask(lambda cluster: epoch_end_offsets(cluster, moved)), "epochs")
        return {tp: end for tp, end in ends.items() if 0 <= end < positions.get(tp, 0)}

    def _look_up(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetInfo]:
        if not timestamps:
            return {}
        return _answered(self.ask(lambda cluster: list_offsets(cluster, timestamps, isolation)), "offsets")

    def ask(self, call: Callable[[ClusterClient], R]) -> R:
        answer = ask_patiently(self._options.client, call, reached=self._reached)
        self._reached = True
        return answer


def split(ranges: Iterable[OffsetRange], partitions_min: int | None, rows_max: int | None) -> list[OffsetRange]:
    """One task per partition, or more where asked for, in the proportions of Spark's Kafka source: first no task
    above `rows_max` offsets, then large ranges in parts until there are about `partitions_min` tasks."""
    parts = sorted(part for part in ranges if part.end > part.start)
    if rows_max is not None:
        parts = [piece for part in parts for piece in _pieces(part, -(-_size(part) // rows_max))]
    if partitions_min is None or len(parts) >= partitions_min:
        return parts
    total = sum(map(_size, parts))
    large = [part for part in parts if _share(part, total, partitions_min) > 1]
    large_total = sum(map(_size, large))
    wanted = max(partitions_min - (len(parts) - len(large)), 1)
    counts = {part: _share(part, large_total, wanted) for part in large}
    return [piece for part in parts for piece in _pieces(part, counts.get(part, 1))]


def _size(part: OffsetRange) -> int:
    return part.end - part.start


def _share(part: OffsetRange, total: int, tasks: int) -> int:
    # Halves round up, as in Java.
    return max((2 * _size(part) * tasks + total) // (2 * total), 1)


def _pieces(part: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, _size(part))
    bounds = [part.start + _size(part) * i // count for i in range(count + 1)]
    return [part._replace(start=start, end=end) for start, end in pairwise(bounds)]


def _answered(answers: Mapping[TopicPartition, R | KafkaError], what: str) -> dict[TopicPartition, R]:
    """Without the partitions that are gone."""
    found: dict[TopicPartition, R] = {}
    for (topic, index), answer in answers.items():
        if not isinstance(answer, KafkaError):
            found[TopicPartition(topic, index)] = answer
        elif answer.code not in _GONE:
            raise KafkaError(answer.code, f"{what} of {topic}-{index} could not be determined: {answer.message}")
    return found


def _other_partitions(boundary: Boundary, given: Iterable[TopicPartition], there: Iterable[TopicPartition]) -> str:
    return (
        f"option {boundary.option} must name exactly the partitions that are read: it names {_names(given)};"
        f" there are {_names(there) or 'none'}"
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))
