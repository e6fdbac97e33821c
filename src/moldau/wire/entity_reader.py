"""Readers for the protocol package's generated messages, built from their schema.

`kio` has a native reader, but it is not fit for bytes from strangers: it reserves memory for an array before
it looks whether the array is there, so that five bytes can abort the whole process; it fails on tagged fields
that it does not know, where Kafka says to skip them; and it lets null pass where the schema forbids it. These
readers check every length against what is left to read. They raise `ProtocolError`, or one of `MALFORMED`.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import struct
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Union, get_args, get_origin

from moldau.errors import ProtocolError
from moldau.wire.primitives import (
    INT16,
    INT32,
    read_bytes,
    read_compact_string,
    read_string,
    read_tags,
    read_uvarint,
)
from moldau.wire.uuids import ZERO_ID

Reader = Callable[[memoryview, int], tuple[Any, int]]


_room: ContextVar[list[int] | None] = ContextVar("room", default=None)
"""For how many more entries there is room in the message that is being read; None: for any number."""


@contextmanager
def entries_bounded(count: int) -> Iterator[None]:
    """In this block, messages with more entries in all their arrays together are refused."""
    token = _room.set([count])
    try:
        yield
    finally:
        _room.reset(token)


_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def _fixed(layout: str) -> Reader:
    packed = struct.Struct(layout)
    unpack_from, size = packed.unpack_from, packed.size

    def read(buf: memoryview, pos: int) -> tuple[Any, int]:
        return unpack_from(buf, pos)[0], pos + size

    return read


_FIXED = {
    "bool": _fixed(">?"),
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint16": _fixed(">H"),
    "float64": _fixed(">d"),
}


def _read_uuid(buf: memoryview, pos: int) -> tuple[uuid.UUID | None, int]:
    view, pos = read_bytes(buf, pos, 16)
    return None if view == ZERO_ID else uuid.UUID(bytes=view.tobytes()), pos


def _read_legacy_bytes(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
    (length,) = INT32.unpack_from(buf, pos)
    if length == -1:
        return None, pos + 4
    view, pos = read_bytes(buf, pos + 4, length)
    return view.tobytes(), pos


def _read_compact_bytes(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    view, pos = read_bytes(buf, pos, length - 1)
    return view.tobytes(), pos


def _timedelta(read_int: Reader) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[datetime.timedelta, int]:
        milliseconds, pos = read_int(buf, pos)
        return datetime.timedelta(milliseconds=milliseconds), pos

    return read


def _read_datetime(buf: memoryview, pos: int) -> tuple[datetime.datetime | None, int]:
    milliseconds, pos = _FIXED["int64"](buf, pos)
    if milliseconds == -1:
        return None, pos
    return _EPOCH + datetime.timedelta(milliseconds=milliseconds), pos


def _error_code(codes: type[enum.Enum]) -> Reader:
    by_number = {code.value: code for code in codes}
    unknown = by_number[-1]

    def read(buf: memoryview, pos: int) -> tuple[enum.Enum, int]:
        # A code from the future is still an error, though nobody here knows which.
        return by_number.get(INT16.unpack_from(buf, pos)[0], unknown), pos + 2

    return read


def _not_null(read_nullable: Reader, name: str) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[Any, int]:
        value, pos = read_nullable(buf, pos)
        if value is None:
            raise ProtocolError(f"{name} is null")
        return value, pos

    return read


def _primitive(field: dataclasses.Field[Any], field_type: Any, flexible: bool, nullable: bool) -> Reader:
    kind = field.metadata["kafka_type"]
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "uuid":
        return _read_uuid
    if kind == "error_code":
        return _error_code(field_type)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return _timedelta(_FIXED["int32" if kind == "timedelta_i32" else "int64"])
    if kind == "datetime_i64":
        return _read_datetime  # Kafka has no null here, and says -1 for "never"
    if kind == "string":
        read: Reader = read_compact_string if flexible else read_string
    elif kind in ("bytes", "records"):
        read = _read_compact_bytes if flexible else _read_legacy_bytes
    else:
        raise NotImplementedError(f"{field.name} has type {kind}, which no message had until now")
    return read if nullable else _not_null(read, field.name)


def _array(read_item: Reader, flexible: bool) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[tuple[Any, ...] | None, int]:
        if flexible:
            count, pos = read_uvarint(buf, pos)
            count -= 1
        else:
            count = INT32.unpack_from(buf, pos)[0]
            pos += 4
        if count == -1:
            return None, pos
        if count < 0 or count > len(buf) - pos:  # no item takes less than a byte
            raise ProtocolError(f"array of {count} items, but {len(buf) - pos} bytes remain")
        room = _room.get()
        if room is not None:
            room[0] -= count
            if room[0] < 0:
                raise ProtocolError("too many entries in one request; split it")
        items = []
        for _ in range(count):
            item, pos = read_item(buf, pos)
            items.append(item)
        return tuple(items), pos

    return read


def _nullable_entity(read_entity: Reader) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[Any, int]:
        # KIP-893: a nullable structure starts with a byte that says whether there is one.
        if _FIXED["int8"](buf, pos)[0] < 0:
            return None, pos + 1
        return read_entity(buf, pos + 1)

    return read


def _split_optional(field_type: Any) -> tuple[Any, bool]:
    """The type without `None`, and whether `None` was there."""
    if get_origin(field_type) not in (types.UnionType, Union):
        return field_type, False
    (bare,) = (part for part in get_args(field_type) if part is not types.NoneType)
    return bare, True


def _field_reader(field: dataclasses.Field[Any], flexible: bool) -> Reader:
    field_type, nullable = _split_optional(field.type)
    if get_origin(field_type) is tuple:
        item_type, _ = _split_optional(get_args(field_type)[0])
        if dataclasses.is_dataclass(item_type):
            read_item: Reader = entity_reader(item_type)  # type: ignore[arg-type]
        else:
            read_item = _primitive(field, item_type, flexible, False)
        read = _array(read_item, flexible)
        return read if nullable else _not_null(read, field.name)
    if dataclasses.is_dataclass(field_type):
        read_entity: Reader = entity_reader(field_type)  # type: ignore[arg-type]
        return _nullable_entity(read_entity) if nullable else read_entity
    return _primitive(field, field_type, flexible, nullable)


@cache
def entity_reader(entity_type: Any) -> Reader:
    """A reader of one of kio's classes: buffer and position in, entity and next position out."""
    flexible = entity_type.__flexible__
    plain: list[tuple[Callable[[Any, Any], None], Reader]] = []
    tagged: list[tuple[int, Callable[[Any, Any], None], Reader, Any]] = []
    for field in dataclasses.fields(entity_type):
        # The classes are frozen and have slots: the slot's own descriptor is the way past, and a quick one.
        assign = getattr(entity_type, field.name).__set__
        read_field = _field_reader(field, flexible)
        if "tag" in field.metadata:
            if field.default is dataclasses.MISSING:
                raise NotImplementedError(f"tagged field {field.name} has no default")  # KRaft's own APIs only
            tagged.append((field.metadata["tag"], assign, read_field, field.default))
        else:
            plain.append((assign, read_field))

    def read(buf: memoryview, pos: int) -> tuple[Any, int]:
        entity = object.__new__(entity_type)
        for assign, read_field in plain:
            value, pos = read_field(buf, pos)
            assign(entity, value)
        if not flexible:
            return entity, pos
        tags, pos = read_tags(buf, pos)
        for tag, assign, read_field, default in tagged:
            value = default
            if tag in tags:
                value, end = read_field(tags[tag], 0)
                if end != len(tags[tag]):
                    raise ProtocolError(f"tagged field {tag} has {len(tags[tag]) - end} bytes too many")
            assign(entity, value)
        return entity, pos

    return read
