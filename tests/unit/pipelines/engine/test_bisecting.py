"""The records at fault are found, all of them and no others, with few trials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.pipelines.engine.bad_records.bisecting import Part, Parts, Search, TooManyError, halves, size, without
from moldau.spark.source.read_plan import OffsetRange

Place = tuple[str, int]  # source and offset


def part(source: str, start: int, end: int) -> Part:
    return Part(source, OffsetRange("clicks", 0, start, end))


def places(parts: Parts) -> set[Place]:
    return {(one.source, offset) for one in parts for offset in range(one.range.start, one.range.end)}


class Trials:
    """Fails where one of these sets is part of what is tried."""

    def __init__(self, *bad: set[Place]) -> None:
        self.bad = bad
        self.count = 0

    def __call__(self, parts: Parts) -> str | None:
        self.count += 1
        assert size(parts)
        return next((f"bad {sorted(one)[0][1]}" for one in self.bad if one <= places(parts)), None)


BATCH = (part("a", 100, 164), part("b", 0, 36))
PLACES = st.sampled_from(sorted(places(BATCH)))


@given(st.sets(PLACES, max_size=8))
def test_all_single_culprits_are_found_and_no_others(bad: set[Place]) -> None:
    trials = Trials(*({one} for one in bad))
    found = Search(trials).culprits(BATCH)
    assert [(one.part.source, one.part.range.start) for one in found] == sorted(bad)
    assert all(one.part.size == 1 and one.reason == f"bad {one.part.range.start}" for one in found)
    assert trials.count <= 2 + 14 * len(bad)


@given(st.sets(st.frozensets(PLACES, min_size=1, max_size=3), max_size=4))
def test_the_rest_passes_although_records_fail_together(bad: set[frozenset[Place]]) -> None:
    trials = Trials(*map(set, bad))
    found = Search(trials).culprits(BATCH)
    assert trials(without(BATCH, [one.part for one in found])) is None
    taken = {(one.part.source, one.part.range.start) for one in found}
    assert len(taken) <= len(bad)
    assert all(any(one in among for among in bad) for one in taken)


def test_of_a_pair_the_last_is_taken_and_the_other_named() -> None:
    (found,) = Search(Trials({("a", 110), ("b", 5)})).culprits(BATCH)
    assert str(found.part) == "clicks-0@5"
    assert found.reason == "bad 110 (together with clicks-0@110)"


def test_a_batch_that_passes_has_no_culprits() -> None:
    trials = Trials()
    assert Search(trials).culprits(BATCH) == []
    assert trials.count == 1


def test_too_many_culprits_end_the_search() -> None:
    trials = Trials(*({one} for one in places(BATCH)))
    with pytest.raises(TooManyError):
        Search(trials, culprits_max=20).culprits(BATCH)
    assert trials.count <= 60
    with pytest.raises(TooManyError):
        Search(trials, trials_max=20).culprits(BATCH)


@given(st.lists(st.integers(0, 9), max_size=4))
def test_halves_have_all_records_between_them(sizes: list[int]) -> None:
    parts = tuple(part(f"s{at}", 10, 10 + count) for at, count in enumerate(sizes))
    left, right = halves(parts)
    assert places(left) | places(right) == places(parts)
    assert not places(left) & places(right)
    assert abs(size(left) - size(right)) <= 1
