"""The formats of typed keys and values: `text` (string), `json`, `avro`, `protobuf`.

The default, `binary`, leaves the bytes unchanged and has no module. Each other format is a module with a `reader` and a
`writer` for one column. The sink's `encoder` combines the writers of a DataFrame. The source's `typed_fields` combines
the readers and handles records that cannot be decoded.

A key or value is never decoded in part: it matches its schema or is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from moldau.spark.formats.columns import ColumnOptions, ColumnWriter
from moldau.spark.options import TYPED_COLUMNS, Options

_MODULES = {"string": "text", "json": "json", "avro": "avro", "protobuf": "protobuf"}


def encoder(options: Options, schema: StructType) -> Encoder | None:
    """Return what encodes the typed key and value of `schema` for a sink, or None if neither is typed."""
    writers = {}
    for column in TYPED_COLUMNS:
        module = format_module(options, column)
        if module is not None and column in schema.names:
            writers[column] = module.writer(ColumnOptions(options, column), schema[column].dataType)
    return Encoder(writers, schema) if writers else None


@dataclass(frozen=True)
class Encoder:
    writers: Mapping[str, ColumnWriter]
    typed: StructType

    @property
    def schema(self) -> StructType:
        """The schema of what `apply` returns: binary keys and values."""
        binary = {name: StructField(name, BinaryType()) for name in self.writers}
        return StructType([binary.get(field.name, field) for field in self.typed])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, writer in self.writers.items():
            index = batch.schema.get_field_index(name)
            batch = batch.set_column(index, pa.field(name, pa.binary()), writer.encode(batch.column(index)))
        return batch


def format_module(options: Options, column: str) -> Any:
    """Return the module of the column's format, None for binary. It and its packages are imported only when used."""
    name = options.choice(f"{column}.format", ("binary", *_MODULES), "binary")
    return import_module(f"{__name__}.{_MODULES[name]}") if name in _MODULES else None
