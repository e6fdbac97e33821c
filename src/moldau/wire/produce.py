"""Produce, hand-packed for every version (3 to 13): the write half of the hot path.

A request is parsed without touching its records: they stay a view of the frame. Topics are named by `name` up
to version 12 and by `topic_id` (16 raw bytes) from 13 on; the other one is None. What a batch holds is
`batch`'s business, what is answered is the broker's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.errors import ProtocolError
from moldau.wire.primitives import (
    INT32,
    MALFORMED,
    Buffer,
    NodeEndpoint,
    new_tuple,
    read_bytes,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_node_endpoints,
    write_string,
    write_tags,
    write_uvarint,
)
from moldau.wire.uuids import ZERO_ID

VERSION_MIN = 3
VERSION_MAX = 13

_FLEXIBLE_VERSION_MIN = 9
_TOPIC_ID_VERSION_MIN = 13
_LEADER_HINT_VERSION_MIN = 10
_RECORD_ERRORS_VERSION_MIN = 8
_LOG_START_VERSION_MIN = 5

PARTITIONS_MAX = 10_000
"""Per request: reading so many, and writing the response, takes 10 ms each. By default a producer's request has at most
1 MB, and a batch of one record about 80 bytes."""

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_AND_SIZE = struct.Struct(">ii")
_LEADER = struct.Struct(">iib")


class ProducePartition(NamedTuple):
    index: int  # type: ignore[assignment]  # Kafka's word, though tuples have a method of that name
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducePartitionResult(NamedTuple):
    index: int  # type: ignore[assignment]
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()  # index in the batch, message
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None  # leader id, leader epoch


# Name, topic id (whichever the version uses), and the results of its partitions.
ProduceTopicResult = tuple[str | None, bytes | None, Sequence[ProducePartitionResult]]


def parse_produce_request(version: int, body: memoryview) -> ProduceRequest:
    """The request in `body`; `records` are zero-copy slices of it, writable when it is."""
    try:
        if version >= _FLEXIBLE_VERSION_MIN:
            request, pos = _parse_flexible(body, version >= _TOPIC_ID_VERSION_MIN)
        else:
            request, pos = _parse_legacy(body)
    except MALFORMED as error:
        raise ProtocolError(f"malformed Produce v{version} request: {error}") from error
    if pos != len(body):
        raise ProtocolError(f"{len(body) - pos} bytes left over after a Produce v{version} request")
    return request


def _parse_legacy(body: memoryview) -> tuple[ProduceRequest, int]:
    transactional_id, pos = read_string(body, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, pos)
    topic_count, pos = read_count(body, pos + 6, 6)
    end = len(body)
    topics = []
    left = PARTITIONS_MAX
    for _ in range(topic_count):
        name, pos = read_string(body, pos)
        if name is None:
            raise ProtocolError("topic name is null")
        partition_count, pos = read_count(body, pos, 8)
        left -= partition_count + 1
        if left < 0:
            raise ProtocolError(f"more than {PARTITIONS_MAX} partitions in one request")
        partitions = []
        for _ in range(partition_count):
            index, size = _INDEX_AND_SIZE.unpack_from(body, pos)
            pos += 8
            if size == -1:
                partitions.append(new_tuple(ProducePartition, (index, None)))
                continue
            start = pos
            pos += size
            if size < 0 or pos > end:
                raise ProtocolError(f"records of {size} bytes, but {end - start} remain")
            partitions.append(new_tuple(ProducePartition, (index, body[start:pos])))
        topics.append(new_tuple(ProduceTopic, (name, None, partitions)))
    return new_tuple(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), pos


def _parse_flexible(body: memoryview, by_id: bool) -> tuple[ProduceRequest, int]:
    transactional_id, pos = read_compact_string(body, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, pos)
    topic_count, pos = read_compact_count(body, pos + 6, 3)
    topics = []
    left = PARTITIONS_MAX
    for _ in range(topic_count):
        name = topic_id = None
        if by_id:
            view, pos = read_bytes(body, pos, 16)
            topic_id = bytes(view)
        else:
            name, pos = read_compact_string(body, pos)
            if name is None:
                raise ProtocolError("topic name is null")
        partition_count, pos = read_compact_count(body, pos, 6)
        left -= partition_count + 1
        if left < 0:
            raise ProtocolError(f"more than {PARTITIONS_MAX} partitions in one request")
        partitions = []
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(body, pos)
            size, pos = read_uvarint(body, pos + 4)
            records = None
            if size:
                records, pos = read_bytes(body, pos, size - 1)
            partitions.append(new_tuple(ProducePartition, (index, records)))
            pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos)
        topics.append(new_tuple(ProduceTopic, (name, topic_id, partitions)))
        pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos)
    pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos)
    return new_tuple(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), pos


def encode_produce_request(
    transactional_id: str | None, acks: int, timeout_ms: int, topics: Mapping[str, Sequence[tuple[int, Buffer]]]
) -> list[Buffer]:
    """The body of a request of the versions 3 to 8, in parts: each partition's records are a part and not copied."""
    head = write_string(transactional_id) + _ACKS_TIMEOUT.pack(acks, timeout_ms) + INT32.pack(len(topics))
    parts: list[Buffer] = []
    for name, partitions in topics.items():
        head += write_string(name) + INT32.pack(len(partitions))
        for index, records in partitions:
            parts += (head + _INDEX_AND_SIZE.pack(index, len(records)), records)
            head = b""
    if head:
        parts.append(head)
    return parts


# The answer to one batch in one partition, which is nearly every answer: what stands before the topic's name…
_ONE_LEGACY_START = struct.Struct(">iiih")
_ONE_FLEXIBLE_START = struct.Struct(">iibB")
# …and after it: partition, error, offset, append time, [log start], [record errors, message, tags], throttle.
_ONE_V3_END = struct.Struct(">iihqqi")
_ONE_V5_END = struct.Struct(">iihqqqi")
_ONE_V8_END = struct.Struct(">iihqqqihi")
_ONE_FLEXIBLE_END = struct.Struct(">BihqqqBBBBiB")
_ONE_FLEXIBLE_SIZE = _ONE_FLEXIBLE_START.size + _ONE_FLEXIBLE_END.size - 4
_NO_DETAILS = ((), None, None)


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[ProduceTopicResult],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """A whole response frame, size first."""
    if len(topics) == 1 and len(topics[0][2]) == 1 and not node_endpoints:
        name, topic_id, (result,) = topics[0]
        if result[5:] == _NO_DETAILS:
            if version < _FLEXIBLE_VERSION_MIN:
                return _encode_one_legacy(version, correlation_id, name, result, throttle_ms)
            topic = _flexible_topic(version, name, topic_id)
            return _encode_one_flexible(correlation_id, topic, result, throttle_ms)
    flexible = version >= _FLEXIBLE_VERSION_MIN
    encode_result = _encode_result_flexible if flexible else _encode_result_legacy
    out = bytearray(INT32.pack(correlation_id))
    if flexible:
        out += b"\0"
    out += write_uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics))
    for name, topic_id, results in topics:
        out += _flexible_topic(version, name, topic_id) if flexible else write_string(name)
        out += write_uvarint(len(results) + 1) if flexible else INT32.pack(len(results))
        for result in results:
            out += encode_result(version, result)
        if flexible:
            out += b"\0"
    out += INT32.pack(throttle_ms)
    if flexible:
        hints = node_endpoints and version >= _LEADER_HINT_VERSION_MIN
        out += write_tags([(0, write_node_endpoints(node_endpoints))]) if hints else b"\0"
    return INT32.pack(len(out)) + out


def _flexible_topic(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= _TOPIC_ID_VERSION_MIN:
        return topic_id or ZERO_ID
    return write_compact_string(name)


def _encode_one_legacy(
    version: int, correlation_id: int, name: str | None, result: ProducePartitionResult, throttle_ms: int
) -> bytes:
    index, error_code, base_offset, append_time, log_start, *_ = result
    if version >= _RECORD_ERRORS_VERSION_MIN:
        end = _ONE_V8_END.pack(1, index, error_code, base_offset, append_time, log_start, 0, -1, throttle_ms)
    elif version >= _LOG_START_VERSION_MIN:
        end = _ONE_V5_END.pack(1, index, error_code, base_offset, append_time, log_start, throttle_ms)
    else:
        end = _ONE_V3_END.pack(1, index, error_code, base_offset, append_time, throttle_ms)
    topic = (name or "").encode()
    size = 10 + len(topic) + len(end)
    return _ONE_LEGACY_START.pack(size, correlation_id, 1, len(topic)) + topic + end


def _encode_one_flexible(correlation_id: int, topic: bytes, result: ProducePartitionResult, throttle_ms: int) -> bytes:
    index, error_code, base_offset, append_time, log_start, *_ = result
    start = _ONE_FLEXIBLE_START.pack(_ONE_FLEXIBLE_SIZE + len(topic), correlation_id, 0, 2)
    end = _ONE_FLEXIBLE_END.pack(2, index, error_code, base_offset, append_time, log_start, 1, 0, 0, 0, throttle_ms, 0)
    return start + topic + end


_RESULT_V3 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")


def _encode_result_legacy(version: int, result: ProducePartitionResult) -> bytes:
    if version < _LOG_START_VERSION_MIN:
        return _RESULT_V3.pack(*result[:4])
    out = _RESULT_V5.pack(*result[:5])
    if version >= _RECORD_ERRORS_VERSION_MIN:
        out += INT32.pack(len(result.record_errors))
        for batch_index, message in result.record_errors:
            out += INT32.pack(batch_index) + write_string(message)
        out += write_string(result.error_message)
    return out


def _encode_result_flexible(version: int, result: ProducePartitionResult) -> bytes:
    out = _RESULT_V5.pack(*result[:5])
    out += write_uvarint(len(result.record_errors) + 1)
    for batch_index, message in result.record_errors:
        out += INT32.pack(batch_index) + write_compact_string(message) + b"\0"
    out += write_compact_string(result.error_message)
    if result.current_leader is not None and version >= _LEADER_HINT_VERSION_MIN:
        leader_id, leader_epoch = result.current_leader
        return out + write_tags([(0, _LEADER.pack(leader_id, leader_epoch, 0))])
    return out + b"\0"
