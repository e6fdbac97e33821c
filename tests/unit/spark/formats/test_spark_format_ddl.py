"""Spark's DDL is read without Spark's JVM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from moldau.errors import ConfigError
from moldau.spark.formats.ddl import parse_type, schema_option
from tests.unit.spark.formats.typed_values import typed_rows


@given(typed_rows())
def test_what_spark_prints_is_read(typed: tuple[t.StructType, list[object]]) -> None:
    kind, _ = typed
    assert parse_type(kind.simpleString()) == kind
    assert parse_type(kind.json()) == kind
    assert parse_type(", ".join(f"`{field.name}` {field.dataType.simpleString().upper()}" for field in kind)) == (
        t.StructType([t.StructField(field.name, parse_type(field.dataType.simpleString().upper())) for field in kind])
    )


def test_words_around_a_type_are_read_over() -> None:
    kind = parse_type("`odd ``name` INT NOT NULL COMMENT 'it''s', b: decimal(5), c struct<>\n, d timestamp_ntz")
    assert isinstance(kind, t.StructType)
    assert kind.names == ["odd `name", "b", "c", "d"]
    assert kind["odd `name"].nullable
    assert kind["b"].dataType == t.DecimalType(5, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a int,",
        "a int b int",
        "a array<int",
        "a map<int>",
        "a decimal(39,1)",
        "a blob",
        "a int;",
        "{}",
        "a " + "array<" * 60,
    ],
)
def test_what_is_no_schema_is_refused_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"option value\.schema: "):
        schema_option("value.schema", text)


@given(st.text(st.sampled_from("ab int,<>():`'1{}"), max_size=30))
def test_any_text_is_a_schema_or_an_error(text: str) -> None:
    try:
        parse_type(text)
    except (ValueError, KeyError, TypeError):
        return
