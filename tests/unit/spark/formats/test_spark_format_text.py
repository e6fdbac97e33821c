"""Strings are UTF-8, or bad."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, DayTimeIntervalType, StructType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats import encoder
from moldau.spark.formats.ddl import parse_type
from moldau.spark.options import Options
from moldau.spark.source.typed_fields import typed_fields


@given(st.lists(st.none() | st.binary(max_size=6) | st.text(max_size=4).map(lambda t: t.encode(errors="ignore"))))
def test_utf8_is_text_and_all_else_has_a_reason(values: list[bytes | None]) -> None:
    typed = typed_fields(Options({"value.format": "string"}), lambda column, rows: [])
    assert typed is not None
    decoded = typed.readers["value"].decode(pa.array(values, pa.binary()))
    assert decoded.values.type == pa.string()
    for row, value in enumerate(values):
        if row in decoded.reasons:
            assert value is not None
            assert decoded.values[row].as_py() is None
            assert value.decode(errors="replace").encode() != value
        else:
            assert decoded.values[row].as_py() == (None if value is None else value.decode())


def test_numbers_are_written_as_text_where_the_format_is_string() -> None:
    typed = encoder(Options({"key.format": "string"}), StructType().add("key", "integer").add("value", "binary"))
    assert typed is not None
    batch = typed.apply(pa.record_batch({"key": pa.array([7, None], pa.int32()), "value": [b"\xff", None]}))
    assert batch.to_pylist() == [{"key": b"7", "value": b"\xff"}, {"key": None, "value": None}]
    assert typed.schema == parse_type("key binary, value binary")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("string", parse_type("a int"), "column value is struct<a:int>, which is not text: use value.format=json"),
        ("json", DayTimeIntervalType(), "column value: type duration.* cannot be written as JSON"),
    ],
)
def test_types_that_cannot_be_written_are_refused_on_the_driver(kind: str, value: DataType, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        encoder(Options({"value.format": kind}), StructType().add("value", value))


def test_bytes_that_are_no_text_are_an_error_not_a_loss() -> None:
    typed = encoder(Options({"value.format": "string"}), StructType().add("value", "binary"))
    assert typed is not None
    with pytest.raises(RecordFormatError, match="a row is not text"):
        typed.apply(pa.record_batch({"value": [b"\xff"]}))
