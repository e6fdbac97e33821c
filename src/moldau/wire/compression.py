"""The compression codecs of record batches, as Apache Kafka and librdkafka write them."""

from __future__ import annotations

from enum import IntEnum

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.primitives import Buffer


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    if codec is Codec.NONE:
        return data
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{codec.name} is not there yet (level {level})")


def decompress(codec: Codec, data: Buffer, max_size: int) -> bytes:
    if codec is Codec.NONE and len(data) <= max_size:
        return bytes(data)
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{codec.name} is not there yet")
