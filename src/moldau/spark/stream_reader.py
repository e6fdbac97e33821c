"""`spark.readStream`: where each micro-batch ends, and its tasks. Lives on the driver as long as the query.

Spark asks for the `latestOffset` from where the last batch ended, writes it to its offset log, then asks for the
`partitions` of that batch, again after a restart if it was not finished. So all that a batch depends on is in the
two offsets (`moldau.spark.offsets`), and `initialOffset` resolves nothing: `startingOffsets` are looked up once in
a query's life, for the end of its first batch.

Lost records (a topic deleted, or created again behind the query's back) fail the query, or with
failOnDataLoss=false are a warning, and what is there now is read from its start; a log that an unclean election cut
short, from its end. Records that retention took are
found by the task that misses them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from moldau.client.cluster import TopicPartition
from moldau.client.groups import commit_offsets
from moldau.errors import ConfigError, DataLossError, MoldauError
from moldau.spark.connections import borrowed, close_idle
from moldau.spark.offsets import Offsets, StreamOffset, limited, to_json
from moldau.spark.planning import TopicOffsets, split
from moldau.spark.projection import RowReader
from moldau.spark.read_options import ReadOptions
from moldau.spark.read_plan import OffsetRange

# A group that shows a query's positions must not hold the query up.
_COMMIT_TIMEOUT_MS = 5_000

_logger = logging.getLogger(__name__)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, rows: RowReader) -> None:
        self._options = options
        self._rows = rows
        self._topics = TopicOffsets(options)
        self._ends: Offsets = {}  # as last seen
        self._is_frozen = False  # availableNow: nothing that comes later is read
        self._last_trigger = float("-inf")
        self._committed: Offsets = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_rows_min is not None:
            return ReadMinRows(self._options.trigger_rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = self._topics.ends_now()
        self._is_frozen = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        positions = StreamOffset.from_json(start).positions
        if self._is_frozen:
            seen: Offsets = {}
            self._ends = self._topics.settled(self._ends, positions)
        else:
            seen, self._ends = self._ends, self._topics.ends_now(positions)
        # The batch that ended there is done; Spark says so only when there is a next one. A broker that was away has
        # come back by now.
        self.commit(start)
        joined = self._joining(positions, seen) if start else self._starting()
        begins = {**positions, **joined}
        ends = {tp: end for tp, end in self._ends.items() if tp in begins}
        # Which partitions there are is written down at once: it would be forgotten, or told again and again.
        is_changed = bool(joined) or ends.keys() != positions.keys()
        if not is_changed and self._should_wait(begins, ends, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        if start and not joined and ends == positions:
            return start
        offset = StreamOffset(ends, joined).to_json()
        # A topic created again may look as it did. Spark makes no batch of equal offsets: first one without its rows.
        return StreamOffset({**ends, **joined}, joined).to_json() if offset == start else offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        begins = {**begin.positions, **until.joined}
        if not start and not until.positions.keys() <= begins.keys():
            raise ConfigError(
                "the first batch in this checkpoint is another source's, which alone knows where it starts:"
                " finish it there, or use another checkpoint"
            )
        # Spark's Kafka source says of a partition that joins only where it ends, and reads it from its first offset.
        ranges = [OffsetRange(*tp, begins.get(tp, 0), offset) for tp, offset in until.positions.items()]
        tasks = split(ranges, self._options.partitions_min, self._options.partition_rows_max)
        return [InputPartition(part) for part in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Show the positions in a consumer group, for its lag to be seen; Spark does not need them."""
        group = self._options.commit_group
        positions = StreamOffset.from_json(end).positions
        if group is None or not positions or positions == self._committed:
            return
        self._committed = positions
        config = self._options.client._replace(
            request_timeout_ms=_COMMIT_TIMEOUT_MS,
            api_timeout_ms=_COMMIT_TIMEOUT_MS,
            connection_timeout_ms=_COMMIT_TIMEOUT_MS,
        )
        try:
            with borrowed(config) as cluster:
                errors = {error.message for error in commit_offsets(cluster, group, positions).values() if error}
        except MoldauError as error:
            errors = {str(error)}
        if errors:
            _logger.warning("positions not committed to group %s: %s", group, "; ".join(sorted(errors)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._ends) or None

    def stop(self) -> None:
        close_idle()

    def _starting(self) -> Offsets:
        """Where a new query starts: the one time that startingOffsets are looked at."""
        self._topics.refuse_missing(self._ends)
        options = self._options
        self._ends = self._topics.settled(self._ends, options.start.offsets or {})
        starts = self._topics.resolve(options.start, self._ends, options.latest_without_match)
        for (topic, index), offset in (options.start.offsets or {}).items():
            if offset > self._ends.get((topic, index), offset):
                raise ConfigError(f"option {options.start.option}: {topic}-{index} has no offset {offset} yet")
        # What was the latest offset when the ends were asked for may be less than it is now.
        return {tp: min(offset, self._ends[tp]) for tp, offset in starts.items()}

    def _joining(self, positions: Offsets, seen: Offsets) -> Offsets:
        """Where partitions start that the query did not know, or has to start again with.

        A log that is shorter than it was when it was last `seen` was cut: from its start, all would come twice.
        """
        lost = {tp: offset for tp, offset in positions.items() if self._is_lost(tp, offset)}
        if lost:
            self._report_loss(lost)
        cut = {tp: self._ends[tp] for tp in lost if tp in seen and tp in self._ends and not self._is_recreated(tp)}
        again = [tp for tp in self._ends if tp not in positions or (tp in lost and tp not in cut)]
        self._topics.recreated.clear()
        return {**self._topics.earliest(again), **cut}

    def _is_lost(self, tp: TopicPartition, offset: int) -> bool:
        return tp not in self._ends or self._ends[tp] < offset or self._is_recreated(tp)

    def _is_recreated(self, tp: TopicPartition) -> bool:
        return tp[0] in self._topics.recreated

    def _report_loss(self, lost: Offsets) -> None:
        gone = ", ".join(f"{topic}-{index} (read up to offset {offset})" for (topic, index), offset in lost.items())
        message = f"deleted, cut short, created again or no longer subscribed to: {gone}; records may have been lost"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}. To go on with what is there, set option failOnDataLoss to false")
        _logger.warning("%s", message)

    def _should_wait(self, begins: Offsets, ends: Offsets, limit: ReadLimit) -> bool:
        """Whether to let more records come, up to minOffsetsPerTrigger or maxTriggerDelay."""
        rows_min = self._options.trigger_rows_min
        if rows_min is None or self._is_frozen or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        waiting = sum(max(end - begins[tp], 0) for tp, end in ends.items())
        if waiting < rows_min and (now - self._last_trigger) * 1000 < self._options.trigger_delay_max_ms:
            return True
        self._last_trigger = now
        return False


class RefusedStreamReader(DataSourceStreamReader):
    """Says why there is no reader when Spark first looks at it.

    Raised where readers are made, the reason would not be the last line of the error: Spark then stops the reader it
    did not get, and that fails, too.
    """

    def __init__(self, reason: MoldauError) -> None:
        self._reason = reason

    @property
    def latestOffset(self) -> NoReturn:  # noqa: N802
        raise self._reason

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._reason
