"""Values and rows of pipeline tests: conversion by type, and what counts as the same."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import types as t

from moldau.pipelines.engine.case_rows import compare
from moldau.pipelines.engine.case_values import as_json, converted, converted_rows, is_same, shown

ROW = t.StructType(
    [
        t.StructField("at", t.TimestampType()),
        t.StructField("day", t.DateType()),
        t.StructField("price", t.DecimalType(10, 2)),
        t.StructField("share", t.DoubleType()),
        t.StructField("count", t.LongType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("tags", t.ArrayType(t.StructType([t.StructField("name", t.StringType())]))),
        t.StructField("Labels", t.MapType(t.StringType(), t.IntegerType())),
    ]
)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "given", "value"),
    [
        ("at", "2026-01-01 00:00:00", NEW_YEAR),
        ("at", "2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("at", "2026-01-01", NEW_YEAR),
        ("day", "2026-01-01", date(2026, 1, 1)),
        ("price", 1.1, Decimal("1.1")),
        ("price", "12.50", Decimal("12.5")),
        ("share", 1, 1.0),
        ("count", 3.0, 3),
        ("raw", "abc", b"abc"),
        ("tags", [{"name": 5}, {}], [{"name": "5"}, {}]),
        ("labels", {"a": 1}, {"a": 1}),
        ("count", None, None),
    ],
)
def test_values_are_converted_by_the_type_of_their_column(column: str, given: object, value: object) -> None:
    row = converted({column: given}, ROW, UTC)
    assert list(row.values()) == [value]
    assert row.keys() <= {field.name for field in ROW}


def test_times_without_a_zone_are_in_the_zone_of_the_session() -> None:
    row = converted({"at": "2026-01-01 01:00:00"}, ROW, ZoneInfo("Europe/Prague"))
    assert row == {"at": NEW_YEAR}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"at": "soon"}, "at: 'soon': expected a time, such as 2026-01-31 12:00:00"),
        ({"at": 12}, "at: 12: expected a time, such as 2026-01-31 12:00:00"),
        ({"count": "many"}, "count: 'many': expected a whole number"),
        ({"count": 1.5}, "count: 1.5: expected a whole number"),
        ({"count": True}, "count: True: expected a whole number"),
        ({"price": "cheap"}, "price: 'cheap': expected a number"),
        ({"tags": "a"}, "tags: 'a': expected a list"),
        ({"tags": [{"nam": "a"}]}, "tags: there is no column 'nam': did you mean 'name'?"),
        ({"cuont": 1}, "there is no column 'cuont': did you mean 'count'?"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        converted(row, ROW, UTC)


def test_rows_survive_the_way_through_json() -> None:
    row = converted(
        {"at": "2026-01-01", "day": "2026-01-01", "price": 1.25, "raw": "å", "share": 0.1, "tags": [{"name": "x"}]},
        ROW,
        UTC,
    )
    assert converted_rows([as_json(row)], ROW, UTC) == [row]


def test_only_named_fields_are_compared_at_every_level() -> None:
    assert is_same({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3})
    assert not is_same({"a": {"b": 1}}, {"a": {"b": 2}})
    assert not is_same({"a": None}, {"a": 0})
    assert is_same([0.1 + 0.2], [0.3])
    assert not is_same([1], [1, 2])


def test_values_are_shown_as_in_a_file() -> None:
    assert shown({"at": NEW_YEAR, "a": [None, True, b"x"], "n": 1.5}) == (
        "{at: 2026-01-01 00:00:00, a: [null, true, x], n: 1.5}"
    )


def test_rows_match_in_any_order_and_each_only_once() -> None:
    assert compare([{"a": 2}, {"a": 1}], [{"a": 1, "b": 1}, {"a": 2, "b": 1}]) == []
    (difference,) = compare([{"a": 1}, {"a": 1}], [{"a": 1}])
    assert (difference.kind, difference.text, difference.index) == ("missing", "{a: 1}", 1)


def test_a_row_with_few_columns_leaves_its_match_to_one_that_needs_it() -> None:
    assert compare([{"a": 1}, {"a": 1, "b": 1}], [{"a": 1, "b": 1}, {"a": 1, "b": 2}]) == []


def test_many_equal_rows_match() -> None:
    assert compare([{"a": 1}] * 3000, [{"a": 1}] * 3000) == []


def test_a_difference_names_the_columns_that_differ() -> None:
    different, missing, unexpected = compare(
        [{"page": "/a", "views": 2}, {"page": "/b", "views": 7}],
        [{"page": "/a", "views": 1, "other": 0}, {"page": "/c", "views": 9, "other": 0}],
    )
    assert (different.kind, different.text) == ("different", "{page: /a}: views is 1, expected 2")
    assert (missing.kind, missing.text, missing.index) == ("missing", "{page: /b, views: 7}", 1)
    assert (unexpected.kind, unexpected.text) == ("unexpected", "{page: /c, views: 9}")


def test_a_result_that_is_wrong_as_a_whole_is_cut_short() -> None:
    differences = compare([], [{"a": number} for number in range(15)])
    assert len(differences) == 11
    assert differences[-1].text == "5 more"
