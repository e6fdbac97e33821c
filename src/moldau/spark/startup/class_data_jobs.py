"""Small queries that load the classes a pipeline's first queries load: what they are run for is `class_data`.

A data source in Python, read in a batch and as a stream, and written to; typed values, a shuffle, a windowed count with
its state, a checkpoint. No Kafka is needed: to the JVM one Python data source is like another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

_NAME = "moldau_class_data"
_SCHEMA = "key binary, value binary, topic string, offset bigint, timestamp timestamp"
_ROWS = 100


def run_jobs(spark: SparkSession) -> None:
    spark.dataSource.register(_Rows)
    rows = spark.read.format(_NAME).load()
    rows.selectExpr("count(*)", "sum(length(value))").collect()
    rows.where("offset > 5").selectExpr("cast(key as string) as k", "cast(value as string) as v").limit(5).collect()
    rows.selectExpr("from_json(cast(value as string), 'a long').a as a").groupBy("a").count().orderBy("a").toArrow()
    spark.createDataFrame([(1, "a")], "id long, name string").count()
    stream = spark.readStream.format(_NAME).load()
    counts = (
        stream.withWatermark("timestamp", "1 minute")
        .selectExpr("window(timestamp, '1 second') as w", "cast(key as string) as key")
        .groupBy("w", "key")
        .count()
        .selectExpr("encode(key, 'utf-8') as key", "encode(to_json(struct(w, count)), 'utf-8') as value")
    )
    with tempfile.TemporaryDirectory(prefix="moldau-class-data-") as folder:
        for name, writer in (
            ("counts", counts.writeStream.foreachBatch(_count).outputMode("update")),
            ("copy", stream.writeStream.format(_NAME)),
        ):
            query = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start()
            query.awaitTermination()


def _count(batch: DataFrame, _batch_id: int) -> None:
    batch.count()


class _Rows(DataSource):
    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _Writer()


class _Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield _batch()


class _StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"0": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"0": _ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield _batch()


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _batch() -> pa.RecordBatch:
    numbers = range(_ROWS)
    return pa.record_batch(
        {
            "key": pa.array([b"%d" % (number % 3) for number in numbers], pa.binary()),
            "value": pa.array([b'{"a": %d}' % number for number in numbers], pa.binary()),
            "topic": pa.array(["topic"] * _ROWS),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array([number * 100_000 for number in numbers], pa.timestamp("us", tz="UTC")),
        }
    )
