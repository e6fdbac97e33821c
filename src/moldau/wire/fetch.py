"""Fetch, hand-packed for every version (4 to 18): the read half of the hot path.

A response is a list of buffers, the records among them exactly as the log gave them, never copied; a reader gets
them as views of what it received. Topics are
named by `name` up to version 12 and by `topic_id` (16 raw bytes) from 13 on; the other one is None.
Sessions, limits and what to read belong to the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from moldau.errors import ProtocolError
from moldau.wire.primitives import (
    INT32,
    MALFORMED,
    NodeEndpoint,
    new_tuple,
    read_bytes,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_node_endpoints,
    write_string,
    write_tags,
    write_uvarint,
)
from moldau.wire.uuids import ZERO_ID

VERSION_MIN = 4
VERSION_MAX = 18

_LOG_START_VERSION_MIN = 5
_SESSION_VERSION_MIN = 7
_LEADER_EPOCH_VERSION_MIN = 9
_RACK_VERSION_MIN = 11
_FLEXIBLE_VERSION_MIN = 12
_TOPIC_ID_VERSION_MIN = 13
_REPLICA_STATE_VERSION_MIN = 15
_ENDPOINTS_VERSION_MIN = 16


class FetchPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # Kafka's word, though tuples have a method of that name
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0x7FFF_FFFF


class FetchTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFF_FFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: Sequence[FetchTopic] = ()
    forgotten: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    cluster_id: str | None = None


Records = bytes | memoryview | Sequence[bytes | memoryview] | None


class FetchPartitionResult(NamedTuple):
    index: int  # type: ignore[assignment]
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # producer id, first offset; None: a null array
    preferred_read_replica: int = -1
    records: Records = b""
    diverging_epoch: tuple[int, int] | None = None  # epoch, end offset
    current_leader: tuple[int, int] | None = None  # leader id, leader epoch
    snapshot_id: tuple[int, int] | None = None  # end offset, epoch


# Name, topic id (whichever the version uses), and the results of its partitions.
FetchTopicResult = tuple[str | None, bytes | None, Sequence[FetchPartitionResult]]


_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")


def parse_fetch_request(version: int, body: memoryview) -> FetchRequest:
    try:
        parse = _parse_flexible if version >= _FLEXIBLE_VERSION_MIN else _parse_legacy
        request, pos = parse(version, body)
    except MALFORMED as error:
        raise ProtocolError(f"malformed Fetch v{version} request: {error}") from error
    if pos != len(body):
        raise ProtocolError(f"{len(body) - pos} bytes left over after a Fetch v{version} request")
    return request


def _parse_legacy(version: int, body: memoryview) -> tuple[FetchRequest, int]:
    (replica_id,) = INT32.unpack_from(body, 0)
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(body, 4)
    pos = 17
    session_id, session_epoch = 0, -1
    if version >= _SESSION_VERSION_MIN:
        session_id, session_epoch = _SESSION.unpack_from(body, pos)
        pos += 8
    topic_count, pos = read_count(body, pos, 6)
    topics = []
    for _ in range(topic_count):
        name, pos = _topic_name(*read_string(body, pos))
        partition_count, pos = read_count(body, pos, 16)
        partitions = []
        for _ in range(partition_count):
            partition, pos = _legacy_partition(version, body, pos)
            partitions.append(partition)
        topics.append(new_tuple(FetchTopic, (name, None, partitions)))
    forgotten = []
    if version >= _SESSION_VERSION_MIN:
        forgotten_count, pos = read_count(body, pos, 6)
        for _ in range(forgotten_count):
            name, pos = _topic_name(*read_string(body, pos))
            indexes, pos = _read_ints(body, *read_count(body, pos, 4))
            forgotten.append(ForgottenTopic(name, None, indexes))
    rack_id: str | None = ""
    if version >= _RACK_VERSION_MIN:
        rack_id, pos = read_string(body, pos)
    request = (
        replica_id, -1, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, _rack(rack_id), None,
    )  # fmt: skip
    return new_tuple(FetchRequest, request), pos


def _legacy_partition(version: int, body: memoryview, pos: int) -> tuple[FetchPartition, int]:
    if version >= _LEADER_EPOCH_VERSION_MIN:
        index, leader_epoch, offset, log_start, max_bytes = _PARTITION_V9.unpack_from(body, pos)
        return new_tuple(FetchPartition, (index, leader_epoch, offset, -1, log_start, max_bytes)), pos + 28
    if version >= _LOG_START_VERSION_MIN:
        index, offset, log_start, max_bytes = _PARTITION_V5.unpack_from(body, pos)
        return new_tuple(FetchPartition, (index, -1, offset, -1, log_start, max_bytes)), pos + 24
    index, offset, max_bytes = _PARTITION_V4.unpack_from(body, pos)
    return new_tuple(FetchPartition, (index, -1, offset, -1, -1, max_bytes)), pos + 16


def _parse_flexible(version: int, body: memoryview) -> tuple[FetchRequest, int]:
    replica_id, replica_epoch = -1, -1
    pos = 0
    if version < _REPLICA_STATE_VERSION_MIN:
        (replica_id,) = INT32.unpack_from(body, 0)
        pos = 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(body, pos)
    session_id, session_epoch = _SESSION.unpack_from(body, pos + 13)
    by_id = version >= _TOPIC_ID_VERSION_MIN
    topic_count, pos = read_compact_count(body, pos + 21, 3)
    topics = []
    for _ in range(topic_count):
        name, topic_id, pos = _read_topic(body, pos, by_id)
        partition_count, pos = read_compact_count(body, pos, 33)
        partitions = []
        for _ in range(partition_count):
            partitions.append(new_tuple(FetchPartition, _PARTITION_V12.unpack_from(body, pos)))
            pos += 32
            pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos)
        topics.append(new_tuple(FetchTopic, (name, topic_id, partitions)))
        pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos)
    forgotten_count, pos = read_compact_count(body, pos, 3)
    forgotten = []
    for _ in range(forgotten_count):
        name, topic_id, pos = _read_topic(body, pos, by_id)
        indexes, pos = _read_ints(body, *read_compact_count(body, pos, 4))
        forgotten.append(ForgottenTopic(name, topic_id, indexes))
        pos = skip_tags(body, pos)
    rack_id, pos = read_compact_string(body, pos)
    tags, pos = read_tags(body, pos)
    cluster_id = None
    if tags:
        if 0 in tags:
            cluster_id, _ = read_compact_string(tags[0], 0)
        if 1 in tags and version >= _REPLICA_STATE_VERSION_MIN:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(tags[1])
    request = (
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, _rack(rack_id), cluster_id,
    )  # fmt: skip
    return new_tuple(FetchRequest, request), pos


def _read_topic(body: memoryview, pos: int, by_id: bool) -> tuple[str | None, bytes | None, int]:
    if by_id:
        view, pos = read_bytes(body, pos, 16)
        return None, bytes(view), pos
    name, pos = _topic_name(*read_compact_string(body, pos))
    return name, None, pos


def _topic_name(name: str | None, pos: int) -> tuple[str, int]:
    if name is None:
        raise ProtocolError("topic name is null")
    return name, pos


def _rack(rack_id: str | None) -> str:
    if rack_id is None:
        raise ProtocolError("rack id is null")
    return rack_id


def _read_ints(body: memoryview, count: int, pos: int) -> tuple[list[int], int]:
    return list(struct.unpack_from(f">{count}i", body, pos)), pos + 4 * count


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """The body of a request between brokers, which know topics by id and tell who they are in a tag (version 15)."""
    parts = [
        _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level),
        _SESSION.pack(request.session_id, request.session_epoch),
        write_uvarint(len(request.topics) + 1),
    ]
    for topic in request.topics:
        parts += (topic.topic_id or ZERO_ID, write_uvarint(len(topic.partitions) + 1))
        for partition in topic.partitions:
            parts += (_PARTITION_V12.pack(*partition), b"\0")
        parts.append(b"\0")
    parts.append(write_uvarint(len(request.forgotten) + 1))
    for forgotten in request.forgotten:
        indexes = forgotten.partitions
        parts += (forgotten.topic_id or ZERO_ID, write_uvarint(len(indexes) + 1))
        parts += (struct.pack(f">{len(indexes)}i", *indexes), b"\0")
    parts.append(write_compact_string(request.rack_id))
    if request.replica_id >= 0:
        state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch) + b"\0"
        parts.append(write_tags([(1, state)]))
    else:
        parts.append(b"\0")
    assert version >= _REPLICA_STATE_VERSION_MIN
    return b"".join(parts)


class FetchResponse(NamedTuple):
    throttle_ms: int
    error_code: int
    topics: list[FetchTopicResult]
    session_id: int = 0


_HEADER_V4 = struct.Struct(">ii")  # correlation id, throttle
_HEADER_V7 = struct.Struct(">iihi")  # …, error code, session id
_HEADER_V12 = struct.Struct(">ibihi")  # correlation id, header tags, throttle, error code, session id
_ERROR_AND_SESSION = struct.Struct(">hi")
_RESULT_V4 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_ABORTED_FLEXIBLE = struct.Struct(">qqb")
_EPOCH_AND_OFFSET = struct.Struct(">iqb")
_OFFSET_AND_EPOCH = struct.Struct(">qib")
_LEADER = struct.Struct(">iib")
_Hints = tuple[tuple[int, int] | None, tuple[int, int] | None, tuple[int, int] | None]
_NO_HINTS: _Hints = (None, None, None)


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchTopicResult],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[bytes | memoryview]:
    """A whole response frame, size first, as buffers to be sent one after the other."""
    flexible = version >= _FLEXIBLE_VERSION_MIN
    parts = [_header(version, correlation_id, throttle_ms, error_code, session_id)]
    parts.append(write_uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics)))
    buffers: list[bytes | memoryview] = []
    for name, topic_id, results in topics:
        if version >= _TOPIC_ID_VERSION_MIN:
            parts.append(topic_id or ZERO_ID)
        else:
            parts.append(write_compact_string(name) if flexible else write_string(name))
        parts.append(write_uvarint(len(results) + 1) if flexible else INT32.pack(len(results)))
        for result in results:
            parts.append(_before_records(version, result))
            records = result.records
            if records is None:
                parts.append(b"\0" if flexible else b"\xff\xff\xff\xff")
            else:
                chunks = (records,) if isinstance(records, (bytes, memoryview)) else records
                size = sum(map(len, chunks))
                parts.append(write_uvarint(size + 1) if flexible else INT32.pack(size))
                if size:
                    buffers.append(b"".join(parts))
                    buffers.extend(chunks)
                    parts = []
            if flexible:
                parts.append(_partition_tags(result))
        if flexible:
            parts.append(b"\0")
    if flexible:
        hints = node_endpoints and version >= _ENDPOINTS_VERSION_MIN
        parts.append(write_tags([(0, write_node_endpoints(node_endpoints))]) if hints else b"\0")
    if parts:
        buffers.append(b"".join(parts))
    return [INT32.pack(sum(map(len, buffers))) + buffers[0], *buffers[1:]]


def _header(version: int, correlation_id: int, throttle_ms: int, error_code: int, session_id: int) -> bytes:
    if version >= _FLEXIBLE_VERSION_MIN:
        return _HEADER_V12.pack(correlation_id, 0, throttle_ms, error_code, session_id)
    if version >= _SESSION_VERSION_MIN:
        return _HEADER_V7.pack(correlation_id, throttle_ms, error_code, session_id)
    return _HEADER_V4.pack(correlation_id, throttle_ms)


def _before_records(version: int, result: FetchPartitionResult) -> bytes:
    aborted = result.aborted
    if version >= _FLEXIBLE_VERSION_MIN:
        start = _RESULT_V5.pack(*result[:5])
        if aborted is None:
            middle = b"\0"
        else:
            pairs = b"".join([_ABORTED_FLEXIBLE.pack(*txn, 0) for txn in aborted])
            middle = write_uvarint(len(aborted) + 1) + pairs
        return start + middle + INT32.pack(result.preferred_read_replica)
    start = _RESULT_V5.pack(*result[:5]) if version >= _LOG_START_VERSION_MIN else _RESULT_V4.pack(*result[:4])
    if aborted is None:
        start += b"\xff\xff\xff\xff"
    else:
        start += INT32.pack(len(aborted)) + b"".join([_ABORTED.pack(*txn) for txn in aborted])
    return start + INT32.pack(result.preferred_read_replica) if version >= _RACK_VERSION_MIN else start


def _partition_tags(result: FetchPartitionResult) -> bytes:
    if result[8:] == _NO_HINTS:
        return b"\0"
    tags = []
    if result.diverging_epoch is not None:
        tags.append((0, _EPOCH_AND_OFFSET.pack(*result.diverging_epoch, 0)))
    if result.current_leader is not None:
        tags.append((1, _LEADER.pack(*result.current_leader, 0)))
    if result.snapshot_id is not None:
        tags.append((2, _OFFSET_AND_EPOCH.pack(*result.snapshot_id, 0)))
    return write_tags(tags)


def parse_fetch_response(version: int, frame: memoryview) -> FetchResponse:
    """A response frame without its four size bytes; records are views of the frame."""
    try:
        return _parse_response(version, frame)
    except MALFORMED as error:
        raise ProtocolError(f"malformed Fetch v{version} response: {error}") from error


def _parse_response(version: int, frame: memoryview) -> FetchResponse:
    flexible = version >= _FLEXIBLE_VERSION_MIN
    pos = skip_tags(frame, 4) if flexible else 4
    (throttle_ms,) = INT32.unpack_from(frame, pos)
    pos += 4
    error_code = session_id = 0
    if version >= _SESSION_VERSION_MIN:
        error_code, session_id = _ERROR_AND_SESSION.unpack_from(frame, pos)
        pos += 6
    topic_count, pos = read_compact_count(frame, pos, 3) if flexible else read_count(frame, pos, 6)
    topics: list[FetchTopicResult] = []
    for _ in range(topic_count):
        if flexible:
            name, topic_id, pos = _read_topic(frame, pos, version >= _TOPIC_ID_VERSION_MIN)
            count, pos = read_compact_count(frame, pos, 33)
        else:
            name, pos = _topic_name(*read_string(frame, pos))
            topic_id = None
            count, pos = read_count(frame, pos, 30)
        results = []
        for _ in range(count):
            result, pos = _parse_result(version, frame, pos)
            results.append(result)
        if flexible:
            pos = skip_tags(frame, pos)
        topics.append((name, topic_id, results))
    return FetchResponse(throttle_ms, error_code, topics, session_id)


def _parse_result(version: int, frame: memoryview, pos: int) -> tuple[FetchPartitionResult, int]:
    flexible = version >= _FLEXIBLE_VERSION_MIN
    start = _RESULT_V5 if version >= _LOG_START_VERSION_MIN else _RESULT_V4
    index, error_code, high_watermark, last_stable_offset, *log_start = start.unpack_from(frame, pos)
    aborted, pos = _parse_aborted(frame, pos + start.size, flexible)
    replica = -1
    if version >= _RACK_VERSION_MIN:
        (replica,) = INT32.unpack_from(frame, pos)
        pos += 4
    if flexible:
        size, pos = read_uvarint(frame, pos)
        size -= 1
    else:
        (size,) = INT32.unpack_from(frame, pos)
        pos += 4
    records, pos = (None, pos) if size == -1 else read_bytes(frame, pos, size)
    hints: _Hints = _NO_HINTS
    if flexible:
        if frame[pos] == 0:
            pos += 1
        else:
            hints, pos = _parse_hints(frame, pos)
    log_start_offset = log_start[0] if log_start else -1
    return FetchPartitionResult(
        index, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, replica, records, *hints
    ), pos


def _parse_hints(frame: memoryview, pos: int) -> tuple[_Hints, int]:
    """Diverging epoch, current leader, snapshot id: those that are there."""
    tags, pos = read_tags(frame, pos)
    diverging, leader, snapshot = tags.get(0), tags.get(1), tags.get(2)
    return (
        None if diverging is None else _EPOCH_AND_OFFSET.unpack_from(diverging)[:2],
        None if leader is None else _LEADER.unpack_from(leader)[:2],
        None if snapshot is None else _OFFSET_AND_EPOCH.unpack_from(snapshot)[:2],
    ), pos


def _parse_aborted(frame: memoryview, pos: int, flexible: bool) -> tuple[list[tuple[int, int]] | None, int]:
    is_null = frame[pos] == 0 if flexible else INT32.unpack_from(frame, pos)[0] == -1
    if is_null:
        return None, pos + (1 if flexible else 4)
    count, pos = read_compact_count(frame, pos, 17) if flexible else read_count(frame, pos, 16)
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, pos))
        pos = skip_tags(frame, pos + 16) if flexible else pos + 16
    return aborted, pos
