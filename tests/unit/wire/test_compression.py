"""The codecs: readable by every client, and never larger than allowed once unpacked."""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.compression import Codec, compress, decompress
from tests.examples import examples

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
by_name: dict[str, Any] = {"ids": lambda codec: codec.name}
TEXT = b"".join(b"record %d of the river Vltava\n" % number for number in range(20_000))


def refusal(codec: Codec, data: bytes, max_size: int) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        decompress(codec, data, max_size)
    return raised.value.code


@pytest.mark.parametrize("codec", Codec, **by_name)
@given(data=st.binary(max_size=2_000), copies=st.sampled_from((1, 3, 200)))
@settings(max_examples=examples(50), deadline=None)
def test_data_survives(codec: Codec, data: bytes, copies: int) -> None:
    data *= copies
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data) + 1) == data


@pytest.mark.parametrize("codec", Codec, **by_name)
def test_large_data_that_does_not_compress_survives(codec: Codec) -> None:
    data = os.urandom(1_000_003)
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, (-1, 1, 6, 9)),
        (Codec.LZ4, (1, 3, 9, 12, 17)),
        (Codec.ZSTD, (-131072, -5, 1, 3, 19, 22)),
        (Codec.SNAPPY, (None,)),
    ],
)
def test_every_level_that_kafka_allows_works(codec: Codec, levels: tuple[int | None, ...]) -> None:
    data = TEXT[:100_000]
    for level in levels:
        assert decompress(codec, compress(codec, data, level), len(data)) == data


def test_levels_make_a_difference() -> None:
    assert len(compress(Codec.GZIP, TEXT, 9)) < len(compress(Codec.GZIP, TEXT, 1))
    assert len(compress(Codec.ZSTD, TEXT, 19)) < len(compress(Codec.ZSTD, TEXT, -5))
    assert len(compress(Codec.LZ4, TEXT, 12)) < len(compress(Codec.LZ4, TEXT, 9))


@pytest.mark.parametrize("codec", Codec, **by_name)
def test_one_byte_above_the_ceiling_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    assert refusal(codec, packed, len(TEXT) - 1) is ErrorCode.INVALID_RECORD
    assert refusal(codec, packed, 0) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", COMPRESSING, **by_name)
def test_truncated_data_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT[:200])
    for end in range(len(packed)):
        if codec is Codec.SNAPPY and end in (0, 16):  # no chunks at all: nothing is missing
            continue
        assert refusal(codec, packed[:end], 10_000) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", COMPRESSING, **by_name)
@given(data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_mutated_data_unpacks_or_is_refused(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, TEXT[:300]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(KafkaError):
        assert len(decompress(codec, packed, 5_000)) <= 5_000


BOMBS = """
import resource, sys
from moldau.errors import KafkaError
from moldau.wire.compression import Codec, decompress
codec, path = Codec(int(sys.argv[1])), sys.argv[2]
data = open(path, "rb").read()
decompress(codec, open(path + ".small", "rb").read(), 1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, data, 1 << 20)
except KafkaError:
    pass
else:
    sys.exit("the bomb went off")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", COMPRESSING, **by_name)
def test_a_bomb_is_refused_while_it_unpacks(codec: Codec, tmp_path: os.PathLike[str]) -> None:
    bomb = os.path.join(tmp_path, "bomb")
    plain = bytes(256 * 1024 * 1024)
    raw_snappy = codec is Codec.SNAPPY
    with open(bomb, "wb") as file:
        file.write(bytes(cramjam.snappy.compress_raw(plain)) if raw_snappy else compress(codec, plain))
    with open(bomb + ".small", "wb") as file:
        file.write(compress(codec, b"warm-up"))
    arguments = [sys.executable, "-c", BOMBS, str(int(codec)), bomb]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout
    grown_bytes = int(output) * (1 if sys.platform == "darwin" else 1024)
    assert grown_bytes < 32 * 1024 * 1024


def test_a_snappy_header_that_claims_gigabytes_costs_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    claim = b"\xff\xff\xff\xff\x0f"
    chunk = struct.pack(">i", len(claim)) + claim
    assert refusal(Codec.SNAPPY, claim, 1 << 20) is ErrorCode.INVALID_RECORD
    assert refusal(Codec.SNAPPY, compress(Codec.SNAPPY, b"") + chunk, 1 << 20) is ErrorCode.INVALID_RECORD
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


class TestSnappyFraming:
    def test_chunks_are_snappy_javas(self) -> None:
        packed = compress(Codec.SNAPPY, bytes(40_000))
        assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
        (size,) = struct.unpack_from(">i", packed, 16)
        assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == bytes(32 * 1024)

    def test_bare_snappy_is_read(self) -> None:
        assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT)) == TEXT

    def test_concatenated_streams_are_read(self) -> None:
        packed = compress(Codec.SNAPPY, b"one ") + compress(Codec.SNAPPY, b"two")
        assert decompress(Codec.SNAPPY, packed, 100) == b"one two"

    @pytest.mark.parametrize("size", [-1, 0, 5, 2**31 - 1])
    def test_a_senseless_chunk_length_is_refused(self, size: int) -> None:
        packed = compress(Codec.SNAPPY, b"") + struct.pack(">i", size) + b"abcd"
        assert refusal(Codec.SNAPPY, packed, 1_000) is ErrorCode.INVALID_RECORD


class TestLz4Frames:
    def test_blocks_are_independent_because_java_refuses_linked_ones(self) -> None:
        packed = compress(Codec.LZ4, TEXT)
        magic, flags, block_sizes = struct.unpack_from("<IBB", packed)
        assert magic == 0x184D2204
        assert flags >> 6 == 1  # format version
        assert flags & 0x20  # independent blocks
        assert flags & 0x03 == 0  # no dictionary, reserved bit clear
        assert (block_sizes >> 4) & 7 == 4  # 64 KiB, as Java writes

    def test_linked_blocks_are_read(self) -> None:
        linked = bytes(cramjam.lz4.compress(TEXT))
        assert not linked[4] & 0x20
        assert decompress(Codec.LZ4, linked, len(TEXT)) == TEXT


def test_concatenated_gzip_members_are_read() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, packed, 100) == b"one two"


def test_zstd_without_a_content_size_is_read() -> None:
    # Java streams into the frame, so its header does not say how large the content is.
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT[:1000])
    packed = bytes(compressor.flush())
    compressor.compress(TEXT[1000:])
    packed += bytes(compressor.finish())
    assert packed[4] & 0xE0 == 0  # neither content size nor single segment
    assert decompress(Codec.ZSTD, packed, len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_damaged_data_costs_no_more_memory_than_its_codec_could_swell_to(codec: Codec) -> None:
    data = bytearray(compress(codec, b"some words, and some words again " * 8))
    data[len(data) // 2] ^= 0xFF
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError):
            decompress(codec, bytes(data) + b"junk", 256 * 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()
