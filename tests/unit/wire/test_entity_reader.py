"""Messages are read as the protocol package writes them, in every version; strangers' bytes do no harm."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import types
import uuid
from typing import Any, get_args, get_origin

import pytest

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, Api, ApiKey
from moldau.wire.messages import (
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
from moldau.wire.primitives import write_uvarint

EVERY_VERSION = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
IDS = [f"{api.name}-v{version}" for api, version in EVERY_VERSION]

INTEGERS = {
    "int8": (8, True),
    "int16": (16, True),
    "int32": (32, True),
    "int64": (64, True),
    "uint16": (16, False),
}
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def random_primitive(rng: random.Random, kind: str) -> Any:  # noqa: PLR0911
    if kind in INTEGERS:
        bits, signed = INTEGERS[kind]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return rng.choice((low, high, rng.randint(low, high), rng.randint(0, 100)))
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
        case "string":
            return rng.choice(("", "orders", "Vltava č. 1", "x" * 200))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 5, 200)))
        case "uuid":
            return rng.choice((None, uuid.UUID(int=rng.getrandbits(128))))
        case "error_code":
            return error(rng.choice(list(ErrorCode)))
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=rng.randint(-(2**31), 2**31 - 1))
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=rng.randint(-1, 2**40))
        case "datetime_i64":
            return EPOCH + datetime.timedelta(milliseconds=rng.randint(0, 2**41))
    raise AssertionError(f"the protocol has a new type: {kind}")


def random_value(rng: random.Random, field: Any, field_type: Any) -> Any:
    if get_origin(field_type) is types.UnionType:
        if rng.random() < 0.3 and "tag" not in field.metadata:
            return None
        (field_type,) = (part for part in get_args(field_type) if part is not types.NoneType)
    if get_origin(field_type) is tuple:
        item_type = get_args(field_type)[0]
        return tuple(random_value(rng, field, item_type) for _ in range(rng.choice((0, 1, 3))))
    if dataclasses.is_dataclass(field_type):
        return random_entity(rng, field_type)
    return random_primitive(rng, field.metadata["kafka_type"])


def random_entity(rng: random.Random, entity_type: Any) -> Any:
    return entity_type(
        **{field.name: random_value(rng, field, field.type) for field in dataclasses.fields(entity_type)}
    )


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=IDS)
def test_what_the_protocol_package_writes_is_read_back(api: Api, version: int) -> None:
    rng = random.Random(f"{api.name}{version}")
    request_type = getattr(request_schema(api.key, version)._module, f"{api.name}Request")
    response_type = getattr(response_schema(api.key, version)._module, f"{api.name}Response")
    for _ in range(5):
        request = random_entity(rng, request_type)
        frame = encode_request(7, "me", request)[4:]
        header = parse_request_header(frame)
        assert decode_request(api.key, version, memoryview(frame)[header.body_offset :]) == request
        response = random_entity(rng, response_type)
        assert decode_response(api.key, version, encode_response(7, response)[4:]) == (7, response)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=IDS)
def test_a_message_cut_short_is_a_protocol_error(api: Api, version: int) -> None:
    rng = random.Random(f"{api.name}{version}")
    response_type = getattr(response_schema(api.key, version)._module, f"{api.name}Response")
    frame = encode_response(7, random_entity(rng, response_type))[4:]
    step = 1 + len(frame) // 60
    for end in range(0, len(frame), step):
        with pytest.raises(ProtocolError):
            decode_response(api.key, version, frame[:end])


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=IDS)
def test_mutated_messages_parse_or_are_protocol_errors(api: Api, version: int) -> None:
    rng = random.Random(f"{api.name}{version}")
    response_type = getattr(response_schema(api.key, version)._module, f"{api.name}Response")
    frame = encode_response(7, random_entity(rng, response_type))[4:]
    for _ in range(60):
        mutated = bytearray(frame)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(frame))
            hostile = rng.choice((rng.randbytes(1), b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\x00"))
            mutated[start : start + len(hostile)] = hostile
        with contextlib.suppress(ProtocolError):
            decode_response(api.key, version, bytes(mutated))


def test_items_of_every_array_take_at_least_a_byte() -> None:
    # The bound on array lengths rests on it.
    for api, version in EVERY_VERSION:
        for schema in (request_schema(api.key, version), response_schema(api.key, version)):
            for entity_type in vars(schema._module).values():
                if getattr(getattr(entity_type, "__type__", None), "name", "") == "nested":
                    assert dataclasses.fields(entity_type) or entity_type.__flexible__


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x08"])
def test_five_bytes_that_promise_billions_of_items_are_refused(length: bytes) -> None:
    with pytest.raises(ProtocolError, match="array of"):
        decode_request(ApiKey.LIST_GROUPS, 4, length)


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe"])
def test_four_bytes_that_promise_billions_of_items_are_refused(length: bytes) -> None:
    with pytest.raises(ProtocolError, match="array of"):
        decode_request(ApiKey.METADATA, 0, length)


def test_unknown_tagged_fields_are_skipped_wherever_they_stand() -> None:
    tag = b"\x01\x2a\x03abc"  # one field, number 42, three bytes
    name = write_uvarint(len("orders") + 1) + b"orders"
    body = b"\x02" + bytes(16) + name + tag + b"\x01\x00" + tag
    request = decode_request(ApiKey.METADATA, 12, body)
    assert [topic.name for topic in request.topics] == ["orders"]


def test_a_tagged_field_must_fill_its_own_length() -> None:
    # FetchRequest's ReplicaState (tag 1) is 13 bytes with its own empty tags.
    start = bytes(13) + bytes(8) + b"\x01\x01\x01"
    good = start + b"\x01\x01\x0d" + bytes(13)
    assert decode_request(ApiKey.FETCH, 15, good).replica_state.replica_id == 0
    with pytest.raises(ProtocolError, match="bytes too many"):
        decode_request(ApiKey.FETCH, 15, start + b"\x01\x01\x0e" + bytes(14))


@pytest.mark.parametrize(
    ("key", "version", "body", "field"),
    [
        (ApiKey.LIST_GROUPS, 4, b"\x00\x00", "states_filter"),
        (ApiKey.METADATA, 0, b"\xff\xff\xff\xff", "topics"),
        (ApiKey.METADATA, 0, b"\x00\x00\x00\x01\xff\xff", "name"),
    ],
)
def test_null_where_the_schema_forbids_it_is_a_protocol_error(key: int, version: int, body: bytes, field: str) -> None:
    with pytest.raises(ProtocolError, match=f"{field} is null"):
        decode_request(key, version, body)


def test_an_error_code_of_the_future_is_still_an_error() -> None:
    response = response_schema(ApiKey.OFFSET_DELETE, 0).OffsetDeleteResponse(
        error_code=ErrorCode.NONE, throttle_time=datetime.timedelta(0), topics=()
    )
    frame = bytearray(encode_response(1, response)[4:])
    frame[4:6] = b"\x7f\x00"
    _, read = decode_response(ApiKey.OFFSET_DELETE, 0, bytes(frame))
    assert read.error_code is error(ErrorCode.UNKNOWN_SERVER_ERROR)


def test_the_entries_of_all_arrays_together_are_limited() -> None:
    schema = request_schema(ApiKey.LIST_OFFSETS, 11)
    asked = schema.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = schema.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        timeout=ms(0),
        topics=tuple(schema.ListOffsetsTopic(name=str(number), partitions=(asked,) * 4) for number in range(3)),
    )
    frame = encode_request(1, "test", request)[4:]
    body = frame[parse_request_header(frame).body_offset :]
    assert decode_request(ApiKey.LIST_OFFSETS, 11, body) == request
    assert decode_request(ApiKey.LIST_OFFSETS, 11, body, entries_max=15) == request
    with pytest.raises(ProtocolError, match="too many entries"):
        decode_request(ApiKey.LIST_OFFSETS, 11, body, entries_max=14)
    assert decode_request(ApiKey.LIST_OFFSETS, 11, body) == request, "the limit was that message's"
