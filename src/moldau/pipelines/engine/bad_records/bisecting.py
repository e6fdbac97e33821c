"""Which records of a batch make it fail, found by trying parts of it. Nothing here knows Spark or Kafka.

Most failures are of single records, so parts are halved: one or two trials for each halving. Some failures need two
records or more, such as a join or a sum that overflows: then no half fails. The search is then for a smallest set that
fails (QuickXplain), of which the last record is taken out, since the batch passes without it.

The work is limited. Many records at fault mean that something else is: a step, or a system that it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from moldau.spark.source.read_plan import OffsetRange, remaining

CULPRITS_MAX = 20
TRIALS_MAX = 500


class Part(NamedTuple):
    """Records of one source."""

    source: str
    range: OffsetRange

    @property
    def size(self) -> int:
        return self.range.end - self.range.start

    def __str__(self) -> str:
        return f"{self.range.topic}-{self.range.partition}@{self.range.start}"


Parts = tuple[Part, ...]


class Culprit(NamedTuple):
    part: Part  # one record
    reason: str


class TooManyError(Exception):
    """More records are at fault, or more trials needed, than the limits allow."""


class Search:
    """`trial` says why these records fail together, or None if they pass."""

    def __init__(
        self,
        trial: Callable[[Parts], str | None],
        *,
        culprits_max: int = CULPRITS_MAX,
        trials_max: int = TRIALS_MAX,
    ) -> None:
        self._try = trial
        self._culprits_max = culprits_max
        self._trials_left = trials_max
        self._found = 0

    def culprits(self, parts: Parts) -> list[Culprit]:
        """So that the rest passes; none if all pass together."""
        found: list[Culprit] = []
        rest = parts
        while (reason := self._trial(rest)) is not None:
            more = self._halve(rest, reason) or [self._from_a_set(rest, reason)]
            found += more
            rest = without(rest, [culprit.part for culprit in more])
        return sorted(found)

    def _trial(self, parts: Parts) -> str | None:
        if not parts:
            return None
        if self._trials_left == 0:
            raise TooManyError
        self._trials_left -= 1
        return self._try(parts)

    def _halve(self, parts: Parts, reason: str | None) -> list[Culprit]:
        """Single records that fail. Without a reason it is only assumed that these parts fail."""
        if size(parts) == 1:
            reason = self._trial(parts) if reason is None else reason
            return [] if reason is None else [self._count(Culprit(parts[0], reason))]
        left, right = halves(parts)
        left_reason = self._trial(left)
        if left_reason is None:
            return self._halve(right, None)
        found = self._halve(left, left_reason)
        right_reason = self._trial(right)
        return found if right_reason is None else found + self._halve(right, right_reason)

    def _from_a_set(self, parts: Parts, reason: str) -> Culprit:
        """The last record of a smallest set of records that fail together."""
        smallest = self._explain((), parts, is_tried=True)
        *others, last = sorted(smallest)
        reason = self._trial(smallest) or reason
        return self._count(Culprit(last, f"{reason} (together with {', '.join(map(str, others))})"))

    def _explain(self, background: Parts, parts: Parts, *, is_tried: bool) -> Parts:
        """What of `parts` is needed to fail with this background."""
        if not is_tried and self._trial(background) is not None:
            return ()
        if size(parts) == 1:
            return parts
        left, right = halves(parts)
        of_right = self._explain((*background, *left), right, is_tried=False)
        of_left = self._explain((*background, *of_right), left, is_tried=not of_right)
        return (*of_left, *of_right)

    def _count(self, culprit: Culprit) -> Culprit:
        self._found += 1
        if self._found > self._culprits_max:
            raise TooManyError
        return culprit


def size(parts: Iterable[Part]) -> int:
    return sum(part.size for part in parts)


def halves(parts: Parts) -> tuple[Parts, Parts]:
    """Both have records, of two or more."""
    wanted = size(parts) // 2
    left: list[Part] = []
    right: list[Part] = []
    for part in parts:
        cut = part.range.start + max(min(wanted - size(left), part.size), 0)
        left += [part._replace(range=part.range._replace(end=cut))] if cut > part.range.start else []
        right += [part._replace(range=part.range._replace(start=cut))] if cut < part.range.end else []
    return tuple(left), tuple(right)


def without(parts: Parts, excluded: Sequence[Part]) -> Parts:
    left: list[Part] = []
    for part in parts:
        own = sorted(one.range for one in excluded if one.source == part.source)
        left += [part._replace(range=one) for one in remaining(part.range, own)]
    return tuple(left)
