"""Messages of pgoutput: bytes as PostgreSQL sends them become events, all others become errors."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import RecordFormatError
from moldau.pipelines.connectors.change_capture.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Event,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Unchanged,
    Update,
    Values,
    decode,
)

_TIME = 848_000_000_000_000  # microseconds since 2000
_COMMITTED = datetime(2026, 11, 14, 19, 33, 20, tzinfo=UTC)

# As a PostgreSQL 18 sent it: CREATE TABLE a (id int PRIMARY KEY, n numeric(10,2), t text).
_RELATION = (
    b"R\0\0\x40\0public\0a\0d\0\x03"
    b"\x01id\0\0\0\0\x17\xff\xff\xff\xff"
    b"\0n\0\0\0\x06\xa4\0\x0a\0\x06"
    b"\0t\0\0\0\0\x19\xff\xff\xff\xff"
)


def _values(*values: str | Unchanged | None) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value.encode())) + value.encode())
    return b"".join(parts)


_MESSAGES: list[tuple[bytes, Event]] = [
    (b"B" + struct.pack(">QqI", 0x171D5D0, _TIME, 754), Begin(0x171D5D0, _COMMITTED, 754)),
    (b"C\0" + struct.pack(">QQq", 7, 9, _TIME), Commit(7, 9, _COMMITTED)),
    (
        _RELATION,
        Relation(
            0x4000,
            "public",
            "a",
            "d",
            (Column("id", 23, -1, True), Column("n", 1700, 0xA0006, False), Column("t", 25, -1, False)),
        ),
    ),
    (b"Y\0\0\0\x07app\0mood\0", Type(7, "app", "mood")),
    (b"I\0\0\0\x07N" + _values("1", None, "é"), Insert(7, ("1", None, "é"))),
    (b"U\0\0\0\x07N" + _values("1", UNCHANGED), Update(7, ("1", UNCHANGED), None, False)),
    (b"U\0\0\0\x07K" + _values("1", None) + b"N" + _values("2", "x"), Update(7, ("2", "x"), ("1", None), True)),
    (b"U\0\0\0\x07O" + _values("1", "a") + b"N" + _values("1", "b"), Update(7, ("1", "b"), ("1", "a"), False)),
    (b"D\0\0\0\x07K" + _values("1", None), Delete(7, ("1", None), True)),
    (b"D\0\0\0\x07O" + _values("1", "a"), Delete(7, ("1", "a"), False)),
    (b"T\0\0\0\x02\x03\0\0\0\x07\0\0\0\x08", Truncate((7, 8), True, True)),
    (b"M\x01" + struct.pack(">Q", 5) + b"app\0\0\0\0\x02hi", Message(True, 5, "app", b"hi")),
    (b"O" + struct.pack(">Q", 5) + b"elsewhere\0", Origin(5, "elsewhere")),
]


@pytest.mark.parametrize(("message", "event"), _MESSAGES, ids=[type(event).__name__ for _, event in _MESSAGES])
def test_each_message_becomes_its_event(message: bytes, event: Event) -> None:
    assert decode(message) == event


@pytest.mark.parametrize("message", [message for message, _ in _MESSAGES], ids=[chr(m[0]) for m, _ in _MESSAGES])
def test_a_message_that_is_cut_short_or_too_long_is_refused(message: bytes) -> None:
    for length in range(len(message)):
        with pytest.raises(RecordFormatError, match="pgoutput"):
            decode(message[:length])
    with pytest.raises(RecordFormatError, match="1 bytes too many"):
        decode(message + b"\0")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"S\0\0\0\x01\x01", "unknown message 'S': is the protocol version 1"),
        (b"I\0\0\0\x07O" + _values("1"), "'O' instead of one of N"),
        (b"I\0\0\0\x07N\0\x01b\0\0\0\x011", "'b' instead of a kind of value"),
        (b"I\0\0\0\x07N\0\x01t\0\0\0\x01\xff", "malformed message 'I'"),
        (b"T\0\0\0\0\x04", "unknown flags 0x4"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(message: bytes, reason: str) -> None:
    with pytest.raises(RecordFormatError, match=reason):
        decode(message)


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_VALUES = st.lists(st.none() | st.just(UNCHANGED) | _TEXT, max_size=8).map(tuple)


@given(before=_VALUES, after=_VALUES)
def test_any_values_survive(before: Values, after: Values) -> None:
    message = b"U\0\0\0\x07O" + _values(*before) + b"N" + _values(*after)
    assert decode(message) == Update(7, after, before, False)


@given(st.sampled_from("BCDIMORTUY").map(str.encode), st.binary(max_size=60))
def test_arbitrary_bytes_are_an_event_or_a_clear_error(letter: bytes, body: bytes) -> None:
    with suppress(RecordFormatError):
        assert decode(letter + body) is not None
