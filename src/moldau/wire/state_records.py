"""Records of the state topics (`__consumer_offsets`, `__transaction_state`, `__share_group_state`), from tables.

Each kind of record is a pair of dataclasses whose fields say how they are written; the tables themselves stand with
the coordinators that own them. The format is Kafka's:

    key     int16: the kind of record, then the key's fields, never in flexible encoding
    value   int16: the version of the value, then the fields of that version; no value at all is a tombstone

    @state_key(kind=1)                          @state_value(versions=(0, 4), flexible_from=4, written=4)
    class OffsetCommitKey:                      class OffsetCommitValue:
        group: str = wire(STRING)                   offset: int = wire(INT64)
        topic: str = wire(STRING)                   leader_epoch: int = wire(INT32, since=3, default=-1)
        partition: int = wire(INT32)                topic_id: UUID = wire(UUID_TYPE, since=4, tag=0, default=ZERO_UUID)
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, dataclass_transform

from moldau.errors import ErrorCode, KafkaError, ProtocolError
from moldau.wire.primitives import MALFORMED, read_uvarint, write_uvarint

T = TypeVar("T")
Writer = Callable[[bytearray, Any], None]
Reader = Callable[[memoryview, int], tuple[Any, int]]

_INT16 = struct.Struct(">h")
_NO_LIMIT = 32767


class WireType(Protocol):
    def writer(self, version: int, flexible: bool) -> Writer: ...
    def reader(self, version: int, flexible: bool) -> Reader: ...


class _Number:
    def __init__(self, code: str) -> None:
        self._struct = struct.Struct(">" + code)

    def writer(self, version: int, flexible: bool) -> Writer:
        pack = self._struct.pack

        def write(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        unpack, size = self._struct.unpack_from, self._struct.size
        return lambda buf, pos: (unpack(buf, pos)[0], pos + size)


class _Uuid:
    def writer(self, version: int, flexible: bool) -> Writer:
        def write(out: bytearray, value: uuid.UUID) -> None:
            out += value.bytes

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        return lambda buf, pos: (uuid.UUID(bytes=bytes(_slice(buf, pos, 16))), pos + 16)


class _Sized:
    """What begins with its length: strings, bytes, arrays. Lengths are varints plus one where flexible."""

    def __init__(self, plain: struct.Struct, nullable: bool) -> None:
        self._plain = plain
        self._nullable = nullable

    def _length_writer(self, flexible: bool) -> Callable[[int], bytes]:
        return (lambda length: write_uvarint(length + 1)) if flexible else self._plain.pack

    def _read_length(self, flexible: bool) -> Callable[[memoryview, int], tuple[int, int]]:
        """The length, -1 for null where null is allowed."""
        plain, nullable = self._plain, self._nullable

        def read(buf: memoryview, pos: int) -> tuple[int, int]:
            if flexible:
                length, pos = read_uvarint(buf, pos)
                length -= 1
            else:
                (length,) = plain.unpack_from(buf, pos)
                pos += plain.size
            if length < (-1 if nullable else 0) or length > len(buf) - pos:
                raise ProtocolError(f"a length of {length} where {len(buf) - pos} bytes are left")
            return length, pos

        return read


class _Text(_Sized):
    def __init__(self, *, nullable: bool = False) -> None:
        super().__init__(_INT16, nullable)

    def writer(self, version: int, flexible: bool) -> Writer:
        length_of = self._length_writer(flexible)

        def write(out: bytearray, value: str | None) -> None:
            if value is None:
                out += length_of(-1)
                return
            data = value.encode()
            out += length_of(len(data))
            out += data

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        read_length = self._read_length(flexible)

        def read(buf: memoryview, pos: int) -> tuple[str | None, int]:
            length, pos = read_length(buf, pos)
            return (None, pos) if length < 0 else (str(buf[pos : pos + length], "utf-8"), pos + length)

        return read


class _Bytes(_Sized):
    def __init__(self, *, nullable: bool = False) -> None:
        super().__init__(struct.Struct(">i"), nullable)

    def writer(self, version: int, flexible: bool) -> Writer:
        length_of = self._length_writer(flexible)

        def write(out: bytearray, value: bytes | None) -> None:
            if value is None:
                out += length_of(-1)
                return
            out += length_of(len(value))
            out += value

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        read_length = self._read_length(flexible)

        def read(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
            length, pos = read_length(buf, pos)
            return (None, pos) if length < 0 else (bytes(buf[pos : pos + length]), pos + length)

        return read


class _Array(_Sized):
    def __init__(self, item: WireType, *, nullable: bool = False) -> None:
        super().__init__(struct.Struct(">i"), nullable)
        self._item = item

    def writer(self, version: int, flexible: bool) -> Writer:
        length_of = self._length_writer(flexible)
        write_item = self._item.writer(version, flexible)

        def write(out: bytearray, value: Iterable[Any] | None) -> None:
            if value is None:
                out += length_of(-1)
                return
            items = tuple(value)
            out += length_of(len(items))
            for item in items:
                write_item(out, item)

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        read_length = self._read_length(flexible)
        read_item = self._item.reader(version, flexible)

        def read(buf: memoryview, pos: int) -> tuple[tuple[Any, ...] | None, int]:
            length, pos = read_length(buf, pos)
            if length < 0:
                return None, pos
            items = []
            for _ in range(length):
                item, pos = read_item(buf, pos)
                items.append(item)
            return tuple(items), pos

        return read


class _Struct:
    """A dataclass inside another one. A nullable one exists in tagged fields only, and begins with 0 for null, else 1.

    That is not how messages of the protocol write them (-1 and 1), nor is null what Kafka assumes where the tag is
    missing (that is a structure of zeros): so it has to be written, even as a default.
    """

    def __init__(self, cls: type, *, nullable: bool = False) -> None:
        self._cls = cls
        self.nullable = nullable

    def writer(self, version: int, flexible: bool) -> Writer:
        write_fields = _fields_writer(self._cls, version, flexible)
        if not self.nullable:
            return write_fields

        def write(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(0)
                return
            out.append(1)
            write_fields(out, value)

        return write

    def reader(self, version: int, flexible: bool) -> Reader:
        read_fields = _fields_reader(self._cls, version, flexible)
        if not self.nullable:
            return read_fields
        return lambda buf, pos: (None, pos + 1) if buf[pos] == 0 else read_fields(buf, pos + 1)


INT8: WireType = _Number("b")
INT16: WireType = _Number("h")
INT32: WireType = _Number("i")
INT64: WireType = _Number("q")
BOOLEAN: WireType = _Number("?")
UUID_TYPE: WireType = _Uuid()
STRING: WireType = _Text()
NULLABLE_STRING: WireType = _Text(nullable=True)
BYTES: WireType = _Bytes()
NULLABLE_BYTES: WireType = _Bytes(nullable=True)


def array_of(item: WireType | type, *, nullable: bool = False) -> WireType:
    return _Array(_Struct(item) if isinstance(item, type) else item, nullable=nullable)


def struct_of(cls: type, *, nullable: bool = False) -> WireType:
    return _Struct(cls, nullable=nullable)


@dataclasses.dataclass(frozen=True, slots=True)
class _WireField:
    type: WireType
    since: int
    until: int
    tag: int | None


def wire(
    type_: WireType,
    *,
    since: int = 0,
    until: int = _NO_LIMIT,
    tag: int | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field in the versions `since` to `until`, tagged if it has a `tag`; elsewhere it has its default."""
    return dataclasses.field(default=default, metadata={"wire": _WireField(type_, since, until, tag)})


@dataclass_transform(field_specifiers=(wire,), frozen_default=True, kw_only_default=True)
def state_struct(cls: type[T]) -> type[T]:
    """A part of a value, built by keyword, since the order of its fields is the format's."""
    return _made(cls, kw_only=True)


def _made(cls: type[T], *, kw_only: bool) -> type[T]:
    """A dataclass with slots whose comparison is shared by all of them.

    `dataclasses` compiles every method for every class; some eighty tables of `frozen` ones would take a tenth of the
    broker's start. That they do not change is for the type checker to hold.
    """
    cls.__eq__ = _equal  # type: ignore[method-assign]
    cls.__hash__ = _hash  # type: ignore[method-assign]
    cls.__repr__ = _repr  # type: ignore[method-assign]
    return dataclasses.dataclass(eq=False, repr=False, slots=True, kw_only=kw_only)(cls)


def _values(entity: Any) -> list[Any]:
    return [getattr(entity, name) for name in entity.__slots__]


def _equal(self: Any, other: object) -> bool:
    return type(other) is type(self) and _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((type(self), *_values(self)))


def _repr(self: Any) -> str:
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({fields})"


@dataclass_transform(field_specifiers=(wire,), frozen_default=True)
def state_key(*, kind: int) -> Callable[[type[T]], type[T]]:
    def decorate(cls: type[T]) -> type[T]:
        made = _made(cls, kw_only=False)
        made.__wire_kind__ = kind  # type: ignore[attr-defined]
        made.__wire_codecs__ = {kind: _codec(made, 0, flexible=False)}  # type: ignore[attr-defined]
        return made

    return decorate


@dataclass_transform(field_specifiers=(wire,), frozen_default=True, kw_only_default=True)
def state_value(
    *, versions: tuple[int, int], flexible_from: int = _NO_LIMIT, written: int | Callable[[Any], int]
) -> Callable[[type[T]], type[T]]:
    """`versions` can be read; `written` is the one to write, or says which one of them a value needs."""

    def decorate(cls: type[T]) -> type[T]:
        made = state_struct(cls)
        made.__wire_written__ = staticmethod(written) if callable(written) else written  # type: ignore[attr-defined]
        made.__wire_codecs__ = {  # type: ignore[attr-defined]
            version: _codec(made, version, flexible=version >= flexible_from)
            for version in range(versions[0], versions[1] + 1)
        }
        return made

    return decorate


def encode_key(key: Any) -> bytes:
    kind: int = key.__wire_kind__
    return _encode(key, kind)


def encode_value(value: Any) -> bytes:
    written: int | Callable[[Any], int] = value.__wire_written__
    return _encode(value, written if isinstance(written, int) else written(value))


def decode_value(cls: type[T], data: bytes) -> T:
    """One value by itself; raises ProtocolError for bytes that are none."""
    try:
        value: T = _decode(cls, data)
    except MALFORMED as error:
        raise ProtocolError(f"{cls.__name__} does not parse: {error}") from error
    return value


def _encode(entity: Any, number: int) -> bytes:
    out = bytearray(_INT16.pack(number))
    try:
        entity.__wire_codecs__[number][0](out, entity)
    except struct.error as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entity!r:.200} does not fit its format: {error}") from error
    return bytes(out)


class StateRecords:
    """The kinds of records of one state topic: key class → value class."""

    def __init__(self, kinds: dict[type, type]) -> None:
        self._kinds: dict[int, tuple[Any, Any]] = {key.__wire_kind__: (key, value) for key, value in kinds.items()}  # type: ignore[attr-defined]

    def decode(self, key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
        """Key and value (None for a tombstone); None altogether for a kind this broker does not know.

        A kind of a newer broker may be passed over, as Kafka does. A newer version of a kind that is known here may
        not, since this broker's state would be wrong without it; nor may bytes that do not parse.
        """
        try:
            kind = _INT16.unpack_from(key)[0]
            classes = self._kinds.get(kind)
            if classes is None:
                return None
            decoded_key = _decode(classes[0], key)
            if value is None:
                return decoded_key, None
            return decoded_key, _decode(classes[1], value)
        except (*MALFORMED, ProtocolError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record of a state topic does not parse: {error}") from error


def _decode(cls: Any, data: bytes) -> Any:
    number = _INT16.unpack_from(data)[0]
    codec = cls.__wire_codecs__.get(number)
    if codec is None:
        raise ProtocolError(f"{cls.__name__} in unknown version {number}")
    return codec[1](memoryview(data), 2)[0]


# -- from the tables to writers and readers


def _codec(cls: type, version: int, *, flexible: bool) -> tuple[Writer, Reader]:
    return _fields_writer(cls, version, flexible), _fields_reader(cls, version, flexible)


def _wire_fields(cls: Any, version: int) -> list[tuple[str, _WireField]]:
    fields = [(field.name, field.metadata["wire"]) for field in dataclasses.fields(cls)]
    return [(name, spec) for name, spec in fields if spec.since <= version <= spec.until]


def _fields_writer(cls: Any, version: int, flexible: bool) -> Writer:
    fields = _wire_fields(cls, version)
    plain = [(name, spec.type.writer(version, flexible)) for name, spec in fields if spec.tag is None]
    tagged = sorted(
        (spec.tag, name, _omitted(cls, name, spec), spec.type.writer(version, flexible))
        for name, spec in fields
        if spec.tag is not None
    )

    def write(out: bytearray, entity: Any) -> None:
        for name, write_field in plain:
            write_field(out, getattr(entity, name))
        if flexible:
            write_tags(out, entity)

    def write_tags(out: bytearray, entity: Any) -> None:
        present = [tag for tag in tagged if getattr(entity, tag[1]) != tag[2]]
        out += write_uvarint(len(present))
        for number, name, _, write_field in present:
            data = bytearray()
            write_field(data, getattr(entity, name))
            out += write_uvarint(number)
            out += write_uvarint(len(data))
            out += data

    return write


def _omitted(cls: Any, name: str, spec: _WireField) -> Any:
    """The value for which a tagged field is not written: its default, if there is one to which its absence is equal."""
    if isinstance(spec.type, _Struct) and spec.type.nullable:
        return dataclasses.MISSING
    return cls.__dataclass_fields__[name].default


def _fields_reader(cls: Any, version: int, flexible: bool) -> Reader:
    # The classes are frozen and have slots: the slot's own descriptor is the way past, and a quick one.
    assigns = {field.name: getattr(cls, field.name).__set__ for field in dataclasses.fields(cls)}
    fields = _wire_fields(cls, version)
    plain = [(assigns[name], spec.type.reader(version, flexible)) for name, spec in fields if spec.tag is None]
    tagged = {
        spec.tag: (assigns[name], spec.type.reader(version, flexible)) for name, spec in fields if spec.tag is not None
    }
    always = {name for name, spec in fields if spec.tag is None}
    defaults = [(assigns[field.name], field.default) for field in dataclasses.fields(cls) if field.name not in always]
    assert all(default is not dataclasses.MISSING for _, default in defaults), f"{cls.__name__} v{version}"

    def read(buf: memoryview, pos: int) -> tuple[Any, int]:
        entity = object.__new__(cls)
        for assign, default in defaults:
            assign(entity, default)
        for assign, read_field in plain:
            value, pos = read_field(buf, pos)
            assign(entity, value)
        if flexible:
            pos = read_tags(buf, pos, entity)
        return entity, pos

    def read_tags(buf: memoryview, pos: int, entity: Any) -> int:
        count, pos = read_uvarint(buf, pos)
        for _ in range(count):
            number, pos = read_uvarint(buf, pos)
            size, pos = read_uvarint(buf, pos)
            data = _slice(buf, pos, size)
            if number in tagged:
                assign, read_field = tagged[number]
                assign(entity, read_field(data, 0)[0])
            pos += size
        return pos

    return read


def _slice(buf: memoryview, pos: int, size: int) -> memoryview:
    if size > len(buf) - pos:
        raise ProtocolError(f"{size} bytes wanted where {len(buf) - pos} are left")
    return buf[pos : pos + size]
