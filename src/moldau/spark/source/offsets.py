"""Positions in topics: as JSON in options and checkpoints, and how far one trigger may go.

The JSON is that of Spark's Kafka source, `{"topic": {"0": 123}}`: the next offset to read of each partition. Spark
writes only the end of a micro-batch to its offset log and uses the end of the previous one as the start. Whatever else
a batch depends on must therefore be in that JSON as well, and Spark's source must be able to read it, because either
source can continue from a checkpoint of the other. To Spark's source every key is a topic, and a topic without
partitions has no effect. So additional data is in keys that no topic can have, each with an empty object:

    {"orders": {"0": 123},
     "(starts of orders) 0:100": {},             where partitions start that are new in this batch
     "(id of orders) q1Sh-9_8TzGnp0JdLzjp6g": {},  a topic that was deleted and recreated has a different id
     "(leader epochs of orders) 0:3": {}}        a log truncated below 123 since then has a different epoch 3

A new partition has no previous end. If its start were looked up again for a replayed batch, `latest` or a moved log
start could be a different offset, and the batch a different batch. A query starts without partitions, `{}`: all of them
are new then. `data_loss` explains how ids and epochs are used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from moldau.client.cluster import by_topic
from moldau.errors import ConfigError
from moldau.spark.source.read_plan import OffsetRange
from moldau.wire.constants import EARLIEST, LATEST
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import uuid_from_text, uuid_to_text

Offsets = Mapping[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]

STARTS, ID, EPOCHS = "starts", "id", "leader epochs"
_NO_PARTITIONS = "(no partitions)"
_STARTS_BEFORE = "(startingOffsets)"  # how starts were written once; Spark's source could not read it
_NOTE = re.compile(r"\((\w[\w ]*) of ([\w.-]+)\) (.*)", re.ASCII)

_MALFORMED = (ValueError, TypeError, AttributeError)
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1


class StreamOffset(NamedTuple):
    """What Spark keeps of a stream: the end of a batch, and what tells it from the same offsets of other logs."""

    positions: Offsets
    joined: Offsets  # the starts of the partitions that joined in this batch
    topic_ids: Mapping[str, UUID] = MappingProxyType({})
    leader_epochs: Mapping[TopicPartition, int] = MappingProxyType({})  # of the leaders that told the ends

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        notes: dict[str, dict[str, str]] = {STARTS: {}, ID: {}, EPOCHS: {}}
        for key in value:
            match = _NOTE.fullmatch(key)
            if match is not None:
                notes.setdefault(match[1], {})[match[2]] = match[3]
        try:
            return cls(
                _offsets({topic: offsets for topic, offsets in value.items() if not topic.startswith("(")}),
                _offsets(value.get(_STARTS_BEFORE, {})) | _numbers(notes[STARTS]),
                {topic: uuid_from_text(text) for topic, text in notes[ID].items()},
                _numbers(notes[EPOCHS]),
            )
        except _MALFORMED as error:
            raise ConfigError(f"the checkpoint has no offsets of topics ({value}): use another one") from error

    def to_json(self) -> dict[str, Any]:
        """Without partitions there still is a key: `{}` would start the query again."""
        notes = (
            *_number_notes(STARTS, self.joined),
            *(_note(ID, topic, uuid_to_text(topic_id)) for topic, topic_id in sorted(self.topic_ids.items())),
            *_number_notes(EPOCHS, self.leader_epochs),
        )
        return to_json(self.positions) | {note: {} for note in notes} or {_NO_PARTITIONS: {}}


def _note(name: str, topic: str, text: str) -> str:
    return f"({name} of {topic}) {text}"


def _number_notes(name: str, numbers: Offsets) -> list[str]:
    return [
        _note(name, topic, " ".join(f"{index}:{number}" for index, number in parts))
        for topic, parts in by_topic(numbers)
    ]


def _numbers(texts: Mapping[str, str]) -> dict[TopicPartition, int]:
    """`0:100 1:0` of each topic."""
    return {
        TopicPartition(topic, _index(int(index))): int(number)
        for topic, text in texts.items()
        for index, _, number in (pair.partition(":") for pair in text.split(" "))
    }


def to_json(offsets: Offsets) -> OffsetsJson:
    """In order, since Spark compares offsets as text."""
    return {topic: {str(index): offset for index, offset in parts} for topic, parts in by_topic(offsets)}


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """`-1` and `-2` stand for the latest and the earliest offset."""
    try:
        offsets = _offsets(json.loads(text))
    except _MALFORMED:
        offsets = {}
    if not offsets or not all(LATEST <= offset <= _OFFSET_MAX or offset == EARLIEST for offset in offsets.values()):
        raise ConfigError(
            f"option {option}={text}: expected earliest, latest or offsets of each partition, like"
            ' {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} (-1 is the latest offset, -2 the earliest)'
        )
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    try:
        timestamps = _offsets(json.loads(text))
    except _MALFORMED:
        timestamps = {}
    if not timestamps or not all(0 <= timestamp <= _OFFSET_MAX for timestamp in timestamps.values()):
        raise ConfigError(
            f'option {option}={text}: expected milliseconds of each partition, like {{"topicA":{{"0":1700000000000}}}}'
        )
    return timestamps


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    try:
        partitions = {
            TopicPartition(topic, _index(index)) for topic, indexes in json.loads(text).items() for index in indexes
        }
    except _MALFORMED:
        partitions = set()
    if not partitions:
        raise ConfigError(f'option {option}={text}: expected like {{"topicA":[0,1],"topicB":[2,4]}}')
    return tuple(sorted(partitions))


def parse_ranges(option: str, text: str) -> tuple[OffsetRange, ...]:
    """`{"topicA": {"0": [[5, 6], [9, 12]]}}`: records from the first offset up to but not including the second."""
    try:
        ranges = [
            OffsetRange(topic, _index(int(index)), _whole(start), _whole(end))
            for topic, partitions in json.loads(text).items()
            for index, parts in partitions.items()
            for start, end in parts
        ]
    except _MALFORMED as error:
        expected = '{"topicA":{"0":[[5,6],[9,12]]}}'
        raise ConfigError(f"option {option}={text}: expected ranges of offsets, like {expected}") from error
    return tuple(sorted(ranges))


def ranges_to_json(ranges: Iterable[OffsetRange]) -> dict[str, dict[str, list[list[int]]]]:
    found: dict[str, dict[str, list[list[int]]]] = {}
    for part in sorted(ranges):
        found.setdefault(part.topic, {}).setdefault(str(part.partition), []).append([part.start, part.end])
    return found


def limited(start: Offsets, end: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """No more than about so many offsets in all, shared among partitions by what each has waiting, as Spark does.

    None starves: a partition with anything waiting gets at least one. Both have the same partitions.
    """
    waiting = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    shares = {tp: rows_max * size / total for tp, size in waiting.items()}
    return {
        tp: min(end[tp], start[tp] + (math.floor(shares[tp]) if shares[tp] >= 1 else 1)) if tp in shares else end[tp]
        for tp in end
    }


def _offsets(value: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, _index(int(index))): _whole(offset)
        for topic, offsets in value.items()
        for index, offset in offsets.items()
    }


def _index(value: object) -> int:
    index = _whole(value)
    if not 0 <= index <= _PARTITION_MAX:
        raise ValueError(f"no partition: {index}")
    return index


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not a whole number: {value}")
    return value
