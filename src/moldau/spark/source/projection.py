"""The columns of a DataFrame and how a task reads them.

Raw columns are those of Spark's Kafka source. Spark does not tell a Python source which columns a query uses, but the
user can choose them with a schema: `.schema("value binary, timestamp timestamp")` reads only these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.spark.formats.ddl import nullable
from moldau.spark.options import Options
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.planning import TopicOffsets
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.read_plan import OffsetRange, ReadPlan, remaining
from moldau.spark.source.typed_fields import UNDECODED, TypedFields, typed_fields

RAW_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))),
    ]
)


def source_schema(options: Options, read: ReadOptions) -> StructType:
    """All columns, in Spark's order; headers only where asked for, as they cost time."""
    typed = typed_fields(options, _sampler(read))
    fields = {field.name: field for field in RAW_SCHEMA if read.include_headers or field.name != "headers"}
    return StructType(list((fields | (typed.spark_fields() if typed else {})).values()))


class RowReader(NamedTuple):
    """What a task does with a range; pickled to it."""

    plan: ReadPlan
    columns: tuple[str, ...]
    typed: TypedFields | None

    @classmethod
    def of(cls, options: Options, read: ReadOptions, schema: StructType) -> RowReader:
        typed = typed_fields(options, _sampler(read), schema)
        _check(schema, {field.name: field for field in RAW_SCHEMA} | (_typed_columns(typed) if typed else {}))
        columns = tuple(schema.names)
        raw_columns = typed.raw_columns(columns) if typed else columns
        return cls(_plan(read, raw_columns), columns, typed)

    def read(self, wanted: OffsetRange | None) -> Iterator[pa.RecordBatch]:
        if wanted is None:  # Spark's only task where there is nothing to read
            return
        with plain_errors():
            yield from self._batches(wanted)

    def _batches(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        from moldau.spark.source.fetching import (
            read_range,  # it loads compiled kernels, which only tasks should wait for
        )

        parts = remaining(wanted, self.plan.excluded)
        batches = (batch for part in parts for batch in read_range(self.plan, part))
        if self.typed is None:
            yield from batches
            return
        decoder = self.typed.decoder(self.columns)
        for batch in batches:
            yield decoder.apply(batch)
        decoder.finish()


def _typed_columns(typed: TypedFields) -> dict[str, StructField]:
    return {name: StructField(name, BinaryType()) for name in UNDECODED} | typed.spark_fields()


def _plan(read: ReadOptions, columns: tuple[str, ...]) -> ReadPlan:
    return ReadPlan(
        client=read.client,
        columns=columns,
        isolation=read.isolation,
        fail_on_data_loss=read.fail_on_data_loss,
        fetch_bytes_max=read.fetch_bytes_max,
        check_crcs=read.check_crcs,
        excluded=read.excluded,
    )


def _check(schema: StructType, known: dict[str, StructField]) -> None:
    for field in schema:
        if field.name not in known:
            meant = nearest(field.name, known)
            hint = f"did you mean '{meant}'?" if meant else f"there are {', '.join(known)}"
            raise ConfigError(f"a topic has no column '{field.name}': {hint}")
        expected = known[field.name].dataType.simpleString()
        if field.dataType.simpleString() != expected:
            raise ConfigError(
                f"column {field.name} is {expected}, not {field.dataType.simpleString()}:"
                f" use {expected} in the schema and cast it in the query"
            )
        if not field.nullable or field.dataType != nullable(field.dataType):
            raise ConfigError(f"column {field.name} may contain nulls: remove NOT NULL from the schema")


def _sampler(read: ReadOptions) -> Callable[[str, int], Sequence[bytes | None]]:
    """The newest records of each partition: what comes next is more likely to look like them."""

    def sample(column: str, rows: int) -> list[bytes | None]:
        from moldau.spark.source.fetching import read_range

        topics = TopicOffsets(read)
        ends = topics.ends_now()
        topics.refuse_missing(ends)
        starts = topics.earliest(ends)
        share = -(-rows // max(len(ends), 1))
        plan = _plan(read, (column,))._replace(fail_on_data_loss=False)
        values: list[bytes | None] = []
        for partition, end in sorted(ends.items()):
            if len(values) >= rows:
                break
            start = max(starts.get(partition, end), end - share)
            for batch in read_range(plan, OffsetRange(*partition, start, end)):
                values += batch.column(0).to_pylist()
        return values[:rows]

    return sample
