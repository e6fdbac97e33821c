"""Positions in topics: as JSON in options and checkpoints, and how far one trigger may go.

The JSON is that of Spark's Kafka source, `{"topic": {"0": 123}}`: the next offset to read of each partition. Spark
writes only the end of a micro-batch to its offset log and takes the end of the one before as the start. A
partition that joins has no such start: asked for again when a batch is replayed, `latest` or a moved log start
would be another offset, and the batch another batch. So the end of a batch that a partition joins in also tells
where that partition starts, under a key no topic can have:

    {"topic": {"0": 123}, "(startingOffsets)": {"topic": {"0": 100}}}

A query starts with no partitions, `{}`: there, all of them join. Batches that none joins in look as those of Spark's
source do, so that either can go on with the other's checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from moldau.client.cluster import TopicPartition, by_topic
from moldau.errors import ConfigError
from moldau.wire.constants import EARLIEST, LATEST

Offsets = Mapping[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]

JOINED = "(startingOffsets)"

_MALFORMED = (ValueError, TypeError, AttributeError)
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1


class StreamOffset(NamedTuple):
    """What Spark keeps of a stream: the end of a batch, and the starts of the partitions that joined in it."""

    positions: Offsets
    joined: Offsets

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        positions = {topic: offsets for topic, offsets in value.items() if topic != JOINED}
        try:
            return cls(_offsets(positions), _offsets(value.get(JOINED, {})))
        except _MALFORMED as error:
            raise ConfigError(f"the checkpoint has no offsets of topics ({value}): use another one") from error

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self.positions)
        # Also when nothing joined at the start of a query: `{}` would start it again.
        return value | {JOINED: to_json(self.joined)} if self.joined or not value else value


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
        partitions = {(topic, _index(index)) for topic, indexes in json.loads(text).items() for index in indexes}
    except _MALFORMED:
        partitions = set()
    if not partitions:
        raise ConfigError(f'option {option}={text}: expected like {{"topicA":[0,1],"topicB":[2,4]}}')
    return tuple(sorted(partitions))


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
        (topic, _index(int(index))): _whole(offset)
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
