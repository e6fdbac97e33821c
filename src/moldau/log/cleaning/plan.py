"""Which logs need cleaning, which one most, and how far each may be cleaned. Kafka's rules:

dirty         from the first dirty offset (`cleaner-offset-checkpoint`) on
uncleanable   the active segment; what reaches the last stable offset; the first segment that has a record
              younger than `min.compaction.lag.ms`, and all after it
due           more than `min.cleanable.dirty.ratio` of the bytes are dirty, or a dirty segment begins with a record
              older than `max.compaction.lag.ms`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moldau.config.keys import LONG_MAX
from moldau.log.cleaning.job import CleaningJob
from moldau.log.partition_log import PartitionLog
from moldau.log.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """What one worker may use of the machine."""

    dedupe_buffer_bytes: int = 128 << 20
    io_buffer_bytes: int = 512 << 10
    bytes_per_second_max: float = float("inf")


@dataclass(frozen=True, slots=True)
class LogToClean:
    log: PartitionLog
    segments: list[Segment]  # from the log's start up to the first uncleanable offset
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    truncations: int  # of the log, when this was planned: one more, and the plan is void

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (
            self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio
        )

    @property
    def is_void(self) -> bool:
        """Whether the log has changed so that what is made of it can no longer be put in its place."""
        log = self.log
        return log.durability.truncations != self.truncations or not log.config.compact or log.log_dir.offline

    def job(self, now_ms: int, limits: CleaningLimits) -> CleaningJob:
        log, config = self.log, self.log.config
        upper_offset = self.first_uncleanable_offset
        last_records = [
            (entry.producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for entry in log.producers.producers.values()
        ]
        return CleaningJob(
            directory=str(log.directory),
            now_ms=now_ms,
            first_dirty_offset=self.first_dirty_offset,
            first_uncleanable_offset=upper_offset,
            segments=[(segment.base_offset, segment.size) for segment in self.segments],
            txn_indexes=[
                (segment.base_offset, segment.txn_index.size) for segment in log.segments if segment.txn_index.exists
            ],
            producers=[last for last in last_records if last[1] < upper_offset],
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            uncompressed_bytes_max=log.rules.uncompressed_bytes_max,
            dedupe_buffer_bytes=limits.dedupe_buffer_bytes,
            buffer_bytes=limits.io_buffer_bytes,
            bytes_per_second_max=limits.bytes_per_second_max,
        )


def filthiest(logs: Iterable[PartitionLog], now_ms: int) -> LogToClean | None:
    """The compacted log with the largest dirty part, of those that are due."""
    due = [
        todo for log in logs
        if len(log.segments) > 1 and log.config.compact and (todo := look_at(log, now_ms)).is_due
    ]  # fmt: skip
    return max(due, key=lambda todo: todo.dirty_ratio, default=None)


def look_at(log: PartitionLog, now_ms: int) -> LogToClean:
    segments = log.segments
    first_dirty_offset = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
        first_dirty_offset = log.log_start_offset  # deleted up to there, or a checkpoint of a log that was longer
    first_dirty = segments.index_of(first_dirty_offset)
    # The last one is active; the one that holds the last stable offset has records that cannot be judged yet.
    end = min(segments.index_of(log.last_stable_offset), len(segments) - 1)
    if log.config.min_compaction_lag_ms:
        end = _first_too_young(segments, first_dirty, end, now_ms - log.config.min_compaction_lag_ms)
    return LogToClean(
        log=log,
        segments=segments[:end],
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=max(first_dirty_offset, segments[end].base_offset),
        clean_bytes=sum(
            segment.size for segment in segments[: first_dirty + 1] if segment.base_offset < first_dirty_offset
        ),
        dirty_bytes=sum(segment.size for segment in segments[first_dirty:end]),
        is_overdue=_is_overdue(segments[first_dirty:-1], now_ms, log.config.max_compaction_lag_ms),
        truncations=log.durability.truncations,
    )


def _first_too_young(segments: Sequence[Segment], first: int, end: int, oldest_ms: int) -> int:
    for number in range(first, end):
        if segments[number].largest_timestamp() > oldest_ms:
            return number
    return end


def _is_overdue(segments: Sequence[Segment], now_ms: int, lag_ms: int) -> bool:
    if lag_ms == LONG_MAX:
        return False
    return any(0 < segment.first_batch_timestamp() < now_ms - lag_ms for segment in segments)
