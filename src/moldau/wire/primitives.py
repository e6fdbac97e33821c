"""The protocol's small building blocks: varints, compact strings, tagged fields.

Used by the hand-packed codecs (`produce`, `fetch`, `batch`); all that is not hot goes through `messages`.
Readers take a buffer and a position and give back the value and the next position. A reader that runs off the
end raises `ProtocolError`, `IndexError` or `struct.error`; the public parsers turn the latter two into
`ProtocolError`, so that the hot paths need no bounds check for fixed-size fields.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from moldau.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

# Builds a NamedTuple from a tuple in C: half the time of calling the class, whose __new__ is Python code.
new_tuple = tuple.__new__

# What reading past the end, or text that is no UTF-8, looks like before it is named `ProtocolError`.
MALFORMED = (struct.error, IndexError, UnicodeDecodeError)

STRING_BYTES_MAX = 0x7FFF
"""The most that a 16-bit length can say, held in flexible versions, too: names of groups and topics from one kind of
message go into the other, and into records."""

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

# Where a new leader listens: node id, host, port, rack. Tagged in Produce v10+ and Fetch v16+ responses.
NodeEndpoint = tuple[int, str, int, str | None]


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits (five bytes)."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError("varint is longer than five bytes")
    if value > 0xFFFF_FFFF:
        raise ProtocolError("varint does not fit into 32 bits")
    return value, pos


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits (ten bytes), as inside records."""
    byte = buf[pos]
    pos += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift > 63:
            raise ProtocolError("varlong is longer than ten bytes")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), pos


def write_varlong(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    return write_uvarint(zigzag)


def read_bytes(buf: memoryview, pos: int, length: int) -> tuple[memoryview, int]:
    """A view of `length` bytes; unlike a bare slice it refuses to come out short."""
    end = pos + length
    if length < 0 or end > len(buf):
        raise _too_short(length, buf, pos)
    return buf[pos:end], end


def read_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    """A nullable string with a 16-bit length."""
    (length,) = INT16.unpack_from(buf, pos)
    pos += 2
    end = pos + length
    if length < 0 or end > len(buf):
        if length == -1:
            return None, pos
        raise _too_short(length, buf, pos)
    return buf[pos:end].tobytes().decode(), end


def read_compact_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    """A nullable string with a varint length (plus one; zero is null)."""
    length = buf[pos]
    pos += 1
    if length >= 0x80:
        length, pos = read_uvarint(buf, pos - 1)
    if length == 0:
        return None, pos
    end = pos + length - 1
    if end > len(buf):
        raise _too_short(length - 1, buf, pos)
    if length > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"string of {length - 1} bytes, more than the {STRING_BYTES_MAX} that Kafka allows")
    return buf[pos:end].tobytes().decode(), end


def write_string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return INT16.pack(len(data)) + data


def write_compact_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    data = value.encode()
    return write_uvarint(len(data) + 1) + data


def read_count(buf: memoryview, pos: int, item_size_min: int) -> tuple[int, int]:
    """The length of a non-null array with a 32-bit length, checked against what is left to read."""
    (count,) = INT32.unpack_from(buf, pos)
    pos += 4
    if count < 0 or count * item_size_min > len(buf) - pos:
        raise _too_many(count, buf, pos)
    return count, pos


def read_compact_count(buf: memoryview, pos: int, item_size_min: int) -> tuple[int, int]:
    """The length of a non-null compact array, checked against what is left to read."""
    count = buf[pos]
    pos += 1
    if count >= 0x80:
        count, pos = read_uvarint(buf, pos - 1)
    count -= 1
    if count < 0 or count * item_size_min > len(buf) - pos:
        raise _too_many(count, buf, pos)
    return count, pos


def _too_short(length: int, buf: memoryview, pos: int) -> ProtocolError:
    return ProtocolError(f"field of {length} bytes, but {len(buf) - pos} remain")


def _too_many(count: int, buf: memoryview, pos: int) -> ProtocolError:
    # An array cannot hold more items than the remaining bytes can spell: a four-byte message must not be able
    # to ask for two billion objects.
    return ProtocolError(f"array of {count} items, but {len(buf) - pos} bytes remain")


def read_tags(buf: memoryview, pos: int) -> tuple[dict[int, memoryview], int]:
    """The tagged fields that end every flexible structure: tag number to raw value."""
    count, pos = read_uvarint(buf, pos)
    if count == 0:
        return {}, pos
    tags: dict[int, memoryview] = {}
    previous = -1
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        if tag <= previous:
            raise ProtocolError(f"tagged field {tag} after {previous}: they must ascend")
        previous = tag
        size, pos = read_uvarint(buf, pos)
        tags[tag], pos = read_bytes(buf, pos, size)
    return tags, pos


def skip_tags(buf: memoryview, pos: int) -> int:
    return read_tags(buf, pos)[1]


def write_tags(tags: Sequence[tuple[int, bytes]]) -> bytes:
    """`tags` in ascending order, as Kafka demands."""
    out = bytearray(write_uvarint(len(tags)))
    for tag, value in tags:
        out += write_uvarint(tag)
        out += write_uvarint(len(value))
        out += value
    return bytes(out)


def write_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The value of the NodeEndpoints tagged field."""
    out = bytearray(write_uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        out += INT32.pack(node_id) + write_compact_string(host)
        out += INT32.pack(port) + write_compact_string(rack) + b"\0"
    return bytes(out)
