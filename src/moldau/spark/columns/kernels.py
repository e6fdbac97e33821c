"""The loops over single batches and records, compiled by Numba.

They read untrusted bytes by address, without bounds checks by Numba. Each position is therefore compared with the end
before it is read. A read that would go past the end returns the position `end + 1`, and so do all reads after it: one
comparison after several fields tells whether all of them were complete. Errors are returned as numbers; the callers in
`batches` and `decode` turn them into messages.
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

# The table of batches has a column per batch, and these rows. Its records are between START and END.
POSITION, SIZE, MAGIC, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES = 0, 1, 2, 3, 4, 5
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, START, END = 6, 7, 8, 9, 10, 11
TABLE_ROWS = 12

# The table of records has a column per record, and these rows. Fields are positions in the data; null has size -1.
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, KEY_SIZE, VALUE, VALUE_SIZE = 0, 1, 2, 3, 4, 5, 6
HEADERS, HEADERS_COUNT, HEADERS_END = 7, 8, 9
RECORDS_ROWS = 10

# Where `scan` continues: the batch, the record within it, and the position of that record.
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
    """Return the number of complete batches in `data`, and fill `table` with as many as it has columns for.

    Stops after a batch with an invalid size or another magic, which is included.
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
    """Return a zigzag varint and the position after it."""
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
    """Return the position and size of a nullable field, and the position after it."""
    size, pos = varint(pos, end)
    if size > end - pos:
        return end, 0, end + 1
    return (pos, -1, pos) if size < 0 else (pos, size, pos + size)


@helper
def _is_whole(pos: int, end: int, headers_count: int) -> bool:
    """Whether a record ends at `end` or has room for its headers before it, of at least two bytes each."""
    return pos == end if headers_count == 0 else 0 < headers_count <= (end - pos) >> 1


@helper
def _micros(millis: int) -> int:
    """Convert to microseconds. Timestamps can be any 64-bit number; those out of range become the nearest valid one."""
    if millis > _MILLIS_MAX:
        millis = _MILLIS_MAX
    elif millis < -_MILLIS_MAX:
        millis = -_MILLIS_MAX
    return millis * _MICROS


@kernel(f"i8({_DATA}, i8[:,::1], i8[::1], i8, i8, i8, i8[:,::1])")
def scan(  # noqa: PLR0917
    data: Bytes, table: Int64s, state: Int64s, first: int, end: int, bytes_max: int, records: Int64s
) -> int:
    """Fill `records` with those at offsets in [`first`, `end`), until it is full or they have `bytes_max` bytes.

    Returns their number, with the position to continue from in `state`, or MALFORMED, with the record in `state`.
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
            time_delta, pos = varint(pos + 1, record_end)  # after the attributes, which Kafka does not use
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
    """Find the position and size of each header's name and value, and where each record's headers end in that list.

    Returns the number of the first malformed record, or `count` if there is none.
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
    """Compute Arrow's offsets of fields with these sizes. Returns the number of nulls."""
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
    """Copy fields to their `offsets` in `out`."""
    for row in range(len(places)):
        size = offsets[row + 1] - offsets[row]
        copy(address_of(out) + offsets[row], address_of(data) + places[row], size)


@kernel("void(i8[::1], u1[::1])")
def mark_valid(sizes: Int64s, bitmap: Bytes) -> None:
    """Set Arrow's validity bits in a zeroed bitmap. Fields with a negative size are null."""
    for row in range(len(sizes)):
        if sizes[row] >= 0:
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
