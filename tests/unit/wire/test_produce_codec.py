"""The hand-packed Produce codec equals the protocol package byte for byte, in every version."""

from __future__ import annotations

import contextlib
import datetime
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, ApiKey
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
from moldau.wire.produce import (
    VERSION_MAX,
    VERSION_MIN,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceTopic,
    ProduceTopicResult,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
)
from tests.examples import examples

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
QUICK = settings(max_examples=examples(30), deadline=None)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20) | st.text("a", min_size=120, max_size=300)
topic_ids = st.binary(min_size=16, max_size=16) | st.just(bytes(16))
records = st.none() | st.binary(max_size=300)

requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=20),
    acks=int16,
    timeout_ms=int32,
    topics=st.lists(
        st.builds(
            ProduceTopic,
            name=names,
            topic_id=topic_ids,
            partitions=st.lists(st.builds(ProducePartition, index=int32, records=records), max_size=3),
        ),
        max_size=3,
    ),
)

results = st.builds(
    ProducePartitionResult,
    index=int32,
    error_code=st.sampled_from(ErrorCode).map(int),
    base_offset=int64,
    log_append_time_ms=st.integers(-1, 2**41),
    log_start_offset=int64,
    record_errors=st.lists(st.tuples(int32, st.none() | names), max_size=2).map(tuple),
    error_message=st.none() | names,
    current_leader=st.none() | st.tuples(st.integers(0, 2**31 - 1), int32),
)
plain_results = st.builds(
    lambda index, base_offset, log_start: ProducePartitionResult(index, 0, base_offset, -1, log_start),
    int32,
    int64,
    int64,
)
topic_results = st.lists(
    st.tuples(names, topic_ids, st.lists(results, max_size=3))
    | st.tuples(names, topic_ids, st.lists(plain_results, min_size=1, max_size=1)),
    max_size=3,
)
endpoints = st.lists(st.tuples(int32, names, int32, st.none() | names), max_size=2)


def kio_id(raw: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=raw) if any(raw) else None


def named_as_in(version: int, topic: ProduceTopic) -> ProduceTopic:
    return topic._replace(name=None) if version >= 13 else topic._replace(topic_id=None)


def body_of(version: int, request: ProduceRequest) -> bytes:
    schema = request_schema(ApiKey.PRODUCE, version)
    entity = schema.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=ms(request.timeout_ms),
        topic_data=[
            schema.TopicProduceData(
                name=topic.name,
                topic_id=kio_id(topic.topic_id or bytes(16)),
                partition_data=[
                    schema.PartitionProduceData(index=partition.index, records=partition.records)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
    frame = encode_request(1, None, entity)[4:]
    return frame[parse_request_header(frame).body_offset :]


def kio_response(
    version: int, topics: list[ProduceTopicResult], throttle_ms: int, node_endpoints: list[NodeEndpoint]
) -> Any:
    schema = response_schema(ApiKey.PRODUCE, version)
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)

    def partition(result: ProducePartitionResult) -> Any:
        hint = {}
        if result.current_leader and version >= 10:
            leader_id, leader_epoch = result.current_leader
            hint["current_leader"] = schema.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        append_time = None
        if result.log_append_time_ms != -1:
            append_time = epoch + datetime.timedelta(milliseconds=result.log_append_time_ms)
        record_errors = ()
        if version >= 8:
            record_errors = tuple(
                schema.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in result.record_errors
            )
        return schema.PartitionProduceResponse(
            index=result.index,
            error_code=error(result.error_code),
            base_offset=result.base_offset,
            log_append_time=append_time,
            log_start_offset=result.log_start_offset,
            record_errors=record_errors,
            error_message=result.error_message,
            **hint,
        )

    nodes = ()
    if version >= 10:
        nodes = tuple(
            schema.NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in node_endpoints
        )
    return schema.ProduceResponse(
        throttle_time=ms(throttle_ms),
        responses=[
            schema.TopicProduceResponse(
                name=name,
                topic_id=kio_id(topic_id or bytes(16)),
                partition_responses=[partition(result) for result in partitions],
            )
            for name, topic_id, partitions in topics
        ],
        node_endpoints=nodes,
    )


def test_the_codec_covers_the_versions_of_the_table() -> None:
    produce = APIS[ApiKey.PRODUCE]
    assert (produce.min_version, produce.max_version) == (VERSION_MIN, VERSION_MAX)


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests)
@QUICK
def test_requests_are_read_as_the_protocol_package_writes_them(version: int, request: ProduceRequest) -> None:
    parsed = parse_produce_request(version, memoryview(body_of(version, request)))
    assert parsed == request._replace(topics=[named_as_in(version, topic) for topic in request.topics])


@pytest.mark.parametrize("version", range(VERSION_MIN, 9))
@given(
    transactional_id=st.none() | names,
    acks=int16,
    timeout_ms=int32,
    topics=st.dictionaries(names, st.lists(st.tuples(int32, st.binary(max_size=300)), max_size=3), max_size=3),
)
@QUICK
def test_requests_are_written_as_the_protocol_package_writes_them(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: dict[str, list[tuple[int, bytes]]]
) -> None:
    named = [
        ProduceTopic(name, None, [ProducePartition(index, memoryview(records)) for index, records in partitions])
        for name, partitions in topics.items()
    ]
    theirs = body_of(version, ProduceRequest(transactional_id, acks, timeout_ms, named))
    assert b"".join(encode_produce_request(transactional_id, acks, timeout_ms, topics)) == theirs


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=topic_results, correlation_id=int32, throttle_ms=int32, node_endpoints=endpoints)
@QUICK
def test_responses_are_written_as_the_protocol_package_writes_them(
    version: int,
    topics: list[ProduceTopicResult],
    correlation_id: int,
    throttle_ms: int,
    node_endpoints: list[NodeEndpoint],
) -> None:
    theirs = encode_response(correlation_id, kio_response(version, topics, throttle_ms, node_endpoints))
    assert encode_produce_response(version, correlation_id, topics, throttle_ms, node_endpoints) == theirs


def one_batch_request(version: int, data: bytes = b"batch", name: str = "orders") -> bytes:
    partitions = [ProducePartition(3, data), ProducePartition(4, None)]  # type: ignore[arg-type]
    topics = [ProduceTopic(name, bytes(range(16)), partitions)]
    return body_of(version, ProduceRequest("txn", -1, 30_000, topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_a_view_of_the_frame_that_can_be_written_to(version: int) -> None:
    frame = bytearray(one_batch_request(version, b"0123456789"))
    records = parse_produce_request(version, memoryview(frame)).topics[0].partitions[0].records
    assert records is not None
    assert records.obj is frame
    records[0:2] = b"AB"
    assert b"AB23456789" in frame


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_a_read_only_frame_stay_read_only(version: int) -> None:
    parsed = parse_produce_request(version, memoryview(one_batch_request(version)))
    assert parsed.topics[0].partitions[0].records.readonly  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [9, 12, 13])
def test_unknown_tagged_fields_are_skipped_at_every_level(version: int) -> None:
    tag = b"\x02\x05\x03abc\x80\x01\x00"  # fields 5 (three bytes) and 128 (empty)
    topic = bytes(range(16)) if version == 13 else b"\x07orders"
    partition = b"\x00\x00\x00\x03" + b"\x06batch" + tag
    body = b"\x00" + b"\xff\xff" + b"\x00\x00\x00\x01" + b"\x02" + topic + b"\x02" + partition + tag + tag
    parsed = parse_produce_request(version, memoryview(body))
    assert parsed.acks == -1
    assert parsed.topics[0].partitions == [ProducePartition(3, memoryview(b"batch"))]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_anywhere_is_a_protocol_error(version: int) -> None:
    body = one_batch_request(version)
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            parse_produce_request(version, memoryview(body)[:end])


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_the_request_are_a_protocol_error(version: int) -> None:
    with pytest.raises(ProtocolError, match="2 bytes left over"):
        parse_produce_request(version, memoryview(one_batch_request(version) + b"\x00\x00"))


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@QUICK
def test_a_mutated_request_parses_or_is_a_protocol_error(version: int, data: st.DataObject) -> None:
    body = bytearray(one_batch_request(version))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        parse_produce_request(version, memoryview(body))


@pytest.mark.parametrize("version", VERSIONS)
@given(junk=st.binary(max_size=80))
@QUICK
def test_junk_parses_or_is_a_protocol_error(version: int, junk: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        parse_produce_request(version, memoryview(junk))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "huge",
    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x7f\xff", b"\x80\x00\x00\x00"],
)
def test_huge_and_negative_lengths_anywhere_take_no_memory(version: int, huge: bytes) -> None:
    body = one_batch_request(version)
    tracemalloc.start()
    try:
        for pos in range(len(body)):
            hostile = body[:pos] + huge + body[pos + len(huge) :]
            with contextlib.suppress(ProtocolError):
                parse_produce_request(version, memoryview(hostile))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_null_topic_names_and_arrays_are_protocol_errors(version: int) -> None:
    flexible = version >= 9
    start = (b"\x00" if flexible else b"\xff\xff") + b"\x00\x01" + b"\x00\x00\x00\x01"
    null_array = b"\x00" if flexible else b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError):
        parse_produce_request(version, memoryview(start + null_array))
    if version < 13:
        one = b"\x02" if flexible else b"\x00\x00\x00\x01"
        null_name = b"\x00" if flexible else b"\xff\xff"
        with pytest.raises(ProtocolError, match="null"):
            parse_produce_request(version, memoryview(start + one + null_name + bytes(20)))
