"""The inside of a batch as the cleaner sees it: where each record lies, its key, whether it deletes.

This is the hot loop of compaction, so it is written out: varints of one or two bytes in place, longer ones by call,
values never touched. What is kept is copied as it stands: offsets and timestamps in a record are relative to the
batch header, which does not move. Only a batch that gets a delete horizon has its timestamps written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from moldau.errors import CorruptRecordError, ProtocolError
from moldau.wire.primitives import read_varlong, write_varlong

_NULL = 1  # a length of -1, as a zigzag varint


class Records(NamedTuple):
    starts: list[int]  # of each record, and the end of the last
    offset_deltas: list[int]
    keys: list[bytes | None]  # of 64 bytes and more: a digest of 64, which no shorter key can equal
    tombstones: list[int]  # which ones have no value


def scan_records(data: bytes, count: int) -> Records:
    """CorruptRecordError unless `data` is `count` records and nothing else."""
    starts: list[int] = []
    offset_deltas: list[int] = []
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    at = 0
    try:
        for number in range(count):
            starts.append(at)
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _long_varint(data, at)
            end = at + (size >> 1)
            at += 1  # attributes
            while data[at] >= 0x80:  # timestamp delta
                at += 1
            at += 1
            delta = data[at]
            at += 1
            if delta >= 0x80:
                delta, at = _long_varint(data, at)
            offset_deltas.append(delta >> 1)
            size = data[at]
            at += 1
            if size == _NULL:
                keys.append(None)
            elif size < 0x80:
                keys.append(data[at : at + (size >> 1)])
                at += size >> 1
            else:
                size, at = _long_varint(data, at)
                keys.append(blake2b(data[at : at + (size >> 1)]).digest())
                at += size >> 1
            if data[at] == _NULL:
                tombstones.append(number)
            if at >= end:
                raise CorruptRecordError(f"record {number} of {count} is longer than it says")
            at = end
    except (IndexError, ProtocolError) as error:
        raise CorruptRecordError(f"malformed record {len(starts) - 1} of {count}: {error}") from error
    if at != len(data):
        raise CorruptRecordError(f"{len(data) - at} bytes left over after {count} records")
    starts.append(at)
    return Records(starts, offset_deltas, keys, tombstones)


def _long_varint(data: bytes, at: int) -> tuple[int, int]:
    """The zigzag varint, not yet unfolded, whose second byte is at `at`; and what follows it."""
    byte = data[at]
    if byte < 0x80:
        return data[at - 1] & 0x7F | byte << 7, at + 1
    value, at = read_varlong(data, at - 1)
    if value < 0:
        raise ProtocolError(f"length or offset of {value}")
    return value << 1, at


def newest_delta(data: bytes, starts: Sequence[int]) -> int:
    """The largest timestamp delta of the records at `starts`."""
    return max(_timestamp_delta(data, start)[0] for start in starts)


def _timestamp_delta(data: bytes, start: int) -> tuple[int, int, int]:
    """The delta, where it begins, where the rest of the record begins."""
    _, at = read_varlong(data, start)
    at += 1
    delta, after = read_varlong(data, at)
    return delta, at, after


def shift_timestamps(data: bytes, by_ms: int) -> bytes:
    """The records with `by_ms` added to every timestamp delta: the base timestamp has moved the other way."""
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        size, body = read_varlong(data, start)
        end = body + size
        delta, at, after = _timestamp_delta(data, start)
        moved = data[body:at] + write_varlong(delta + by_ms) + data[after:end]
        parts += (write_varlong(len(moved)), moved)
        start = end
    return b"".join(parts)
