"""Strings in UTF-8, validated in bulk."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import DataType, StringType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats.columns import ColumnOptions, ColumnReader, ColumnWriter, Decoded, Sample, arrow_type


def reader(options: ColumnOptions, sample: Sample, given: DataType | None) -> ColumnReader:
    return _TextReader()


def writer(options: ColumnOptions, spark_type: DataType) -> ColumnWriter:
    try:
        pa.array([], arrow_type(spark_type)).cast(pa.string())
    except pa.ArrowNotImplementedError:
        kind = spark_type.simpleString()
        raise ConfigError(
            f"column {options.column} is {kind}, which is not text: use {options.named('format')}=json"
        ) from None
    return _TextWriter()


class _TextReader:
    spark_type = StringType()

    def decode(self, raw: pa.Array) -> Decoded:
        good, reasons = without_bad_utf8(raw)
        return Decoded(good.cast(pa.string()), reasons)


class _TextWriter:
    def encode(self, typed: pa.Array) -> pa.Array:
        try:
            return typed.cast(pa.string()).cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise RecordFormatError(f"a row is not text: {error}") from error


def without_bad_utf8(raw: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the values with null for each that is not UTF-8, and the reasons."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        values = raw.to_pylist()
        reasons = {row: text for row, value in enumerate(values) if value and (text := _utf8_error(value))}
        return pa.array([None if row in reasons else value for row, value in enumerate(values)], raw.type), reasons
    return raw, {}


def _utf8_error(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"no UTF-8: byte 0x{value[error.start]:02x} at position {error.start}"
    return None
