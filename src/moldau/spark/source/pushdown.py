"""Filters of a batch query that exclude partitions and offsets from being read.

`topic`, `partition` and `offset` are known without reading, so these filters are applied here, and Spark need not apply
them again. For `timestamp`, only a lower bound can be used: the broker finds the first record at or after a time, and
all records before it are older. Older records may follow it, because of clocks and retries of producers. So an upper
bound says nothing about offsets, and Spark still has to apply the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from moldau.spark.source.read_plan import OffsetRange

_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    In: lambda value, values: value in values,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: lambda value, part: part in value,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


class Pruning:
    """What the filters leave of ranges; `timestamp_ms` is the earliest one wanted, None where all are."""

    def __init__(self) -> None:
        self.timestamp_ms: int | None = None
        self._tests: list[tuple[str, Callable[[Any], bool]]] = []
        self._offset_min = 0
        self._offset_end: int | None = None

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Returns those that Spark still has to apply."""
        return [each for each in filters if not self._take(each)]

    def cut(self, wanted: OffsetRange) -> OffsetRange:
        """The part of a range that may hold rows, which may be none of it."""
        values = {"topic": wanted.topic, "partition": wanted.partition}
        if not all(test(values[column]) for column, test in self._tests):
            return wanted._replace(end=wanted.start)
        end = wanted.end if self._offset_end is None else min(wanted.end, self._offset_end)
        return wanted._replace(start=max(wanted.start, self._offset_min), end=end)

    def _take(self, each: Filter) -> bool:
        negated = isinstance(each, Not)
        inner = each.child if isinstance(each, Not) else each
        attribute: tuple[str, ...] = getattr(inner, "attribute", ())
        column = ".".join(attribute)
        if isinstance(inner, IsNotNull):
            return column in _NEVER_NULL and not negated
        value = getattr(inner, "value", None)
        compare = _COMPARISONS.get(type(inner))
        if compare is None or value is None or (negated and isinstance(inner, In) and None in value):
            return False  # what is unequal to null is no more true than what is equal
        if column in ("topic", "partition"):
            self._tests.append((column, lambda given: compare(given, value) is not negated))
            return True
        if column == "offset" and not negated:
            return self._take_offset(inner, value)
        if column == "timestamp" and not negated:
            self._take_timestamp(inner, value)
        return False

    def _take_offset(self, each: Filter, value: Any) -> bool:
        """True where a range of offsets says the same."""
        values = [v for v in value if v is not None] if isinstance(each, In) else [value]
        if not values:
            return False
        if isinstance(each, EqualTo | In | GreaterThan | GreaterThanOrEqual):
            self._offset_min = max(self._offset_min, min(values) + isinstance(each, GreaterThan))
        if isinstance(each, EqualTo | In | LessThan | LessThanOrEqual):
            end = max(values) + (not isinstance(each, LessThan))
            self._offset_end = end if self._offset_end is None else min(self._offset_end, end)
        return not isinstance(each, In)

    def _take_timestamp(self, each: Filter, value: Any) -> None:
        if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual) and isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            # Rounded down to what Kafka counts in: Spark looks at the rows again.
            timestamp_ms = (aware - _EPOCH) // timedelta(milliseconds=1)
            # Records without a timestamp have -1, and brokers take negative times for words.
            if timestamp_ms > (self.timestamp_ms or 0):
                self.timestamp_ms = timestamp_ms
