from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.disk import OS_DISK
from moldau.errors import CorruptFileError
from moldau.log.epoch_cache import EpochCache
from tests.unit.log.log_helpers import properties

appends = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=20)


def replay(cache: EpochCache, steps: list[tuple[int, int]]) -> list[int]:
    """Appends in growing epochs; the model is the epoch of every offset."""
    model: list[int] = []
    epoch = 0
    for epoch_step, count in steps:
        epoch += epoch_step
        cache.assign(epoch, len(model))
        model += [epoch] * count
    return model


@properties
@given(appends)
def test_every_offset_has_the_epoch_it_was_written_in(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    cache = EpochCache(OS_DISK, tmp_path_factory.mktemp("epochs"))
    model = replay(cache, steps)
    assert [cache.epoch_of(offset) for offset in range(len(model))] == model


@properties
@given(appends, st.integers(-1, 45))
def test_an_epoch_ends_where_the_next_one_begins(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], epoch: int
) -> None:
    cache = EpochCache(OS_DISK, tmp_path_factory.mktemp("epochs"))
    model = replay(cache, steps)
    if epoch < 0 or epoch > model[-1]:
        expected = (-1, -1)
    elif epoch < model[0]:
        expected = (epoch, 0)
    else:
        known = max(e for e in model if e <= epoch)
        expected = (known, max(offset for offset, e in enumerate(model) if e == known) + 1)
    assert cache.end_offset_for(epoch, len(model)) == expected


@properties
@given(appends, st.integers(0, 60), st.integers(0, 60))
def test_truncation_forgets_what_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], start: int, end: int
) -> None:
    directory = tmp_path_factory.mktemp("epochs")
    cache = EpochCache(OS_DISK, directory)
    model = replay(cache, steps)
    cache.truncate_from_end(end)
    cache.truncate_from_start(min(start, end))
    for offset in range(min(start, end), min(end, len(model))):
        assert cache.epoch_of(offset) == model[offset]
    assert all(begin < end for _, begin in cache.entries() if begin > min(start, end))
    cache.flush()
    if cache.entries() or (directory / "leader-epoch-checkpoint").exists():
        assert EpochCache.load(OS_DISK, directory).entries() == cache.entries()


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    cache = EpochCache(OS_DISK, tmp_path)
    cache.assign(3, 0)
    cache.assign(5, 120)
    cache.flush()
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n3 0\n5 120\n"


def test_a_newer_leader_overrules_epochs_that_never_wrote(tmp_path: Path) -> None:
    cache = EpochCache(OS_DISK, tmp_path)
    cache.assign(1, 0)
    cache.assign(2, 10)
    cache.assign(4, 10)
    assert cache.entries() == [(1, 0), (4, 10)]


@pytest.mark.parametrize("text", ["1\n0\n", "0\n2\n1 0\n", "0\n1\nx y\n", "0\n1\n1\n"])
def test_a_damaged_file_is_told_apart(tmp_path: Path, text: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text(text)
    with pytest.raises(CorruptFileError, match="leader-epoch-checkpoint"):
        EpochCache.load(OS_DISK, tmp_path)
