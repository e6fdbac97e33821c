"""One partition's log: its offsets, segments, producers and leader epochs, and how appends, reads, deletions and
truncations change them together.

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset
    recovery point ≤ log end offset: what is below it has been forced to disk
    durable end offset: the recovery point while a flush is due by `flush.messages`, else the log end

With one replica the high watermark is the durable end offset: with `flush.messages=1` nothing is read that a power loss
could take back. With more replicas, the leader counts its own replica up to it, and a follower fetches from it
(`broker.replicas.partition`).

One thread owns a log: it alone appends, reads and deletes, without locks. `flush` may run in another thread
at the same time. Loading from disk is in `recovery.py`. The segments are in `segments/`, the recovery point in
`durability.py`, which segments to delete in `retention.py`, questions by timestamp in `lookups.py`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from moldau.config.topic import TopicConfig
from moldau.disk import Data
from moldau.errors import CorruptFileError, CorruptRecordError, OffsetMismatchError, OffsetOutOfRangeError, StorageError
from moldau.log import retention
from moldau.log.checkpoints import write_partition_metadata
from moldau.log.context import LogContext, LogParts
from moldau.log.durability import Durability
from moldau.log.producer_check import check_producer
from moldau.log.producer_state import AppendOrigin, EndTxnMarker, read_marker
from moldau.log.replay import rebuild_producer_state
from moldau.log.segments.log_segments import LogSegments
from moldau.log.segments.segment import Segment
from moldau.log.validation import LogRules
from moldau.wire.batch import BatchHeader, check_batch, iter_headers, read_header, stamp

logger = logging.getLogger(__name__)

_ANY_EPOCH = 2**31 - 1
_HIGH_WATERMARK = -1  # DeleteRecords: everything that can be read


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name


class PartitionLog:
    __slots__ = (
        "_high_watermark",
        "clock",
        "config",
        "directory",
        "durability",
        "epochs",
        "first_dirty_offset",
        "is_flush_due",
        "last_stable_offset",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "rules",
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
        context: LogContext,
        parts: LogParts,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.log_dir = context.log_dir
        self.clock = context.clock
        self.single_replica = context.single_replica
        self.producers = parts.producers
        self.epochs = parts.epochs
        self.snapshots = parts.snapshots
        self.segments = LogSegments(str(directory), config, context, parts, before_roll=self._before_roll)
        self.durability = Durability(directory, context, parts, self.segments)
        self.log_start_offset = parts.log_start_offset
        self.log_end_offset = parts.log_end_offset
        self.first_dirty_offset = parts.first_dirty_offset
        """What is below has been compacted."""
        self.rules = LogRules.of(config)
        self.is_flush_due = self.durable_end_offset < self.log_end_offset
        """Whether the last append left `flush.messages` or more that are not on disk."""
        self._high_watermark = self.last_stable_offset = self.log_start_offset
        self.high_watermark = self.durable_end_offset if self.single_replica else self.log_start_offset

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def recovery_point(self) -> int:
        return self.durability.recovery_point

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.durability.recovery_point

    @property
    def durable_end_offset(self) -> int:
        """What is below is as safe from a power loss as `flush.messages` asks for."""
        end_offset, recovery_point = self.log_end_offset, self.durability.recovery_point
        return end_offset if end_offset - recovery_point < self.rules.flush_messages else recovery_point

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        offset = self._high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        first_unstable = None
        if self.producers.has_transactions:
            self.producers.on_high_watermark(offset)
            first_unstable = self.producers.first_unstable_offset()
        if first_unstable is not None and first_unstable < offset:
            offset = max(first_unstable, self.log_start_offset)
        self.last_stable_offset = offset

    # -- appending

    def append(
        self,
        records: memoryview | bytearray,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        is_prepared: bool = False,
    ) -> AppendInfo:
        """Appends one batch as the leader, at the log end; `records` is stamped in place.

        Nothing of a batch that is refused, or that the disk does not take whole, is ever visible.
        """
        rules = self.rules
        if is_prepared:
            header = read_header(records)
        else:
            records, header = rules.check(records, now_ms, origin)
        marker, is_produced = None, False
        if header.producer_id >= 0:
            is_produced = not header.is_control
            if is_produced:
                check_producer(self.producers, self.segments, header, origin)
            else:
                marker = read_marker(records, header)
                if marker is not None:
                    self.producers.check_marker(header, marker)
        base_offset = self.log_end_offset
        stamp(records, 0, base_offset, leader_epoch)
        self._write(records, header, base_offset, leader_epoch, now_ms)
        next_offset = base_offset + header.last_offset_delta + 1
        if is_produced:
            self.producers.append(header, base_offset)
        elif marker is not None:
            self._end_transaction(header, marker, base_offset)
        self.log_end_offset = self.producers.end_offset = next_offset
        self.is_flush_due = is_flush_due = next_offset - self.durability.recovery_point >= rules.flush_messages
        # While a flush of earlier records is pending, its end moves the high watermark and wakes those who wait.
        if not is_flush_due and self._high_watermark == base_offset and self.single_replica:
            if self.producers.has_transactions:
                self.high_watermark = next_offset
            else:
                self._high_watermark = self.last_stable_offset = next_offset
        append_time_ms = now_ms if rules.log_append_time else -1
        return AppendInfo(base_offset, next_offset - 1, append_time_ms, self.log_start_offset, header.count)

    def append_as_follower(
        self,
        records: bytes | bytearray | memoryview,
        *,
        now_ms: int,
        leader_epoch: int = _ANY_EPOCH,
        contiguous: bool = False,
    ) -> int:
        """Appends batches as the leader stored them, at its offsets; returns the log end offset.

        Offsets never step back: OffsetMismatchError. What comes after a gap between two batches of a `contiguous` log
        is left, and so is what was written in a later epoch than `leader_epoch`: the next fetch has to ask for it. An
        answer of which nothing at all can be appended is a CorruptRecordError.
        """
        view = memoryview(records)
        end_offset = self.log_end_offset
        for position, header in iter_headers(records):
            if header.leader_epoch > leader_epoch:
                break
            batch = view[position : position + header.size]
            check_batch(batch, 0, header, strict=False)
            if header.last_offset_delta < 0:
                raise CorruptRecordError(f"a batch of {self.name} ends before its first offset")
            if header.base_offset != self.log_end_offset:
                if header.base_offset < self.log_end_offset:
                    self._start_over_inside(header)
                elif contiguous and position:
                    break
            marker = read_marker(batch, header) if header.producer_id >= 0 and header.is_control else None
            self._write(batch, header, header.base_offset, header.leader_epoch, now_ms)
            if marker is not None:
                self._end_transaction(header, marker, header.base_offset)
            elif header.producer_id >= 0 and not header.is_control:
                self.producers.append(header, header.base_offset)
            self.log_end_offset = self.producers.end_offset = header.next_offset
        if self.log_end_offset == end_offset and view:
            raise CorruptRecordError(
                f"the {len(view)} bytes fetched for {self.name} have no batch to append at offset {end_offset}"
            )
        if self.single_replica:
            self.high_watermark = max(self.high_watermark, self.durable_end_offset)
        return self.log_end_offset

    def _write(self, data: Data, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int) -> None:
        """Puts one batch into the active segment, or into a new one; on failure the file is as it was."""
        if self.log_dir.offline:
            self.log_dir.check_online()
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        try:
            self.segments.append(data, header, base_offset, self.log_end_offset, now_ms)
        except OSError as error:
            self.producers.end_offset = self.log_end_offset  # a roll may have moved it
            raise self._storage_error("append to", error) from error

    def _end_transaction(self, header: BatchHeader, marker: EndTxnMarker, base_offset: int) -> None:
        """Updates producer state and transaction index for a marker that was just written."""
        aborted = self.producers.aborted_by(header, marker, base_offset)
        if aborted is not None:
            try:
                self.segments.active.txn_index.append(aborted)
            except OSError as error:
                # Without the entry, aborted records would pass for committed: take the marker back.
                self._take_back(base_offset)
                raise self._storage_error("abort in", error) from error
        self.producers.append_marker(header, marker, base_offset)

    def _take_back(self, base_offset: int) -> None:
        active = self.segments.active
        try:
            active.truncate_to(base_offset)
        except OSError as error:
            self.log_dir.take_offline(f"cannot cut {active.path} before offset {base_offset}: {error}")

    def _storage_error(self, what: str, error: OSError) -> StorageError:
        return self.log_dir.storage_error(f"cannot {what} {self.name}", error)

    @contextmanager
    def _disk_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._storage_error(what, error) from error

    # -- segments

    def roll(self) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        if self.segments.active.size:
            with self._disk_errors("roll"):
                self.segments.roll(self.log_end_offset)

    def _before_roll(self, base_offset: int) -> None:
        self.producers.end_offset = base_offset
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        if self.snapshots.take(self.producers):
            self.segments.needs_dir_sync = True

    def _delete_snapshots(self, offsets: set[int]) -> None:
        if self.snapshots.delete(offsets):
            self.segments.needs_dir_sync = True  # or they are back after a power loss

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """For a log whose `partition.metadata` is missing or unreadable: its id was the zero one."""
        with self._disk_errors("write the topic id of"):
            write_partition_metadata(self.log_dir.disk, self.directory, topic_id)
        self.topic_id = topic_id
        self.segments.needs_dir_sync = True

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.rules = LogRules.of(config)
        self.is_flush_due = self.durable_end_offset < self.log_end_offset
        self.segments.update_config(config)

    # -- deletion

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start offset up to `before_offset` (-1: the high watermark); returns where it is."""
        if before_offset == _HIGH_WATERMARK:
            before_offset = self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {self.name} before {before_offset}: "
                f"the high watermark is {self.high_watermark}"
            )
        with self._disk_errors("delete records of"):
            self._advance_log_start_offset(before_offset)
            self._delete_oldest(*retention.below_start(self))
        return self.log_start_offset

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Deletes segments that time, size or the log start offset overtook."""
        deleted: list[Segment] = []
        with self._disk_errors("delete old segments of"):
            for count, reason in retention.due(self, now_ms):
                deleted += self._delete_oldest(count, reason)
        return deleted

    def _delete_oldest(self, count: int, reason: str) -> list[Segment]:
        if not count:
            return []
        if count == len(self.segments):
            self.roll()
        gone, upto_offset = self.segments[:count], self.segments[count].base_offset
        logger.info("deleting %d segments of %s up to offset %d: %s", count, self.name, upto_offset, reason)
        self._advance_log_start_offset(upto_offset)
        self._delete_segments(gone)
        return gone

    def _delete_segments(self, gone: list[Segment]) -> None:
        self.segments.delete(gone)
        self._delete_snapshots({segment.base_offset for segment in gone})

    def _advance_log_start_offset(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.high_watermark = max(self.high_watermark, offset)

    # -- truncation: a follower drops what its leader does not have

    def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on; False when there is nothing there."""
        if offset >= self.log_end_offset:
            # This broker may have assigned an epoch as leader, and was deposed before it wrote anything.
            self.epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        high_watermark = self.high_watermark
        with self._disk_errors("truncate"):
            self.durability.lower(offset)
            self._delete_segments([segment for segment in self.segments[1:] if segment.base_offset > offset])
            active = self.segments.active
            self.segments.make_writable(active)
            active.truncate_to(offset)
            self.segments.forget_positions()
            self.log_end_offset = self.producers.end_offset = offset
            self.epochs.truncate_from_end(offset)
            self.log_start_offset = min(self.log_start_offset, offset)
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
            self._delete_snapshots({snapshot for snapshot in self.snapshots.offsets if snapshot > offset})
            rebuild_producer_state(self.producers, self.segments, self.snapshots, offset, now_ms=self.clock())
        self.high_watermark = high_watermark
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the next record gets `offset`."""
        with self._disk_errors("truncate"):
            self.durability.lower(offset)
            self.segments.start_over_at(offset)
            self.log_end_offset = offset
            self.epochs.clear()
            self._delete_snapshots(set(self.snapshots.offsets))
            self.producers.clear(offset)
        self.log_start_offset = self.first_dirty_offset = offset
        self.durability.start_over_at(offset)
        self.high_watermark = offset

    def _start_over_inside(self, header: BatchHeader) -> None:
        """For a leader's batch that begins before the end of this log; OffsetMismatchError unless it may.

        Only an empty log begins inside a batch: records were deleted up to there, and the leader still has the batch
        whole.
        """
        start_offset = self.log_start_offset
        if not start_offset == self.log_end_offset <= header.last_offset:
            raise OffsetMismatchError(self.name, self.log_end_offset, header.base_offset)
        self.truncate_fully_and_start_at(header.base_offset)
        self.log_start_offset = start_offset
        self.high_watermark = start_offset

    # -- compaction

    def move_aside(self, old: list[Segment]) -> None:
        """Renames the files of segments that a cleaned one is about to replace; its snapshot is that of the first."""
        self.segments.move_aside(old)
        self._delete_snapshots({segment.base_offset for segment in old[1:]})

    def compacted_upto(self, offset: int) -> None:
        self.first_dirty_offset = offset

    # -- reading

    def read(self, offset: int, max_bytes: int, *, upto_offset: int, min_one: bool) -> bytes | memoryview:
        """Whole batches from the one that holds `offset`, none that reaches `upto_offset`, in `max_bytes`.

        With `min_one` at least one batch, however large. Empty when there is nothing (yet).
        """
        return self._read(offset, max_bytes, upto_offset, min_one)[0]

    def read_committed(
        self, offset: int, max_bytes: int, *, min_one: bool
    ) -> tuple[bytes | memoryview, list[tuple[int, int]]]:
        """As `read`, up to the last stable offset; and the aborted transactions that have records there."""
        data, next_offset = self._read(offset, max_bytes, self.last_stable_offset, min_one)
        if not data:
            return data, []
        upto_offset = next_offset if next_offset >= 0 else self.last_stable_offset
        return data, self.aborted_transactions(offset, upto_offset)

    def _read(self, offset: int, max_bytes: int, upto_offset: int, min_one: bool) -> tuple[bytes | memoryview, int]:
        """The batches, and the offset that follows them; -1 where that is not known."""
        end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise OffsetOutOfRangeError(
                f"{self.name} has offsets {self.log_start_offset} to {end_offset}, {offset} was asked for"
            )
        if offset >= upto_offset:
            return b"", offset
        try:
            return self.segments.read(offset, max_bytes, upto_offset, end_offset, min_one)
        except OSError as error:
            raise self._storage_error("read", error) from error

    def aborted_transactions(self, start_offset: int, upto_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions with records in [start, upto)."""
        try:
            found = self.segments.aborted_transactions(start_offset, upto_offset)
        except CorruptFileError as error:
            raise StorageError(f"{error}; restart the broker to rebuild it") from error
        except OSError as error:
            raise self._storage_error("read", error) from error
        return [(txn.producer_id, txn.first_offset) for txn in found]

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` and its end offset; (-1, -1) when unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # -- durability

    def flush(self, upto_offset: int | None = None) -> None:
        """Forces the log to disk up to `upto_offset` (default: its end); then the recovery point is there.

        Any thread may call it while the owner appends.
        """
        truncations = self.durability.truncations  # before the end: a truncation in between voids the flush
        end_offset = self.log_end_offset
        self.durability.flush(end_offset if upto_offset is None else min(end_offset, upto_offset), truncations)

    def close(self) -> None:
        """Puts everything on disk that a quick start needs, and closes the files for good."""
        active = self.segments.active
        was_written = active.writable
        try:
            active.close()
            self._take_snapshot()
            self.flush()
            self.durability.sync_closed(active, was_written=was_written)
        except OSError as error:
            raise self._storage_error("close", error) from error
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Lets go of the files without writing anything."""
        self.segments.close_files()
