"""Debezium's change events: values as its PostgreSQL connector writes them, in Connect's JSON, with their schemas.

Rows of all tables have the same columns: the topic, key and value as JSON without schema, and their schemas where they
differ from the row before. `debezium.split` makes typed records of them, one table at a time.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.clocks import wall_clock_ms
from moldau.pipelines.connectors.change_capture.changes import Change, Shape
from moldau.pipelines.connectors.change_capture.pgoutput import Column, Unchanged, Values
from moldau.pipelines.connectors.change_capture.values import numeric_limits, quoted, type_of
from moldau.pipelines.doors.connect.schemas import DATE, DECIMAL, TIME, TIMESTAMP, Schema
from moldau.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = "topic STRING, key STRING, value STRING, key_schema STRING, value_schema STRING, timestamp TIMESTAMP"
_TIMES = "io.debezium.time."
_UNAVAILABLE = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_MICROSECOND = timedelta(microseconds=1)

ToJson = Callable[[str], str]


@dataclass(frozen=True)
class Handling:
    """The modes of the configuration."""

    prefix: str
    database: str
    decimals: str = "precise"  # precise, string, double
    times: str = "adaptive"  # adaptive, adaptive_time_microseconds, connect
    has_tombstones: bool = True
    skipped: tuple[str, ...] = ("t",)  # operations


@dataclass(frozen=True)
class _Kind:
    schema: Schema
    json: ToJson
    unavailable: str = "null"  # what stands for a large value that did not change


def _named(kind: str, name: str) -> Schema:
    return {"type": kind, "name": name, "version": 1}


def _or_null(function: Callable[[str], object], text: str) -> str:
    """Infinite dates and numbers have no value in Connect."""
    try:
        return json.dumps(function(text))
    except (ValueError, ArithmeticError):
        return "null"


def _days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _micros(text: str) -> int:
    passed = datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH
    return passed.days * _DAY_US + passed.seconds * 1_000_000 + passed.microseconds


def _time_micros(text: str) -> int:
    return _DAY_US if text.startswith("24:") else _micros(f"1970-01-01 {text}")


def _millis(function: Callable[[str], int], text: str) -> int:
    return function(text) // 1000


def _zoned(text: str) -> str:
    return text.replace(" ", "T", 1).removesuffix("+00") + ("Z" if text.endswith("+00") else "")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _unscaled(text: str, scale: int) -> str:
    """Base64 of java.math.BigInteger's bytes."""
    number = int(Decimal(text).scaleb(scale))
    return base64.b64encode(number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, signed=True)).decode()


def _variable(text: str) -> dict[str, Any]:
    scale = max(0, -int(Decimal(text).as_tuple().exponent))
    return {"scale": scale, "value": _unscaled(text, scale)}


_TEXT = _Kind({"type": "string"}, quoted, json.dumps(_UNAVAILABLE))
_BYTES = _Kind(
    {"type": "bytes"},
    lambda text: f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"',
    f'"{base64.b64encode(_UNAVAILABLE.encode()).decode()}"',
)
_PLAIN: Mapping[int, _Kind] = {
    16: _Kind({"type": "boolean"}, lambda text: "true" if text == "t" else "false"),
    17: _BYTES,
    20: _Kind({"type": "int64"}, str),
    21: _Kind({"type": "int16"}, str),
    23: _Kind({"type": "int32"}, str),
    26: _Kind({"type": "int64"}, str),
    700: _Kind({"type": "float"}, partial(_or_null, _number)),
    701: _Kind({"type": "double"}, partial(_or_null, _number)),
    114: _Kind(_named("string", "io.debezium.data.Json"), quoted, _TEXT.unavailable),
    3802: _Kind(_named("string", "io.debezium.data.Json"), quoted, _TEXT.unavailable),
    142: _Kind(_named("string", "io.debezium.data.Xml"), quoted, _TEXT.unavailable),
    2950: _Kind(_named("string", "io.debezium.data.Uuid"), quoted),
    1184: _Kind(_named("string", f"{_TIMES}ZonedTimestamp"), lambda text: quoted(_zoned(text))),
    1266: _Kind(_named("string", f"{_TIMES}ZonedTime"), lambda text: quoted(_zoned(text))),
    1186: _Kind(_named("string", f"{_TIMES}Interval"), quoted),
}
_DATE, _TIME, _TIMESTAMP, _NUMERIC = 1082, 1083, 1114, 1700


def _kind(column: Column, handling: Handling) -> _Kind:
    if column.type_oid == _NUMERIC:
        return _decimal(column, handling.decimals)
    if column.type_oid in (_DATE, _TIME, _TIMESTAMP):
        return _temporal(column, handling.times)
    return _PLAIN.get(column.type_oid, _TEXT)


def _decimal(column: Column, mode: str) -> _Kind:
    if mode == "string":
        return _TEXT
    if mode == "double":
        return _PLAIN[701]
    digits, scale = numeric_limits(column)
    if digits and type_of(column).spark.startswith("DECIMAL"):
        schema = _named("bytes", DECIMAL) | {
            "parameters": {"scale": str(scale), "connect.decimal.precision": str(digits)}
        }
        return _Kind(schema, partial(_or_null, partial(_unscaled, scale=scale)))
    fields = [_field("scale", "int32"), _field("value", "bytes")]
    schema = {"type": "struct", "fields": fields, "name": "io.debezium.data.VariableScaleDecimal", "version": 1}
    return _Kind(schema, partial(_or_null, _variable))


def _temporal(column: Column, mode: str) -> _Kind:
    is_fine = not 0 <= column.type_modifier <= 3  # more than milliseconds
    is_connect = mode == "connect"
    if column.type_oid == _DATE:
        return _Kind(_named("int32", DATE if is_connect else f"{_TIMES}Date"), partial(_or_null, _days))
    if column.type_oid == _TIME:
        if mode != "connect" and (is_fine or mode == "adaptive_time_microseconds"):
            return _Kind(_named("int64", f"{_TIMES}MicroTime"), partial(_or_null, _time_micros))
        name = TIME if is_connect else f"{_TIMES}Time"
        return _Kind(_named("int32", name), partial(_or_null, partial(_millis, _time_micros)))
    if is_fine and not is_connect:
        return _Kind(_named("int64", f"{_TIMES}MicroTimestamp"), partial(_or_null, _micros))
    name = TIMESTAMP if is_connect else f"{_TIMES}Timestamp"
    return _Kind(_named("int64", name), partial(_or_null, partial(_millis, _micros)))


def _field(name: str, kind: str, *, is_optional: bool = False) -> Schema:
    return {"type": kind, "optional": is_optional, "field": name}


_SOURCE: Schema = {
    "type": "struct",
    "fields": [
        *(_field(name, "string") for name in ("version", "connector", "name")),
        _field("ts_ms", "int64"),
        _field("snapshot", "string", is_optional=True),
        _field("db", "string"),
        _field("sequence", "string", is_optional=True),
        *(_field(name, "int64", is_optional=True) for name in ("ts_us", "ts_ns")),
        *(_field(name, "string") for name in ("schema", "table")),
        *(_field(name, "int64", is_optional=True) for name in ("txId", "lsn", "xmin")),
    ],
    "optional": False,
    "name": "io.debezium.connector.postgresql.Source",
    "field": "source",
}
_TRANSACTION: Schema = {
    "type": "struct",
    "fields": [_field("id", "string"), _field("total_order", "int64"), _field("data_collection_order", "int64")],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


@dataclass
class _Table:
    """What is the same for all events of a table."""

    topic: str
    fields: list[tuple[str, _Kind]]  # names as JSON
    key: tuple[int, ...]
    source: str  # how the source field begins
    key_schema: str | None
    value_schema: str

    @classmethod
    def of(cls, shape: Shape, handling: Handling) -> _Table:
        topic = f"{handling.prefix}.{shape.schema}.{shape.table}"
        kinds = [_kind(column, handling) for column in shape.columns]
        fields = [
            kind.schema | {"optional": not column.is_key, "field": column.name}
            for column, kind in zip(shape.columns, kinds, strict=True)
        ]
        row = {"type": "struct", "fields": fields, "optional": True, "name": f"{topic}.Value"}
        key = {
            "type": "struct",
            "fields": [fields[number] for number in shape.key],
            "optional": False,
            "name": f"{topic}.Key",
        }
        value = {
            "type": "struct",
            "fields": [
                row | {"field": "before"},
                row | {"field": "after"},
                _SOURCE,
                _TRANSACTION,
                _field("op", "string"),
                *(_field(name, "int64", is_optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
            ],
            "optional": False,
            "name": f"{topic}.Envelope",
            "version": 2,
        }
        names = [json.dumps(column.name) + ":" for column in shape.columns]
        source = {
            "version": __version__,
            "connector": "postgresql",
            "name": handling.prefix,
            "db": handling.database,
            "schema": shape.schema,
            "table": shape.table,
        }
        key_schema = json.dumps(key) if shape.key else None
        begin = json.dumps(source)[:-1] + ","
        return cls(topic, list(zip(names, kinds, strict=True)), shape.key, begin, key_schema, json.dumps(value))

    def row(self, values: Values | None) -> str:
        if values is None:
            return "null"
        return "{" + ",".join(_value(*one, value) for one, value in zip(self.fields, values, strict=True)) + "}"

    def key_of(self, values: Values | None) -> str | None:
        if values is None or not self.key:
            return None
        return "{" + ",".join(_value(*self.fields[number], values[number]) for number in self.key) + "}"


def _value(name: str, kind: _Kind, value: str | Unchanged | None) -> str:
    if value is None:
        return f"{name}null"
    return name + (kind.unavailable if isinstance(value, Unchanged) else kind.json(value))


@dataclass
class EnvelopeForm:
    """A form of change capture (`change_capture.forms.Form`)."""

    handling: Handling
    columns: str = COLUMNS
    _tables: dict[Shape, _Table] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> Any:
        return EnvelopeForm, (self.handling,)

    def batch(self, changes: Sequence[Change]) -> pa.RecordBatch:
        import pyarrow as pa

        rows = [row for change in changes if change.op not in self.handling.skipped for row in self._rows(change)]
        columns = list(zip(*rows, strict=True)) or [()] * 5
        last: dict[str, str] = {}  # schemas are long: one row of each table brings them
        schemas = [(None, None) if last.get(row[0]) == row[4] else _noted(last, row) for row in rows]
        arrays = [pa.array(column, pa.string()) for column in columns[:3]]
        arrays += [pa.array([pair[number] for pair in schemas], pa.string()) for number in (0, 1)]
        arrays.append(pa.nulls(len(rows), pa.timestamp("us", "UTC")))
        return pa.record_batch(arrays, names=[name.split()[0] for name in COLUMNS.split(", ")])

    def _rows(self, change: Change) -> Iterator[tuple[str, str | None, str | None, str | None, str]]:
        table = self._tables.get(change.shape)
        if table is None:
            table = self._tables[change.shape] = _Table.of(change.shape, self.handling)
        key = table.key_of(change.row)
        value = self._envelope(change, table)
        yield table.topic, key, value, table.key_schema, table.value_schema
        if change.op == "d" and self.handling.has_tombstones and key is not None:
            yield table.topic, key, None, table.key_schema, table.value_schema

    def _envelope(self, change: Change, table: _Table) -> str:
        committed = (change.committed - _EPOCH) // _MICROSECOND
        now = wall_clock_ms() * 1_000_000
        source = (
            f'{table.source}"ts_ms":{committed // 1000},"snapshot":"{"true" if change.op == "r" else "false"}",'
            f'"sequence":"[\\"{change.commit_lsn}\\",\\"{change.lsn}\\"]","ts_us":{committed},'
            f'"ts_ns":{committed * 1000},"txId":{"null" if change.xid is None else change.xid},'
            f'"lsn":{change.lsn},"xmin":null}}'
        )
        return (
            f'{{"before":{table.row(change.before)},"after":{table.row(change.after)},"source":{source},'
            f'"transaction":null,"op":"{change.op}","ts_ms":{now // 1_000_000},"ts_us":{now // 1000},"ts_ns":{now}}}'
        )


def _noted(last: dict[str, str], row: tuple[str, str | None, str | None, str | None, str]) -> tuple[str | None, str]:
    topic, _, _, key_schema, value_schema = row
    last[topic] = value_schema
    return key_schema, value_schema
