"""The rows that a pipeline gets of changes: typed columns of one table, or JSON of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from moldau.pipelines.connectors.change_capture.changes import Change, Shape
from moldau.pipelines.connectors.change_capture.pgoutput import UNCHANGED, Column, Values
from moldau.pipelines.connectors.change_capture.values import column_array, type_of

_COMMON = "unchanged ARRAY<STRING>, schema STRING, table STRING, lsn BIGINT, seq INT, xid BIGINT, committed TIMESTAMP"
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

JSON_COLUMNS = f"op STRING, key STRING, before STRING, after STRING, {_COMMON}"


class Form(Protocol):
    """How changes become rows. It is sent to Spark's tasks, pickled."""

    @property
    def columns(self) -> str | StructType: ...

    def batch(self, changes: Sequence[Change]) -> pa.RecordBatch: ...


def spark_columns(columns: Sequence[Column]) -> str:
    return ", ".join(f"`{column.name.replace('`', '``')}` {type_of(column).spark}" for column in columns)


class JsonForm:
    """Rows of any tables: `key`, `before` and `after` are JSON objects as text."""

    columns = JSON_COLUMNS

    def batch(self, changes: Sequence[Change]) -> pa.RecordBatch:
        keys = [
            _object(change.shape, change.row, is_key=True) if change.row and change.shape.key else None
            for change in changes
        ]
        before = [_object(change.shape, change.before) if change.before else None for change in changes]
        after = [_object(change.shape, change.after) if change.after else None for change in changes]
        return _with_common(changes, {"key": pa.array(keys, pa.string()), "before": before, "after": after})


class TypedForm:
    """Rows of one table: `key`, `before` and `after` are structs. Columns are found by name, others are null."""

    def __init__(self, row: StructType, key: Sequence[str]) -> None:
        """`row` are its columns, `key` the names of those that are its key."""
        self._row = row
        self._key = [field for field in row.fields if field.name in key]

    @property
    def columns(self) -> StructType:
        from pyspark.sql.types import StringType, StructType

        key = StructType(self._key) if self._key else StringType()
        columns = StructType().add("op", StringType()).add("key", key)
        columns = columns.add("before", self._row).add("after", self._row)
        return StructType([*columns.fields, *common_columns().fields])

    def batch(self, changes: Sequence[Change]) -> pa.RecordBatch:
        fields = _arrow_fields(self._row)
        rows = {
            "key": [change.row for change in changes],
            "before": [change.before for change in changes],
            "after": [change.after for change in changes],
        }
        shapes = {change.shape for change in changes}
        if len(shapes) > 1:  # the table was altered
            parts = [self.batch(part) for part in _runs(changes)]
            return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        (shape,) = shapes
        names = {field.name for field in self._key}
        key_fields = [field for field in fields if field.name in names]
        structs: dict[str, Any] = {
            name: _structs(shape, values, key_fields if name == "key" else fields) for name, values in rows.items()
        }
        if not self._key:
            structs["key"] = pa.nulls(len(changes), pa.string())
        return _with_common(changes, structs)


def common_columns() -> StructType:
    """What all rows of changes have."""
    from pyspark.sql.types import (
        ArrayType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    text, whole = StringType(), LongType()
    columns = StructType().add("unchanged", ArrayType(text)).add("schema", text).add("table", text).add("lsn", whole)
    return columns.add("seq", IntegerType()).add("xid", whole).add("committed", TimestampType())


def _arrow_fields(row: StructType) -> list[pa.Field]:
    from moldau.spark.formats.columns import arrow_type

    return list(arrow_type(row))


def _structs(shape: Shape, rows: Sequence[Values | None], fields: Sequence[pa.Field]) -> pa.Array:
    numbers = {column.name: number for number, column in enumerate(shape.columns)}
    arrays = []
    for field in fields:
        number = numbers.get(field.name)
        if number is None:
            arrays.append(pa.nulls(len(rows), field.type))
            continue
        texts = [None if row is None or row[number] is UNCHANGED else row[number] for row in rows]
        arrays.append(column_array(shape.columns[number], field.type, texts))  # type: ignore[arg-type]
    missing = pa.array([row is None for row in rows])
    return pa.StructArray.from_arrays(arrays, fields=[field.with_nullable(True) for field in fields], mask=missing)


def _runs(changes: Sequence[Change]) -> list[list[Change]]:
    runs: list[list[Change]] = []
    for change in changes:
        if runs and runs[-1][0].shape == change.shape:
            runs[-1].append(change)
        else:
            runs.append([change])
    return runs


def _object(shape: Shape, values: Values, *, is_key: bool = False) -> str:
    parts = [
        name + ("null" if value is None else as_json(value))
        for (name, as_json, of_key), value in zip(shape.json_fields, values, strict=True)
        if value is not UNCHANGED and (of_key or not is_key)
    ]
    return "{" + ",".join(parts) + "}"


def _with_common(changes: Sequence[Change], columns: dict[str, Any]) -> pa.RecordBatch:
    unchanged = [
        [change.shape.columns[number].name for number, value in enumerate(change.after) if value is UNCHANGED] or None
        if change.after and UNCHANGED in change.after
        else None
        for change in changes
    ]
    all_columns: dict[str, Any] = {
        "op": [change.op for change in changes],
        **columns,
        "unchanged": pa.array(unchanged, pa.list_(pa.string())),
        "schema": [change.shape.schema for change in changes],
        "table": [change.shape.table for change in changes],
        "lsn": pa.array([change.commit_lsn for change in changes], pa.int64()),
        "seq": pa.array([change.sequence for change in changes], pa.int32()),
        "xid": pa.array([change.xid for change in changes], pa.int64()),
        "committed": pa.array([change.committed for change in changes], pa.timestamp("us", "UTC")),
    }
    arrays = [pa.array(values, pa.string()) if isinstance(values, list) else values for values in all_columns.values()]
    return pa.record_batch(arrays, names=list(all_columns))
