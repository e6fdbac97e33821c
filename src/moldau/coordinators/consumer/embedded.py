"""What classic members of protocol type `consumer` send each other, and the broker only where it takes them over.

A version that is newer than those known here is read as the newest of them: Kafka only ever adds fields at the end.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable

from moldau.coordinators.consumer.assignors import Partitions
from moldau.coordinators.topics import Topics
from moldau.errors import ProtocolError
from moldau.wire.state_records import (
    INT32,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    array_of,
    decode_value,
    encode_value,
    state_struct,
    state_value,
    wire,
)

PROTOCOL_TYPE = "consumer"
_NEWEST = 3
_VERSION = struct.Struct(">h")


@state_struct
class NamedPartitions:
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(array_of(INT32))


@state_value(versions=(0, _NEWEST), written=_NEWEST)
class Subscription:
    topics: tuple[str, ...] = wire(array_of(STRING))
    user_data: bytes | None = wire(NULLABLE_BYTES, default=None)
    owned_partitions: tuple[NamedPartitions, ...] = wire(array_of(NamedPartitions), since=1, default=())
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(NULLABLE_STRING, since=3, default=None)


@state_value(versions=(0, _NEWEST), written=_NEWEST)
class Assignment:
    assigned_partitions: tuple[NamedPartitions, ...] = wire(array_of(NamedPartitions))
    user_data: bytes | None = wire(NULLABLE_BYTES, default=None)


def read_subscription(data: bytes) -> Subscription:
    return decode_value(Subscription, _in_known_version(data))


def read_assignment(data: bytes) -> Assignment:
    """Nothing at all is what a member has that never got one."""
    return decode_value(Assignment, _in_known_version(data)) if data else Assignment(assigned_partitions=())


def write_assignment(partitions: Partitions, topics: Topics, subscription: bytes) -> bytes:
    """In the version of the member's subscription, which it surely understands."""
    named = [
        NamedPartitions(topic=name, partitions=tuple(sorted(partitions[topic_id])))
        for topic_id in sorted(partitions)
        if (name := topics.topic_name(topic_id)) is not None
    ]
    return subscription[:2] + encode_value(Assignment(assigned_partitions=tuple(named)))[2:]


def by_topic_id(named: Iterable[NamedPartitions], topics: Topics) -> Partitions:
    """Without deleted topics."""
    partitions: dict[uuid.UUID, set[int]] = {}
    for one in named:
        topic_id = topics.topic_id(one.topic)
        if topic_id is not None and one.partitions:
            partitions.setdefault(topic_id, set()).update(one.partitions)
    return {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}


def _in_known_version(data: bytes) -> bytes:
    if len(data) < _VERSION.size:
        raise ProtocolError("version is missing")
    (version,) = _VERSION.unpack_from(data)
    return _VERSION.pack(min(version, _NEWEST)) + data[_VERSION.size :]
