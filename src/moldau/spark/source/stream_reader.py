"""`spark.readStream`: where each micro-batch ends, and its tasks. Lives on the driver as long as the query.

Spark asks for the `latestOffset` from the end of the last batch, writes it to its offset log, and asks for the
`partitions` of that batch, again after a restart if the batch was not finished. So all that a batch depends on is in
the two offsets (`offsets`), and `initialOffset` looks up nothing: `startingOffsets` are looked up once in the life of a
query, for the end of its first batch.

Lost records (`data_loss`) fail the query. With failOnDataLoss=false they are a warning, and the query continues: with
the start of a topic that was recreated, or where a log was truncated. Records that were deleted by retention are
noticed by the task that reads them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from moldau.client.groups import commit_offsets
from moldau.errors import ConfigError, DataLossError, MoldauError
from moldau.spark.connections import borrowed, close_idle
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.data_loss import Logs, Loss, find_losses
from moldau.spark.source.idle_wait import IdleWait
from moldau.spark.source.offsets import Offsets, StreamOffset, limited, to_json
from moldau.spark.source.planning import TopicOffsets, split
from moldau.spark.source.projection import RowReader
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.read_plan import OffsetRange
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

# A group that shows a query's positions must not hold the query up.
_COMMIT_TIMEOUT_MS = 5_000
_LOST_RECORDS = "Records may have been lost. To continue with the remaining ones, set the option failOnDataLoss=false"

logger = logging.getLogger(__name__)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, rows: RowReader) -> None:
        self._options = options
        self._rows = rows
        self._topics = TopicOffsets(options)
        self._ends: Offsets = {}  # as last seen
        self._first_ids: dict[str, UUID] = {}  # of topics, for checkpoints that have none
        self._planned: dict[str, Any] = {}  # the end that Spark was last told
        self._is_frozen = False  # availableNow: nothing that comes later is read
        self._last_trigger = float("-inf")
        self._committed: Offsets = {}
        self._idle = IdleWait(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_rows_min is not None:
            return ReadMinRows(self._options.trigger_rows_min)
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = self._topics.ends_now()
        self._is_frozen = True

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        latest = self._look(start, limit)
        if latest is start and not self._is_frozen and self._idle.wait(self._ends):
            return self._look(start, limit)
        return latest

    def _look(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, or `start` if there is none."""
        read = StreamOffset.from_json(start)
        positions = read.positions
        if self._is_frozen:
            self._ends = self._topics.settled(self._ends, positions)
        else:
            self._ends = self._topics.ends_now(positions)
        # The batch that ended there is done; Spark says so only when there is a next one. A broker that was away has
        # come back by now.
        self.commit(start)
        joined = self._joining(read) if start else self._starting()
        self._first_ids = {**self._topics.topic_ids, **self._first_ids}
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
        topics = {topic for topic, _ in ends}
        ids = {topic: topic_id for topic, topic_id in self._topics.topic_ids.items() if topic in topics}
        epochs = {tp: epoch for tp, epoch in self._topics.leader_epochs.items() if tp in ends}
        self._planned = StreamOffset(ends, joined, ids, epochs).to_json()
        return self._planned

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        begins = {**begin.positions, **until.joined}
        if not start and not until.positions.keys() <= begins.keys():
            raise ConfigError(
                "the first batch in this checkpoint was planned by another source, and its start is unknown:"
                " finish it there, or use another checkpoint"
            )
        ends = until.positions if end == self._planned else self._still_there(until)
        # Spark's Kafka source says of a partition that joins only where it ends, and reads it from its first offset.
        ranges = [
            OffsetRange(*tp, begins.get(tp, 0), offset, until.topic_ids.get(tp[0], ZERO_UUID))
            for tp, offset in ends.items()
        ]
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
            logger.warning("positions not committed to group %s: %s", group, "; ".join(sorted(errors)))

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
        for partition, offset in (options.start.offsets or {}).items():
            if offset > self._ends.get(partition, offset):
                raise ConfigError(f"option {options.start.option}: {partition} has no offset {offset} yet")
        # What was the latest offset when the ends were asked for may be less than it is now.
        return {tp: min(offset, self._ends[tp]) for tp, offset in starts.items()}

    def _joining(self, read: StreamOffset) -> Offsets:
        """Where partitions start that the query did not know, or has to start again with."""
        losses = self._losses(read, self._ends)
        again = [tp for tp in self._ends if tp not in read.positions or (tp in losses and losses[tp].resume is None)]
        cut = {tp: loss.resume for tp, loss in losses.items() if loss.resume is not None}
        return {**self._topics.earliest(again), **cut}

    def _still_there(self, planned: StreamOffset) -> Offsets:
        """The ends of a batch that was planned before a restart, as far as its records are still there."""
        losses = self._losses(planned, self._topics.ends_now(planned.positions))
        resumes = {tp: loss.resume for tp, loss in losses.items()}
        return {tp: min(end, resumes.get(tp, end) or 0) for tp, end in planned.positions.items()}

    def _losses(self, read: StreamOffset, ends: Offsets) -> dict[TopicPartition, Loss]:
        """Reported here: with failOnDataLoss, none are returned."""
        cuts = self._topics.cuts(read.positions, read.leader_epochs)
        losses = find_losses(read, self._first_ids, Logs(ends, self._topics.topic_ids, cuts))
        if losses:
            what = "; ".join(loss.what for loss in losses.values())
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{what}. {_LOST_RECORDS}")
            logger.warning("%s. Continuing with the remaining records (failOnDataLoss=false)", what)
        return losses

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
    @plain_errors()
    def latestOffset(self) -> NoReturn:  # noqa: N802
        raise self._reason

    @plain_errors()
    def read(self, partition: InputPartition) -> NoReturn:
        raise self._reason
