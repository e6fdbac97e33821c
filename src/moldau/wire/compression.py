"""The compression codecs of record batches, written so that every Kafka client reads them.

Snappy is written in snappy-java's chunked framing (Java, aiokafka, kafka-python) and read in that and in the
bare format (librdkafka, Go). LZ4 frames have independent blocks: Java's reader refuses linked ones.
`decompress` never makes more than `max_size` bytes, however small the input and whatever its header claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import cramjam

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.primitives import Buffer

_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_SIZE = 32 * 1024
_INT32 = struct.Struct(">i")

# First guess at how far data swells, and by how much a guess that was too small grows.
_SWELL_GUESS = 8
_GUESS_SIZE_MIN = 64 * 1024
_GUESS_GROWTH = 8
# How far data of a codec can swell at all, by the codec's format: no larger buffer need be tried.
_SWELL_SLACK = 128 * 1024

_LZ4_DEFAULT_LEVEL = 9  # in Kafka's counting; there too it means the fast compressor, the others the thorough one
_LZ4_FAST = 1


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed; `level` as in Kafka's `compression.<codec>.level`, None for the codec's default."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        # -1 is Kafka's spelling of the default
        return bytes(cramjam.gzip.compress(data, level=None if level == -1 else level))
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        fast = level is None or level == _LZ4_DEFAULT_LEVEL
        compressor = cramjam.lz4.Compressor(
            level=_LZ4_FAST if fast else level, content_checksum=False, block_linked=False
        )
        compressor.compress(bytes(data))  # it takes nothing else
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: Codec, data: Buffer, max_size: int) -> bytes:
    """The plain bytes, at most `max_size` of them; INVALID_RECORD for more, or for data that is damaged."""
    if codec is Codec.NONE:
        if len(data) > max_size:
            raise _too_large(codec, max_size)
        return bytes(data)
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), max_size)
        return _decompress_within(codec, data, max_size)
    except cramjam.DecompressionError as error:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{codec.name.lower()} data is damaged, or swells to more than {max_size} bytes: {error}",
        ) from error


_MODULES: dict[Codec, Any] = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}


_SWELL_MAX = {Codec.GZIP: 1032, Codec.LZ4: 255, Codec.ZSTD: 32 * 1024}


def _decompress_within(codec: Codec, data: Buffer, max_size: int) -> bytes:
    """Decompress into a buffer of fixed size, which no codec overruns, and try again with a larger one."""
    max_size = min(max_size, _SWELL_MAX[codec] * len(data) + _SWELL_SLACK)
    decompress_into = _MODULES[codec].decompress_into
    size = min(max_size, max(_SWELL_GUESS * len(data), _GUESS_SIZE_MIN))
    while True:
        out = bytearray(size)
        try:
            written = decompress_into(data, out)
        except cramjam.DecompressionError:
            # Too small a buffer and damaged data look alike; only the largest buffer settles which it was.
            if size == max_size:
                raise
            size = min(max_size, size * _GUESS_GROWTH)
        else:
            return bytes(memoryview(out)[:written])


def _compress_xerial(data: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_size: int) -> bytes:
    out = bytearray()
    for block in _snappy_blocks(data):
        # A block starts with its plain length, and the decoder holds it to that.
        if len(out) + cramjam.snappy.decompress_raw_len(block) > max_size:
            raise _too_large(Codec.SNAPPY, max_size)
        out += cramjam.snappy.decompress_raw(block)
    return bytes(out)


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if data[:8] != _XERIAL_MAGIC:
        yield data
        return
    pos, end = len(_XERIAL_HEADER), len(data)
    if end < pos:
        raise cramjam.DecompressionError("truncated stream header")
    while pos < end:
        if data[pos : pos + 8] == _XERIAL_MAGIC:  # streams may be concatenated
            pos += len(_XERIAL_HEADER)
            continue
        if pos + 4 > end:
            raise cramjam.DecompressionError("truncated chunk length")
        (size,) = _INT32.unpack_from(data, pos)
        pos += 4
        if size <= 0 or pos + size > end:
            raise cramjam.DecompressionError(f"chunk of {size} bytes where {end - pos} remain")
        yield data[pos : pos + size]
        pos += size


def _too_large(codec: Codec, max_size: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"{codec.name.lower()} data swells to more than {max_size} bytes")
