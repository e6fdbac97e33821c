"""What a leader checks in a produced batch beyond its CRC, and what it changes in it before the append.

`LogRules` is a topic's configuration boiled down once, so that the common case (`compression.type=producer`,
CreateTime, not compacted) never looks at a record: `check_header` is all it runs. The rest decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

from moldau.config.topic import TopicConfig
from moldau.errors import CorruptRecordError, ErrorCode, KafkaError, RefusedRecordsError
from moldau.log.lookups import SMALL_BYTES
from moldau.log.producer_state import AppendOrigin
from moldau.wire.batch import (
    RECORD_SIZE_MIN,
    UNCOMPRESSED_BYTES_MAX,
    BatchHeader,
    check_batch,
    iter_headers,
    iter_records,
    read_header,
    recompress,
    stamp_log_append_time,
)
from moldau.wire.batch_layout import CODEC_MASK, LOG_APPEND_TIME, LOG_OVERHEAD
from moldau.wire.compression import Codec

_NO_LIMIT_MS = 2**62
_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
# Codec and timestamp type: above the last codec is one that nobody has, or a timestamp type that only brokers may set.
_ODD_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME
_LAST_CODEC = int(max(Codec))
# `max.message.bytes` bounds what is stored, hence compressed. To look at the records costs what they swell to,
# so that is held to a multiple of it: more than text gains, less than a bomb does (thousands). The floor keeps
# a small `max.message.bytes` from refusing batches that are only very uniform.
_SWELL_MAX = 64
_UNCOMPRESSED_BYTES_MIN = 16 * 1024 * 1024
# A batch may hold as many records as would fit without compression, or this many: 700 bytes of zstd can hold a
# million empty ones, and to go through them takes seconds, in which nobody else is served.
_RECORDS_MIN = 100_000
# For a batch that is refused because of its header, the bad records are named if there are few records.
_NAMED_MAX = 1000


class LogRules(NamedTuple):
    max_message_bytes: int
    segment_bytes: int
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    compacted: bool
    codec: Codec | None  # None: as the producer sent it
    level: int | None
    headers_suffice: bool
    uncompressed_bytes_max: int
    records_max: int
    flush_messages: int

    @classmethod
    def of(cls, config: TopicConfig) -> LogRules:
        codec = _CODECS.get(config.compression_type)
        log_append_time = config.message_timestamp_type == "LogAppendTime"
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        bounded_before = not log_append_time and config.message_timestamp_before_max_ms < _NO_LIMIT_MS
        return cls(
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
            log_append_time=log_append_time,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=min(config.message_timestamp_after_max_ms, _NO_LIMIT_MS),
            compacted=config.compact,
            flush_messages=config.flush_messages,
            codec=codec,
            level=levels.get(codec) if codec is not None else None,
            headers_suffice=codec is None and not (config.compact or log_append_time or bounded_before),
            uncompressed_bytes_max=min(
                max(_SWELL_MAX * config.max_message_bytes, _UNCOMPRESSED_BYTES_MIN), UNCOMPRESSED_BYTES_MAX
            ),
            records_max=max(config.max_message_bytes // RECORD_SIZE_MIN, _RECORDS_MIN),
        )

    def check(
        self, records: memoryview | bytearray, now_ms: int, origin: AppendOrigin
    ) -> tuple[memoryview | bytearray, BatchHeader]:
        """The batch as it is to be stored, and its header."""
        header = read_header(records)
        size = header.length + LOG_OVERHEAD
        if size != len(records):
            raise _wrong_size(records, header)
        if size > self.segment_bytes or (size > self.max_message_bytes and origin is AppendOrigin.CLIENT):
            self.check_size(size)  # a coordinator's step is one batch, however many members its group has
        check_batch(records, 0, header, strict=origin is AppendOrigin.CLIENT)
        self.check_header(records, header, now_ms)
        if not self.headers_suffice and origin is AppendOrigin.CLIENT:
            return self.apply(records, header, now_ms)
        return records, header

    def has_to_look_into(self, records: memoryview | None) -> TypeGuard[memoryview]:
        """Whether the append has to go through the records of the batch, and there may be many."""
        return not self.headers_suffice and records is not None and len(records) > SMALL_BYTES

    def prepare(self, records: memoryview | bytearray, now_ms: int) -> memoryview | bytearray:
        """What `append` does with a produced batch before it writes it. Any thread may call it."""
        return self.check(records, now_ms, AppendOrigin.CLIENT)[0]

    def check_size(self, size: int) -> None:
        if size > self.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {size} bytes; max.message.bytes of the topic is {self.max_message_bytes}",
            )
        if size > self.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes; segment.bytes of the topic is {self.segment_bytes}",
            )

    def check_header(self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
        """The checks that the header alone decides; the records are read to name those that are refused."""
        if header.attributes & _ODD_ATTRIBUTES > _LAST_CODEC:
            if header.is_log_append_time:
                raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
            _ = header.codec  # raises for an unknown codec
        if header.count > self.records_max:
            # Not INVALID_RECORD: on this code, Kafka's producers retry with smaller batches.
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {header.count} records; with its max.message.bytes the topic takes {self.records_max}",
            )
        if header.max_timestamp > now_ms + self.after_max_ms and not self.log_append_time:
            if not header.is_control and header.count <= _NAMED_MAX:
                self._check_records(batch, header, now_ms)
            raise self._out_of_range(header.max_timestamp, now_ms, ())

    def _out_of_range(self, timestamp_ms: int, now_ms: int, indexes: Sequence[int]) -> KafkaError:
        earliest = now_ms - self.before_max_ms if self.before_max_ms < _NO_LIMIT_MS else "the beginning"
        return RefusedRecordsError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {timestamp_ms} is out of range: "
            f"it should be between {earliest} and {now_ms + self.after_max_ms}",
            indexes,
        )

    def apply(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int
    ) -> tuple[bytearray | memoryview, BatchHeader]:
        """The rules that need the records; returns the batch as it is to be stored, and its header."""
        bounded_before = not self.log_append_time and self.before_max_ms < _NO_LIMIT_MS
        if not header.is_control and (self.compacted or bounded_before):
            self._check_records(batch, header, now_ms)
        if self.codec is not None and self.codec != header.codec and not header.is_control:
            max_size = self.uncompressed_bytes_max
            batch = bytearray(recompress(batch, 0, header, self.codec, self.level, max_size=max_size))
            self.check_size(len(batch))
            header = read_header(batch)
        if self.log_append_time:
            stamp_log_append_time(batch, 0, now_ms)
            header = read_header(batch)
        return batch, header

    def _check_records(self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
        earliest_ms, latest_ms = now_ms - self.before_max_ms, now_ms + self.after_max_ms
        refused: list[int] = []
        timestamp_ms = None  # the first that is out of range
        for index, record in enumerate(iter_records(batch, 0, header, self.uncompressed_bytes_max)):
            if self.compacted and record.key is None:
                refused.append(index)
            elif self.log_append_time or record.timestamp_ms < 0:
                continue
            elif not earliest_ms <= record.timestamp_ms <= latest_ms:
                refused.append(index)
                timestamp_ms = record.timestamp_ms if timestamp_ms is None else timestamp_ms
        if timestamp_ms is not None:
            raise self._out_of_range(timestamp_ms, now_ms, refused)
        if refused:
            message = "a compacted topic cannot accept a record without a key"
            raise RefusedRecordsError(ErrorCode.INVALID_RECORD, message, refused)


def _wrong_size(records: memoryview | bytearray, header: BatchHeader) -> KafkaError:
    """The error for something that is not exactly one batch."""
    if header.size > len(records) or not list(iter_headers(records)):
        return CorruptRecordError(f"batch claims {header.size} bytes, {len(records)} were sent")
    return KafkaError(ErrorCode.INVALID_RECORD, "a produce request holds exactly one record batch per partition")
