"""JSON: what is written is read, what Spark's from_json reads is read, and no bytes crash it."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ConfigError
from moldau.spark.formats.columns import ColumnOptions, arrow_type
from moldau.spark.formats.ddl import parse_type
from moldau.spark.formats.json import JsonReader, reader
from moldau.spark.formats.json_text import JsonWriter
from moldau.spark.options import Options
from tests.examples import examples
from tests.unit.spark.formats.typed_values import typed_rows

# Enough rows beside the one in question that they are read as a block, and their neighbours show any shift.
_BESIDE = 40


def read(schema: str, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    decoded = JsonReader(parse_type(schema)).decode(pa.array(values, pa.binary()))
    assert len(decoded.values) == len(values)
    return decoded.values.to_pylist(), dict(decoded.reasons)


def read_among_others(schema: str, value: bytes) -> Any:
    """The value, read alone and in the middle of good ones; its reason where it is bad."""
    good = b"null" if not schema.startswith("a ") else b'{"a":null}'
    alone, why_alone = read(schema, value)
    rows, why = read(schema, *[good] * _BESIDE, value, *[good] * _BESIDE)
    assert rows[:_BESIDE] + rows[_BESIDE + 1 :] == read(schema, *[good] * _BESIDE * 2)[0]
    assert repr(rows[_BESIDE]) == repr(alone[0])  # NaN is not equal to itself
    assert list(why.values()) == list(why_alone.values())
    assert set(why) <= {_BESIDE}
    return why.get(_BESIDE, rows[_BESIDE])


@given(typed_rows())
@settings(deadline=None, max_examples=examples(60))
def test_what_is_written_is_read_again(typed: tuple[Any, list[Any]]) -> None:
    kind, rows = typed
    array = pa.array(rows, arrow_type(kind))
    decoded = JsonReader(kind).decode(JsonWriter().encode(array))
    assert decoded.reasons == {}
    assert decoded.values.type == array.type
    assert decoded.values.to_pylist() == array.to_pylist()


@given(st.lists(st.binary(max_size=30) | st.none(), max_size=60), st.integers(0, 60))
@settings(deadline=None, max_examples=examples(100))
def test_any_bytes_are_a_value_or_a_reason(values: list[bytes | None], good: int) -> None:
    values = [*[b'{"a":1}'] * good, *values]
    rows, reasons = read("a bigint, b string", *values)
    assert rows[:good] == [{"a": 1, "b": None}] * good
    for row, value in enumerate(values):
        if rows[row] is None and row not in reasons:
            assert value is None or value.strip() == b"null"


@given(st.data())
@settings(deadline=None, max_examples=examples(100))
def test_a_record_with_changed_bytes_never_harms_its_neighbours(data: st.DataObject) -> None:
    text = bytearray(b'{"a":12,"b":{"c":["x","y"],"d":"2020-01-01T00:00:00Z"},"e":1.5}')
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b"}", b"\n", b"]}\n"])
        )
    good = b'{"a":1}'
    rows, reasons = read(
        "a bigint, b struct<c:array<string>,d:timestamp>, e double", *[good] * 20, bytes(text), *[good] * 20
    )
    expected = {"a": 1, "b": None, "e": None}
    assert rows[:20] == rows[21:] == [expected] * 20
    assert set(reasons) <= {20}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("a bigint", b'{"a":1,"unknown":{"x":[1,2]}}', {"a": 1}),
        ("a bigint", b"{}", {"a": None}),
        ("a bigint", b' {"a"\n:\r\n1 } ', {"a": 1}),
        ("a bigint", b'{"a":1,"a":2}', {"a": 2}),
        ("a bigint", b"null", None),
        ("a string", b'{"a":12.50}', {"a": "12.50"}),
        ("a string", b'{"a":{"b":[1, true]}}', {"a": '{"b":[1,true]}'}),
        ("a double", b'{"a":7}', {"a": 7.0}),
        ("a double", b'{"a":"NaN"}', {"a": pytest.approx(float("nan"), nan_ok=True)}),
        ("a decimal(6,2)", b'{"a":1.005}', {"a": Decimal("1.01")}),
        ("a decimal(6,2)", b'{"a":"12.5"}', {"a": Decimal("12.50")}),
        ("a decimal(6,2)", b'{"a":1e-999999999}', {"a": Decimal(0)}),  # Arrow reads behind a table for these
        ("a decimal(6,2)", b'{"a":"1e-\\u0039\\u0039\\u0039\\u0039\\u0039\\u0039\\u0039"}', {"a": Decimal(0)}),
        ("decimal(6,2)", b"1e-9999999", Decimal(0)),
        ("a array<decimal(6,2)>", b'{"a":[0.' + b"0" * 1_000_000 + b"1]}", {"a": [Decimal(0)]}),
        ("a string", b'{"a":"]}\\"]}{\\\\"}', {"a": ']}"]}{\\'}),
        ("a date", b'{"a":"2020-02-29"}', {"a": date(2020, 2, 29)}),
        ("a timestamp", b'{"a":"2020-01-01T02:00:00.5+02:00"}', {"a": datetime(2020, 1, 1, 0, 0, 0, 500_000, UTC)}),
        ("a timestamp", b'{"a":"2020-01-01 00:00:00"}', {"a": datetime(2020, 1, 1, tzinfo=UTC)}),
        ("a timestamp", b'{"a":"2020-01-01T00:00:00.123456789Z"}', {"a": datetime(2020, 1, 1, 0, 0, 0, 123456, UTC)}),
        ("a timestamp", b'{"a":1577836800}', {"a": datetime(2020, 1, 1, tzinfo=UTC)}),
        ("a binary", b'{"a":"AAEC"}', {"a": b"\0\1\2"}),
        ("a map<string,int>", b'{"a":{"x":1,"y":null}}', {"a": [("x", 1), ("y", None)]}),
        ("array<int>", b"[1,null,3]", [1, None, 3]),
        ("bigint", b"42", 42),
        ("string", b'"text"', "text"),
        ("string", b"[1]", "[1]"),
    ],
)  # fmt: skip
def test_values_are_read_as_spark_would(schema: str, text: bytes, value: Any) -> None:
    assert read_among_others(schema, text) == value


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ("a bigint", b"", "not JSON: Expecting value"),
        ("a bigint", b"{", "not JSON: Expecting property name"),
        ("a bigint", b'{"a":1} x', "not JSON: Extra data"),
        ("a bigint", b'{"a":1},{"a":2}', "not JSON: Extra data"),
        ("a bigint", b'{"a":1}\n{"a":2}', "not JSON: Extra data"),
        ("a bigint", b'{"a":1}]}\n{"_":[{"a":2}', "not JSON: Extra data"),
        ("a bigint", b'{"a":1}],"x":[{"a":2}', "not JSON: Extra data"),
        ("a bigint", b'{"a":1}\0', "not JSON: Extra data"),
        ("a bigint", b'\xef\xbb\xbf{"a":1}', "not JSON: Expecting value"),
        ("a bigint", b'{"a":"1"}', 'a: expected bigint, found "1"'),
        ("a bigint", b'{"a":1.0}', "a: expected bigint, found 1.0"),
        ("a bigint", b'{"a":9223372036854775808}', "a: expected bigint, found 9223372036854775808"),
        ("a tinyint", b'{"a":128}', "a: expected tinyint, found 128"),
        ("a bigint", b"[1]", "expected an object, found [1]"),
        ("a bigint", b"7", "expected an object, found 7"),
        ("a array<int>", b'{"a":{}}', "a: expected an array, found {}"),
        ("a struct<b:struct<c:boolean>>", b'{"a":{"b":{"c":0}}}', "a: b: c: expected boolean, found 0"),
        ("a decimal(4,2)", b'{"a":123.4}', "a: expected decimal(4,2), found 123.4"),
        ("a decimal(4,2)", b'{"a":"NaN"}', "The string 'NaN' is not a valid decimal"),
        ("a decimal(4,2)", b'{"a":1e999999999}', "a: expected decimal(4,2), found 1e999999999"),
        ("a date", b'{"a":"2020-02-30"}', "a: expected a date"),
        ("a timestamp", b'{"a":"x in row %b"}' % (b"1" * 5000), "a: expected a timestamp"),
        ("a timestamp_ntz", b'{"a":"0001-01-01T00:00:00.1234567+05:00"}', "a: expected a timestamp"),
        ("a timestamp", b'{"a":"yesterday"}', "a: expected a timestamp"),
        ("a binary", b'{"a":"?"}', "a: expected base64"),
        ("a string", b'{"a":"\xff"}', "no UTF-8: byte 0xff at position 6"),
        ("a string", b'{"a":"\\ud800"}', "a: an unpaired surrogate is not a character"),
        ("a string", b'{"a":' + b"[" * 800 + b"]" * 800 + b"}", "objects and arrays are nested too deeply"),
        ("a bigint", b'{"a":' + b"[" * 800 + b"]" * 800 + b"}", "objects and arrays are nested too deeply"),
        ("a string", b'{"a":' + b"[" * 100_000, "objects and arrays are nested too deeply"),
    ],
)  # fmt: skip
def test_a_bad_record_has_a_reason(schema: str, text: bytes, why: str) -> None:
    found = read_among_others(schema, text)
    assert isinstance(found, str)
    assert found.startswith(why)


def test_many_bad_records_among_good_ones_are_all_found() -> None:
    values = [b'{"a":%d}' % row if row % 7 else b'{"a":"%d"}' % row for row in range(5000)]
    rows, reasons = read("a bigint", *values)
    assert set(reasons) == set(range(0, 5000, 7))
    assert all(rows[row] == {"a": row} for row in range(5000) if row % 7)


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([b'{"b":1,"a":"x"}', b'{"a":null,"c":[1.5,2]}'], "a STRING, b BIGINT, c ARRAY<DOUBLE>"),
        ([b'{"a":1}', b'{"a":2.5}'], "a DOUBLE"),
        ([b'{"a":1}', b'{"a":"x"}', b'{"a":{}}'], "a STRING"),
        ([b'{"a":{"x":1}}', b'{"a":{"y":true}}'], "a STRUCT<x: BIGINT, y: BOOLEAN>"),
        ([b'{"a":[{"x":1},{"y":null}]}', b"no json", None], "a ARRAY<STRUCT<x: BIGINT, y: STRING>>"),
        ([b'{"a":1}', b'{"a":12345678901234567890}'], "a DECIMAL(38,0)"),
        ([b"1", b"2"], "BIGINT"),
        ([b'{"\\ud800":1}', b'{"a":1}'], "a BIGINT"),
    ],
)
def test_a_schema_is_inferred_as_spark_would(values: list[bytes | None], ddl: str) -> None:
    found = reader(ColumnOptions(Options({}), "value"), lambda column, rows: values[:rows], None)
    assert found.spark_type == parse_type(ddl)


def test_an_empty_topic_asks_for_a_schema() -> None:
    with pytest.raises(ConfigError, match=r"give it in option key\.schema"):
        reader(ColumnOptions(Options({}), "key"), lambda column, rows: [], None)


def test_the_sample_is_as_large_as_asked_for() -> None:
    asked: list[tuple[str, int]] = []

    def sample(column: str, rows: int) -> list[bytes]:
        asked.append((column, rows))
        return [b"1"]

    reader(ColumnOptions(Options({"value.schema.sample": "7"}), "value"), sample, None)
    assert asked == [("value", 7)]


def test_a_reader_survives_its_way_to_a_task() -> None:
    sent = pickle.loads(pickle.dumps(JsonReader(parse_type("a date"))))
    assert sent.decode(pa.array([b'{"a":"2020-01-01"}'])).values.to_pylist() == [{"a": date(2020, 1, 1)}]


def test_written_json_is_json_for_others_too() -> None:
    rows = [{"a": 'quote " \\ line\n\x01', "b": float("nan"), "c": 1.0, "d": {"e": None}, "f": None}, None]
    kind = arrow_type(parse_type("a string, b double, c double, d struct<e:int>, f map<string,int>"))
    texts = JsonWriter().encode(pa.array(rows, kind)).to_pylist()
    assert json.loads(texts[0]) == {"a": 'quote " \\ line\n\x01', "b": "NaN", "c": 1.0, "d": {}}
    assert b'"c":1.0' in texts[0]
    assert texts[1] is None


def test_types_json_cannot_hold_are_refused_on_the_driver() -> None:
    with pytest.raises(ConfigError, match="its keys are strings"):
        JsonReader(parse_type("map<int,int>"))
