"""The inside of a batch as the cleaner sees it: where each record lies, its key, whether it deletes.

This is the hot loop of compaction, so it is written out: varints of one or two bytes in place, longer ones by call,
values never touched. Records that follow one with all their fields at the same places, as they mostly do where keys
and values have one size, are not read one by one but in columns: every byte that decides of the places is compared
over all of them by one slice. What is kept is copied as it stands: offsets and timestamps in a record are relative to
the batch header, which does not move. Only a batch that gets a delete horizon has its timestamps written anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import NamedTuple

from moldau.errors import CorruptRecordError, ProtocolError
from moldau.wire.primitives import read_varlong, write_varlong

_NULL = 1  # a length of -1, as a zigzag varint
_DIGEST_BYTES_MIN = 64
_COLUMNS_MIN = 8  # of fewer records, columns are no gain
_ENDS, _GOES_ON = bytes(range(0x80)), bytes(range(0x80, 0x100))  # bytes of a varint: the last one, and the others
_HALVES = bytes((byte & 0x7F) >> 1 for byte in range(0x100))  # the six bits of a zigzag varint's first byte


class Records(NamedTuple):
    starts: list[int]  # of each record, and the end of the last
    offset_deltas: list[int]
    keys: list[bytes | None]  # of 64 bytes and more: a digest of 64, which no shorter key can equal
    tombstones: list[int]  # which ones have no value


def scan_records(data: bytes, count: int) -> Records:
    """CorruptRecordError unless `data` is `count` records and nothing else."""
    records = Records([], [], [], [])
    try:
        end = _scan(data, count, records)
    except (IndexError, ProtocolError) as error:
        raise CorruptRecordError(f"malformed record among {count}: {error}") from error
    records.starts.append(end)
    if end != len(data):
        raise CorruptRecordError(f"{count} records end at byte {end} of {len(data)}")
    return records


def _scan(data: bytes, count: int, records: Records) -> int:
    """Takes in `count` records; returns where they end."""
    starts, offset_deltas, keys, tombstones = records
    columns_upto = count - _COLUMNS_MIN
    at = number = 0
    while number < count:
        start = at
        starts.append(at)
        size = head = data[at]
        if size < 0x80:
            body = at + 1
        elif (byte := data[at + 1]) < 0x80:
            size = size & 0x7F | byte << 7
            body = at + 2
        else:
            size, body = _long_varint(data, at)
        end = body + (size >> 1)
        at = body + 1  # behind the attributes
        while data[at] >= 0x80:  # timestamp delta
            at += 1
        delta_at = at + 1
        delta = data[delta_at]
        if delta < 0x80:
            key_at = delta_at + 1
        elif (byte := data[delta_at + 1]) < 0x80:
            delta = delta & 0x7F | byte << 7
            key_at = delta_at + 2
        else:
            delta, key_at = _long_varint(data, delta_at)
        offset_deltas.append(delta >> 1)
        size = data[key_at]
        if size < 0x80 and size != _NULL:
            key_end = key_at + 1 + (size >> 1)
            keys.append(data[key_at + 1 : key_end])
        else:
            key, key_end = _long_or_no_key(data, key_at)
            keys.append(key)
        if key_end >= end:
            raise ProtocolError(f"number {number} is longer than it says")
        if data[key_end] == _NULL:
            tombstones.append(number)
        number += 1
        at = end
        # Are there many more of its length? Then the last of those that are worth it begins as it does.
        if (
            number <= columns_upto and data[end] == head
            and (probe := end + (_COLUMNS_MIN - 1) * (end - start)) < len(data) and data[probe] == head
        ):  # fmt: skip
            places = _Places(start, body, delta_at, key_at, key_end, end)
            number, at = _scan_columns(data, places, number, count, records)
    return at


class _Places(NamedTuple):
    """Where the fields of one record begin."""

    start: int
    body: int
    offset_delta: int
    key: int
    value: int
    end: int


def _scan_columns(data: bytes, like: _Places, number: int, count: int, records: Records) -> tuple[int, int]:
    """Takes in those that follow `like` with everything at the same places; the next number, and where it lies."""
    start, _, delta_at, key_at, value_at, end = like
    delta_size = key_at - delta_at
    if delta_size > 2 or data[key_at] >= 0x80 or data[key_at] == _NULL:
        return number, end
    key_size = data[key_at] >> 1
    same = _count_alike(data, like, count - number)
    stride = end - start
    after = end + same * stride
    records.starts.extend(range(end, after, stride))
    low = data[delta_at + stride : after : stride].translate(_HALVES)
    if delta_size == 1:
        records.offset_deltas.extend(low)
    else:
        high = data[delta_at + 1 + stride : after : stride]
        records.offset_deltas.extend([bits | more << 6 for bits, more in zip(low, high, strict=True)])
    layout = _key_layout(key_at + 1 - start, key_size, stride)
    records.keys.extend(chain.from_iterable(layout.iter_unpack(memoryview(data)[end:after])))
    values = data[value_at + stride : after : stride]
    if _NULL in values:
        records.tombstones.extend([number + row for row, size in enumerate(values) if size == _NULL])
    return number + same, after


def _count_alike(data: bytes, like: _Places, count: int) -> int:
    """How many of up to `count` records that follow `like` have all fields where it has them.

    Its lengths they must have; timestamps and offsets may differ, but not in how many bytes they take.
    """
    start, body, _, key_at, _, end = like
    stride = end - start
    count = min(count, (len(data) - end) // stride)
    fixed = [(at, data[at : at + 1]) for at in (*range(start, body), key_at)]
    varints = [(at, _ENDS if data[at] < 0x80 else _GOES_ON) for at in range(body + 1, key_at)]
    for at, alike in fixed + varints:
        column = data[at + stride : at + stride + count * stride : stride]
        count -= len(column.lstrip(alike))
    return count


@lru_cache(maxsize=256)
def _key_layout(before: int, size: int, stride: int) -> Struct:
    return Struct(f"{before}x{size}s{stride - before - size}x")


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
    if size < _DIGEST_BYTES_MIN:  # in more bytes than it needs, but the same key
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


def newest_delta(data: bytes, starts: Iterable[int]) -> int:
    """The largest timestamp delta of the records at `starts`."""
    newest: int | None = None
    for start in starts:
        at = start + 1  # behind the length, of which all bytes but the last say that it goes on
        while data[at - 1] >= 0x80:
            at += 1
        folded = data[at + 1]
        if folded < 0x80:
            delta = folded >> 1 ^ -(folded & 1)
        else:
            delta, _ = read_varlong(data, at + 1)
        if newest is None or delta > newest:
            newest = delta
    assert newest is not None  # there is at least one record
    return newest


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
