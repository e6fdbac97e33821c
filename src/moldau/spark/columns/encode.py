"""Arrow columns → record batches, magic 2.

`Rows` are the columns of records as plain arrays: where each key, value and header starts and how long it is. One
kernel sorts the rows by partition, keeping their order, another writes one batch after the other into a single buffer,
each with room for its header. The header, with the producer's id and sequence, the CRC over all of it, and
compression come per batch, by `seal`. Per record there is no Python.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from moldau.errors import ErrorCode, KafkaError
from moldau.spark.columns.jit import helper, kernel
from moldau.spark.columns.kernels import Bytes, Int32s, Int64s
from moldau.wire.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from moldau.wire.compression import Codec, compress

# What a record takes beside its key, value and headers, at most: the varints of six lengths and numbers and of the
# timestamp, and its attributes. Each header adds two lengths.
_RECORD_OVERHEAD = 6 * 5 + 10 + 1
_HEADER_OVERHEAD = 2 * 5

_TRANSACTIONAL = 0x10
_CRC_POS = 17
_ATTRIBUTES_POS = 21
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")

# Rows of the table of batches: one column per batch.
_PARTITION, _START, _END, _COUNT, _BASE_TIMESTAMP, _MAX_TIMESTAMP = range(6)
_TABLE_ROWS = 6

_TOO_LARGE = -1  # instead of a number of batches


class Texts(NamedTuple):
    """A column of bytes: row `i` is `data[starts[i] : starts[i] + lengths[i]]`, or null where its length is -1."""

    data: Bytes
    starts: Int64s
    lengths: Int64s


class Headers(NamedTuple):
    """Row `i` has `counts[i]` headers, from `starts[i]` on in `keys` and `values`."""

    starts: Int64s
    counts: Int64s
    keys: Texts
    values: Texts


class Rows(NamedTuple):
    keys: Texts
    values: Texts
    headers: Headers
    timestamps_ms: Int64s

    def plain(self) -> tuple[Any, ...]:
        """As tuples, which is how kernels are told of them."""
        starts, counts, names, contents = self.headers
        return tuple(self.keys), tuple(self.values), (starts, counts, tuple(names), tuple(contents)), self.timestamps_ms

    @property
    def bytes_max(self) -> int:
        """No fewer than their records will take."""
        texts = (self.keys, self.values, self.headers.keys, self.headers.values)
        data = sum(int(text.lengths.sum(where=text.lengths > 0)) for text in texts)
        return data + len(self.timestamps_ms) * _RECORD_OVERHEAD + len(self.headers.keys.starts) * _HEADER_OVERHEAD


class Batch(NamedTuple):
    """Encoded records of one partition, `data` beginning with room for the header."""

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
    """Of a string or binary array, large or not, without a copy of its data."""
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
    """Of list<struct<key, value>>; a null list is none. Header keys are never null: Kafka has no word for that."""
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
    """Kafka counts milliseconds; a null timestamp is the time of writing, as where there is no such column."""
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
    """The rows as batches of about `batch_bytes`, those of a partition in the order of its rows."""
    order, bounds = _sort(partition_of_row, partitions)
    used = np.flatnonzero(np.diff(bounds))
    bytes_max = rows.bytes_max
    # Of two batches that follow each other in a partition, together they are larger than one may be.
    table = np.empty((_TABLE_ROWS, len(used) + 2 * bytes_max // batch_bytes + 2), np.int64)
    out = np.empty(bytes_max + table.shape[1] * HEADER_SIZE, np.uint8)
    count = _write_batches(rows.plain(), order, bounds, used, (batch_bytes, record_bytes_max), out, table)
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
    """The batch as it goes over the wire, its records compressed, its header filled in."""
    data = batch.data
    if codec is not Codec.NONE:
        data = memoryview(bytearray(HEADER_SIZE) + compress(codec, data[HEADER_SIZE:], level))
    _AFTER_CRC.pack_into(
        data, _ATTRIBUTES_POS, codec | _TRANSACTIONAL * is_transactional, batch.records - 1, batch.base_timestamp_ms,
        batch.max_timestamp_ms, producer_id, producer_epoch, base_sequence, batch.records,
    )  # fmt: skip
    _BEFORE_CRC.pack_into(data, 0, 0, len(data) - LOG_OVERHEAD, -1, MAGIC, crc32c(data[_ATTRIBUTES_POS:]))
    return data


def _numbers(buffer: Any, kind: type[np.generic]) -> Any:
    return np.frombuffer(buffer, kind) if buffer is not None else np.zeros(0, kind)


def _is_null(array: Any) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False)


@kernel("Tuple((i8[::1], i8[::1]))(i4[::1], i8)")
def _sort(partition_of_row: Int32s, partitions: int) -> tuple[Int64s, Int64s]:
    """Row numbers by partition, in their order; those of partition p lie at `bounds[p] : bounds[p + 1]`."""
    bounds = np.zeros(partitions + 1, np.int64)
    for partition in partition_of_row:
        bounds[partition + 1] += 1
    for partition in range(partitions):
        bounds[partition + 1] += bounds[partition]
    order = np.empty(len(partition_of_row), np.int64)
    place = bounds.copy()
    for row in range(len(partition_of_row)):
        partition = partition_of_row[row]
        order[place[partition]] = row
        place[partition] += 1
    return order, bounds


@helper
def _size(value: int) -> int:
    """Of a zigzag varint."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@helper
def _put(out: Bytes, pos: int, value: int) -> int:
    """A zigzag varint at `pos`; where it ends."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest >= np.uint64(0x80):
        out[pos] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        pos += 1
    out[pos] = np.uint8(rest)
    return pos + 1


@helper
def _put_text(out: Bytes, pos: int, data: Bytes, start: int, length: int) -> int:
    pos = _put(out, pos, length)
    if length > 0:
        # As slices, whose index cannot be negative, LLVM copies many bytes at once.
        target = out[pos : pos + length]
        source = data[start : start + length]
        for at in range(length):
            target[at] = source[at]
        pos += length
    return pos


_TEXTS = "Tuple((Array(u1, 1, 'C', True), i8[::1], i8[::1]))"
_ROWS = f"Tuple(({_TEXTS}, {_TEXTS}, Tuple((i8[::1], i8[::1], {_TEXTS}, {_TEXTS})), i8[::1]))"


@kernel(f"i8({_ROWS}, i8[::1], i8[::1], i8[::1], UniTuple(i8, 2), u1[::1], i8[:,::1])")
def _write_batches(  # noqa: PLR0917  # kernels have no keywords
    rows: Any,
    order: Int64s,
    bounds: Int64s,
    used: Int64s,
    limits: tuple[int, int],
    out: Bytes,
    table: Int64s,
) -> int:
    """The number of batches in `table`; _TOO_LARGE with the size of the record that is."""
    (key_data, key_starts, key_lengths), (value_data, value_starts, value_lengths), headers, timestamps = rows
    header_starts, header_counts, (name_data, name_starts, name_lengths), contents = headers
    content_data, content_starts, content_lengths = contents
    batch_bytes, record_bytes_max = limits
    batches = 0
    pos = 0
    for partition in used:
        records = 0
        start = pos
        base = latest = np.int64(0)
        for place in range(bounds[partition], bounds[partition + 1]):
            row = order[place]
            timestamp = timestamps[row]
            first_header = header_starts[row]
            last_header = first_header + header_counts[row]
            fields = 1 + _size(key_lengths[row]) + max(key_lengths[row], 0)
            fields += _size(value_lengths[row]) + max(value_lengths[row], 0) + _size(header_counts[row])
            for header in range(first_header, last_header):
                fields += _size(name_lengths[header]) + name_lengths[header]
                fields += _size(content_lengths[header]) + max(content_lengths[header], 0)
            if fields + _RECORD_OVERHEAD + HEADER_SIZE > record_bytes_max:
                table[2, 0] = fields
                return _TOO_LARGE
            if records and pos - start + fields + _RECORD_OVERHEAD > batch_bytes:
                table[0, batches], table[1, batches], table[2, batches] = partition, start, pos
                table[3, batches], table[4, batches], table[5, batches] = records, base, latest
                batches += 1
                records = 0
            if not records:
                start = pos
                pos += HEADER_SIZE
                base = latest = timestamp
            pos = _put(out, pos, fields + _size(timestamp - base) + _size(records))
            out[pos] = 0  # attributes, which Kafka never uses
            pos = _put(out, pos + 1, timestamp - base)
            pos = _put(out, pos, records)
            pos = _put_text(out, pos, key_data, key_starts[row], key_lengths[row])
            pos = _put_text(out, pos, value_data, value_starts[row], value_lengths[row])
            pos = _put(out, pos, header_counts[row])
            for header in range(first_header, last_header):
                pos = _put_text(out, pos, name_data, name_starts[header], name_lengths[header])
                pos = _put_text(out, pos, content_data, content_starts[header], content_lengths[header])
            latest = max(latest, timestamp)
            records += 1
        table[0, batches], table[1, batches], table[2, batches] = partition, start, pos
        table[3, batches], table[4, batches], table[5, batches] = records, base, latest
        batches += 1
    return batches
