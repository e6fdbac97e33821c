"""Messages of PostgreSQL's output plugin `pgoutput`, protocol version 1, as events. No I/O.

A transaction is Begin, its changes, Commit. A Relation comes before the first change of a table that a session decodes
and says what its columns are; changes refer to it by its object id. Values are text, as PostgreSQL prints them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from moldau.errors import RecordFormatError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL counts microseconds from here


class Unchanged(Enum):
    """Stands for a large value that an UPDATE did not touch: PostgreSQL does not send it."""

    VALUE = "unchanged"


UNCHANGED = Unchanged.VALUE
Values = tuple[str | Unchanged | None, ...]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    type_modifier: int  # -1: none
    is_key: bool  # of the replica identity


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: int  # where the commit record begins: transactions come in this order
    committed: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    committed: datetime


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    table: str
    replica_identity: str  # d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    after: Values


@dataclass(frozen=True, slots=True)
class Update:
    relation: int
    after: Values
    before: Values | None  # None: the key has not changed, and the replica identity is not full
    is_key_only: bool  # `before` has the columns of the replica identity, and nulls


@dataclass(frozen=True, slots=True)
class Delete:
    relation: int
    before: Values
    is_key_only: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    is_cascading: bool
    restarts_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """Of `pg_logical_emit_message`."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    lsn: int
    name: str


Event = Begin | Commit | Relation | Type | Insert | Update | Delete | Truncate | Message | Origin


class _Reader:
    """The fields of one message, in order."""

    __slots__ = ("_bytes", "_position")

    def __init__(self, message: bytes) -> None:
        self._bytes, self._position = message, 1

    def take(self, count: int) -> bytes:
        begin, end = self._position, self._position + count
        if count < 0 or end > len(self._bytes):
            raise ValueError(f"{count} bytes are missing at position {begin}")
        self._position = end
        return self._bytes[begin:end]

    def uint8(self) -> int:
        return self.take(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.take(2))

    def uint32(self) -> int:
        return int.from_bytes(self.take(4))

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def lsn(self) -> int:
        return int.from_bytes(self.take(8))

    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=int.from_bytes(self.take(8), signed=True))

    def text(self) -> str:
        end = self._bytes.find(b"\0", self._position)
        if end < 0:
            raise ValueError(f"the text at position {self._position} has no end")
        return self.take(end + 1 - self._position)[:-1].decode()

    def letter(self, allowed: str) -> str:
        letter = chr(self.uint8())
        if letter not in allowed:
            raise ValueError(f"{letter!r} instead of one of {', '.join(allowed)}")
        return letter

    def flag(self, allowed: int) -> int:
        flags = self.uint8()
        if flags & ~allowed:
            raise ValueError(f"unknown flags {flags:#x}")
        return flags

    def values(self) -> Values:
        """A row. Most of the time is spent here, hence no calls for each field."""
        count = self.uint16()
        message, at = self._bytes, self._position
        found: list[str | Unchanged | None] = []
        try:
            for _ in range(count):
                kind = message[at]
                at += 1
                if kind == 0x74:  # t
                    begin = at + 4
                    at = begin + _LENGTH.unpack_from(message, at)[0]
                    found.append(message[begin:at].decode())
                elif kind == 0x6E:  # n
                    found.append(None)
                elif kind == 0x75:  # u
                    found.append(UNCHANGED)
                else:
                    raise ValueError(f"{chr(kind)!r} instead of a kind of value: n, t or u")
        except (IndexError, struct.error) as error:
            raise ValueError("the row is cut short") from error
        if at > len(message):
            raise ValueError("the row is cut short")
        self._position = at
        return tuple(found)

    def end(self) -> None:
        if self._position != len(self._bytes):
            raise ValueError(f"{len(self._bytes) - self._position} bytes too many")


_LENGTH = struct.Struct(">I")


def _begin(fields: _Reader) -> Begin:
    return Begin(fields.lsn(), fields.time(), fields.uint32())


def _commit(fields: _Reader) -> Commit:
    fields.flag(0)
    return Commit(fields.lsn(), fields.lsn(), fields.time())


def _relation(fields: _Reader) -> Relation:
    oid, schema, table = fields.uint32(), fields.text() or "pg_catalog", fields.text()
    identity = fields.letter("dnfi")
    return Relation(oid, schema, table, identity, tuple(_column(fields) for _ in range(fields.uint16())))


def _column(fields: _Reader) -> Column:
    is_key = bool(fields.flag(1))
    return Column(fields.text(), fields.uint32(), fields.int32(), is_key)


def _type(fields: _Reader) -> Type:
    return Type(fields.uint32(), fields.text() or "pg_catalog", fields.text())


def _insert(fields: _Reader) -> Insert:
    relation = fields.uint32()
    fields.letter("N")
    return Insert(relation, fields.values())


def _update(fields: _Reader) -> Update:
    relation, letter = fields.uint32(), fields.letter("KON")
    if letter == "N":
        return Update(relation, fields.values(), None, False)
    before = fields.values()
    fields.letter("N")
    return Update(relation, fields.values(), before, letter == "K")


def _delete(fields: _Reader) -> Delete:
    relation, letter = fields.uint32(), fields.letter("KO")
    return Delete(relation, fields.values(), letter == "K")


def _truncate(fields: _Reader) -> Truncate:
    count, flags = fields.uint32(), fields.flag(3)
    return Truncate(tuple(fields.uint32() for _ in range(count)), bool(flags & 1), bool(flags & 2))


def _message(fields: _Reader) -> Message:
    return Message(bool(fields.flag(1)), fields.lsn(), fields.text(), fields.take(fields.uint32()))


def _origin(fields: _Reader) -> Origin:
    return Origin(fields.lsn(), fields.text())


_DECODERS: Mapping[int, Callable[[_Reader], Event]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("D"): _delete,
    ord("I"): _insert,
    ord("M"): _message,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("T"): _truncate,
    ord("U"): _update,
    ord("Y"): _type,
}


def decode(message: bytes) -> Event:
    """Raises RecordFormatError if this is no message of protocol version 1, or only a part of one."""
    if not message:
        raise RecordFormatError("pgoutput: an empty message")
    decoder = _DECODERS.get(message[0])
    if decoder is None:
        raise RecordFormatError(f"pgoutput: unknown message {chr(message[0])!r}: is the protocol version 1?")
    fields = _Reader(message)
    try:
        event = decoder(fields)
        fields.end()
    except (ValueError, OverflowError) as error:  # a UnicodeDecodeError is a ValueError, too
        raise RecordFormatError(f"pgoutput: malformed message {chr(message[0])!r}: {error}") from error
    return event
