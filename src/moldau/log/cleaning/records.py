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
_DIGEST_FROM = 64


class Records(NamedTuple):
    starts: list[int]  # of each record, and the end of the last
    offset_deltas: list[int]
    keys: list[bytes | None]  # of 64 bytes and more: a digest of 64, which no shorter key can equal
    tombstones: list[int]  # which ones have no value


def scan_records(data: bytes, count: int) -> Records:
    """CorruptRecordError unless `data` is `count` records and nothing else."""
    try:
        records = _scan(data, count)
    except (IndexError, ProtocolError) as error:
        raise CorruptRecordError(f"malformed record among {count}: {error}") from error
    if records.starts[-1] != len(data):
        raise CorruptRecordError(f"{count} records end at byte {records.starts[-1]} of {len(data)}")
    return records


def _scan(data: bytes, count: int) -> Records:
    starts: list[int] = []
    offset_deltas: list[int] = []
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    at = 0
    for number in range(count):
        starts.append(at)
        size = data[at]
        if size < 0x80:
            at += 1
        elif (byte := data[at + 1]) < 0x80:
            size = size & 0x7F | byte << 7
            at += 2
        else:
            size, at = _long_varint(data, at)
        end = at + (size >> 1)
        at += 1  # attributes
        while data[at] >= 0x80:  # timestamp delta
            at += 1
        delta = data[at + 1]
        if delta < 0x80:
            at += 2
        elif (byte := data[at + 2]) < 0x80:
            delta = delta & 0x7F | byte << 7
            at += 3
        else:
            delta, at = _long_varint(data, at + 1)
        offset_deltas.append(delta >> 1)
        size = data[at]
        if size < 0x80 and size != _NULL:
            key_end = at + 1 + (size >> 1)
            keys.append(data[at + 1 : key_end])
        else:
            key, key_end = _long_or_no_key(data, at)
            keys.append(key)
        if key_end >= end:
            raise ProtocolError(f"number {number} is longer than it says")
        if data[key_end] == _NULL:
            tombstones.append(number)
        at = end
    starts.append(at)
    return Records(starts, offset_deltas, keys, tombstones)


def _long_varint(data: bytes, at: int) -> tuple[int, int]:
    """A length or offset, not yet unfolded from zigzag, and what follows it."""
    value, at = read_varlong(data, at)
    if value < 0:
        raise ProtocolError(f"length or offset of {value}")
    return value << 1, at


def _long_or_no_key(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varlong(data, at)
    if size < 0:
        return None, at
    if size < _DIGEST_FROM:  # in more bytes than it needs, but the same key
        return data[at : at + size], at + size
    return blake2b(data[at : at + size]).digest(), at + size


def pick_records(data: bytes, numbers: Sequence[int]) -> bytes:
    """Only the records of these numbers, ascending; CorruptRecordError when there are fewer.

    Much quicker than a scan: from one to the next only their lengths are read.
    """
    parts = []
    at = number = 0
    try:
        for wanted in numbers:
            while True:
                start = at
                size = data[at]
                if size < 0x80:
                    at += 1 + (size >> 1)
                elif (byte := data[at + 1]) < 0x80:
                    at += 2 + ((size & 0x7F | byte << 7) >> 1)
                else:
                    size, at = _long_varint(data, at)
                    at += size >> 1
                number += 1
                if number > wanted:
                    break
            parts.append(data[start:at])
    except (IndexError, ProtocolError) as error:
        raise CorruptRecordError(f"malformed record {number}: {error}") from error
    return b"".join(parts)


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
