"""Metadata (0 to 13) and DescribeTopicPartitions (0) responses, hand-packed: they grow with the partitions.

A topic is packed apart from the response around it, and the response apart from the correlation id, so that a
broker can keep both for as long as nothing changes. Requests are small and go through `messages`.
Which topics to tell of, and who leads what, is the broker's business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from moldau.wire.primitives import (
    INT16,
    INT32,
    NodeEndpoint,
    write_compact_string,
    write_string,
    write_uvarint,
)
from moldau.wire.uuids import ZERO_ID

VERSION_MIN = 0
VERSION_MAX = 13

OPERATIONS_NOT_ASKED = -(2**31)

_CONTROLLER_VERSION_MIN = 1
_CLUSTER_ID_VERSION_MIN = 2
_THROTTLE_VERSION_MIN = 3
_OFFLINE_VERSION_MIN = 5
_LEADER_EPOCH_VERSION_MIN = 7
_OPERATIONS_VERSION_MIN = 8
_CLUSTER_OPERATIONS_VERSION_MAX = 10
_FLEXIBLE_VERSION_MIN = 9
_TOPIC_ID_VERSION_MIN = 10
_ERROR_VERSION_MIN = 13

_FRAME_START = struct.Struct(">ii")  # size, correlation id


class MetadataPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # Kafka's word, though tuples have a method of that name
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    error_code: int = 0
    elr: Sequence[int] = ()
    last_known_elr: Sequence[int] = ()


class MetadataTopic(NamedTuple):
    name: str | None
    topic_id: bytes = ZERO_ID
    partitions: Iterable[MetadataPartition] = ()
    is_internal: bool = False
    error_code: int = 0
    authorized_operations: int = OPERATIONS_NOT_ASKED


def pack_metadata_topic(version: int, topic: MetadataTopic) -> bytes:
    """One element of the response's topics."""
    flexible = version >= _FLEXIBLE_VERSION_MIN
    packed = _pack_partitions(version, topic.partitions)
    parts = [
        INT16.pack(topic.error_code),
        write_compact_string(topic.name) if flexible else write_string(topic.name),
    ]
    if version >= _TOPIC_ID_VERSION_MIN:
        parts.append(topic.topic_id)
    if version >= _CONTROLLER_VERSION_MIN:
        parts.append(b"\1" if topic.is_internal else b"\0")
    parts.append(write_uvarint(len(packed) + 1) if flexible else INT32.pack(len(packed)))
    parts += packed
    if version >= _OPERATIONS_VERSION_MIN:
        parts.append(INT32.pack(topic.authorized_operations))
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


def pack_metadata_response(
    version: int,
    *,
    brokers: Sequence[NodeEndpoint],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
    cluster_operations: int = OPERATIONS_NOT_ASKED,
    error_code: int = 0,
    throttle_ms: int = 0,
) -> bytes:
    """A response from behind its correlation id; `topics` are packed already."""
    flexible = version >= _FLEXIBLE_VERSION_MIN
    string = write_compact_string if flexible else write_string
    parts = [b"\0"] if flexible else []
    if version >= _THROTTLE_VERSION_MIN:
        parts.append(INT32.pack(throttle_ms))
    parts.append(write_uvarint(len(brokers) + 1) if flexible else INT32.pack(len(brokers)))
    for node_id, host, port, rack in brokers:
        parts += (INT32.pack(node_id), string(host), INT32.pack(port))
        if version >= _CONTROLLER_VERSION_MIN:
            parts.append(string(rack))
        if flexible:
            parts.append(b"\0")
    if version >= _CLUSTER_ID_VERSION_MIN:
        parts.append(string(cluster_id))
    if version >= _CONTROLLER_VERSION_MIN:
        parts.append(INT32.pack(controller_id))
    parts.append(write_uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics)))
    parts += topics
    if _OPERATIONS_VERSION_MIN <= version <= _CLUSTER_OPERATIONS_VERSION_MAX:
        parts.append(INT32.pack(cluster_operations))
    if version >= _ERROR_VERSION_MIN:
        parts.append(INT16.pack(error_code))
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


def framed(correlation_id: int, response: bytes) -> list[bytes | memoryview]:
    """The whole frame, size first, around a packed response that other requests may share."""
    return [_FRAME_START.pack(len(response) + 4, correlation_id), response]


def pack_described_topic(topic: MetadataTopic) -> bytes:
    """One element of a DescribeTopicPartitions response's topics; partitions there never tell an error."""
    packed = []
    for part in topic.partitions:
        lists = (part.replicas, part.isr, part.elr, part.last_known_elr, part.offline)
        values: list[int | bytes] = [0, part.index, part.leader, part.leader_epoch]
        for each in lists:
            values += (_compact(len(each)), *each)
        values.append(b"\0")
        packed.append(_described_layout(*map(len, lists)).pack(*values))
    return b"".join(
        (
            INT16.pack(topic.error_code),
            write_compact_string(topic.name),
            topic.topic_id,
            b"\1" if topic.is_internal else b"\0",
            write_uvarint(len(packed) + 1),
            *packed,
            INT32.pack(topic.authorized_operations),
            b"\0",
        )
    )


def pack_described_topics(
    topics: Sequence[bytes], next_cursor: tuple[str, int] | None, *, throttle_ms: int = 0
) -> bytes:
    """A DescribeTopicPartitions response from behind its correlation id."""
    cursor = b"\xff"
    if next_cursor is not None:
        cursor = b"\1" + write_compact_string(next_cursor[0]) + INT32.pack(next_cursor[1]) + b"\0"
    head = b"\0" + INT32.pack(throttle_ms) + write_uvarint(len(topics) + 1)
    return b"".join((head, *topics, cursor, b"\0"))


def _pack_partitions(version: int, partitions: Iterable[MetadataPartition]) -> list[bytes]:
    flexible = version >= _FLEXIBLE_VERSION_MIN
    count = _compact if flexible else INT32.pack
    packed = []
    for index, leader, leader_epoch, replicas, isr, offline, error_code, _, _ in partitions:
        values: list[int | bytes] = [error_code, index, leader]
        if version >= _LEADER_EPOCH_VERSION_MIN:
            values.append(leader_epoch)
        values += (count(len(replicas)), *replicas, count(len(isr)), *isr)
        if version >= _OFFLINE_VERSION_MIN:
            values += (count(len(offline)), *offline)
        if flexible:
            values.append(b"\0")
        packed.append(_partition_layout(version, len(replicas), len(isr), len(offline)).pack(*values))
    return packed


# Nearly all partitions of a cluster have as many replicas as the next one: a handful of layouts serves all.
@cache
def _partition_layout(version: int, replicas: int, isr: int, offline: int) -> struct.Struct:
    ids = _compact_ids if version >= _FLEXIBLE_VERSION_MIN else _ids
    return struct.Struct(
        (">hiii" if version >= _LEADER_EPOCH_VERSION_MIN else ">hii")
        + ids(replicas)
        + ids(isr)
        + (ids(offline) if version >= _OFFLINE_VERSION_MIN else "")
        + ("1s" if version >= _FLEXIBLE_VERSION_MIN else "")
    )


@cache
def _described_layout(*counts: int) -> struct.Struct:
    return struct.Struct(f">hiii{''.join(map(_compact_ids, counts))}1s")


@cache
def _compact(count: int) -> bytes:
    """The length of a compact array."""
    return write_uvarint(count + 1)


def _compact_ids(count: int) -> str:
    return f"{len(_compact(count))}s{count}i"


def _ids(count: int) -> str:
    return f"4s{count}i"
