"""Committing offsets, plainly or as part of a transaction, and fetching them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.offsets.records import NO_EXPIRY, OffsetCommitKey, OffsetCommitValue
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.batch import NO_PRODUCER_ID
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.coordinators.group import Group
    from moldau.coordinators.group_shard import GroupShard

DEFAULT_RETENTION = -1


class Offset(NamedTuple):
    """An offset to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID = ZERO_UUID


class Prepared(NamedTuple):
    """The records of a commit, and the error code of each of its offsets."""

    records: Sequence[tuple[OffsetCommitKey, OffsetCommitValue]]
    codes: list[ErrorCode]
    batch: bytes | None = None


class Commit(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """Or the member epoch; negative outside of a group."""
    offsets: Sequence[Offset]
    retention_ms: int = DEFAULT_RETENTION
    knows_epochs: bool = True
    """Whether the client is of the time of member epochs, and understands the errors that came with them."""
    producer: tuple[int, int] | None = None
    """Id and epoch of the producer whose transaction this is part of."""
    prepared: Prepared | None = None
    """What `records_of` makes of the offsets, where that was done before."""


def commit(shard: GroupShard, waiter: Waiter, request: Commit, now_ms: int) -> Effects:
    """Replies with one error code for each of the offsets."""
    effects = Effects()
    effects.producer = request.producer
    group = shard.groups.get(request.group_id)
    if group is not None:
        _check_member(group, request)
        if request.producer is None and isinstance(group, ClassicGroup):
            group.on_contact(request.member_id, now_ms)
    elif request.generation >= 0:
        raise _no_group(request)
    prepared = request.prepared or records_of(request, shard.config.offset_metadata_max_bytes, shard.wall_clock())
    effects.records += prepared.records
    effects.batch = prepared.batch
    producer_id = NO_PRODUCER_ID if request.producer is None else request.producer[0]
    for key, value in prepared.records:
        shard.offsets.apply(key, value, producer_id)
    effects.reply(waiter, prepared.codes)
    if group is None and effects.records:
        # Whoever only keeps offsets here has a group without members and protocol: Kafka calls it simple.
        shard.groups[request.group_id] = ClassicGroup(request.group_id, shard.wall_clock())
    return effects


def _check_member(group: Group, request: Commit) -> None:
    is_transactional = request.producer is not None
    try:
        group.validate_offset_commit(
            request.member_id,
            request.instance_id,
            request.generation,
            is_transactional=is_transactional,
            knows_epochs=request.knows_epochs,
        )
    except KafkaError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH and is_transactional:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise


def _no_group(request: Commit) -> KafkaError:
    is_known = request.producer is None and request.knows_epochs
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION
    return KafkaError(code, f"there is no group {request.group_id!r}")


def records_of(request: Commit, metadata_max: int, timestamp_ms: int) -> Prepared:
    """Reads nothing but the request: any thread may call it."""
    expire_ms = NO_EXPIRY if request.retention_ms == DEFAULT_RETENTION else timestamp_ms + request.retention_ms
    codes = []
    records = []
    for topic, partition, offset, leader_epoch, metadata, topic_id in request.offsets:
        if metadata and len(metadata) > metadata_max:
            codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        key = OffsetCommitKey(request.group_id, topic, partition)
        value = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata or "",
            commit_timestamp=timestamp_ms,
            expire_timestamp=expire_ms,
            topic_id=topic_id,
        )
        records.append((key, value))
        codes.append(ErrorCode.NONE)
    return Prepared(records, codes)


class RequestedPartition(NamedTuple):
    """A partition whose committed offset is asked for."""

    topic: str
    partition: int
    topic_id: uuid.UUID = ZERO_UUID


class Fetch(NamedTuple):
    group_id: str
    partitions: Sequence[RequestedPartition] | None
    """None for all that the group has."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False
    """No offset that an open transaction is about to replace."""


class Fetched(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""


def fetchable(shard: GroupShard, group_id: str) -> list[TopicPartition]:
    """The partitions of which the group has an offset, in no order."""
    return [partition for partition, _ in shard.offsets.of_group(group_id)] if group_id in shard.groups else []


def fetch(shard: GroupShard, request: Fetch) -> list[Fetched]:
    """In the order asked for, or topic by topic; a group or an offset that is not there has offset -1."""
    group = shard.groups.get(request.group_id)
    if group is None:
        return [Fetched(one.topic, one.partition) for one in request.partitions or ()]
    if request.member_id is not None or request.member_epoch >= 0:
        group.validate_offset_fetch(request.member_id or "", request.member_epoch)
    asked = request.partitions
    if asked is None:
        asked = [RequestedPartition(*partition) for partition, _ in sorted(shard.offsets.of_group(request.group_id))]
    return [_fetched(shard, request, one) for one in asked]


def _fetched(shard: GroupShard, request: Fetch, asked: RequestedPartition) -> Fetched:
    topic, partition, topic_id = asked
    if request.require_stable and shard.offsets.is_pending(request.group_id, topic, partition):
        return Fetched(topic, partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    value = shard.offsets.get(request.group_id, topic, partition)
    if value is None or (ZERO_UUID not in (value.topic_id, topic_id) and value.topic_id != topic_id):
        return Fetched(topic, partition)  # an older topic of that name may have had an offset
    return Fetched(topic, partition, ErrorCode.NONE, value.offset, value.leader_epoch, value.metadata)
