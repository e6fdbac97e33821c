"""The loops over single batches and records, compiled by Numba.

They read bytes that came over a network, by address and without any check of Numba's: no byte is read before its
place is compared with the end of what may be read. A reader that would run past the end goes to the place behind
it and stays there, so one comparison after a row of fields tells whether all of them were whole. What is wrong
with the data is returned as a number; the callers in `batches` and `decode` have the words for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moldau.spark.columns.jit import address_of, byte_at, copy, helper, kernel
from moldau.wire.batch_layout import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
)
from moldau.wire.batch_layout import MAGIC as MAGIC_2

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_DATA = "Array(u1, 1, 'C', readonly=True)"

# The table of batches has a column per batch, and these rows. Records lie between START and END.
POSITION, SIZE, MAGIC, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES = 0, 1, 2, 3, 4, 5
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, START, END = 6, 7, 8, 9, 10, 11
TABLE_ROWS = 12

# The table of records has a column per record, and these rows. Places are positions in the data, sizes of null -1.
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, KEY_SIZE, VALUE, VALUE_SIZE = 0, 1, 2, 3, 4, 5, 6
HEADERS, HEADERS_COUNT, HEADERS_END = 7, 8, 9
RECORDS_ROWS = 10

# Where `scan` goes on: the batch, the record within it, and that record's place.
BATCH, RECORD, PLACE = 0, 1, 2
STATE_SIZE = 3

MALFORMED = -1  # instead of a number of records

_WITHOUT_SIGN = 0x7FFF_FFFF_FFFF_FFFF  # makes an arithmetic shift a logical one
_MICROS = 1000
_MILLIS_MAX = 0x7FFF_FFFF_FFFF_FFFF // _MICROS


@helper
def _int32(at: int) -> int:
    return ((byte_at(at) << 24 | byte_at(at + 1) << 16 | byte_at(at + 2) << 8 | byte_at(at + 3)) << 32) >> 32


@helper
def _int64(at: int) -> int:
    return _int32(at) << 32 | _int32(at + 4) & 0xFFFF_FFFF


@kernel(f"i8({_DATA}, i8[:,::1])")
def index_batches(data: Bytes, table: Int64s) -> int:
    """The number of whole batches in `data`, of which `table` is told as many as it has columns for.

    The walk ends with a batch that makes no sense.
    """
    pos, end = address_of(data), address_of(data) + len(data)
    count = 0
    while pos + HEADER_SIZE <= end:
        size = _int32(pos + LENGTH_AT) + LOG_OVERHEAD
        if size > end - pos:
            break
        magic = byte_at(pos + MAGIC_AT)
        if count < table.shape[1]:
            place = pos - address_of(data)
            table[POSITION, count], table[SIZE, count], table[MAGIC, count] = place, size, magic
            table[BASE_OFFSET, count] = _int64(pos)
            table[LAST_OFFSET, count] = _int64(pos) + _int32(pos + LAST_OFFSET_DELTA_AT)
            table[ATTRIBUTES, count] = _int32(pos + ATTRIBUTES_AT) >> 16
            table[BASE_TIMESTAMP, count] = _int64(pos + BASE_TIMESTAMP_AT)
            table[MAX_TIMESTAMP, count] = _int64(pos + MAX_TIMESTAMP_AT)
            table[PRODUCER_ID, count] = _int64(pos + PRODUCER_ID_AT)
            table[COUNT, count] = _int32(pos + COUNT_AT)
            table[START, count], table[END, count] = place + HEADER_SIZE, place + size
        count += 1
        if magic != MAGIC_2 or size < HEADER_SIZE:
            break
        pos += size
    return count


@helper
def varint(pos: int, end: int) -> tuple[int, int]:
    """A zigzag varint and the place behind it."""
    value = 0
    shift = 0
    while pos < end and shift <= 63:
        byte = byte_at(pos)
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) & _WITHOUT_SIGN ^ -(value & 1), pos
        shift += 7
    return 0, end + 1


@helper
def _field(pos: int, end: int) -> tuple[int, int, int]:
    """Place and size of a nullable field, and the place behind it."""
    size, pos = varint(pos, end)
    if size > end - pos:
        return end, 0, end + 1
    return (pos, -1, pos) if size < 0 else (pos, size, pos + size)


@helper
def _is_whole(pos: int, end: int, headers_count: int) -> bool:
    """Whether a record ends where it should, or can have as many headers, of two bytes at the least, before."""
    return pos == end if headers_count == 0 else 0 < headers_count <= (end - pos) >> 1


@helper
def _micros(millis: int) -> int:
    """Timestamps may be any 64-bit number; those that microseconds cannot say become the nearest that they can."""
    if millis > _MILLIS_MAX:
        millis = _MILLIS_MAX
    elif millis < -_MILLIS_MAX:
        millis = -_MILLIS_MAX
    return millis * _MICROS


@kernel(f"i8({_DATA}, i8[:,::1], i8[::1], i8, i8, i8, i8[:,::1])")
def scan(  # noqa: PLR0917
    data: Bytes, table: Int64s, state: Int64s, first: int, end: int, bytes_max: int, records: Int64s
) -> int:
    """Fill `records` with those at offsets in [`first`, `end`), until it is full or they take `bytes_max`.

    Returns their number; `state` then says where to go on, or which record is MALFORMED.
    """
    address = address_of(data)
    found = size_found = 0
    batch, record, pos = state[BATCH], state[RECORD], address + state[PLACE]
    while batch < table.shape[1]:
        batch_end = address + table[END, batch]
        if record == 0:
            pos = address + table[START, batch]
        base_offset = table[BASE_OFFSET, batch]
        last_delta = table[LAST_OFFSET, batch] - base_offset
        appended = table[ATTRIBUTES, batch] & LOG_APPEND_TIME != 0
        count = table[COUNT, batch]
        while record < count:
            if found == records.shape[1] or size_found >= bytes_max:
                state[BATCH], state[RECORD], state[PLACE] = batch, record, pos - address
                return found
            place = pos
            pos, _, record_end = _field(pos, batch_end)
            time_delta, pos = varint(pos + 1, record_end)  # behind the attributes, which Kafka never uses
            offset_delta, pos = varint(pos, record_end)
            key, key_size, pos = _field(pos, record_end)
            value, value_size, pos = _field(pos, record_end)
            headers_count, pos = varint(pos, record_end)
            if not (_is_whole(pos, record_end, headers_count) and 0 <= offset_delta <= last_delta):
                state[BATCH], state[RECORD] = batch, record
                return MALFORMED
            offset = base_offset + offset_delta
            if first <= offset < end:
                millis = table[MAX_TIMESTAMP, batch] if appended else table[BASE_TIMESTAMP, batch] + time_delta
                records[OFFSET, found] = offset
                records[TIMESTAMP, found] = _micros(millis)
                records[TIMESTAMP_TYPE, found] = appended
                records[KEY, found], records[KEY_SIZE, found] = key - address, key_size
                records[VALUE, found], records[VALUE_SIZE, found] = value - address, value_size
                records[HEADERS, found], records[HEADERS_COUNT, found] = pos - address, headers_count
                records[HEADERS_END, found] = record_end - address
                size_found += record_end - place
                found += 1
            pos = record_end
            record += 1
        if pos != batch_end:
            state[BATCH], state[RECORD] = batch, record
            return MALFORMED
        batch, record = batch + 1, 0
    state[BATCH] = batch
    return found


@kernel(f"i8({_DATA}, i8[:,::1], i8, i4[::1], i8[:,::1])")
def scan_headers(data: Bytes, records: Int64s, count: int, ends: Int32s, fields: Int64s) -> int:
    """Place and size of name and value of each header, and where each record's headers end among them.

    Returns the number of the first record that is malformed, `count` if there is none.
    """
    address = address_of(data)
    found = 0
    for record in range(count):
        pos, end = address + records[HEADERS, record], address + records[HEADERS_END, record]
        for _ in range(records[HEADERS_COUNT, record]):
            name, name_size, pos = _field(pos, end)
            value, value_size, pos = _field(pos, end)
            if pos > end or name_size < 0:
                return record
            fields[0, found], fields[1, found] = name - address, name_size
            fields[2, found], fields[3, found] = value - address, value_size
            found += 1
        if pos != end:
            return record
        ends[record + 1] = found
    return count


@kernel("i8(i8[::1], i4[::1])")
def lay_out(sizes: Int64s, offsets: Int32s) -> int:
    """Arrow's offsets of fields with these sizes; returns how many of them are null."""
    nulls = 0
    end = 0
    offsets[0] = 0
    for row in range(len(sizes)):
        if sizes[row] < 0:
            nulls += 1
        else:
            end += sizes[row]
        offsets[row + 1] = end
    return nulls


@kernel(f"void({_DATA}, i8[::1], i4[::1], u1[::1])")
def gather(data: Bytes, places: Int64s, offsets: Int32s, out: Bytes) -> None:
    """Copy fields to where their `offsets` want them."""
    for row in range(len(places)):
        size = offsets[row + 1] - offsets[row]
        copy(address_of(out) + offsets[row], address_of(data) + places[row], size)


@kernel("void(i8[::1], u1[::1])")
def mark_valid(sizes: Int64s, bitmap: Bytes) -> None:
    """Arrow's validity bitmap, zeroed before: fields of a negative size are null."""
    for row in range(len(sizes)):
        if sizes[row] >= 0:
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
