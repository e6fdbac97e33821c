"""Keys and values of a topic as columns of a type.

`typed_fields` finds each column's type from the options, on the driver. What it returns is pickled to the tasks, where
its `decoder` turns raw batches into typed ones. A record that cannot be read is never dropped silently, and it stops a
query only if the options ask for that (`dead_letters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from moldau.errors import ConfigError
from moldau.spark.formats import format_module
from moldau.spark.formats.columns import ColumnOptions, ColumnReader, Sample
from moldau.spark.formats.ddl import nullable
from moldau.spark.options import TYPED_COLUMNS, Options
from moldau.spark.source.dead_letters import CORRUPT_TYPE, BadRows, ErrorPolicy

# The bytes beside what was decoded from them, for who asks for these columns.
UNDECODED = {"rawKey": "key", "rawValue": "value"}


def typed_fields(options: Options, sample: Sample, schema: StructType | None = None) -> TypedFields | None:
    """What the options say of keys and values; None where both stay binary.

    `sample(column, rows)` gives up to so many values of a column; it is called only to infer a JSON schema.
    `schema` is the DataFrame's, where it is known already: the type of a column there needs no inference.
    """
    errors = ErrorPolicy.from_options(options)
    readers = {}
    for column in TYPED_COLUMNS:
        module = format_module(options, column)
        # A column that nobody reads cannot be bad, unless somebody asks for all that is corrupt.
        read = schema is None or column in schema.names or errors.corrupt_column in schema.names
        if module is not None and read:
            readers[column] = module.reader(ColumnOptions(options, column), sample, _given_type(schema, column))
    return TypedFields(readers, errors) if readers else None


@dataclass(frozen=True)
class TypedFields:
    readers: Mapping[str, ColumnReader]
    errors: ErrorPolicy

    def spark_fields(self) -> dict[str, StructField]:
        """The columns that differ from the raw ones: typed keys and values, and the one for corrupt records."""
        fields = {name: StructField(name, reader.spark_type) for name, reader in self.readers.items()}
        corrupt = self.errors.corrupt_column
        return fields | ({corrupt: StructField(corrupt, CORRUPT_TYPE)} if corrupt else {})

    def raw_columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """What has to be read from the topic to give these columns."""
        wanted = (UNDECODED.get(name, name) for name in columns if name != self.errors.corrupt_column)
        return tuple(dict.fromkeys((*wanted, *self.readers, *self.errors.raw_columns)))

    def decoder(self, columns: tuple[str, ...]) -> Decoder:
        """For one task; `columns` are those of its output, in their order."""
        return Decoder(self.readers, self.errors, columns)


class Decoder:
    """Turns the raw batches of one task into typed ones; `finish`, after the last, tells what was bad."""

    def __init__(self, readers: Mapping[str, ColumnReader], policy: ErrorPolicy, columns: tuple[str, ...]) -> None:
        self._readers = readers
        self._columns = columns
        self._corrupt_column = policy.corrupt_column
        self._bad_rows = BadRows(policy)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays |= {name: arrays[column] for name, column in UNDECODED.items() if name in self._columns}
        reasons: dict[int, dict[str, str]] = {}
        for name, reader in self._readers.items():
            arrays[name], bad = reader.decode(batch.column(name))
            for row, reason in bad.items():
                reasons.setdefault(row, {})[name] = reason
        keep = self._bad_rows.handle(batch, reasons)
        if self._corrupt_column in self._columns:
            arrays[self._corrupt_column] = self._bad_rows.column(batch, reasons)
        typed = pa.record_batch([arrays[name] for name in self._columns], names=list(self._columns))
        return typed if keep is None else typed.filter(keep)

    def finish(self) -> None:
        self._bad_rows.finish()


def _given_type(schema: StructType | None, column: str) -> DataType | None:
    if schema is None or column not in schema.names:
        return None
    given = schema[column].dataType
    if given != nullable(given):
        raise ConfigError(f"column {column}: values of a topic may contain nulls: remove NOT NULL from its type")
    return given
