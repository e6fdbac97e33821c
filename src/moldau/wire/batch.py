"""Record batches, magic 2: the only format that is stored. `batch_layout.py` says where each field lies.

The CRC covers everything from the attributes on, so a broker may write base offset and leader epoch into a
batch without touching the rest: that keeps the hot path free of record-level work. Header view, checks and
stamping are for that path; decoding and encoding whole batches are for the cold ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from moldau.errors import CorruptRecordError, ErrorCode, KafkaError, ProtocolError
from moldau.wire.batch_layout import (
    AFTER_CRC,
    ATTRIBUTES_AT,
    BEFORE_CRC,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP_AT,
    TRANSACTIONAL,
)
from moldau.wire.compression import Codec, compress, decompress
from moldau.wire.primitives import Buffer, new_tuple, read_varlong, write_varlong

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

_unpack_header = HEADER.unpack_from  # once: a call of a method of an imported object is slower
_CRC = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_END_TXN_VALUE = struct.Struct(">hi")  # version, coordinator epoch

# A batch is decompressed in memory, and a producer's `max.message.bytes` bounds only its compressed size:
# Kafka's own ceiling on any single buffer is a 32-bit length, here it is what one process can spare.
UNCOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

RECORD_SIZE_MIN = 7  # one byte each: length, attributes, timestamp, offset, null key, null value, no headers

Header = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's word, though tuples have a method of that name

    @property
    def size(self) -> int:
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed; KafkaError for a number that Kafka never gave out."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"unknown compression type id {self.attributes & CODEC_MASK}"
            ) from None

    @property
    def is_compressed(self) -> bool:
        return self.attributes & CODEC_MASK != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop the batch's tombstones; it then stands in place of the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequences count modulo 2^31: after the largest int comes zero."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# What `encode_batch` takes per record: key, value, timestamp in ms, headers.
RecordFields = tuple[bytes | None, bytes | None, int, Sequence[Header]]


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    try:
        return new_tuple(BatchHeader, _unpack_header(buf, pos))
    except struct.error:
        raise CorruptRecordError(
            f"{max(len(buf) - pos, 0)} bytes are too few for a batch header of {HEADER_SIZE}"
        ) from None


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a short or senseless tail ends the walk."""
    pos, end = 0, len(buf)
    while pos + HEADER_SIZE <= end:
        header = new_tuple(BatchHeader, _unpack_header(buf, pos))
        following = pos + header.length + LOG_OVERHEAD
        if header.length < LENGTH_MIN or following > end:
            return
        yield pos, header
        pos = following


def is_transactional(buf: Buffer) -> bool:
    """Whether the batch at the start of `buf` is transactional, without parsing its header; False if there is none."""
    return len(buf) >= HEADER_SIZE and buf[ATTRIBUTES_AT + 1] & TRANSACTIONAL != 0


def check_batch(buf: Buffer, pos: int, header: BatchHeader, *, strict: bool = True) -> None:
    """Raise unless the batch is whole and its CRC holds; `strict` adds what Kafka demands of producers.

    The codes are Kafka's: damage is CORRUPT_MESSAGE, a batch that no producer may send INVALID_RECORD.
    """
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            raise _invalid(f"magic {header.magic}: only record batches with magic version 2 are stored")
        raise CorruptRecordError(f"invalid magic {header.magic} in batch")
    size = header.length + LOG_OVERHEAD
    if size < HEADER_SIZE:
        raise CorruptRecordError(f"batch of {size} bytes, fewer than its header's {HEADER_SIZE}")
    if pos + size > len(buf):
        message = f"batch of {size} bytes where {len(buf) - pos} remain"
        raise _invalid(message) if strict else CorruptRecordError(message)
    if strict and header.base_offset != 0:
        raise _invalid(f"base offset of a produced batch should be 0, but it is {header.base_offset}")
    if crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : pos + size]) != header.crc:
        raise CorruptRecordError(f"record batch is corrupt (stored crc = {header.crc})")
    if strict:
        _check_produced(header)


def _check_produced(header: BatchHeader) -> None:
    count = header.count
    if count <= 0:
        raise _invalid(f"invalid record count {count}")
    if not header.attributes & CODEC_MASK and count * RECORD_SIZE_MIN > header.size - HEADER_SIZE:
        raise _invalid(f"{count} records do not fit into {header.size - HEADER_SIZE} bytes")
    if header.last_offset_delta != count - 1:
        raise _invalid(f"last offset delta {header.last_offset_delta} does not fit {count} records")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise _invalid(f"unknown compression type id {header.attributes & CODEC_MASK}")
    if header.attributes & CONTROL:
        raise _invalid("clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"invalid sequence {header.base_sequence} with producer id {header.producer_id}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log, in place; both fields lie outside the CRC."""
    _INT64.pack_into(buf, pos, base_offset)
    _INT32.pack_into(buf, pos + LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, pos: int, timestamp_ms: int) -> None:
    """Make every record's timestamp the broker's, in place: an attribute bit and the max timestamp say so."""
    (attributes,) = _INT16.unpack_from(buf, pos + ATTRIBUTES_AT)
    _INT16.pack_into(buf, pos + ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _INT64.pack_into(buf, pos + MAX_TIMESTAMP_AT, timestamp_ms)
    (length,) = _INT32.unpack_from(buf, pos + LENGTH_AT)
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : pos + length + LOG_OVERHEAD])
    _CRC.pack_into(buf, pos + CRC_AT, crc)


def decode_records(buf: Buffer, pos: int, header: BatchHeader, max_size: int = UNCOMPRESSED_BYTES_MAX) -> list[Record]:
    """The records of one batch, with absolute offsets; INVALID_RECORD when they do not fit the header."""
    return list(iter_records(buf, pos, header, max_size))


def iter_records(
    buf: Buffer, pos: int, header: BatchHeader, max_size: int = UNCOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """`decode_records` one by one, for those who need not keep all, or not even see all."""
    data = records_data(buf, pos, header, max_size)
    append_time = header.max_timestamp if header.is_log_append_time else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    at = number = 0
    try:
        while number < header.count:
            record, at = _read_record(data, at, base_offset, base_timestamp, append_time)
            yield record
            number += 1
    except (IndexError, ProtocolError) as error:
        raise _invalid(f"malformed record {number} of {header.count}: {error}") from error
    if at != len(data):
        raise _invalid(f"{len(data) - at} bytes left over after {header.count} records")


def records_data(buf: Buffer, pos: int, header: BatchHeader, max_size: int = UNCOMPRESSED_BYTES_MAX) -> bytes:
    """The records of a batch as plain bytes, one after the other."""
    view = memoryview(buf)[pos + HEADER_SIZE : pos + header.length + LOG_OVERHEAD]
    if header.is_compressed:
        return decompress(header.codec, view, max_size)
    return bytes(view)


def _read_record(
    data: bytes, start: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int]:
    size, pos = read_varlong(data, start)
    end = pos + size
    if size < 0 or end > len(data):
        raise ProtocolError(f"record of {size} bytes where {len(data) - pos} remain")
    timestamp_delta, pos = read_varlong(data, pos + 1)  # after the record's attributes, which Kafka never uses
    offset_delta, pos = read_varlong(data, pos)
    key, pos = _read_nullable(data, pos, end)
    value, pos = _read_nullable(data, pos, end)
    header_count, pos = read_varlong(data, pos)
    headers: tuple[Header, ...] = ()
    if header_count:
        headers, pos = _read_headers(data, pos, end, header_count)
    if pos != end:
        raise ProtocolError(f"record of {size} bytes ends {end - pos} bytes too early")
    timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
    return new_tuple(Record, (base_offset + offset_delta, timestamp, key, value, headers)), end


def _read_nullable(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = read_varlong(data, pos)
    if size < 0:
        return None, pos
    if pos + size > end:
        raise ProtocolError(f"field of {size} bytes where {end - pos} remain")
    return data[pos : pos + size], pos + size


def _read_headers(data: bytes, pos: int, end: int, count: int) -> tuple[tuple[Header, ...], int]:
    if count < 0 or count * 2 > end - pos:  # a header takes two bytes at the least
        raise ProtocolError(f"{count} headers where {end - pos} bytes remain")
    headers = []
    for _ in range(count):
        key, pos = _read_nullable(data, pos, end)
        if key is None:
            raise ProtocolError("header key is null")
        value, pos = _read_nullable(data, pos, end)
        # Kafka never checks header names, so a stored one may be no UTF-8: it must survive decode and encode.
        headers.append((key.decode(errors="surrogateescape"), value))
    return tuple(headers), pos


def encode_batch(
    records: Sequence[RecordFields],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: bool = False,
) -> bytes:
    """A batch of at least one record, offsets ascending by one from `base_offset`."""
    base_timestamp = records[0][2]
    max_timestamp = max(record[2] for record in records)
    data = b"".join([_write_record(delta, base_timestamp, fields) for delta, fields in enumerate(records)])
    attributes = codec | LOG_APPEND_TIME * log_append_time
    attributes |= TRANSACTIONAL * is_transactional | CONTROL * is_control
    return assemble(
        BatchHeader(
            base_offset, 0, leader_epoch, MAGIC, 0, attributes, len(records) - 1, base_timestamp,
            max_timestamp, producer_id, producer_epoch, base_sequence, len(records),
        ),
        compress(codec, data, level),
    )  # fmt: skip


def assemble(header: BatchHeader, data: bytes) -> bytes:
    """A batch out of a header, whose length and CRC are computed here, and the records as they go on disk."""
    rest = AFTER_CRC.pack(*header[5:]) + data
    length = BEFORE_CRC.size - LOG_OVERHEAD + len(rest)
    start = BEFORE_CRC.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc32c(rest))
    return start + rest


def _write_record(offset_delta: int, base_timestamp: int, fields: RecordFields) -> bytes:
    key, value, timestamp_ms, headers = fields
    parts = [b"\0", write_varlong(timestamp_ms - base_timestamp), write_varlong(offset_delta)]
    for field in (key, value):
        if field is None:
            parts.append(b"\x01")
        else:
            parts += (write_varlong(len(field)), field)
    parts.append(write_varlong(len(headers)))
    for name, content in headers:
        data = name.encode(errors="surrogateescape")
        parts += (write_varlong(len(data)), data)
        parts += (b"\x01",) if content is None else (write_varlong(len(content)), content)
    body = b"".join(parts)
    return write_varlong(len(body)) + body


def recompress(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codec: Codec,
    level: int | None = None,
    *,
    max_size: int = UNCOMPRESSED_BYTES_MAX,
) -> bytes:
    """The same batch with its records compressed otherwise; header fields and record bytes are kept."""
    data = records_data(buf, pos, header, max_size)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, data, level))


class ControlType(IntEnum):
    """What a control record says; KRaft's own (2 to 6) mean nothing here and stay plain numbers."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    type: int
    coordinator_epoch: int  # -1 unless the type is ABORT or COMMIT


def encode_end_txn_marker(
    marker: ControlType,
    *,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a producer's transaction in a partition."""
    key = _CONTROL_KEY.pack(0, marker)
    value = _END_TXN_VALUE.pack(0, coordinator_epoch)
    return encode_batch(
        [(key, value, timestamp_ms, ())],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_control_record(record: Record) -> ControlRecord:
    """Later versions of key and value only append fields, so the first ones are read whatever the version."""
    try:
        version, control_type = _CONTROL_KEY.unpack_from(record.key or b"")
        coordinator_epoch = -1
        if control_type in (ControlType.ABORT, ControlType.COMMIT):
            value_version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value or b"")
            version = min(version, value_version)
    except struct.error as error:
        raise _invalid(f"malformed control record at offset {record.offset}: {error}") from error
    if version < 0:
        raise _invalid(f"control record of version {version} at offset {record.offset}")
    return ControlRecord(control_type, coordinator_epoch)
