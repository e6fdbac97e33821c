"""Protobuf: what is written is read, every kind of field has its type, and no bytes crash it."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats import protobuf
from moldau.spark.formats.columns import ColumnOptions, arrow_type
from moldau.spark.formats.ddl import parse_type
from moldau.spark.formats.protobuf import ProtobufReader, ProtobufWriter, message_class
from moldau.spark.options import Options
from tests.examples import examples
from tests.unit.spark.formats.messages import SCALARS, descriptor_set

DESCRIPTORS = descriptor_set()
Order = message_class(DESCRIPTORS, "shop.Order")

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_UINT64 = st.integers(0, 2**64 - 1).map(Decimal)
_ITEM = st.fixed_dictionaries({"id": _UINT64, "tags": st.lists(_TEXT, max_size=3)})
_INTEGERS = {
    32: st.integers(-(2**31), 2**31 - 1),
    64: st.integers(-(2**63), 2**63 - 1),
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "bool": st.booleans(),
    "string": _TEXT,
    "bytes": st.binary(max_size=8),
    "uint64": _UINT64,
    "fixed64": _UINT64,
    "uint32": st.integers(0, 2**32 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
} | {f"{sign}{bits}": values for bits, values in _INTEGERS.items() for sign in ("int", "sint", "sfixed")}

ORDERS = st.fixed_dictionaries(
    {f"a_{kind}": _VALUES[kind] for kind in SCALARS}
    | {
        "color": st.sampled_from(["RED", "BLUE"]),
        "item": st.none() | _ITEM,
        "items": st.lists(_ITEM, max_size=2),
        "colors": st.lists(st.sampled_from(["RED", "BLUE"]), max_size=2),
        "made": st.none()
        | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda at: at.replace(tzinfo=UTC)),
        "took": st.none() | st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
        "by_name": st.dictionaries(_TEXT, _ITEM, max_size=2).map(lambda items: list(items.items())),
        "maybe": st.none() | _INTEGERS[32],
    }
)


def read(*values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    reader = pickle.loads(pickle.dumps(ProtobufReader(DESCRIPTORS, "shop.Order")))
    decoded = reader.decode(pa.array(values, pa.binary()))
    assert decoded.values.type == arrow_type(reader.spark_type)
    return decoded.values.to_pylist(), dict(decoded.reasons)


@given(st.lists(st.none() | ORDERS, max_size=5))
@settings(deadline=None, max_examples=examples(60))
def test_what_is_written_is_read_again(rows: list[Any]) -> None:
    array = pa.array(rows, arrow_type(ProtobufReader(DESCRIPTORS, "shop.Order").spark_type))
    values = pickle.loads(pickle.dumps(ProtobufWriter(DESCRIPTORS, "shop.Order"))).encode(array)
    found, reasons = read(*values.to_pylist())
    assert [row and row | {"by_name": sorted(row["by_name"])} for row in found] == [
        row and row | {"by_name": sorted(row["by_name"])} for row in array.to_pylist()
    ]
    assert reasons == {}


@given(st.lists(st.binary(max_size=30), max_size=20))
@settings(deadline=None, max_examples=examples(100))
def test_any_bytes_are_a_value_or_a_reason(values: list[bytes]) -> None:
    rows, reasons = read(*values, Order(a_int64=7).SerializeToString())
    assert rows[-1]["a_int64"] == 7
    assert all((rows[row] is None) == (row in reasons) for row in range(len(values)))


def test_types_hold_every_number_of_the_message() -> None:
    kind = ProtobufReader(DESCRIPTORS, "shop.Order").spark_type
    assert isinstance(kind["a_uint32"].dataType, t.LongType)
    assert kind["a_uint64"].dataType == t.DecimalType(20, 0)
    assert kind["by_name"].dataType == parse_type("map<string, struct<id: decimal(20,0), tags: array<string>>>")
    assert kind["made"].dataType == t.TimestampType()
    assert kind["took"].dataType == t.DayTimeIntervalType()
    assert kind["color"].dataType == t.StringType()


def test_fields_with_presence_are_null_when_unset_and_others_have_their_default() -> None:
    rows, _ = read(b"")
    assert rows[0]["maybe"] is rows[0]["item"] is rows[0]["made"] is None
    assert rows[0]["a_int32"] == 0
    assert rows[0]["color"] == "RED"
    assert rows[0]["items"] == rows[0]["by_name"] == []


def test_an_enum_value_newer_than_the_schema_is_its_number() -> None:
    rows, reasons = read(Order(color=77).SerializeToString())
    assert rows[0]["color"] == "77"
    assert reasons == {}


def test_a_time_beyond_the_calendar_is_bad_not_fatal() -> None:
    late = Order()
    late.made.seconds = 2**62
    rows, reasons = read(late.SerializeToString(), Order(a_bool=True).SerializeToString())
    assert rows[0] is None
    assert rows[1]["a_bool"] is True
    assert "beyond the year 9999" in reasons[0]


def options(tmp_path: Path, message: str, descriptors: bytes = DESCRIPTORS) -> ColumnOptions:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors)
    return ColumnOptions(Options({"value.descriptor": str(path), "value.message": message}), "value")


@pytest.mark.parametrize("message", ["shop.Nothing", "shop.Tree", "shop.Empty"])
def test_messages_without_a_spark_type_are_refused_on_the_driver(tmp_path: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=f"message {message} of option value.descriptor"):
        protobuf.reader(options(tmp_path, message), lambda column, rows: [], None)


def test_a_file_that_is_no_descriptor_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"value\.descriptor"):
        protobuf.reader(options(tmp_path, "shop.Order", b"\xff\xff"), lambda column, rows: [], None)


def test_a_column_the_message_does_not_have_is_refused_on_the_driver(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has a field nope, message shop\.Item has none"):
        protobuf.writer(options(tmp_path, "shop.Item"), parse_type("id bigint, nope int"))


def test_a_row_that_does_not_fit_is_an_error_not_a_loss(tmp_path: Path) -> None:
    writer = protobuf.writer(options(tmp_path, "shop.Item"), parse_type("id bigint"))
    with pytest.raises(RecordFormatError, match=r"does not fit message shop\.Item"):
        writer.encode(pa.array([{"id": -1}]))
