from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, OffsetOutOfRangeError
from moldau.log.lookups import offset_for_timestamp
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import BatchHeader, iter_headers
from tests.unit.log.log_helpers import NOW_MS, append, batch, new_log, offsets_of, properties, read_all, restart


def spans(data: bytes | memoryview) -> list[tuple[int, int]]:
    assert sum(header.size for _, header in iter_headers(data)) == len(data), "a batch was cut"
    return [(header.base_offset, header.last_offset) for _, header in iter_headers(data)]


def fill(directory: Path, shapes: list[tuple[int, int, int]], **config: Any) -> tuple[PartitionLog, list[BatchHeader]]:
    """Batches of (records, bytes per record, gap before), as compaction leaves them, in several segments."""
    log = new_log(directory, **config)
    offset = 0
    for count, size, gap in shapes:
        offset += gap
        log.append_as_follower(batch(count, size=size, base_offset=offset), now_ms=NOW_MS)
        offset += count
    return log, [header for header, _ in read_all(log)]


shapes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 150), st.sampled_from([0, 0, 0, 1, 7])), min_size=1, max_size=30
)


@properties
@given(shapes, st.randoms(use_true_random=False))
def test_any_read_gives_the_whole_batches_that_fit(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int, int]], rng: random.Random
) -> None:
    log, model = fill(tmp_path_factory.mktemp("log"), shapes, pool_limit=2)
    bases = [segment.base_offset for segment in log.segments]

    def segment_of(header: BatchHeader) -> int:
        return max(base for base in bases if base <= header.base_offset)

    for _ in range(40):
        offset = rng.randint(0, log.log_end_offset)
        upto = rng.choice([log.log_end_offset, *(header.base_offset for header in model)])
        max_bytes = rng.choice([0, 1, 100, 400, 1 << 20])
        min_one = rng.random() < 0.5
        data = log.read(offset, max_bytes, upto_offset=upto, min_one=min_one)
        following = [header for header in model if header.last_offset >= offset]
        expected: list[BatchHeader] = []
        room = max_bytes
        for header in following:
            fits = header.size <= room or (min_one and not expected)
            if offset >= upto or header.last_offset >= upto or not fits:
                break
            if expected and segment_of(header) != segment_of(expected[0]):
                break
            room -= header.size
            expected.append(header)
        assert spans(data) == [(header.base_offset, header.last_offset) for header in expected]
    log.close_files()


@properties
@given(shapes, st.sampled_from([1, 200, 1000]))
def test_reading_on_from_the_start_gives_everything_once(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int, int]], max_bytes: int
) -> None:
    log, model = fill(tmp_path_factory.mktemp("log"), shapes, pool_limit=1)
    assert [header for header, _ in read_all(log, max_bytes=max_bytes)] == model
    log = restart(log)
    assert [header for header, _ in read_all(log, max_bytes=max_bytes)] == model
    log.close_files()


def test_an_offset_inside_a_batch_gives_the_whole_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(5))
    append(log, batch(5))
    assert spans(log.read(7, 1 << 20, upto_offset=10, min_one=True)) == [(5, 9)]


def test_a_batch_larger_than_asked_for_comes_only_when_one_is_due(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(size=400))
    assert log.read(0, 50, upto_offset=1, min_one=False) == b""
    assert spans(log.read(0, 50, upto_offset=1, min_one=True)) == [(0, 0)]


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path, offset: int) -> None:
    log = new_log(tmp_path)
    append(log, batch(2))
    with pytest.raises(OffsetOutOfRangeError, match="0 to 2"):
        log.read(offset, 1000, upto_offset=2, min_one=True)


def test_at_the_end_there_is_nothing_yet(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.read(0, 1000, upto_offset=0, min_one=True) == b""
    append(log)
    assert log.read(1, 1000, upto_offset=1, min_one=True) == b""
    append(log)
    assert spans(log.read(1, 1000, upto_offset=2, min_one=True)) == [(1, 1)]


def test_a_reader_at_the_end_sees_what_comes_in_a_new_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for number in range(20):
        append(log, batch(size=100))
        found = spans(log.read(number, 1 << 20, upto_offset=log.high_watermark, min_one=True))
        assert found == [(number, number)]
    assert len(log.segments) == 20


def test_more_files_than_may_be_open_are_read_all_the_same(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300, pool_limit=3)
    for _ in range(40):
        append(log, batch(size=50))
    assert len(log.segments) >= 15
    assert offsets_of(log) == list(range(40))
    assert len(log.segments.context.pool) <= 3
    assert sum(segment.file is not None for segment in log.segments) <= 3


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "past the end"])
def test_a_bad_index_of_a_sealed_segment_is_built_again(tmp_path: Path, suffix: str, damage: str) -> None:
    log = new_log(tmp_path, segment_bytes=600)
    for number in range(20):
        append(log, batch(timestamp_ms=NOW_MS + number))
    log.close()
    paths = sorted(log.directory.glob(f"*{suffix}"))
    originals = [path.read_bytes() for path in paths]
    for path in paths:
        if damage == "missing":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(path.read_bytes()[:-3])
        else:
            path.write_bytes(path.read_bytes() + b"\x7f" * (8 if suffix == ".index" else 11))
    log = restart(log)
    assert offsets_of(log) == list(range(20))
    assert offset_for_timestamp(log, NOW_MS + 7) == (NOW_MS + 7, 7, 0)
    for segment in log.segments:
        segment.load_indexes()
    assert [path.read_bytes() for path in paths] == originals


def test_an_index_that_points_between_batches_is_built_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=5000)
    for _ in range(20):
        append(log)
    log.close()
    path = log.directory / f"{0:020d}.index"
    entries = bytearray(path.read_bytes())
    entries[15] ^= 0x04
    path.write_bytes(entries)
    log = restart(log)
    for offset in range(20):
        found = spans(log.read(offset, 1, upto_offset=20, min_one=True))
        assert found == [(offset, offset)]


def test_an_index_that_points_between_batches_never_cuts_one(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=5000)
    for _ in range(20):
        append(log)
    expected = [spans(log.read(0, size, upto_offset=20, min_one=False)) for size in range(0, 1500, 50)]
    log.close()
    path = log.directory / f"{0:020d}.index"
    entries = bytearray(path.read_bytes())
    for position in range(7, len(entries) - 8, 8):
        entries[position] ^= 0x04
    path.write_bytes(entries)
    log = restart(log)
    found = [spans(log.read(0, size, upto_offset=20, min_one=False)) for size in range(0, 1500, 50)]
    assert found == expected


def test_a_segment_that_is_garbage_gives_an_error_not_garbage(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(6):
        append(log, batch(size=100))
    log.close()
    path = log.directory / f"{1:020d}.log"
    path.write_bytes(b"\xee" * path.stat().st_size)
    log = restart(log)
    with pytest.raises(CorruptRecordError):
        log.read(1, 1000, upto_offset=6, min_one=True)
    assert spans(log.read(3, 1000, upto_offset=6, min_one=True)) == [(3, 3)]


@pytest.mark.parametrize("length", [-12, 0, 48, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.timeout(20)
def test_a_senseless_length_on_disk_ends_a_read(tmp_path: Path, damaged: int, length: int) -> None:
    log = new_log(tmp_path, index_interval_bytes=100_000)
    sizes = [len(one) for one in (batch(size=50) for _ in range(4)) if append(log, one)]
    log.read(damaged, 1, upto_offset=4, min_one=False)  # from here on, its position is known
    with Path(log.segments[0].path).open("r+b") as file:
        file.seek(sum(sizes[:damaged]) + 8)
        file.write(length.to_bytes(4, "big", signed=True))
    if damaged:
        assert len(log.read(0, 2 * sizes[0] + 1, upto_offset=4, min_one=True)) == sizes[0]
    with pytest.raises(CorruptRecordError, match=r"no readable batch|claims"):
        log.read(damaged, 2 * sizes[0] + 1, upto_offset=4, min_one=True)
