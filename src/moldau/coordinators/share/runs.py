"""Runs: neighbouring offsets of which the same is true, as one entry of a list that is in order and without overlap.

A run is a named tuple whose first two fields are its first and its last offset; the others are what is true of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

_BEHIND_ALL = 1 << 64


class AnyRun(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    def _replace(self, *, first: int = ..., last: int = ...) -> Self: ...
    def __getitem__(self, index: slice, /) -> tuple[Any, ...]: ...


R = TypeVar("R", bound=AnyRun)


def find(runs: Sequence[Any], offset: int) -> int:
    """The number of the first run that does not begin before `offset`."""
    return bisect_left(runs, (offset,))


def cut(runs: list[R], offset: int) -> int:
    """The number of the first run from `offset` on; one that spans it becomes two."""
    number = find(runs, offset)
    if number and runs[number - 1].last >= offset:
        run = runs[number - 1]
        runs[number - 1 : number] = [run._replace(last=offset - 1), run._replace(first=offset)]
    return number


def put(runs: list[R], news: Sequence[R]) -> None:
    """In place of whatever was said of these offsets; the new ones are in order and without overlap, too.

    One pass over those it touches, however many they are: a client may treat each record of a large batch apart.
    """
    if news:
        begin, end = cut(runs, news[0].first), cut(runs, news[-1].last + 1)
        touched = slice(max(0, begin - 1), end + 1)
        runs[touched] = _joined(_overlaid(runs[touched], news))


def _overlaid(olds: Sequence[R], news: Sequence[R]) -> Iterator[R]:
    """The new ones, and of the old ones what lies between them."""
    number, done = 0, 0
    for new in (*news, None):
        begin = _BEHIND_ALL if new is None else new.first
        while number < len(olds) and olds[number].first < begin:
            old = olds[number]
            first, last = max(old.first, done), min(old.last, begin - 1)
            if first <= last:
                yield old if (first, last) == old[:2] else old._replace(first=first, last=last)
            if old.last >= begin:
                break
            number += 1
        if new is not None:
            yield new
            done = new.last + 1


def _joined(runs: Iterable[R]) -> list[R]:
    """Neighbours of which the same is true are one."""
    joined: list[R] = []
    for run in runs:
        if joined and joined[-1].last + 1 == run.first and joined[-1][2:] == run[2:]:
            joined[-1] = joined[-1]._replace(last=run.last)
        else:
            joined.append(run)
    return joined
