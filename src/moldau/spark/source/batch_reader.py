"""`spark.read`: from options to tasks, once, on the driver; then each task reads its range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from moldau.errors import ConfigError
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.planning import TopicOffsets, split
from moldau.spark.source.projection import RowReader
from moldau.spark.source.pushdown import Pruning
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.read_plan import OffsetRange
from moldau.wire.constants import LATEST
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID


class TopicReader(DataSourceReader):
    def __init__(self, options: ReadOptions, rows: RowReader) -> None:
        self._options = options
        self._rows = rows
        self._pruning = Pruning()

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        topics = TopicOffsets(self._options)
        ranges = self._pruned(topics, self._ranges(topics))
        return [
            InputPartition(part)
            for part in split(ranges, self._options.partitions_min, self._options.partition_rows_max)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition.value)

    def _ranges(self, topics: TopicOffsets) -> list[OffsetRange]:
        options = self._options
        now = topics.ends_now()
        topics.refuse_missing(now)
        starts = topics.resolve(options.start, now, options.latest_without_match)
        ends = now if options.end.time == LATEST else topics.resolve(options.end, now, latest_without_match=True)
        ranges = [
            OffsetRange(*tp, start, ends[tp], topics.topic_ids.get(tp[0], ZERO_UUID))
            for tp, start in starts.items()
            if tp in ends
        ]
        for topic, index, start, end, _ in ranges:
            if start > end:
                raise ConfigError(
                    f"{topic}-{index} would start at offset {start} and end at {end}:"
                    f" lower its {options.start.option} or raise its {options.end.option}"
                )
        return ranges

    def _pruned(self, topics: TopicOffsets, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        left = [part for part in map(self._pruning.cut, ranges) if part.start < part.end]
        timestamp_ms = self._pruning.timestamp_ms
        if timestamp_ms is None:
            return left
        found = topics.at({TopicPartition(part.topic, part.partition): timestamp_ms for part in left})
        # No record that late (-1): none before the end, which was asked for earlier.
        firsts = {tp: offset for tp, offset in found.items() if offset >= 0}
        return [
            part._replace(start=max(part.start, firsts.get(TopicPartition(part.topic, part.partition), part.end)))
            for part in left
        ]


class PruningTopicReader(TopicReader):
    """Reads only what the filters of one query leave, so it is for one query alone.

    Spark keeps one plan for each `load()` of a Python source, the last one made: two filters on one DataFrame, or a
    query without one after it, would get each other's rows. So it is the user who says that a `load()` is for one
    query. Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return self._pruning.take(filters)
