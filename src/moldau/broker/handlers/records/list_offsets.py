"""ListOffsets (key 2) and OffsetForLeaderEpoch (key 23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.broker import needs
from moldau.broker.turns import Work
from moldau.errors import ErrorCode, KafkaError
from moldau.log.lookups import by_max_timestamp, by_timestamp
from moldau.wire.constants import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from moldau.wire.messages import Schema, error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.broker.replicas.partition import Partition


class Broker(needs.HasReadLease, needs.HasPartitions, Protocol):
    """What these handlers use."""


_READ_COMMITTED = 1
_NOT_FOUND = (-1, -1, -1)
_OFFSET_NOT_AVAILABLE_VERSION_MIN = 5


class _Reader(NamedTuple):
    """The client or replica that sent the request."""

    is_replica: bool
    committed: bool
    not_yet: ErrorCode
    """The error while a new leader's high watermark is below what its predecessor had committed."""


def handle_list_offsets(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    schema = context.schema
    reader = _Reader(
        is_replica=request.replica_id >= 0,
        committed=getattr(request, "isolation_level", 0) == _READ_COMMITTED,
        not_yet=ErrorCode.OFFSET_NOT_AVAILABLE
        if context.version >= _OFFSET_NOT_AVAILABLE_VERSION_MIN
        else ErrorCode.LEADER_NOT_AVAILABLE,
    )
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            partitions.append((yield from _list_offset(broker, schema, topic.name, one, reader)))
            yield
        topics.append(schema.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return schema.ListOffsetsResponse(throttle_time=ms(0), topics=tuple(topics))


def _list_offset(broker: Broker, schema: Schema, topic: str, asked: Any, reader: _Reader) -> Work[Any]:
    code = ErrorCode.NONE
    found = _NOT_FOUND
    try:
        partition = broker.find_partition(topic, None, asked.partition_index)
        partition.check_leader_epoch(getattr(asked, "current_leader_epoch", -1))
        partition.check_leads()
        if broker.lease.may_be_expired():
            broker.lease.check(partition)
        found = yield from _look_up(partition, asked.timestamp, reader)
    except KafkaError as failure:
        code = failure.code
    timestamp_ms, offset, leader_epoch = found
    return schema.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=error(code),
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _readable_upto(partition: Partition, reader: _Reader) -> int:
    log = partition.log
    if reader.is_replica:
        return log.log_end_offset
    return log.last_stable_offset if reader.committed else log.high_watermark


def _look_up(partition: Partition, timestamp_ms: int, reader: _Reader) -> Work[tuple[int, int, int]]:
    """(timestamp, offset, leader epoch); -1 where Kafka says -1."""
    log = partition.log
    readable_upto = _readable_upto(partition, reader)
    is_new = partition.leadership is not None and partition.leadership.epoch_start_offset > log.high_watermark
    if timestamp_ms == LATEST:
        if is_new and not reader.is_replica:
            raise KafkaError(reader.not_yet, "the leader is new and does not know its high watermark yet")
        return (-1, readable_upto, partition.leader_epoch)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return (-1, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset))
    if timestamp_ms == MAX_TIMESTAMP:
        found = yield from by_max_timestamp(log)
    elif timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    elif timestamp_ms < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown special timestamp {timestamp_ms}")
    else:
        found = yield from by_timestamp(log, timestamp_ms)
    if found is None or found[1] >= readable_upto:
        if is_new:
            raise KafkaError(reader.not_yet, "the leader is new and does not know its high watermark yet")
        return _NOT_FOUND
    return found


def handle_offset_for_leader_epoch(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    schema = context.schema
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            partitions.append(_epoch_end(broker, schema, topic.topic, one))
            yield
        topics.append(schema.OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return schema.OffsetForLeaderEpochResponse(throttle_time=ms(0), topics=tuple(topics))


def _epoch_end(broker: Broker, schema: Schema, topic: str, asked: Any) -> Any:
    code = ErrorCode.NONE
    leader_epoch = end_offset = -1
    try:
        partition = broker.find_partition(topic, None, asked.partition)
        partition.check_leader_epoch(asked.current_leader_epoch)
        partition.check_leads()
        leader_epoch, end_offset = partition.log.offset_for_leader_epoch(asked.leader_epoch)
    except KafkaError as failure:
        code = failure.code
    return schema.EpochEndOffset(
        error_code=error(code), partition=asked.partition, leader_epoch=leader_epoch, end_offset=end_offset
    )
