"""Objects as Spark reads them: the driver lists the store, each task reads some of the objects of an offset."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import reader as avro_reader
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from moldau.errors import ConfigError, DataLossError, RecordFormatError
from moldau.pipelines.connectors.object_store.listing import Found, listed, next_offset
from moldau.pipelines.connectors.object_store.stores import Store, reaching
from moldau.spark.formats import json as json_format
from moldau.spark.formats.avro_schema import load_schema, spark_type
from moldau.spark.formats.columns import ColumnOptions, arrow_type
from moldau.spark.options import Options
from moldau.spark.plain_errors import plain_errors

LINES = StructType().add("value", BinaryType())
_ROWS = 10_000
_BLOCK_BYTES = 4 * 1024 * 1024
_SAMPLE_LINES = 1_000
_TASKS_MAX = 32
_BAD_CONTENT = (pa.ArrowException, ValueError, EOFError, TypeError, KeyError, IndexError)


@dataclass(frozen=True)
class SourceSpec:
    """The options of the connector, as JSON in an option of Spark's; `store` with its keys is another."""

    format: str
    files_max: int
    poll_ms: int
    window_ms: int
    has_object: bool = False  # the last column is the name of the object


@dataclass(frozen=True)
class Part(InputPartition):
    objects: list[tuple[str, int]]  # name and size


def source_options(store: Store, spec: SourceSpec) -> dict[str, str]:
    return {"secret.store": json.dumps(vars(store)), "spec": json.dumps(vars(spec))}


class ObjectSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._objects = Objects(Store(**json.loads(options["secret.store"])), SourceSpec(**json.loads(options["spec"])))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ObjectReader(self._objects, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ObjectStreamReader(self._objects, schema)


class ObjectReader(DataSourceReader):
    """All there is, as a table."""

    def __init__(self, objects: Objects, schema: StructType) -> None:
        self._objects, self._schema = objects, schema

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        found = sorted(listed(self._objects.store))
        return _parts([(each.name, each.size) for each in found]) or [Part([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._objects.read(partition, self._schema)


class ObjectStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, objects: Objects, schema: StructType) -> None:
        self._objects, self._schema = objects, schema
        self._asked = float("-inf")
        self._available: list[Found] | None = None  # availableNow: nothing that comes later is read

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available = listed(self._objects.store)

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        spec, now = self._objects.spec, time.monotonic()
        if self._available is None and now - self._asked < spec.poll_ms / 1000:
            return start
        found = listed(self._objects.store) if self._available is None else self._available
        end = next_offset(start, found, spec.files_max, spec.window_ms)
        if end is start:  # while there are more, the next batch need not wait
            self._asked = now
        return dict(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _parts([(name, size) for name, size in end.get("objects", [])])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._objects.read(partition, self._schema)


def with_object(schema: StructType, extra: Sequence[str]) -> StructType:
    return StructType([*schema.fields, *(StructField(name, StringType()) for name in extra)])


def _with_object(batch: pa.RecordBatch, name: str, schema: pa.Schema) -> pa.RecordBatch:
    names = pa.repeat(pa.scalar(name, schema.types[-1]), len(batch))
    return pa.record_batch([*batch.columns, names], schema=schema)


def _parts(objects: list[tuple[str, int]]) -> list[Part]:
    tasks = min(len(objects), _TASKS_MAX)
    return [Part(objects[index::tasks]) for index in range(tasks)]


class Objects:
    """Reads objects of a store."""

    def __init__(self, store: Store, spec: SourceSpec) -> None:
        self.store, self.spec = store, spec

    def read(self, part: Part, schema: StructType) -> Iterator[pa.RecordBatch]:
        everything = pa.schema(list(arrow_type(schema)))
        target = pa.schema(list(everything)[:-1]) if self.spec.has_object else everything
        read = {"parquet": self._parquet, "avro": self._avro}.get(self.spec.format, self._lines)
        with plain_errors():
            for name, size in part.objects:
                self._refuse_changed(name, size)
                try:
                    with reaching(self.store):
                        for batch in read(name, target):
                            yield _with_object(batch, name, everything) if self.spec.has_object else batch
                except _BAD_CONTENT as error:
                    raise RecordFormatError(f"{name} cannot be read as {self.spec.format}: {error}") from error

    def _refuse_changed(self, name: str, size: int) -> None:
        files, _ = self.store.opened()
        with reaching(self.store):
            found = files.get_file_info(self.store.path(name))
        if found.size != size:
            now = "is gone" if found.size is None else f"has {found.size} bytes now"
            raise DataLossError(f"{name} had {size} bytes when it was listed, and {now}: objects may only be added")

    def _lines(self, name: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        for lines in self._blocks(name):
            for begin in range(0, len(lines), _ROWS):
                yield pa.record_batch([pa.array(lines[begin : begin + _ROWS], pa.binary())], schema=target)

    def _blocks(self, name: str) -> Iterator[list[bytes]]:
        """Lines, some at a time. `.gz` is decompressed."""
        files, _ = self.store.opened()
        with files.open_input_stream(self.store.path(name)) as stream:
            rest = b""
            while block := stream.read(_BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                yield lines
            if rest:
                yield [rest]

    def _parquet(self, name: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        files, _ = self.store.opened()
        with files.open_input_file(self.store.path(name)) as stream:
            file = pq.ParquetFile(stream)
            there = set(file.schema_arrow.names)
            for batch in file.iter_batches(_ROWS, columns=[column for column in target.names if column in there]):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in there
                    else pa.nulls(len(batch), field.type)
                    for field in target
                ]
                yield pa.record_batch(columns, schema=target)

    def _avro(self, name: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        files, _ = self.store.opened()
        with files.open_input_stream(self.store.path(name)) as stream:
            records: Iterator[Any] = iter(avro_reader(stream))
            while rows := list(islice(records, _ROWS)):
                yield pa.RecordBatch.from_pylist(rows, target)

    def inferred(self) -> StructType:
        """The schema of the first object, by name."""
        found = min(listed(self.store), default=None)
        if found is None:
            raise ConfigError(
                f"{self.store.url}: no object to infer the schema from: give it, such as `schema: page STRING, ms INT`"
            )
        try:
            with reaching(self.store):
                return self._schema_of(found.name)
        except _BAD_CONTENT as error:
            raise ConfigError(f"{found.name} cannot be read as {self.spec.format}: {error}") from error

    def _schema_of(self, name: str) -> StructType:
        files, _ = self.store.opened()
        path = self.store.path(name)
        if self.spec.format == "parquet":
            with files.open_input_file(path) as stream:
                return from_arrow_schema(pq.read_schema(stream), prefer_timestamp_ntz=True)
        if self.spec.format == "avro":
            with files.open_input_stream(path) as stream:
                found = spark_type(load_schema(json.dumps(avro_reader(stream).writer_schema)))
            return found if isinstance(found, StructType) else StructType().add("value", found)
        lines = next(self._blocks(name))[:_SAMPLE_LINES]
        reader = json_format.reader(ColumnOptions(Options({}), "value"), lambda _, rows: lines[:rows], None)
        assert isinstance(reader.spark_type, StructType)
        return reader.spark_type
