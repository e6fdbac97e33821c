"""One partition's log: its segments in order, and everything that is true of them together.

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset;  recovery point ≤ log end offset

One thread owns a log: it alone appends, reads and deletes, without locks. `flush` may run in another thread at the same
time. Loading from disk is in `recovery.py`, what to delete when in `retention.py`.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from moldau.config.topic import TopicConfig
from moldau.errors import CorruptRecordError, ErrorCode, KafkaError, OffsetOutOfRangeError
from moldau.log import lookups, retention, truncation
from moldau.log.epoch_cache import EpochCache
from moldau.log.files import SNAPSHOT_SUFFIX, FilePool, LogDir, file_name, fsync_path, write_file
from moldau.log.producer_state import AppendOrigin, EndTxnMarker, ProducerState, read_marker
from moldau.log.segment import Segment
from moldau.log.validation import LogRules
from moldau.wire.batch import BatchHeader, check_batch, iter_headers, read_header, stamp

logger = logging.getLogger(__name__)

_base_offset = attrgetter("base_offset")
# A reader that reads on finds its position here; more of them than this look it up in the index now and then.
_HINTS_MAX = 64


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name


class PartitionLog:
    __slots__ = (
        "_active",
        "_high_watermark",
        "_hints",
        "_needs_dir_sync",
        "_recovery_lock",
        "_rules",
        "_sealed_bytes",
        "_truncations",
        "_unsynced_snapshots",
        "clock",
        "config",
        "deleted_files",
        "directory",
        "epochs",
        "last_flush_ms",
        "last_stable_offset",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "pool",
        "producers",
        "recovery_point",
        "segments",
        "single_replica",
        "snapshots",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        directory: Path,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicConfig,
        *,
        log_dir: LogDir,
        pool: FilePool,
        clock: Callable[[], int],
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerState,
        epochs: EpochCache,
        snapshots: list[int],
        single_replica: bool = True,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.log_dir = log_dir
        self.pool = pool
        self.clock = clock
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.producers = producers
        self.epochs = epochs
        self.snapshots = snapshots
        self.single_replica = single_replica
        self.last_flush_ms = clock()
        self.deleted_files: list[tuple[int, str]] = []
        self._active = segments[-1]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._rules = LogRules.of(config)
        self._recovery_lock = threading.Lock()
        self._truncations = 0
        self._needs_dir_sync = True
        self._unsynced_snapshots: list[str] = []
        self._high_watermark = log_end_offset if single_replica else log_start_offset
        self.last_stable_offset = 0
        self._update_last_stable_offset()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self._active.size

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        if self.producers.has_transactions:
            self.producers.on_high_watermark(self._high_watermark)
        self._update_last_stable_offset()

    def _update_last_stable_offset(self) -> None:
        first_unstable = self.producers.first_unstable_offset()
        if first_unstable is None or first_unstable >= self._high_watermark:
            self.last_stable_offset = self._high_watermark
        else:
            self.last_stable_offset = max(first_unstable, self.log_start_offset)

    # -- appending --------------------------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview | bytearray,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Appends one batch as the leader, at the log end; `records` is stamped in place.

        Nothing of a batch that is refused, or that the disk does not take whole, is ever visible.
        """
        header = read_header(records)
        size = header.length + 12
        rules = self._rules
        if size != len(records):
            raise _wrong_size(records, header)
        if size > rules.max_message_bytes or size > rules.segment_bytes:
            rules.check_size(size)
        check_batch(records, 0, header, strict=origin is AppendOrigin.CLIENT)
        rules.check_header(header, now_ms)
        if not rules.headers_suffice:
            records, header = rules.apply(records, header, now_ms)
            size = len(records)
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(records, header)
                if marker is not None:
                    self.producers.check_marker(header, marker)
            else:
                self.producers.check(header, origin)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        stamp(records, 0, base_offset, leader_epoch)
        self._write(records, size, base_offset, last_offset, leader_epoch, header.max_timestamp, now_ms)
        if header.producer_id >= 0:
            self._remember(header, marker, base_offset, last_offset)
        self.log_end_offset = self.producers.end_offset = last_offset + 1
        if self.single_replica:
            self._high_watermark = self.last_stable_offset = last_offset + 1
            if self.producers.has_transactions:
                self.high_watermark = last_offset + 1
        return AppendInfo(
            base_offset,
            last_offset,
            now_ms if rules.log_append_time else -1,
            self.log_start_offset,
            header.count,
        )

    def append_as_follower(self, records: bytes | bytearray | memoryview, *, now_ms: int) -> int:
        """Appends batches as a leader stored them, offsets and epochs kept; returns the new log end offset."""
        view = memoryview(records)
        for position, header in iter_headers(records):
            batch = view[position : position + header.size]
            check_batch(batch, 0, header, strict=False)
            if header.base_offset < self.log_end_offset:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{self.name}: offset {header.base_offset} from the leader, the log already ends at {self.log_end_offset}",
                )
            marker = read_marker(batch, header) if header.producer_id >= 0 and header.is_control else None
            self._write(
                batch, header.size, header.base_offset, header.last_offset, header.leader_epoch,
                header.max_timestamp, now_ms,
            )  # fmt: skip
            if header.producer_id >= 0:
                self._remember(header, marker, header.base_offset, header.last_offset)
            self.log_end_offset = self.producers.end_offset = header.next_offset
        if self.single_replica:
            self.high_watermark = self.log_end_offset
        return self.log_end_offset

    def _write(
        self,
        data: bytes | bytearray | memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        leader_epoch: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """Puts one batch into the active segment, or into a new one; on failure the file is as it was."""
        if self.log_dir.offline:
            self.log_dir.check_online()
        segment = self._active
        position = segment.size
        try:
            if not segment.writable:
                self.make_writable(segment)
            if (
                position + size > self._rules.segment_bytes
                or last_offset > segment.offset_limit
                or segment.index_full
                or (max_timestamp if segment.first_timestamp >= 0 else now_ms) > segment.roll_deadline_ms
            ) and (position or last_offset > segment.offset_limit):
                segment = self._roll(base_offset)
                position = 0
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            segment.append(data, size, last_offset, max_timestamp)
        except OSError as error:
            if segment.fd >= 0:
                self._cut(segment, position)
            raise self.log_dir.storage_error(f"cannot append to {self.name}", error) from error
        if not position:
            segment.first_timestamp = max_timestamp
            segment.set_roll_deadline(self.config.segment_ms)

    def _cut(self, segment: Segment, position: int) -> None:
        """Takes a half-written batch off the file again."""
        try:
            segment.cut(position)
        except OSError as error:
            # Bytes that nobody acknowledged stay behind the end: the next start has to look for them.
            self.log_dir.take_offline(f"cannot cut {segment.path} to {position} bytes: {error}")

    def _remember(
        self, header: BatchHeader, marker: EndTxnMarker | None, base_offset: int, last_offset: int
    ) -> None:
        """Updates producer state and transaction index for a batch that was just written."""
        if not header.is_control:
            self.producers.append(header, base_offset, last_offset, header.max_timestamp)
            return
        if marker is None:
            return
        aborted = self.producers.aborted_by(header, marker, base_offset)
        if aborted is not None:
            try:
                self._active.txn_index.append(aborted)
            except OSError as error:
                # Without its entry the aborted records would be served as committed: the marker must go again.
                self._active.truncate_to(base_offset)
                raise self.log_dir.storage_error(f"cannot index an abort in {self.name}", error) from error
        self.producers.append_marker(header, marker, base_offset, header.max_timestamp)

    # -- segments ---------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        if self._active.size:
            try:
                self._roll(self.log_end_offset)
            except OSError as error:
                raise self.log_dir.storage_error(f"cannot roll {self.name}", error) from error

    def _roll(self, base_offset: int) -> Segment:
        """A new active segment; OSError leaves the old one active and as it was."""
        old = self._active
        new = Segment.create(str(self.directory), base_offset, self.pool, self.clock())
        if old.writable:
            old.write_indexes()
        self.producers.end_offset = base_offset
        self.take_snapshot()
        self.make_writable(new)
        old.writable = False
        if old.size:
            self._sealed_bytes += old.size
            self.segments.append(new)
        else:  # an empty segment from which the next offset cannot be counted
            self.deleted_files += [(self.clock(), path) for path in old.mark_deleted()]
            self.segments[-1:] = [new]
        self._active = new
        self._needs_dir_sync = True
        return new

    def make_writable(self, segment: Segment) -> None:
        config = self.config
        jitter_ms = random.randrange(min(config.segment_jitter_ms, config.segment_ms) + 1)
        segment.make_writable(
            segment_ms=config.segment_ms,
            jitter_ms=jitter_ms,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._rules = LogRules.of(config)
        if self._active.writable:
            self.make_writable(self._active)

    def take_snapshot(self) -> None:
        """Writes the producer state as of its end offset, unless that is on disk already."""
        offset = self.producers.end_offset
        if offset == self.producers.snapshot_offset:
            return
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        write_file(path, self.producers.encode())
        self.producers.snapshot_offset = offset
        self.snapshots.append(offset)
        self._unsynced_snapshots.append(path)

    # -- durability -------------------------------------------------------------------------------------------------

    def flush(self, upto_offset: int | None = None) -> None:
        """Forces the log to disk up to `upto_offset` (default: its end); then the recovery point is there.

        Any thread may call it while the owner appends: the end is taken first, so what comes later is not counted.
        """
        truncations = self._truncations
        end_offset = self.log_end_offset
        if upto_offset is not None:
            end_offset = min(end_offset, upto_offset)
        if end_offset <= self.recovery_point:
            return
        try:
            self._sync(end_offset)
        except OSError as error:
            # The kernel may have dropped what it could not write; only a restart from what is on disk is safe.
            self.log_dir.take_offline(f"fsync of {self.name} failed: {error}")
            raise self.log_dir.storage_error(f"cannot flush {self.name}", error) from error
        with self._recovery_lock:
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end_offset)
        self.last_flush_ms = self.clock()

    def _sync(self, end_offset: int) -> None:
        segments = list(self.segments)
        first = max(0, bisect_right(segments, self.recovery_point, key=_base_offset) - 1)
        for segment in segments[first:]:
            if segment.base_offset < end_offset:
                segment.flush()
        while self._unsynced_snapshots:
            fsync_path(self._unsynced_snapshots[0])
            del self._unsynced_snapshots[:1]
        self.epochs.flush()
        if self._needs_dir_sync:
            self._needs_dir_sync = False
            fsync_path(self.directory)

    def close(self) -> None:
        """Puts everything on disk that a quick start needs, and closes the files. The log is not used afterwards."""
        changed = self._active.writable
        try:
            self._active.close()
            if changed or self.producers.end_offset != self.producers.snapshot_offset:
                self.take_snapshot()
            self.flush()
            if changed:
                self._active.flush()
        except OSError as error:
            raise self.log_dir.storage_error(f"cannot close {self.name}", error) from error
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self.segments:
            segment.close_files()

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto_offset: int, min_one: bool) -> bytes | memoryview:
        """Whole batches from the one that holds `offset`, none that reaches `upto_offset`, within `max_bytes`.

        With `min_one` at least one batch, however large. Empty when there is nothing (yet).
        """
        end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.name} is out of range: the log has {self.log_start_offset} to {end_offset}"
            )
        if offset >= upto_offset:
            return b""
        try:
            hint = self._hints.get(offset)
            segment, position = hint if hint is not None else self._locate(offset)
            if position >= segment.size:
                if segment is self._active:
                    return b""
                segment, position = self._following(segment), 0
            if segment is self._active:
                following_offset = end_offset
                end = segment.size if upto_offset >= end_offset else segment.position_of(upto_offset)
            else:
                following_offset = self._following(segment).base_offset
                end = segment.size if upto_offset >= following_offset else segment.position_of(upto_offset)
            if end - position <= max_bytes:
                data: bytes | memoryview = segment.read(position, end - position)
                next_offset = min(following_offset, upto_offset)
            else:
                data, next_offset = segment.read_batches(position, max_bytes, end, min_one)
        except OSError as error:
            raise self.log_dir.storage_error(f"cannot read {self.name}", error) from error
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = (segment, position + len(data))
        return data

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`."""
        segments = self.segments
        number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        while True:
            segment = segments[number]
            position = segment.position_of(offset)
            if position < segment.size or segment is self._active:
                return segment, position
            number += 1  # the rest of this segment was compacted away

    def _following(self, segment: Segment) -> Segment:
        """The next segment that holds anything; the active one at the last."""
        segments = self.segments
        number = bisect_right(segments, segment.base_offset, key=_base_offset)
        while number < len(segments) - 1 and not segments[number].size:
            number += 1
        return segments[min(number, len(segments) - 1)]

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than `timestamp_ms`."""
        return lookups.offset_for_timestamp(self, timestamp_ms)

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the newest record; the first one, if several are."""
        return lookups.max_timestamp(self)

    def aborted_transactions(self, start_offset: int, upto_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions with records in [start, upto)."""
        return lookups.aborted_transactions(self, start_offset, upto_offset)

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` and its end offset; (-1, -1) when unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which `offset` was written; -1 when unknown."""
        return self.epochs.epoch_of(offset)

    # -- for retention and truncation -------------------------------------------------------------------------------

    def drop_segments(self, gone: list[Segment]) -> None:
        """Takes segments out of the log; their files follow after `file.delete.delay.ms`."""
        if not gone:
            return
        now_ms = self.clock()
        names = set(gone)
        self.segments[:] = [segment for segment in self.segments if segment not in names]
        for segment in gone:
            self.deleted_files += [(now_ms, path) for path in segment.mark_deleted()]
        retention.delete_snapshots(self, {segment.base_offset for segment in gone})
        self._segments_changed()

    def set_end(self, offset: int) -> None:
        """The log now ends at `offset`, in its last segment."""
        self.log_end_offset = self.producers.end_offset = offset
        self._active = self.segments[-1]
        self._segments_changed()

    def _segments_changed(self) -> None:
        self._sealed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._hints.clear()

    def advance_recovery_point(self, offset: int) -> None:
        with self._recovery_lock:
            self.recovery_point = max(self.recovery_point, offset)

    def lower_recovery_point(self, offset: int) -> None:
        """Before a truncation: a flush that is under way must not count for what comes after it."""
        with self._recovery_lock:
            self._truncations += 1
            self.recovery_point = min(self.recovery_point, offset)

    # -- shortening -------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start offset up to `before_offset` (-1: the high watermark); returns where it is now."""
        if before_offset == -1:
            before_offset = self._high_watermark
        if before_offset > self._high_watermark or before_offset < 0:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {self.name} before {before_offset}: the high watermark is {self._high_watermark}"
            )
        retention.advance_log_start_offset(self, before_offset)
        retention.delete_segments_below_start(self)
        return self.log_start_offset

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Deletes the segments that time, size or the log start offset have overtaken; forgets silent producers."""
        self.producers.remove_expired(now_ms)
        return retention.enforce(self, now_ms)

    def purge_deleted(self, now_ms: int) -> None:
        """Removes files that were taken out of the log at least `file.delete.delay.ms` ago."""
        retention.purge_deleted(self, now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on; False when there is nothing there."""
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the next record gets `offset`."""
        truncation.truncate_fully_and_start_at(self, offset)


def _wrong_size(records: memoryview | bytearray, header: BatchHeader) -> KafkaError:
    if header.size > len(records) or not list(iter_headers(records)):
        return CorruptRecordError(f"batch claims {header.size} bytes, {len(records)} were sent")
    return KafkaError(
        ErrorCode.INVALID_RECORD, "a produce request holds exactly one record batch per partition"
    )
