"""Rows that a test expects against the rows that came: any order, and only the columns that are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.pipelines.engine.case_values import is_same, shown

_SHOWN_MAX = 10  # differences of one kind; a test with more is wrong as a whole

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A row of the expectation, or of the result, or both if only some columns differ."""

    kind: str  # missing, unexpected, different, error, more
    text: str
    index: int | None = None  # of the expected row


def compare(expected: Sequence[Columns], actual: Sequence[Columns]) -> list[Difference]:
    """What differs: rows with some other values, then rows that are missing, then rows too many."""
    partner = _match(expected, actual)
    missing = [index for index in range(len(expected)) if index not in partner]
    used = set(partner.values())
    extra = [index for index in range(len(actual)) if index not in used]
    differences = []
    for index in list(missing):
        similar = _most_similar(expected[index], [(other, actual[other]) for other in extra])
        if similar is not None:
            missing.remove(index)
            extra.remove(similar)
            differences.append(Difference("different", _changes(expected[index], actual[similar]), index))
    named = dict.fromkeys(name for row in expected for name in row)
    differences += [Difference("missing", shown(expected[index]), index) for index in missing]
    differences += [Difference("unexpected", shown(_only(actual[index], named))) for index in extra]
    more = len(differences) - _SHOWN_MAX
    return [*differences[:_SHOWN_MAX], Difference("more", f"{more} more")] if more > 0 else differences


def _match(expected: Sequence[Columns], actual: Sequence[Columns]) -> dict[int, int]:
    """Expected rows to actual ones, as many as possible.

    A row with few columns may fit many: it gives its partner away to one that fits no other.
    """
    taken: dict[int, int] = {}

    def find_partner(index: int, tried: set[int]) -> bool:
        fits = (other for other, row in enumerate(actual) if other not in taken and is_same(expected[index], row))
        free = next(fits, None)
        if free is not None:
            taken[free] = index
            return True
        for other, row in enumerate(actual):
            if other not in tried and is_same(expected[index], row):
                tried.add(other)
                if find_partner(taken[other], tried):
                    taken[other] = index
                    return True
        return False

    for index in range(len(expected)):
        find_partner(index, set())
    return {index: other for other, index in taken.items()}


def _most_similar(wanted: Columns, candidates: Sequence[tuple[int, Columns]]) -> int | None:
    """The row with the most equal columns, if at least half of them are."""
    scores = [
        (sum(is_same(value, row.get(name)) for name, value in wanted.items()), index) for index, row in candidates
    ]
    best, index = max(scores, key=lambda score: (score[0], -score[1]), default=(0, 0))
    return index if best and best * 2 >= len(wanted) else None


def _changes(wanted: Columns, row: Columns) -> str:
    """The columns that agree, then each that does not."""
    same = {name: value for name, value in wanted.items() if is_same(value, row.get(name))}
    changes = [
        f"{name} is {shown(row.get(name))}, expected {shown(value)}"
        for name, value in wanted.items()
        if name not in same
    ]
    return f"{shown(same)}: {'; '.join(changes)}"


def _only(row: Columns, names: Mapping[str, None]) -> Columns:
    return {name: row.get(name) for name in names if name in row} if names else row
