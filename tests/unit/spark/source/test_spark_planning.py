"""How ranges become tasks, and what filters leave of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    StringStartsWith,
)

from moldau.errors import ConfigError
from moldau.spark.source.offsets import parse_ranges, ranges_to_json
from moldau.spark.source.planning import split
from moldau.spark.source.pushdown import Pruning
from moldau.spark.source.read_plan import OffsetRange, remaining

RANGES = st.lists(
    st.builds(
        lambda topic, partition, start, size: OffsetRange(topic, partition, start, start + size),
        st.sampled_from("ab"),
        st.integers(0, 9),
        st.integers(0, 10**6),
        st.integers(0, 10**4),
    ),
    unique_by=lambda part: (part.topic, part.partition),
)


def sizes(*wanted: int) -> list[OffsetRange]:
    return [OffsetRange("t", index, 0, size) for index, size in enumerate(wanted)]


def test_a_partition_is_a_task_and_an_empty_one_is_none() -> None:
    assert split(sizes(5, 0, 7), None, None) == [OffsetRange("t", 0, 0, 5), OffsetRange("t", 2, 0, 7)]


@pytest.mark.parametrize(
    ("wanted", "partitions_min", "rows_max", "expected"),
    [
        ((1,), 3, None, [1]),
        ((9,), 3, None, [3, 3, 3]),
        ((10,), 3, None, [3, 3, 4]),
        ((1, 2, 1), 3, None, [1, 2, 1]),
        ((1, 2, 1), 4, None, [1, 1, 1, 1]),
        ((10_000, 1), 3, None, [5_000, 5_000, 1]),  # a small partition stays whole, the large one makes up for it
        ((100, 100, 1_000), 6, None, [100, 100, 250, 250, 250, 250]),
        ((25, 10), None, 10, [8, 8, 9, 10]),
        ((40, 10), 12, 10, [5] * 10),
    ],
)
def test_tasks_are_cut_in_the_proportions_of_sparks_kafka_source(
    wanted: tuple[int, ...], partitions_min: int, rows_max: int, expected: list[int]
) -> None:
    tasks = split(sizes(*wanted), partitions_min, rows_max)
    assert [task.end - task.start for task in tasks] == expected


@given(ranges=RANGES, partitions_min=st.none() | st.integers(1, 50), rows_max=st.none() | st.integers(1, 5000))
def test_tasks_cover_their_ranges_once_whatever_order_these_come_in(
    ranges: list[OffsetRange], partitions_min: int | None, rows_max: int | None
) -> None:
    tasks = split(ranges, partitions_min, rows_max)
    assert tasks == split(reversed(ranges), partitions_min, rows_max)
    for topic, partition, start, end, _ in ranges:
        parts = [task for task in tasks if (task.topic, task.partition) == (topic, partition)]
        assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
        assert not parts or (parts[0].start, parts[-1].end) == (start, end)
        assert bool(parts) == (end > start)
    assert all(0 < task.end - task.start <= (rows_max or 10**9) for task in tasks)


def pruned(*filters: Filter) -> tuple[list[tuple[str, int, int, int]], list[Filter]]:
    pruning = Pruning()
    kept = pruning.take(filters)
    ranges = [OffsetRange(topic, partition, 10, 100) for topic in ("a", "b") for partition in (0, 1)]
    return [part[:4] for part in map(pruning.cut, ranges) if part.start < part.end], kept


OFFSET, PARTITION, TOPIC, TIMESTAMP = ("offset",), ("partition",), ("topic",), ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([EqualTo(OFFSET, 20)], (20, 21)),
        ([GreaterThan(OFFSET, 20)], (21, 100)),
        ([GreaterThanOrEqual(OFFSET, 20), LessThan(OFFSET, 30)], (20, 30)),
        ([LessThanOrEqual(OFFSET, 20), GreaterThan(OFFSET, 5)], (10, 21)),
    ],
)
def test_offsets_outside_a_filter_are_not_read(filters: list[Filter], left: tuple[int, int]) -> None:
    ranges, kept = pruned(*filters, EqualTo(TOPIC, "a"), EqualTo(PARTITION, 1))
    assert ranges == [("a", 1, *left)]
    assert kept == []


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([In(TOPIC, ("b", "c")), GreaterThan(PARTITION, 0)], [("b", 1)]),
        ([Not(EqualTo(TOPIC, "a")), Not(In(PARTITION, (1,)))], [("b", 0)]),
        ([StringStartsWith(TOPIC, "a"), LessThanOrEqual(PARTITION, 0)], [("a", 0)]),
        ([EqualTo(TOPIC, "c")], []),
    ],
)
def test_topics_and_partitions_outside_a_filter_are_not_read(
    filters: list[Filter], left: list[tuple[str, int]]
) -> None:
    ranges, kept = pruned(*filters)
    assert [part[:2] for part in ranges] == left
    assert kept == []


def test_spark_still_applies_what_a_range_cannot_say() -> None:
    several = In(OFFSET, (90, 20, None))
    others = [
        Not(EqualTo(OFFSET, 15)),
        Not(In(PARTITION, (7, None))),
        EqualTo(("value", "offset"), 3),
        IsNotNull(("key",)),
    ]
    ranges, kept = pruned(several, *others, IsNotNull(OFFSET))
    assert {part[2:] for part in ranges} == {(20, 91)}
    assert kept == [several, *others]


def test_a_time_bounds_offsets_from_below_only() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1_500, tzinfo=UTC)
    pruning = Pruning()
    filters = [GreaterThanOrEqual(TIMESTAMP, at), LessThan(TIMESTAMP, at)]
    assert pruning.take(filters) == filters
    assert pruning.timestamp_ms == 1_767_225_600_001
    whole = OffsetRange("a", 0, 10, 100)
    assert pruning.cut(whole) == whole


def test_records_without_a_timestamp_are_older_than_any_time_a_broker_can_be_asked_for() -> None:
    pruning = Pruning()
    pruning.take([GreaterThanOrEqual(TIMESTAMP, datetime(1960, 1, 1, tzinfo=UTC))])
    assert pruning.timestamp_ms is None  # theirs is -1, a millisecond before 1970


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.sets(st.integers(0, 40)).map(sorted),
)
def test_what_is_left_of_a_range_has_every_offset_that_is_not_excluded(start: int, size: int, bad: list[int]) -> None:
    wanted = OffsetRange("views", 1, start, start + size)
    others = [OffsetRange("views", 0, 0, 100), OffsetRange("view", 1, 0, 100)]
    excluded = sorted([*others, *(OffsetRange("views", 1, offset, offset + 1) for offset in bad)])
    left = [offset for part in remaining(wanted, excluded) for offset in range(part.start, part.end)]
    assert left == [offset for offset in range(start, start + size) if offset not in bad]


def test_ranges_are_json_in_options() -> None:
    text = '{"views": {"1": [[9, 12], [5, 6]], "0": []}}'
    found = parse_ranges("excludedOffsets", text)
    assert found == (OffsetRange("views", 1, 5, 6), OffsetRange("views", 1, 9, 12))
    assert ranges_to_json(found) == {"views": {"1": [[5, 6], [9, 12]]}}
    for wrong in ("?", "[]", '{"a": {"0": [1, 2]}}'):
        with pytest.raises(ConfigError, match=r"option excludedOffsets=.*expected ranges of offsets, like"):
            parse_ranges("excludedOffsets", wrong)
