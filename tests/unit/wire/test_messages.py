"""Frames, headers and version-agnostic construction around the protocol package's messages."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    error,
    ms,
    parse_request_header,
    request_schema,
    response_schema,
)
from tests.examples import examples

METADATA_VERSIONS = range(APIS[ApiKey.METADATA].min_version, APIS[ApiKey.METADATA].max_version + 1)


def metadata_response(version: int) -> Any:
    schema = response_schema(ApiKey.METADATA, version)
    return schema.MetadataResponse(
        throttle_time=ms(25),
        brokers=[schema.MetadataResponseBroker(node_id=1, host="localhost", port=9092, rack=None)],
        cluster_id="c",
        controller_id=1,
        topics=[
            schema.MetadataResponseTopic(
                error_code=ErrorCode.NONE,
                name="orders",
                topic_id=None,
                is_internal=False,
                partitions=[
                    schema.MetadataResponsePartition(
                        error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                        partition_index=0,
                        leader_id=1,
                        leader_epoch=3,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                ],
                topic_authorized_operations=-1,
            )
        ],
        cluster_authorized_operations=-1,
        error_code=ErrorCode.NONE,
    )


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_one_construction_serves_every_version(version: int) -> None:
    entity = metadata_response(version)
    frame = encode_response(77, entity)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    correlation_id, read = decode_response(ApiKey.METADATA, version, frame[4:])
    assert correlation_id == 77
    assert read.topics[0].name == "orders"
    assert read.topics[0].partitions[0].error_code is error(ErrorCode.LEADER_NOT_AVAILABLE)
    assert hasattr(read, "throttle_time") == (version >= 3)
    assert hasattr(read.topics[0].partitions[0], "leader_epoch") == (version >= 7)


def test_a_field_that_no_version_has_is_refused() -> None:
    with pytest.raises(TypeError, match="throtle_time"):
        response_schema(ApiKey.METADATA, 9).MetadataResponse(throtle_time=ms(0))


def test_a_class_that_the_message_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match="no MetadataReponse"):
        _ = response_schema(ApiKey.METADATA, 9).MetadataReponse


@pytest.mark.parametrize("version", METADATA_VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "consumer-1", "žluťoučký"])
def test_requests_come_back_with_their_header(version: int, client_id: str | None) -> None:
    schema = request_schema(ApiKey.METADATA, version)
    entity = schema.MetadataRequest(
        topics=(schema.MetadataRequestTopic(name="orders", topic_id=None),),
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    frame = encode_request(5, client_id, entity)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    header = parse_request_header(memoryview(bytearray(frame))[4:])
    assert header == RequestHeader(ApiKey.METADATA, version, 5, client_id, header.body_offset)
    assert header == parse_request_header(frame[4:])
    assert decode_request(ApiKey.METADATA, version, frame[4 + header.body_offset :]) == entity


def test_unknown_tagged_fields_in_a_header_are_skipped() -> None:
    tagged = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x02\x00\x02ab\x05\x00" + b"body"
    assert parse_request_header(tagged).body_offset == len(tagged) - 4


def test_a_request_in_an_unknown_version_still_has_a_header() -> None:
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1234, -1) + b"\x00whatever"
    assert parse_request_header(frame)[:4] == (ApiKey.API_VERSIONS, 99, 1234, None)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00",
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 0, 1, -2),
        struct.pack(">hhih", ApiKey.METADATA, 0, 1, 5) + b"abcd",
        struct.pack(">hhih", ApiKey.METADATA, 0, 1, 2) + b"\xff\xff",
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x01\x00\xff\xff\xff\xff\x07",
    ],
    ids=["empty", "short", "key", "length", "cut", "unicode", "no-tags", "many-tags", "huge-tag"],
)
def test_a_bad_header_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(frame)


def request_frames() -> list[tuple[int, int, bytes]]:
    """A valid body for a few differently shaped requests, in their first and last versions."""
    frames = []
    for version in (1, 13):
        schema = request_schema(ApiKey.METADATA, version)
        topics = (schema.MetadataRequestTopic(name="orders", topic_id=None),)
        frames.append(
            schema.MetadataRequest(
                topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False
            )
        )
    for version in (2, 10):
        schema = request_schema(ApiKey.OFFSET_COMMIT, version)
        partition = schema.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=2, committed_leader_epoch=3, committed_metadata="m"
        )
        topic = schema.OffsetCommitRequestTopic(name="orders", topic_id=None, partitions=(partition,))
        frames.append(
            schema.OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=1,
                member_id="m",
                group_instance_id=None,
                retention_time=ms(-1),
                topics=(topic,),
            )
        )
    for version in (2, 7):
        schema = request_schema(ApiKey.CREATE_TOPICS, version)
        config = schema.CreatableTopicConfig(name="retention.ms", value="1")
        assignment = schema.CreatableReplicaAssignment(partition_index=0, broker_ids=(1, 2))
        topic = schema.CreatableTopic(
            name="orders",
            num_partitions=-1,
            replication_factor=-1,
            assignments=(assignment,),
            configs=(config,),
        )
        frames.append(schema.CreateTopicsRequest(topics=(topic,), timeout=ms(100), validate_only=False))
    bodies = []
    for entity in frames:
        frame = encode_request(1, None, entity)[4:]
        header = parse_request_header(frame)
        bodies.append((header.api_key, header.api_version, frame[header.body_offset :]))
    return bodies


BODIES = request_frames()


@pytest.mark.parametrize(("key", "version", "body"), BODIES)
def test_a_body_cut_anywhere_is_a_protocol_error(key: int, version: int, body: bytes) -> None:
    decode_request(key, version, body)
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, body[:end])


@pytest.mark.parametrize(("key", "version", "body"), BODIES)
def test_bytes_after_the_body_are_a_protocol_error(key: int, version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError, match="1 bytes left over"):
        decode_request(key, version, body + b"\x00")


@given(data=st.data())
@settings(max_examples=examples(400), deadline=None)
def test_a_mutated_body_parses_or_is_a_protocol_error(data: st.DataObject) -> None:
    key, version, body = data.draw(st.sampled_from(BODIES))
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode_request(key, version, bytes(mutated))


@given(junk=st.binary(max_size=64), key=st.sampled_from(sorted(APIS)), newest=st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_junk_in_any_api_parses_or_is_a_protocol_error(junk: bytes, key: int, newest: bool) -> None:
    api = APIS[key]
    version = api.max_version if newest else api.min_version
    for decode in (decode_request, decode_response):
        with contextlib.suppress(ProtocolError):
            decode(key, version, junk)


@pytest.mark.parametrize(("key", "version", "body"), BODIES)
def test_huge_lengths_are_refused_without_taking_memory(key: int, version: int, body: bytes) -> None:
    # Whatever four or five bytes hold a length, sooner or later these overwrite them.
    tracemalloc.start()
    try:
        for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff"):
            for pos in range(len(body)):
                with contextlib.suppress(ProtocolError):
                    decode_request(key, version, body[:pos] + huge + body[pos + len(huge) :])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_hypothesis_is_not_loaded_by_the_broker_and_stays_importable() -> None:
    code = (
        "import sys, moldau.wire.messages as m; assert 'hypothesis' not in sys.modules;"
        "import hypothesis; m.response_schema(3, 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
