"""Avro: what is written is read, schemas may differ by Avro's rules, and no bytes crash it."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats import avro
from moldau.spark.formats.avro import AvroReader, AvroWriter
from moldau.spark.formats.avro_schema import avro_schema, load_schema, spark_type
from moldau.spark.formats.columns import ColumnOptions, arrow_type
from moldau.spark.formats.ddl import parse_type
from moldau.spark.options import Options
from tests.examples import examples
from tests.unit.spark.formats.typed_values import typed_rows

VIEW = {
    "type": "record",
    "name": "View",
    "namespace": "shop",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "user", "type": ["null", "long"], "default": None},
    ],
}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def written(schema: Any, *rows: Any) -> list[bytes]:
    values = []
    for row in rows:
        stream = BytesIO()
        schemaless_writer(stream, parse_schema(schema), row)
        values.append(stream.getvalue())
    return values


def read(reader: AvroReader, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    decoded = reader.decode(pa.array(values, pa.binary()))
    assert decoded.values.type == arrow_type(reader.spark_type)
    return decoded.values.to_pylist(), dict(decoded.reasons)


@given(typed_rows())
@settings(deadline=None, max_examples=examples(60))
def test_what_is_written_is_read_again(typed: tuple[Any, list[Any]]) -> None:
    kind, rows = typed
    schema = avro_schema(kind, "value")
    array = pa.array(rows, arrow_type(kind))
    reader = AvroReader(schema)
    assert reader.spark_type == kind
    assert read(reader, *AvroWriter(schema).encode(array).to_pylist()) == (array.to_pylist(), {})


@given(st.lists(st.binary(max_size=30), max_size=20))
@settings(deadline=None, max_examples=examples(100))
def test_any_bytes_are_a_value_or_a_reason(values: list[bytes]) -> None:
    (good,) = written(VIEW, {"page": "/", "user": 7})
    rows, reasons = read(AvroReader(VIEW), *values, good)
    assert rows[-1] == {"page": "/", "user": 7}
    assert all((rows[row] is None) == (row in reasons) for row in range(len(values)))


@given(st.data())
@settings(deadline=None, max_examples=examples(100))
def test_a_record_with_changed_bytes_never_crashes(data: st.DataObject) -> None:
    schema = record(
        ("a", "long"),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}),
        ("m", {"type": "map", "values": {"type": "array", "items": "double"}}),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
    )
    row = {"a": 1, "t": datetime(2020, 1, 1, tzinfo=UTC), "m": {"x": [1.0, 2.0]}, "d": Decimal("1.25")}
    text = bytearray(written(schema, row)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    rows, reasons = read(AvroReader(schema), bytes(text))
    assert (rows[0] is None) == (0 in reasons)


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}, "decimal(5,1)"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "string", "logicalType": "date"}, "string"),
        (["int", "long"], "bigint"),
        (["null", "float", "double"], "double"),
        (["null", "int", "string"], "struct<member0: int, member1: string>"),
        ({"type": "map", "values": ["null", "bytes"]}, "map<string, binary>"),
        (record(("a", {"type": "enum", "name": "x.E", "symbols": ["A"]}), ("b", "x.E")), "a string, b string"),
    ],
)  # fmt: skip
def test_types_are_those_of_sparks_avro_source(schema: Any, ddl: str) -> None:
    assert spark_type(load_schema(json.dumps(schema))) == parse_type(ddl)


def test_logical_types_are_sparks() -> None:
    schema = record(
        ("d", {"type": "int", "logicalType": "date"}),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}),
        ("m", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
    )
    row = {"d": date(2020, 2, 29), "t": datetime(2020, 1, 1, 0, 0, 0, 5000, UTC), "m": Decimal("-1.25")}
    assert read(AvroReader(schema), *written(schema, row)) == ([row], {})


def test_a_union_of_several_types_is_a_struct_of_members() -> None:
    event = {"type": "record", "name": "Event", "fields": [{"name": "id", "type": "int"}]}
    other = event | {"name": "Other"}
    time = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(("u", ["null", "int", "string", event, other, time]), ("e", "Event"))
    at = datetime(2020, 1, 1, tzinfo=UTC)
    values = [None, 3, "x", ("Event", {"id": 1}), ("Other", {"id": 2}), at]
    texts = written(schema, *({"u": value, "e": {"id": 9}} for value in values))
    for reader in (AvroReader(schema), AvroReader(schema, writers=schema)):
        rows, reasons = read(reader, *texts)
        found = [row["u"] and {name: value for name, value in row["u"].items() if value is not None} for row in rows]
        members = [{"member0": 3}, {"member1": "x"}, {"member2": {"id": 1}}, {"member3": {"id": 2}}, {"member4": at}]
        assert found == [None, *members]
        assert reasons == {}
        assert AvroWriter(schema).encode(pa.array(rows, arrow_type(reader.spark_type))).to_pylist() == texts


def test_branches_of_equal_python_types_are_told_apart() -> None:
    schema = record(("u", ["int", "long", "string"]))
    rows, _ = read(AvroReader(schema), b"\x00\x02", b"\x02\x02")
    assert [row["u"] for row in rows] == [
        {"member0": 1, "member1": None, "member2": None},
        {"member0": None, "member1": 1, "member2": None},
    ]


def test_equal_names_in_other_namespaces_are_other_types() -> None:
    one, other = ({"type": "enum", "name": "E", "namespace": name, "symbols": [name]} for name in "ab")
    schema = load_schema(json.dumps(record(("x", one), ("y", other), ("z", "a.E"))))
    for reader in (AvroReader(schema), AvroReader(schema, writers=schema)):
        assert read(reader, b"\0\0\0") == ([{"x": "a", "y": "b", "z": "a"}], {})


@pytest.mark.parametrize("text", [b"\x01\0", b"\0\x01\x02", b"\x02\x04\x02", b"\x04\0"])
def test_symbols_and_branches_outside_their_limits_are_bad(text: bytes) -> None:
    schema = record(("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}), ("u", ["null", "long"]))
    rows, reasons = read(AvroReader(schema), text, None)
    assert rows == [None, None]
    assert set(reasons) == {0}


def test_a_long_decimal_takes_no_time() -> None:
    schema = record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}))
    rows, reasons = read(AvroReader(schema), *written(record(("d", "bytes")), {"d": b"\x7f" * 1_000_000}))
    assert rows == [None]
    assert reasons[0].endswith("a decimal of 1000000 bytes")


def test_fields_are_matched_by_name_where_the_writers_schema_is_given() -> None:
    writers = record(("user", "int"), ("gone", "string"), ("page", "string"))
    readers = record(("page", "string"), ("user", "long"))
    readers["fields"].append({"name": "new", "type": "int", "default": 5})
    rows, reasons = read(AvroReader(readers, writers), *written(writers, {"user": 1, "gone": "", "page": "/"}))
    assert rows == [{"page": "/", "user": 1, "new": 5}]
    assert reasons == {}


def test_a_record_of_another_schema_is_bad_not_fatal() -> None:
    other = written(record(("page", "string"), ("user", "double")), {"page": "/", "user": 1.5})
    rows, reasons = read(AvroReader(VIEW), *other, *written(VIEW, {"page": "/", "user": 1}))
    assert rows == [None, {"page": "/", "user": 1}]
    assert set(reasons) == {0}


class _Registry:
    def writer_schema(self, schema_id: int) -> str:
        if schema_id != 7:
            raise ValueError(f"schema id {schema_id} is unknown")
        return json.dumps(VIEW)


def test_schema_ids_of_a_registry_are_resolved() -> None:
    (value,) = written(VIEW, {"page": "/", "user": 1})
    reader = pickle.loads(pickle.dumps(AvroReader(VIEW, resolver=_Registry())))
    rows, reasons = read(reader, b"\0\0\0\0\7" + value, b"\0\0\0\0\x08" + value, value)
    assert rows == [{"page": "/", "user": 1}, None, None]
    assert "schema id 8 is unknown" in reasons[1]
    assert "no schema id before the value" in reasons[2]


def test_a_schema_id_without_a_resolver_is_named_in_the_reason() -> None:
    (value,) = written(VIEW, {"page": "/", "user": 1})
    _, reasons = read(AvroReader(VIEW), b"\0\0\0\0\7" + value)
    assert reasons[0].startswith("begins like schema id 7 of a registry, and no schema resolver is configured")


def test_a_schema_is_a_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "view.avsc"
    path.write_text(json.dumps(VIEW))
    for text in (str(path), json.dumps(VIEW), f"file://{path}"):
        options = ColumnOptions(Options({"value.schema": text}), "value")
        assert avro.reader(options, lambda column, rows: [], None).spark_type == parse_type("page string, user bigint")


@pytest.mark.parametrize(
    "schema",
    [
        "/no/such/file.avsc",
        '"null"',
        '{"type":"record","name":"E","fields":[]}',
        '{"type":"nonsense"}',
        '{"type":"record","name":"Tree","fields":[{"name":"left","type":["null","Tree"]}]}',
        '{"type":"array","items":"null"}',
        '{"type":',
    ],
)
def test_schemas_without_a_spark_type_are_refused_on_the_driver(schema: str) -> None:
    with pytest.raises(ConfigError, match=r"option key\.schema"):
        avro.reader(ColumnOptions(Options({"key.schema": schema}), "key"), lambda column, rows: [], None)


def test_a_row_that_does_not_fit_is_an_error_not_a_loss() -> None:
    typed = pa.array([{"page": None, "user": 1}], arrow_type(parse_type("page string, user bigint")))
    with pytest.raises(RecordFormatError, match="does not fit the Avro schema"):
        AvroWriter(VIEW).encode(typed)


FLAT = record(
    ("a", "long"),
    ("b", ["null", "int"]),
    ("c", ["string", "null"]),
    ("d", "double"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("f", ["null", record(("x", "float"), ("y", "E")) | {"name": "Inner"}]),
    ("g", {"type": "fixed", "name": "Two", "size": 2}),
    ("h", "boolean"),
    ("i", ["null", "bytes"]),
)  # fmt: skip
FLAT_ROWS = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.integers(-(2**31), 2**31 - 1),
        "c": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        "d": st.floats(allow_nan=False),
        "e": st.sampled_from("AB"),
        "f": st.none() | st.fixed_dictionaries({"x": st.floats(width=32, allow_nan=False), "y": st.sampled_from("AB")}),
        "g": st.binary(min_size=2, max_size=2),
        "h": st.booleans(),
        "i": st.none() | st.binary(max_size=6),
    }
)


@given(st.lists(FLAT_ROWS, min_size=1, max_size=20), st.data())
@settings(deadline=None, max_examples=examples(150))
def test_records_are_the_same_in_columns_and_one_by_one(rows: list[Any], data: st.DataObject) -> None:
    values: list[Any] = [bytearray(value) for value in written(FLAT, *rows)]
    for _ in range(data.draw(st.integers(0, 4))):
        value = values[data.draw(st.integers(0, len(values) - 1))]
        if value:
            at = data.draw(st.integers(0, len(value) - 1))
            value[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    values = [bytes(value) for value in values]
    values.insert(data.draw(st.integers(0, len(values))), None)
    in_columns = AvroReader(FLAT).decode(pa.array([b"before", *values], pa.binary())[1:])
    one_by_one = AvroReader(FLAT, writers=FLAT).decode(pa.array(values, pa.binary()))
    assert in_columns.values.type == one_by_one.values.type
    assert set(one_by_one.reasons) <= set(in_columns.reasons)  # fastavro takes some numbers below zero
    for row, found in enumerate(in_columns.values.to_pylist()):
        expected = None if row in in_columns.reasons else one_by_one.values[row].as_py()
        assert repr(found) == repr(expected)  # NaN is not equal to itself


def test_a_text_that_is_no_utf8_is_bad_alone() -> None:
    good = written(VIEW, {"page": "/", "user": 1})[0]
    rows, reasons = read(AvroReader(VIEW), good, good.replace(b"/", b"\xff"), good)
    assert rows == [{"page": "/", "user": 1}, None, {"page": "/", "user": 1}]
    assert set(reasons) == {1}


@given(st.lists(st.none() | FLAT_ROWS, min_size=1, max_size=20))
@settings(deadline=None, max_examples=examples(100))
def test_records_written_from_columns_are_the_bytes_of_any_avro_library(rows: list[Any]) -> None:
    typed = pa.array([None, *rows], arrow_type(spark_type(FLAT)))[1:]
    expected = [None if row is None else written(FLAT, row)[0] for row in rows]
    assert AvroWriter(FLAT).encode(typed).to_pylist() == expected


@pytest.mark.parametrize(
    ("ddl", "row", "kind"),
    [
        ("x bigint", {"x": 2**31}, "int"),
        ("x string", {"x": "C"}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("x binary", {"x": b"123"}, {"type": "fixed", "name": "F", "size": 2}),
        ("x int", {"x": None}, "int"),
        ("y int", {"y": 1}, "int"),
        ("x int", {"x": 1}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("x struct<y:int>", {"x": {"y": 1}}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("x int", {"x": 1}, record(("y", "int")) | {"name": "Inner"}),
        ("x string", {"x": "a"}, "long"),
        ("x bigint", {"x": 2**31}, {"type": "array", "items": "int"}),
        ("x array<bigint>", {"x": [2**31]}, {"type": "array", "items": "int"}),
    ],
)
def test_no_row_is_written_that_could_not_be_read(ddl: str, row: dict[str, Any], kind: Any) -> None:
    with pytest.raises(RecordFormatError, match="does not fit the Avro schema"):
        AvroWriter(record(("x", kind))).encode(pa.array([row], arrow_type(parse_type(ddl))))
