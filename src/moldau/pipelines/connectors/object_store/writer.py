"""The objects of a micro-batch, exactly once for any reader of the store.

- Names are made of topic, partition and first offset, or of query, batch and task, so a batch that is repeated after a
  kill replaces the objects of the first attempt by the same ones, byte for byte where names are of offsets.
- An object appears whole or not at all (`stores`).
- Rows are shuffled before they are written. So all of a batch has been decoded and transformed before the first object
  appears: a record that fails cannot leave objects behind, which would stay when it has become a dead letter.
- A shuffle puts the rows of an object into one task, sorted; each task has one open object at a time.

What a repeated batch has to find as it was: the records of the topic, and the options of the sink. If `flush rows`, the
format or the folders are changed just when a batch was interrupted, its objects may be stored twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from moldau.clocks import wall_clock_ms
from moldau.errors import ConfigError
from moldau.pipelines.connectors.object_store.encoders import Encoder, Encoding
from moldau.pipelines.connectors.object_store.formats import FORMATS, extension
from moldau.pipelines.connectors.object_store.layout import Layout, object_name
from moldau.pipelines.connectors.object_store.stores import Store, put
from moldau.pipelines.connectors.writers.hadoop_files import HadoopFiles
from moldau.spark.options import QUERY_ID
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FOLDER, _TOPIC, _PARTITION, _OFFSET = _OWN = tuple(
    f"__moldau_{name}" for name in ("folder", "topic", "partition", "offset")
)
_PLACE = (_FOLDER, _TOPIC, _PARTITION)
_SLICE_ROWS = 1_000  # the size of an object is looked at this often
_WRITTEN = "object STRING, rows BIGINT"


@dataclass(frozen=True)
class ObjectSink:
    """Writes micro-batches to a store."""

    store: Store
    name: str  # of the sink
    layout: Layout
    encoding: Encoding
    rows_max: int
    bytes_max: int | None
    tasks: int
    checkpoint: str = ""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        payload = _payload(rows, self.layout.value, self.encoding)
        folder = self.layout.folder(rows, lambda: _batch_s(rows.sparkSession, self.checkpoint, batch_id))
        if self.layout.has_offsets:
            place = [F.col("topic"), F.col("partition"), F.col("offset")]
        else:
            query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or "batch"
            place = [F.lit(f"{self.name}-{query[:8]}-{batch_id:09d}"), F.lit(0), F.lit(0)]
        placed = rows.select(*(each.alias(name) for name, each in zip(_OWN, (folder, *place), strict=True)), *payload)
        by = _PLACE if self.layout.has_offsets else ()
        together = placed.repartition(self.tasks, *by).sortWithinPartitions(*by, _OFFSET if by else _FOLDER)
        task = ObjectTask(replace(self, encoding=self._encoding(placed)))
        together.mapInArrow(task.write, _WRITTEN).write.format("noop").mode("overwrite").save()

    def _encoding(self, placed: DataFrame) -> Encoding:
        if self.encoding.format != "avro":
            return self.encoding
        from pyspark.sql.types import StructType

        from moldau.spark.formats.avro_schema import avro_schema

        written = StructType([field for field in placed.schema if field.name not in _OWN])
        try:
            schema = avro_schema(written, "row")
        except ValueError as error:
            raise ConfigError(f"format avro: {error}") from error
        return replace(self.encoding, avro_schema=json.dumps(schema))


def _payload(rows: DataFrame, value: str, encoding: Encoding) -> list[Column]:
    """What is written: the line of a row, or its columns."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    format_name = encoding.format
    is_struct = bool(value) and isinstance(rows.schema[value].dataType, StructType)
    if not FORMATS[format_name].has_lines:
        return [F.col(f"{value}.*") if is_struct else F.col(value or "*")]
    if format_name == "json":
        nulls = {"ignoreNullFields": str(not encoding.has_nulls).lower()}
        if value and not is_struct:
            listed = F.to_json(F.array(value), nulls)
            line = F.substring(listed, F.lit(2), F.length(listed) - 2)
        else:
            line = F.to_json(F.col(value) if value else F.struct("*"), nulls)
    else:
        line = F.col(value or "value")
        if is_struct:
            raise ConfigError(f"format {format_name}: the column {value} has fields: expected text or bytes")
    return [F.coalesce(line.cast("binary"), F.lit(b"")).alias("value")]


def _batch_s(spark: SparkSession, checkpoint: str, batch_id: int) -> int:
    """When Spark planned the batch, which the checkpoint tells: a repeated batch has the same time."""
    if not checkpoint:
        return wall_clock_ms() // 1000
    log = HadoopFiles(spark, checkpoint).read(f"{checkpoint}/offsets/{batch_id}")
    return int(json.loads(log.split("\n")[1])["batchTimestampMs"]) // 1000


@dataclass
class _Object:
    """The object that a task is writing."""

    place: tuple[str, str, int]
    start: int
    encoder: Encoder
    name: str
    rows: int = 0
    size: int = 0
    last: int = -1  # offset


class ObjectTask:
    """Writes the rows of one task."""

    def __init__(self, sink: ObjectSink) -> None:
        self._sink = sink
        self._open: _Object | None = None
        self._rows = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            for batch in batches:
                if len(batch):
                    yield from self._write_batch(batch)
            if self._open is not None:
                yield self._close(self._open)

    def _write_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        payload = batch.select([name for name in batch.schema.names if name not in _OWN])
        offsets = self._offsets(batch)
        starts = _run_starts(batch)
        for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
            place = tuple(batch.column(name)[start].as_py() for name in _PLACE)
            begin = start
            while begin < end:
                if self._open is not None and (self._open.place != place or self._is_full(int(offsets[begin]))):
                    yield self._close(self._open)
                if self._open is None:
                    self._open = self._new(place, int(offsets[begin]))
                stop = self._slice_end(self._open, offsets, begin, end)
                rows = payload.slice(begin, stop - begin)
                self._open.encoder.add(rows)
                self._open.rows += len(rows)
                self._open.size += rows.nbytes
                self._open.last = int(offsets[stop - 1])
                begin = stop

    def _offsets(self, batch: pa.RecordBatch) -> Any:
        """Rows without offsets are counted, from 0 in each task."""
        if self._sink.layout.has_offsets:
            return batch.column(_OFFSET).to_numpy()
        self._rows += len(batch)
        return np.arange(self._rows - len(batch), self._rows)

    def _is_full(self, next_offset: int) -> bool:
        """Rows of one offset stay together: the next object would have the name of this one."""
        assert self._open is not None
        sink, now = self._sink, self._open
        is_full = now.rows >= sink.rows_max or (sink.bytes_max is not None and now.size >= sink.bytes_max)
        return is_full and next_offset != now.last

    def _slice_end(self, now: _Object, offsets: Any, begin: int, end: int) -> int:
        rows = max(self._sink.rows_max - now.rows, 1)
        stop = min(begin + (min(rows, _SLICE_ROWS) if self._sink.bytes_max else rows), end)
        while stop < end and offsets[stop] == offsets[stop - 1]:
            stop += 1
        return stop

    def _new(self, place: tuple[Any, ...], start: int) -> _Object:
        folder, topic, partition = place
        if not self._sink.layout.has_offsets:
            context = TaskContext.get()
            assert context is not None
            partition = context.partitionId()
        encoding = self._sink.encoding
        name = object_name(topic, partition, start) + extension(encoding.format, encoding.compression)
        path = f"{folder}/{name}" if folder else name
        return _Object((place[0], place[1], place[2]), start, encoding.start(path), path)

    def _close(self, done: _Object) -> pa.RecordBatch:
        with done.encoder.finish() as content:
            put(self._sink.store, done.name, content)
        self._open = None
        return pa.record_batch([[done.name], pa.array([done.rows], pa.int64())], names=["object", "rows"])


def _run_starts(batch: pa.RecordBatch) -> list[int]:
    """The rows at which the place is another than in the row before."""
    changes = np.zeros(len(batch), bool)
    changes[0] = True
    for name in _PLACE:
        column = batch.column(name)
        changes[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return [int(start) for start in np.flatnonzero(changes)]
