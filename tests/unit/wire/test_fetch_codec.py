"""The hand-packed Fetch codec equals the protocol package byte for byte, in every version."""

from __future__ import annotations

import contextlib
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.fetch import (
    VERSION_MAX,
    VERSION_MIN,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)
from moldau.wire.messages import (
    encode_request,
    encode_response,
    error,
    ms,
    parse_request_header,
    request_schema,
    response_schema,
)
from moldau.wire.primitives import NodeEndpoint
from tests.examples import examples

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
QUICK = settings(max_examples=examples(20), deadline=None)

int8 = st.integers(-(2**7), 2**7 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20) | st.text("a", min_size=120, max_size=300)
topic_ids = st.binary(min_size=16, max_size=16) | st.just(bytes(16))

requests = st.builds(
    FetchRequest,
    replica_id=int32,
    replica_epoch=int64,
    max_wait_ms=int32,
    min_bytes=int32,
    max_bytes=int32,
    isolation_level=int8,
    session_id=int32,
    session_epoch=int32,
    topics=st.lists(
        st.builds(
            FetchTopic,
            name=names,
            topic_id=topic_ids,
            partitions=st.lists(
                st.builds(
                    FetchPartition,
                    index=int32,
                    current_leader_epoch=int32,
                    fetch_offset=int64,
                    last_fetched_epoch=int32,
                    log_start_offset=int64,
                    max_bytes=int32,
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    forgotten=st.lists(
        st.builds(ForgottenTopic, name=names, topic_id=topic_ids, partitions=st.lists(int32, max_size=3)),
        max_size=2,
    ),
    rack_id=names,
    cluster_id=st.none() | names,
)


def view(chunk: bytes) -> memoryview:
    return memoryview(chunk)


chunks = st.binary(max_size=200)
pairs = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
results = st.builds(
    FetchPartitionResult,
    index=int32,
    error_code=st.sampled_from(ErrorCode).map(int),
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    aborted=st.none() | st.lists(st.tuples(int64, int64), max_size=3).map(tuple),
    preferred_read_replica=int32,
    records=st.none() | chunks | chunks.map(view) | st.lists(chunks, max_size=3).map(tuple),
    diverging_epoch=st.none() | pairs,
    current_leader=st.none() | pairs,
    snapshot_id=st.none() | pairs,
)
topic_results = st.lists(st.tuples(names, topic_ids, st.lists(results, max_size=3)), max_size=3)
endpoints = st.lists(st.tuples(int32, names, int32, st.none() | names), max_size=2)


def kio_id(raw: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=raw) if any(raw) else None


def body_of(version: int, request: FetchRequest, **partition_tags: Any) -> bytes:
    schema = request_schema(ApiKey.FETCH, version)
    state = {}
    if version >= 15:
        state["replica_state"] = schema.ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch)
    topics = [
        schema.FetchTopic(
            topic=topic.name,
            topic_id=kio_id(topic.topic_id or bytes(16)),
            partitions=[
                schema.FetchPartition(
                    partition=partition.index,
                    current_leader_epoch=partition.current_leader_epoch,
                    fetch_offset=partition.fetch_offset,
                    last_fetched_epoch=partition.last_fetched_epoch,
                    log_start_offset=partition.log_start_offset,
                    partition_max_bytes=partition.max_bytes,
                    **partition_tags,
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    forgotten: list[Any] = []
    if version >= 7:
        forgotten = [
            schema.ForgottenTopic(
                topic=topic.name, topic_id=kio_id(topic.topic_id or bytes(16)), partitions=topic.partitions
            )
            for topic in request.forgotten
        ]
    entity = schema.FetchRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica_id,
        max_wait=ms(request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=topics,
        forgotten_topics_data=forgotten,
        rack_id=request.rack_id,
        **state,
    )
    frame = encode_request(1, None, entity)[4:]
    return frame[parse_request_header(frame).body_offset :]


def as_in(version: int, request: FetchRequest) -> FetchRequest:
    """What is left of a request once it went through a version that lacks some fields."""

    def topic_as_in(topic: Any) -> Any:
        return topic._replace(name=None) if version >= 13 else topic._replace(topic_id=None)

    def partition_as_in(partition: FetchPartition) -> FetchPartition:
        if version < 5:
            partition = partition._replace(log_start_offset=-1)
        if version < 9:
            partition = partition._replace(current_leader_epoch=-1)
        return partition._replace(last_fetched_epoch=-1) if version < 12 else partition

    topics = [
        topic_as_in(topic._replace(partitions=[partition_as_in(p) for p in topic.partitions]))
        for topic in request.topics
    ]
    request = request._replace(topics=topics, forgotten=[topic_as_in(topic) for topic in request.forgotten])
    if version < 7:
        request = request._replace(session_id=0, session_epoch=-1, forgotten=[])
    if version < 11:
        request = request._replace(rack_id="")
    if version < 12:
        request = request._replace(cluster_id=None)
    return request._replace(replica_epoch=-1) if version < 15 else request


def kio_response(version: int, topics: list[FetchTopicResult], node_endpoints: list[NodeEndpoint]) -> Any:
    schema = response_schema(ApiKey.FETCH, version)

    def whole(records: Any) -> bytes | None:
        if records is None or isinstance(records, bytes):
            return records
        return bytes(records) if isinstance(records, memoryview) else b"".join(records)

    def partition(result: FetchPartitionResult) -> Any:
        hints = {}
        if version >= 12 and result.diverging_epoch:
            epoch, end_offset = result.diverging_epoch
            hints["diverging_epoch"] = schema.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        if version >= 12 and result.current_leader:
            leader_id, leader_epoch = result.current_leader
            hints["current_leader"] = schema.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        if version >= 12 and result.snapshot_id:
            end_offset, epoch = result.snapshot_id
            hints["snapshot_id"] = schema.SnapshotId(end_offset=end_offset, epoch=epoch)
        aborted = None
        if result.aborted is not None:
            aborted = tuple(
                schema.AbortedTransaction(producer_id=producer_id, first_offset=offset)
                for producer_id, offset in result.aborted
            )
        return schema.PartitionData(
            partition_index=result.index,
            error_code=error(result.error_code),
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=aborted,
            preferred_read_replica=result.preferred_read_replica,
            records=whole(result.records),
            **hints,
        )

    nodes = ()
    if version >= 16:
        nodes = tuple(
            schema.NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in node_endpoints
        )
    return schema.FetchResponse(
        throttle_time=ms(20),
        error_code=error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        session_id=77,
        responses=[
            schema.FetchableTopicResponse(
                topic=name,
                topic_id=kio_id(topic_id or bytes(16)),
                partitions=[partition(result) for result in partitions],
            )
            for name, topic_id, partitions in topics
        ],
        node_endpoints=nodes,
    )


def test_the_codec_covers_the_versions_of_the_table() -> None:
    fetch = APIS[ApiKey.FETCH]
    assert (fetch.min_version, fetch.max_version) == (VERSION_MIN, VERSION_MAX)


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests)
@QUICK
def test_requests_are_read_as_the_protocol_package_writes_them(version: int, request: FetchRequest) -> None:
    parsed = parse_fetch_request(version, memoryview(body_of(version, request)))
    assert parsed == as_in(version, request)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=topic_results, correlation_id=int32, node_endpoints=endpoints)
@QUICK
def test_responses_are_written_as_the_protocol_package_writes_them(
    version: int, topics: list[FetchTopicResult], correlation_id: int, node_endpoints: list[NodeEndpoint]
) -> None:
    theirs = encode_response(correlation_id, kio_response(version, topics, node_endpoints))
    ours = encode_fetch_response(
        version,
        correlation_id,
        topics,
        throttle_ms=20,
        error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        session_id=77,
        node_endpoints=node_endpoints,
    )
    assert b"".join(ours) == theirs


def as_read(version: int, result: FetchPartitionResult) -> FetchPartitionResult:
    """Without what this version cannot say."""
    records = result.records
    if records is not None and not isinstance(records, (bytes, memoryview)):
        records = b"".join(records)
    return FetchPartitionResult(
        *result[:4],
        log_start_offset=result.log_start_offset if version >= 5 else -1,
        aborted=None if result.aborted is None else list(result.aborted),
        preferred_read_replica=result.preferred_read_replica if version >= 11 else -1,
        records=records,
        diverging_epoch=result.diverging_epoch if version >= 12 else None,
        current_leader=result.current_leader if version >= 12 else None,
        snapshot_id=result.snapshot_id if version >= 12 else None,
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=topic_results, node_endpoints=endpoints)
@QUICK
def test_responses_are_read_as_the_protocol_package_writes_them(
    version: int, topics: list[FetchTopicResult], node_endpoints: list[NodeEndpoint]
) -> None:
    frame = encode_response(5, kio_response(version, topics, node_endpoints))[4:]
    response = parse_fetch_response(version, memoryview(frame))
    assert response.throttle_ms == 20
    assert response.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if version >= 7 else 0)
    assert response.session_id == (77 if version >= 7 else 0)
    assert response.topics == [
        (
            name if version < 13 else None,
            topic_id if version >= 13 else None,
            [as_read(version, result) for result in results],
        )
        for name, topic_id, results in topics
    ]


def small_response(version: int) -> bytes:
    result = FetchPartitionResult(3, 0, 9, 8, 1, [(7, 2)], 4, b"records", current_leader=(1, 2))
    return b"".join(encode_fetch_response(version, 1, [("orders", bytes(range(16)), [result])]))[4:]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_read_as_a_view_of_the_answer(version: int) -> None:
    frame = bytearray(small_response(version))
    ((_, _, (result,)),) = parse_fetch_response(version, memoryview(frame)).topics
    frame[frame.index(b"records")] ^= 0xFF
    assert result.records == b"\x8decords"


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@QUICK
def test_a_mutated_response_parses_or_is_a_protocol_error(version: int, data: st.DataObject) -> None:
    frame = bytearray(small_response(version))
    for _ in range(data.draw(st.integers(1, 5))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        parse_fetch_response(version, memoryview(frame)[: data.draw(st.integers(0, len(frame)))])


@pytest.mark.parametrize("version", VERSIONS)
def test_records_pass_through_uncopied(version: int) -> None:
    mapped = memoryview(bytearray(b"one batch"))
    chunk, view = b"two batches", memoryview(b"three")
    results = [FetchPartitionResult(0, records=mapped), FetchPartitionResult(1, records=(chunk, view))]
    buffers = encode_fetch_response(version, 1, [("orders", bytes(16), results)])
    assert any(buffer is mapped for buffer in buffers)
    assert any(buffer is chunk for buffer in buffers)
    assert any(buffer is view for buffer in buffers)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_without_records_is_a_single_buffer(version: int) -> None:
    results = [FetchPartitionResult(index, high_watermark=5) for index in range(3)]
    assert len(encode_fetch_response(version, 1, [("orders", bytes(16), results)])) == 1


SMALL = FetchRequest(
    replica_id=2,
    max_wait_ms=500,
    min_bytes=1,
    topics=[FetchTopic("orders", bytes(range(16)), [FetchPartition(0, 1, 2, 3, 4, 5), FetchPartition(1)])],
    forgotten=[ForgottenTopic("old", bytes(range(16)), [1, 2])],
    rack_id="r",
    cluster_id="c",
)


@pytest.mark.parametrize("version", [17, 18])
def test_tags_of_followers_are_skipped(version: int) -> None:
    tags: dict[str, Any] = {"replica_directory_id": uuid.UUID(int=5)}
    if version >= 18:
        tags["high_watermark"] = 12345
    parsed = parse_fetch_request(version, memoryview(body_of(version, SMALL, **tags)))
    assert parsed == as_in(version, SMALL)


@pytest.mark.parametrize("version", [12, 13, 18])
def test_unknown_tagged_fields_are_skipped_at_every_level(version: int) -> None:
    tag = b"\x02\x63\x03abc\x80\x01\x00"  # fields 99 (three bytes) and 128 (empty)
    topic = bytes(range(16)) if version >= 13 else b"\x07orders"
    replica = b"\xff\xff\xff\xff" if version < 15 else b""
    limits = replica + bytes(13) + bytes(8)
    partitions = b"\x02" + bytes(32) + tag
    forgotten = b"\x02" + topic + b"\x02" + bytes(4) + tag
    body = limits + b"\x02" + topic + partitions + tag + forgotten + b"\x01" + tag
    parsed = parse_fetch_request(version, memoryview(body))
    assert parsed.topics[0].partitions == [(0, 0, 0, 0, 0, 0)]
    assert parsed.forgotten[0].partitions == [0]
    assert parsed.replica_id == -1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_anywhere_is_a_protocol_error(version: int) -> None:
    body = body_of(version, SMALL)
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            parse_fetch_request(version, memoryview(body)[:end])


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_the_request_are_a_protocol_error(version: int) -> None:
    with pytest.raises(ProtocolError, match="1 bytes left over"):
        parse_fetch_request(version, memoryview(body_of(version, SMALL) + b"\x00"))


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@QUICK
def test_a_mutated_request_parses_or_is_a_protocol_error(version: int, data: st.DataObject) -> None:
    body = bytearray(body_of(version, SMALL))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        parse_fetch_request(version, memoryview(body))


@pytest.mark.parametrize("version", VERSIONS)
@given(junk=st.binary(max_size=80))
@QUICK
def test_junk_parses_or_is_a_protocol_error(version: int, junk: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        parse_fetch_request(version, memoryview(junk))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "huge",
    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x7f\xff", b"\x80\x00\x00\x00"],
)
def test_huge_and_negative_lengths_anywhere_take_no_memory(version: int, huge: bytes) -> None:
    body = body_of(version, SMALL)
    tracemalloc.start()
    try:
        for pos in range(len(body)):
            hostile = body[:pos] + huge + body[pos + len(huge) :]
            with contextlib.suppress(ProtocolError):
                parse_fetch_request(version, memoryview(hostile))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
