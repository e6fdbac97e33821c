"""Runs: neighbouring offsets of which the same is true, as one entry of a list that is in order and without overlap.

A run is a named tuple whose first two fields are its first and its last offset; the others are what is true of them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Protocol, Self, TypeVar


class AnyRun(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    def _replace(self, *, first: int = ..., last: int = ...) -> Self: ...
    def __getitem__(self, index: slice, /) -> tuple[Any, ...]: ...


R = TypeVar("R", bound=AnyRun)


def first_of(run: AnyRun) -> int:
    return run.first


def cut(runs: list[R], offset: int) -> int:
    """The number of the first run from `offset` on; one that spans it becomes two."""
    number = bisect_left(runs, offset, key=first_of)
    if number and runs[number - 1].last >= offset:
        run = runs[number - 1]
        runs[number - 1 : number] = [run._replace(last=offset - 1), run._replace(first=offset)]
    return number


def put(runs: list[R], new: R) -> None:
    """In place of whatever was said of these offsets, and one with neighbours of which the same is true."""
    begin, end = cut(runs, new.first), cut(runs, new.last + 1)
    if end < len(runs) and runs[end].first == new.last + 1 and runs[end][2:] == new[2:]:
        new = new._replace(last=runs[end].last)
        end += 1
    if begin and runs[begin - 1].last == new.first - 1 and runs[begin - 1][2:] == new[2:]:
        begin -= 1
        new = new._replace(first=runs[begin].first)
    runs[begin:end] = [new]
