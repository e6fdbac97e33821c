"""Encodes Arrow columns as record batches (magic 2).

`Rows` holds the columns as plain arrays: the start and length of each key, value and header. One kernel sorts the rows
by partition and keeps their order. Another writes one batch after the other into a single buffer and leaves room for
each header. `seal` then compresses a batch and writes its header with the producer's id, the sequence number and the
CRC. No Python code runs per record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from moldau.errors import ErrorCode, KafkaError
from moldau.spark.columns.jit import address_of, copy, helper, kernel, put_byte
from moldau.spark.columns.kernels import Bytes, Int32s, Int64s
from moldau.wire.batch_layout import (
    AFTER_CRC,
    ATTRIBUTES_AT,
    BEFORE_CRC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
)
from moldau.wire.compression import Codec, compress

# The most that a record needs in addition to its key, value and headers: six varints for lengths and numbers, one for
# the timestamp, and the attributes. Each header adds two lengths.
_RECORD_OVERHEAD = 6 * 5 + 10 + 1
_HEADER_OVERHEAD = 2 * 5

# Rows of the tables of records and of headers, as `Rows.tables` makes them.
_KEY, _KEY_LENGTH, _VALUE, _VALUE_LENGTH, _FIRST_HEADER, _HEADER_COUNT, _TIMESTAMP = range(7)
_NAME, _NAME_LENGTH, _CONTENT, _CONTENT_LENGTH = range(4)

# Rows of the table of batches: one column per batch.
_PARTITION, _START, _END, _COUNT, _BASE_TIMESTAMP, _MAX_TIMESTAMP = range(6)
_TABLE_ROWS = 6

_TOO_LARGE = -1  # instead of a number of batches
_SHIFTED_BY_7 = 0x01FF_FFFF_FFFF_FFFF  # makes an arithmetic shift by 7 a logical one


class Texts(NamedTuple):
    """A column of bytes: row `i` is `data[starts[i] : starts[i] + lengths[i]]`, or null where its length is -1."""

    data: Bytes
    starts: Int64s
    lengths: Int64s

    @property
    def addresses(self) -> Int64s:
        """The addresses of the rows in memory. They are valid as long as `data` exists."""
        return self.starts + self.data.ctypes.data


class Headers(NamedTuple):
    """Row `i` has `counts[i]` headers, which begin at `starts[i]` in `keys` and `values`."""

    starts: Int64s
    counts: Int64s
    keys: Texts
    values: Texts


class Rows(NamedTuple):
    keys: Texts
    values: Texts
    headers: Headers
    timestamps_ms: Int64s

    def tables(self) -> tuple[Int64s, Int64s]:
        """The tables of records and of headers for the kernels, one column each, with addresses instead of starts."""
        keys, values, (starts, counts, names, contents), timestamps = self
        records = np.stack((keys.addresses, keys.lengths, values.addresses, values.lengths, starts, counts, timestamps))
        return records, np.stack((names.addresses, names.lengths, contents.addresses, contents.lengths))

    @property
    def bytes_max(self) -> int:
        """An upper bound for the size of their records."""
        texts = (self.keys, self.values, self.headers.keys, self.headers.values)
        data = sum(int(text.lengths.sum(where=text.lengths > 0)) for text in texts)
        return data + len(self.timestamps_ms) * _RECORD_OVERHEAD + len(self.headers.keys.starts) * _HEADER_OVERHEAD


class Batch(NamedTuple):
    """Encoded records of one partition. `data` begins with room for the header."""

    partition: int
    records: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    data: memoryview


_NOTHING = np.zeros(0, np.int64)
_NO_TEXTS = Texts(np.zeros(0, np.uint8), _NOTHING, _NOTHING)


def nulls(rows: int) -> Texts:
    return Texts(_NO_TEXTS.data, np.zeros(rows, np.int64), np.full(rows, -1, np.int64))


def no_headers(rows: int) -> Headers:
    zeros = np.zeros(rows, np.int64)
    return Headers(zeros, zeros, _NO_TEXTS, _NO_TEXTS)


def texts(array: Any) -> Texts:
    """A string or binary array, large or not, without copying its data."""
    _, offsets_buffer, data_buffer = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offsets = _numbers(offsets_buffer, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    if not len(array):
        return _NO_TEXTS
    starts = offsets[:-1].astype(np.int64)
    lengths = offsets[1:] - starts
    if array.null_count:
        lengths[_is_null(array)] = -1
    return Texts(_numbers(data_buffer, np.uint8), starts, lengths)


def headers(array: Any) -> Headers:
    """From list<struct<key, value>>; a null list has no headers. Header keys cannot be null in Kafka's format."""
    _, offsets_buffer, *_ = array.buffers()
    offsets = _numbers(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    counts = np.diff(offsets)
    if array.null_count:
        counts[_is_null(array)] = 0
    pairs = array.values
    keys, values = texts(pairs.field("key")), texts(pairs.field("value"))
    used = slice(offsets[0], offsets[-1]) if len(offsets) else slice(0)
    if pairs[used.start : used.stop].null_count or np.any(keys.lengths[used] < 0):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a record header has no key: give each a key, or leave it out")
    return Headers(offsets[:-1], counts, keys, values)


def timestamps_ms(array: Any, now_ms: int) -> Int64s:
    """Convert to milliseconds. A null timestamp becomes the time of writing, as if there were no such column."""
    micros = pc.cast(array, pa.timestamp("us", array.type.tz)).view(pa.int64())
    result: Int64s = np.floor_divide(micros.fill_null(0).to_numpy(), 1000)
    if array.null_count:
        result[_is_null(array)] = now_ms
    if len(result) and result.min() < 0:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the timestamp column holds {result.min()} ms: Kafka's timestamps begin with 1970",
        )
    return result


def encode(
    rows: Rows, partition_of_row: Int32s, partitions: int, *, batch_bytes: int, record_bytes_max: int
) -> list[Batch]:
    """Encode the rows as batches of about `batch_bytes`. The rows of a partition keep their order."""
    order, bounds = _sort(partition_of_row, partitions)
    used = int(np.count_nonzero(np.diff(bounds)))
    bytes_max = rows.bytes_max
    # A batch and the first record of the next one together exceed the limit, and every batch has a record.
    batches_max = used + 2 * bytes_max // max(1, batch_bytes - HEADER_SIZE) + 2
    table = np.empty((_TABLE_ROWS, min(batches_max, len(order))), np.int64)
    out = np.empty(bytes_max + table.shape[1] * HEADER_SIZE, np.uint8)
    count = _write_batches(*rows.tables(), order, bounds, batch_bytes, record_bytes_max, out, table)
    if count == _TOO_LARGE:
        size = int(table[_END, 0])
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record of {size} bytes is larger than kafka.max.request.size={record_bytes_max}: raise it, and the "
            "topic's max.message.bytes with it, or make the value smaller",
        )
    view = memoryview(out.data)
    return [
        Batch(int(partition), int(records), int(base), int(latest), view[start:end])
        for partition, start, end, records, base, latest in table[:, :count].T
    ]


def seal(
    batch: Batch,
    *,
    codec: Codec,
    level: int | None,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> memoryview:
    """Return the batch as it is sent: records compressed, header written."""
    data = batch.data
    if codec is not Codec.NONE:
        data = memoryview(bytearray(HEADER_SIZE) + compress(codec, data[HEADER_SIZE:], level))
    AFTER_CRC.pack_into(
        data, ATTRIBUTES_AT, codec | TRANSACTIONAL * is_transactional, batch.records - 1, batch.base_timestamp_ms,
        batch.max_timestamp_ms, producer_id, producer_epoch, base_sequence, batch.records,
    )  # fmt: skip
    BEFORE_CRC.pack_into(data, 0, 0, len(data) - LOG_OVERHEAD, -1, MAGIC, crc32c(data[ATTRIBUTES_AT:]))
    return data


def _numbers(buffer: Any, kind: type[np.generic]) -> Any:
    return np.frombuffer(buffer, kind) if buffer is not None else np.zeros(0, kind)


def _is_null(array: Any) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False)


def _sort(partition_of_row: Int32s, partitions: int) -> tuple[Int64s, Int64s]:
    """Sort row numbers by partition, in order. The rows of partition p are at `bounds[p] : bounds[p + 1]`."""
    bounds = np.zeros(partitions + 1, np.int64)
    np.cumsum(np.bincount(partition_of_row, minlength=partitions), out=bounds[1:])
    order = np.empty(len(partition_of_row), np.int64)
    _place_rows(partition_of_row, bounds[:-1].copy(), order)
    return order, bounds


@kernel("void(i4[::1], i8[::1], i8[::1])")
def _place_rows(partition_of_row: Int32s, places: Int64s, order: Int64s) -> None:
    """`places` has the position of each partition's next row."""
    for row in range(len(order)):
        partition = partition_of_row[row]
        order[places[partition]] = row
        places[partition] += 1


@helper
def _size(value: int) -> int:
    """The size of a zigzag varint in bytes."""
    left = (value << 1) ^ (value >> 63)
    size = 1
    while left & ~0x7F:
        left = (left >> 7) & _SHIFTED_BY_7
        size += 1
    return size


@helper
def _put(at: int, value: int) -> int:
    """Write a zigzag varint and return where it ends."""
    left = (value << 1) ^ (value >> 63)
    while left & ~0x7F:
        put_byte(at, left | 0x80)
        left = (left >> 7) & _SHIFTED_BY_7
        at += 1
    put_byte(at, left)
    return at + 1


@helper
def _put_field(at: int, address: int, length: int) -> int:
    at = _put(at, length)
    if length <= 0:
        return at
    copy(at, address, length)
    return at + length


@helper
def _field_size(length: int) -> int:
    return _size(length) + (length if length > 0 else 0)


@kernel("i8(i8[:,::1], i8[:,::1], i8[::1], i8[::1], i8, i8, u1[::1], i8[:,::1])")
def _write_batches(  # noqa: PLR0917  # kernels have no keywords
    rows: Int64s,
    headers: Int64s,
    order: Int64s,
    bounds: Int64s,
    batch_bytes: int,
    record_bytes_max: int,
    out: Bytes,
    table: Int64s,
) -> int:
    """Return the number of batches in `table`, or _TOO_LARGE with the size of that record in `table[_END, 0]`."""
    batch = -1
    start = pos = address_of(out)
    for partition in range(len(bounds) - 1):
        records = 0
        for place in range(bounds[partition], bounds[partition + 1]):
            row = order[place]
            key_length, value_length, timestamp = (
                rows[_KEY_LENGTH, row],
                rows[_VALUE_LENGTH, row],
                rows[_TIMESTAMP, row],
            )
            header_count, first_header = rows[_HEADER_COUNT, row], rows[_FIRST_HEADER, row]
            size = 1 + _field_size(key_length) + _field_size(value_length) + _size(header_count)
            for header in range(first_header, first_header + header_count):
                size += _field_size(headers[_NAME_LENGTH, header]) + _field_size(headers[_CONTENT_LENGTH, header])
            if size + _RECORD_OVERHEAD + HEADER_SIZE > record_bytes_max:
                table[_END, 0] = size
                return _TOO_LARGE
            if records == 0 or pos - start + size + _RECORD_OVERHEAD > batch_bytes:
                batch += 1
                records = 0
                start = pos
                pos += HEADER_SIZE
                table[_PARTITION, batch], table[_START, batch] = partition, start - address_of(out)
                table[_BASE_TIMESTAMP, batch] = table[_MAX_TIMESTAMP, batch] = timestamp
            delta = timestamp - table[_BASE_TIMESTAMP, batch]
            pos = _put(pos, size + _size(delta) + _size(records))
            put_byte(pos, 0)  # attributes, which Kafka does not use
            pos = _put(_put(pos + 1, delta), records)
            pos = _put_field(pos, rows[_KEY, row], key_length)
            pos = _put_field(pos, rows[_VALUE, row], value_length)
            pos = _put(pos, header_count)
            for header in range(first_header, first_header + header_count):
                pos = _put_field(pos, headers[_NAME, header], headers[_NAME_LENGTH, header])
                pos = _put_field(pos, headers[_CONTENT, header], headers[_CONTENT_LENGTH, header])
            records += 1
            table[_END, batch], table[_COUNT, batch] = pos - address_of(out), records
            table[_MAX_TIMESTAMP, batch] = max(table[_MAX_TIMESTAMP, batch], timestamp)
    return batch + 1
