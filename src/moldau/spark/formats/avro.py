"""Avro values: a single datum each, without the header of an Avro file.

`value.schema` is the reader's schema. `value.writer.schema` is that of the producers if it differs: fields are matched
by name, and missing ones get their default. A record with bytes left after the datum is bad, because it was written
with another schema.

With a schema registry, values begin with a zero byte and a schema id (Confluent's wire format). A `SchemaResolver`
returns the writer's schema for an id. Without one, such values are bad, and their reason says so.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from pyspark.sql.types import DataType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats.avro_plan import flat_plan
from moldau.spark.formats.avro_schema import Schema, avro_schema, load_schema, spark_type
from moldau.spark.formats.avro_shapes import shaped
from moldau.spark.formats.columns import (
    ColumnOptions,
    ColumnReader,
    ColumnWriter,
    Decoded,
    Sample,
    array_of,
    arrow_type,
    reason,
)

_MAGIC = 0
_HEADER_BYTES = 5
_OUTSIDE = "no Avro of this schema: a symbol, a branch or a number outside its limits"
_SCHEMA = "an Avro schema as JSON, or the path of an .avsc file"


class SchemaResolver(Protocol):
    """Finds the writer's schema of a record by the id before its value. It is pickled and sent to the tasks."""

    def writer_schema(self, schema_id: int) -> str: ...


def reader(options: ColumnOptions, sample: Sample, given: DataType | None) -> ColumnReader:
    schema = _loaded(options, "schema")
    writers = _loaded(options, "writer.schema") if options.get("writer.schema") else None
    return AvroReader(schema, writers)


def writer(options: ColumnOptions, spark_type: DataType) -> ColumnWriter:
    if options.get("schema"):
        return AvroWriter(_loaded(options, "schema"))
    try:
        return AvroWriter(avro_schema(spark_type, options.column))
    except ValueError as error:
        raise ConfigError(f"column {options.column}: {error}") from error


def _loaded(options: ColumnOptions, name: str) -> Schema:
    try:
        schema = load_schema(options.text_or_file(name, _SCHEMA))
        spark_type(schema)
    except ValueError as error:
        raise ConfigError(f"option {options.named(name)}: {error}") from error
    return schema


class AvroReader:
    def __init__(self, schema: Schema, writers: Schema = None, resolver: SchemaResolver | None = None) -> None:
        self._schema = schema
        self._writers = writers
        self._resolver = resolver
        self.spark_type = spark_type(schema)

    def decode(self, raw: pa.Array) -> Decoded:
        from moldau.spark.formats.avro_columns import read_flat  # compiled; the driver does not need it

        plan = flat_plan(self._schema) if self._writers is None and self._resolver is None else None
        if plan is None:
            return self._one_by_one(raw)
        try:
            values, bad = read_flat(plan, raw)
        except pa.ArrowInvalid:  # a string is not UTF-8
            return self._one_by_one(raw)
        rows = np.flatnonzero(bad & raw.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return Decoded(values, {})
        # fastavro gives the reasons, except for negative symbols and branches, which it counts from the end.
        reasons = self._one_by_one(raw.take(pa.array(rows))).reasons
        return Decoded(values, {int(row): reasons.get(index, _OUTSIDE) for index, row in enumerate(rows)})

    def _one_by_one(self, raw: pa.Array) -> Decoded:
        read = self._read_function()
        reasons: dict[int, str] = {}
        rows: list[Any] = []
        for row, value in enumerate(raw.to_pylist()):
            try:
                rows.append(None if value is None else read(value))
            except Exception as error:  # arbitrary bytes can raise any error; only this record is bad
                rows.append(None)
                reasons[row] = _reason(value, error, self._resolver)
        return Decoded(array_of(rows, arrow_type(self.spark_type), reasons), reasons)

    def _read_function(self) -> Callable[[bytes], Any]:
        one_shape = parse_schema(shaped(self._schema))
        if self._writers is None and self._resolver is None:
            return lambda value: _whole(BytesIO(value), one_shape)
        wanted = parse_schema(shaped(self._schema, unions=False))
        writers = None if self._writers is None else parse_schema(shaped(self._writers, unions=False))
        has_members = shaped(self._schema) != shaped(self._schema, unions=False)
        names: dict[str, Any] = dict.fromkeys(("return_named_type", "return_named_type_override"), has_members)
        by_id: dict[int, Any] = {}

        def read(value: bytes) -> Any:
            stream = BytesIO(value)
            written = writers if self._resolver is None else self._resolved(stream.read(_HEADER_BYTES), by_id)
            datum = _whole(stream, written, wanted, **names)
            return schemaless_reader(BytesIO(_bytes(wanted, datum)), one_shape, None) if has_members else datum

        return read

    def _resolved(self, header: bytes, by_id: dict[int, Any]) -> Any:
        if len(header) < _HEADER_BYTES or header[0] != _MAGIC:
            raise ValueError("no schema id before the value, though a schema resolver is configured")
        schema_id = int.from_bytes(header[1:], "big")
        if schema_id not in by_id:
            assert self._resolver is not None
            written = load_schema(self._resolver.writer_schema(schema_id))
            by_id[schema_id] = parse_schema(shaped(written, unions=False))
        return by_id[schema_id]


def _whole(stream: BytesIO, written: Any, wanted: Any = None, **names: Any) -> Any:
    datum = schemaless_reader(stream, written, wanted, **names)
    left = stream.getbuffer().nbytes - stream.tell()
    if left:
        raise ValueError(f"{left} bytes left over: written with another schema")
    return datum


def _reason(value: bytes, error: Exception, resolver: SchemaResolver | None) -> str:
    text = reason(error) if isinstance(error, ValueError) else f"{type(error).__name__} {reason(error)}"
    if resolver is None and len(value) >= _HEADER_BYTES and value[0] == _MAGIC:
        schema_id = int.from_bytes(value[1:_HEADER_BYTES], "big")
        return reason(f"begins like schema id {schema_id} of a registry, and no schema resolver is configured: {text}")
    return reason(f"no Avro of this schema: {text}")


class AvroWriter:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def encode(self, typed: pa.Array) -> pa.Array:
        from moldau.spark.formats.avro_records import write_flat

        plan = flat_plan(self._schema)
        written = None if plan is None else write_flat(plan, typed)
        if written is not None:
            return written
        _check_numbers(typed, self._schema)
        schema = parse_schema(shaped(self._schema))
        return pa.array([_written(schema, row) for row in typed.to_pylist(maps_as_pydicts="strict")], pa.binary())


def _check_numbers(typed: pa.Array, schema: Schema) -> None:
    """Check the range of numbers. fastavro checks all else, but writes numbers that are too large for their type."""
    try:
        typed.cast(arrow_type(spark_type(schema)))
    except pa.ArrowInvalid as error:
        raise RecordFormatError(f"a row does not fit the Avro schema: {reason(error)}") from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        pass  # a different type: fastavro checks it row by row


def _written(schema: Any, row: Any) -> bytes | None:
    try:
        return None if row is None else _bytes(schema, row)
    except Exception as error:
        raise RecordFormatError(f"a row does not fit the Avro schema: {reason(error)}") from error


def _bytes(schema: Any, row: Any) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, schema, row)
    return stream.getvalue()
