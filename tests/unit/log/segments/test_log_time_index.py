from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.disk import OS_DISK
from moldau.errors import CorruptFileError
from moldau.log.segments.time_index import TimeIndex
from tests.unit.log.log_helpers import properties

BASE = 5_000_000_000

# Timestamps go up and down as producers send them; offsets only grow.
offered = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5)), max_size=60)


def fill(path: Path, steps: list[tuple[int, int]]) -> tuple[TimeIndex, list[tuple[int, int]]]:
    """The index, and a model of it: only entries newer than all before are kept."""
    index = TimeIndex(OS_DISK, str(path), BASE, new=True)
    model: list[tuple[int, int]] = []
    offset = BASE
    for timestamp, step in steps:
        offset += step
        if timestamp > (model[-1][0] if model else -1):
            model.append((timestamp, offset))
        assert index.maybe_append(timestamp, offset) == len(model)
    return index, model


@properties
@given(offered, st.integers(-1, 310))
def test_lookup_gives_the_newest_entry_that_is_not_newer(steps: list[tuple[int, int]], timestamp: int) -> None:
    index, model = fill(Path("unused"), steps)
    assert index.lookup(timestamp) == max([o for t, o in model if t <= timestamp], default=BASE)
    assert index.last() == (model[-1] if model else (-1, BASE))


@properties
@given(offered, st.integers(0, 300))
def test_truncation_keeps_what_lies_below_the_offset(steps: list[tuple[int, int]], distance: int) -> None:
    index, model = fill(Path("unused"), steps)
    index.truncate_to(BASE + distance)
    kept = [(t, o) for t, o in model if o < BASE + distance]
    assert len(index) == len(kept)
    assert index.last() == (kept[-1] if kept else (-1, BASE))


@properties
@given(offered)
def test_the_file_holds_kafkas_bytes_and_reads_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("index") / "i.timeindex"
    index, model = fill(path, steps)
    index.write()
    assert path.read_bytes() == b"".join(struct.pack(">qi", t, o - BASE) for t, o in model)
    again = TimeIndex(OS_DISK, str(path), BASE)
    again.load()
    # A lone entry of timestamp 0 at offset 0 looks like Kafka's preallocated zeros; it says nothing either.
    if model != [(0, BASE)]:
        assert again.last() == (model[-1] if model else (-1, BASE))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\0" * 11 + b"\1" * 3, id="torn"),
        pytest.param(struct.pack(">qiqi", 9, 1, 5, 2), id="time goes back"),
        pytest.param(struct.pack(">qiqi", 5, 3, 9, 2), id="offsets go back"),
        pytest.param(struct.pack(">qi", -5, 3), id="negative"),
    ],
)
def test_an_insane_index_is_told_apart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.timeindex"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        TimeIndex(OS_DISK, str(path), BASE).load()


def test_a_missing_index_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="missing"):
        TimeIndex(OS_DISK, str(tmp_path / "none.timeindex"), BASE).load()
