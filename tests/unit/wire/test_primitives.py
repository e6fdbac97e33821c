"""Varints, strings and tagged fields of the hand-packed codecs."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import ProtocolError
from moldau.wire.primitives import (
    read_bytes,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    read_uvarint,
    read_varlong,
    skip_tags,
    write_compact_string,
    write_string,
    write_tags,
    write_uvarint,
    write_varlong,
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2**32 - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_unsigned_varints_are_kafkas(value: int, encoded: bytes) -> None:
    assert write_uvarint(value) == encoded
    assert read_uvarint(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("encoded", [b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 9 + b"\x00"])
def test_an_unsigned_varint_beyond_32_bits_is_refused(encoded: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_uvarint(encoded, 0)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (-64, b"\x7f"),
        (64, b"\x80\x01"),
        (2**63 - 1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (-(2**63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_zigzag_varlongs_are_kafkas(value: int, encoded: bytes) -> None:
    assert write_varlong(value) == encoded
    assert read_varlong(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))


def test_a_varlong_of_eleven_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_varlong(b"\x80" * 10 + b"\x01", 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_survive(value: int) -> None:
    encoded = write_varlong(value)
    assert read_varlong(encoded, 0) == (value, len(encoded))


@given(st.none() | st.text(max_size=300))
def test_strings_survive(value: str | None) -> None:
    for write, read in ((write_string, read_string), (write_compact_string, read_compact_string)):
        encoded = write(value)
        assert read(memoryview(b"??" + encoded + b"??"), 2) == (value, 2 + len(encoded))


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (read_string, b"\x00\x03ab"),
        (read_string, b"\xff\xfeab"),
        (read_string, b"\x7f\xffab"),
        (read_compact_string, b"\x04ab"),
        (read_compact_string, b"\xff\xff\xff\xff\x0fab"),
    ],
)
def test_a_string_longer_than_its_bytes_is_refused(read: Any, encoded: bytes) -> None:
    with pytest.raises(ProtocolError, match="remain"):
        read(memoryview(encoded), 0)


def test_a_compact_string_is_held_to_what_a_plain_one_can_be() -> None:
    assert read_compact_string(memoryview(write_compact_string("x" * 32767)), 0)[0] == "x" * 32767
    with pytest.raises(ProtocolError, match="32768"):
        read_compact_string(memoryview(write_compact_string("x" * 32768)), 0)


def test_bytes_never_come_out_short() -> None:
    view, pos = read_bytes(memoryview(b"abcdef"), 1, 3)
    assert (bytes(view), pos) == (b"bcd", 4)
    for length in (-1, 6, 2**31 - 1):
        with pytest.raises(ProtocolError):
            read_bytes(memoryview(b"abcdef"), 1, length)


@pytest.mark.parametrize("count", [-1, -(2**31), 3, 2**31 - 1])
def test_an_array_that_the_rest_cannot_hold_is_refused(count: int) -> None:
    rest = bytes(11)  # room for two items of four bytes
    with pytest.raises(ProtocolError, match="array of"):
        read_count(memoryview(struct.pack(">i", count) + rest), 0, 4)
    if count > 0:
        with pytest.raises(ProtocolError, match="array of"):
            read_compact_count(memoryview(write_uvarint(count + 1) + rest), 0, 4)


def test_an_array_that_fits_is_allowed() -> None:
    assert read_count(memoryview(b"\x00\x00\x00\x02" + bytes(8)), 0, 4) == (2, 4)
    assert read_compact_count(memoryview(b"\x03" + bytes(8)), 0, 4) == (2, 1)
    assert read_compact_count(memoryview(b"\x01"), 0, 4) == (0, 1)


def test_a_null_compact_array_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_compact_count(memoryview(b"\x00" + bytes(8)), 0, 4)


@given(st.dictionaries(st.integers(0, 2**31), st.binary(max_size=200), max_size=5))
def test_tagged_fields_survive(fields: dict[int, bytes]) -> None:
    encoded = write_tags(sorted(fields.items()))
    tags, pos = read_tags(memoryview(encoded + b"?"), 0)
    assert {tag: bytes(value) for tag, value in tags.items()} == fields
    assert pos == len(encoded) == skip_tags(memoryview(encoded), 0)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x02\x01\x00\x01\x00",  # twice the same
        b"\x02\x02\x00\x01\x00",  # descending
        b"\x01\x00\x05abcd",  # longer than what is left
        b"\x01\x00\xff\xff\xff\xff\x0fabcd",
    ],
)
def test_malformed_tagged_fields_are_refused(encoded: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_tags(memoryview(encoded), 0)


def test_billions_of_promised_tagged_fields_end_with_the_bytes() -> None:
    with pytest.raises((ProtocolError, IndexError)):
        read_tags(memoryview(b"\xff\xff\xff\xff\x0f\x00\x00\x01\x00"), 0)
