"""Avro files through Spark's `binaryFile` and fastavro: no jar, any file system of Spark's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fastavro import reader as avro_reader
from pyspark.sql.types import ArrayType, StructType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats.avro_schema import load_schema, spark_type
from moldau.spark.formats.columns import arrow_type
from moldau.spark.formats.ddl import schema_option
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 10_000  # turned from Python objects into columns at a time


def parsed(schema: str) -> StructType:
    found = schema_option("schema", schema)
    if not isinstance(found, StructType):
        raise ConfigError("option schema: expected columns and types, such as 'page STRING, ms INT'")
    return found


def inferred(files: DataFrame) -> StructType | None:
    """The schema of one of the files; None if there is none."""
    first = files.select("path", "content").head()
    if first is None:
        return None
    try:
        written = avro_reader(BytesIO(bytes(first.content))).writer_schema
        found = spark_type(load_schema(json.dumps(written)))
    except (ValueError, EOFError, KeyError, TypeError) as error:
        raise ConfigError(f"{first.path} is not an Avro file that can be read: {error}") from error
    return found if isinstance(found, StructType) else StructType().add("value", found)


def decoded(files: DataFrame, schema: StructType, extra: Mapping[str, str]) -> DataFrame:
    """The records of Avro files with these columns, and further ones of the files under other names."""
    from pyspark.sql import functions as F  # noqa: N812

    target = arrow_type(schema)

    def decode(contents: pa.Array, paths: pa.Array) -> pa.Array:
        with plain_errors():
            files = [_records(content, path, target) for content, path in zip(contents, paths, strict=True)]
            ends = accumulate((len(records) for records in files), initial=0)
            records = pa.concat_arrays(files) if files else pa.array([], target)
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), records)

    arrow_udf: Any = F.arrow_udf  # its types know only functions of one array
    records = F.explode(arrow_udf(decode, ArrayType(schema))("content", "path"))
    named = [F.col(column).alias(name) for name, column in extra.items()]
    return files.select(records.alias("record"), *named).select("record.*", *extra)


def _records(content: pa.Scalar, path: pa.Scalar, target: pa.DataType) -> pa.Array:
    try:
        records: Iterator[Any] = iter(avro_reader(pa.BufferReader(content.as_buffer())))
        blocks = []
        while rows := list(islice(records, _ROWS)):
            blocks.append(pa.array(rows, target))
        return pa.concat_arrays(blocks) if blocks else pa.array([], target)
    except (ValueError, EOFError, TypeError, KeyError, IndexError, pa.ArrowException) as error:
        raise RecordFormatError(f"{path} cannot be read as Avro with this schema: {error}") from error
