"""A topic as a table that is read again in each micro-batch.

Spark plans a batch read in Python once for each `load()`, so a stream that is joined with it would see the offsets of
the first batch forever. Here tasks look up the offsets themselves, when they read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from moldau.spark.data_source import MoldauDataSource
from moldau.spark.options import Options
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.batch_reader import TopicReader
from moldau.spark.source.planning import TopicOffsets
from moldau.spark.source.projection import RowReader
from moldau.spark.source.read_options import ReadOptions


class TopicTableSource(MoldauDataSource):
    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options)
        read = ReadOptions.for_batch(options)
        return TopicTableReader(read, RowReader.of(options, read, schema))


class TopicTableReader(TopicReader):
    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """A task for each partition that the topic has now."""
        return [InputPartition((part.topic, part.partition)) for part in self._ranges(TopicOffsets(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            ranges = self._ranges(TopicOffsets(self._options))
        for part in ranges:
            if (part.topic, part.partition) == partition.value and part.start < part.end:
                yield from self._rows.read(part)
