from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.disk import OS_DISK
from moldau.errors import CorruptFileError
from moldau.log.segments.offset_index import OffsetIndex
from tests.unit.log.log_helpers import properties

BASE = 1_000_000_000_000

steps = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), max_size=60)


def entries_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    offset, position = BASE, 0
    entries = []
    for offset_step, position_step in steps:
        offset += offset_step
        position += position_step
        entries.append((offset, position))
    return entries


def index_with(path: Path, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(OS_DISK, str(path), BASE, new=True)
    for number, (offset, position) in enumerate(entries, start=1):
        assert index.append(offset, position) == number
    return index


@properties
@given(steps, st.integers(-5, 70_000))
def test_lookup_gives_the_last_batch_that_ends_at_or_before_the_offset(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], distance: int
) -> None:
    entries = entries_of(steps)
    index = index_with(Path("unused"), entries)
    target = BASE + max(0, distance)
    assert index.lookup(target) == max([p for o, p in entries if o <= target], default=0)
    assert index.last() == (entries[-1] if entries else (BASE, 0))


@properties
@given(steps, st.integers(0, 400_000))
def test_a_position_leads_to_a_batch_boundary_at_or_before_it(steps: list[tuple[int, int]], position: int) -> None:
    entries = entries_of(steps)
    index = index_with(Path("unused"), entries)
    assert index.last_position_upto(position) == max([p for _, p in entries if p <= position], default=0)


@properties
@given(steps, st.integers(0, 70_000))
def test_truncation_keeps_what_lies_below_the_offset(steps: list[tuple[int, int]], distance: int) -> None:
    entries = entries_of(steps)
    index = index_with(Path("unused"), entries)
    index.truncate_to(BASE + distance)
    kept = [(o, p) for o, p in entries if o < BASE + distance]
    assert len(index) == len(kept)
    assert index.last() == (kept[-1] if kept else (BASE, 0))


@properties
@given(steps)
def test_the_file_holds_kafkas_bytes_and_reads_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("index") / "i.index"
    entries = entries_of(steps)
    index_with(path, entries).write()
    assert path.read_bytes() == b"".join((o - BASE).to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in entries)
    again = OffsetIndex(OS_DISK, str(path), BASE)
    again.load(log_size=1 << 31)
    assert again.last() == (entries[-1] if entries else (BASE, 0))
    assert again.peek_last_position() == (entries[-1][1] if entries else 0)


def test_zeros_that_kafka_preallocates_are_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    index_with(path, [(BASE + 256, 4096), (BASE + 512, 8192)]).write()
    path.write_bytes(path.read_bytes() + bytes(10_000))
    index = OffsetIndex(OS_DISK, str(path), BASE)
    index.load(log_size=10_000)
    assert len(index) == 2
    assert index.last() == (BASE + 512, 8192)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\0\0\0\1\0\0\0", id="torn"),
        pytest.param(b"\0\0\0\1\0\0\x7f\xff", id="points past the log"),
        pytest.param(b"\0\0\0\5\0\0\0\5\0\0\0\1\0\0\0\1", id="goes back"),
        pytest.param(b"\x80\0\0\1\0\0\0\1", id="negative offset"),
    ],
)
def test_an_insane_index_is_told_apart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.index"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        OffsetIndex(OS_DISK, str(path), BASE).load(log_size=1000)


def test_a_missing_index_is_told_apart(tmp_path: Path) -> None:
    index = OffsetIndex(OS_DISK, str(tmp_path / "none.index"), BASE)
    with pytest.raises(CorruptFileError, match="missing"):
        index.load(log_size=1000)
    assert index.peek_last_position() == 0


def test_an_index_that_was_not_loaded_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    index_with(path, [(BASE + 1, 10)]).write()
    OffsetIndex(OS_DISK, str(path), BASE).write()
    assert path.stat().st_size == 8
