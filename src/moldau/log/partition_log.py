"""One partition's log: its segments in order, and everything that is true of them together.

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset
    recovery point ≤ log end offset: what is below it has been forced to disk
    durable end offset: the recovery point while a flush is due by `flush.messages`, else the log end

With one replica the high watermark is the durable end offset: with `flush.messages=1` nobody reads what a power loss
could take back. With more, the leader counts itself by it, and a follower fetches from it (`broker.partition`).

One thread owns a log: it alone appends, reads and deletes, without locks. `flush` may run in another thread
at the same time. Loading from disk is in `recovery.py`, what to delete when in `retention.py`, questions by
timestamp in `lookups.py`.
"""

from __future__ import annotations

import random
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from moldau.clocks import Clock, monotonic_ms
from moldau.config.topic import TopicConfig
from moldau.errors import CorruptRecordError, OffsetOutOfRangeError
from moldau.log import durability, lookups, retention, truncation
from moldau.log.checkpoints import write_partition_metadata
from moldau.log.epoch_cache import EpochCache
from moldau.log.files import FilePool, LogDir
from moldau.log.lookups import SMALL_BYTES
from moldau.log.producer_state import AppendOrigin, EndTxnMarker, ProducerState, read_marker
from moldau.log.replay import check_producer
from moldau.log.segment import MAX_RELATIVE_OFFSET, Segment, base_offset_of
from moldau.log.validation import LogRules, wrong_size
from moldau.wire.batch import LOG_OVERHEAD, BatchHeader, check_batch, iter_headers, read_header, stamp

# A reader that reads on finds its position here; with more of them some look it up in the index now and then.
_HINTS_MAX = 32
_ANY_EPOCH = 2**31 - 1


def _no_checkpoint() -> None:
    """Of a log without a manager."""


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name


@dataclass(slots=True)
class LogContext:
    """What a log needs from the manager that holds it."""

    log_dir: LogDir
    pool: FilePool
    clock: Clock
    """The wall clock: segments and producers are as old as the timestamps in their records."""
    producer_id_expiration_ms: int
    single_replica: bool = True
    monotonic: Clock = monotonic_ms
    """For the time since a flush or a deletion."""


@dataclass(slots=True)
class LogParts:
    """What was found on disk, or begins empty."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    snapshots: list[int]
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    needs_dir_sync: bool = True  # unless it is as a clean stop left it


class PartitionLog:
    __slots__ = (
        "_active",
        "_high_watermark",
        "_hints",
        "_rules",
        "_sealed_bytes",
        "checkpointed_recovery_point",
        "clock",
        "config",
        "deleted_files",
        "directory",
        "epochs",
        "first_dirty_offset",
        "flush_lock",
        "is_flush_due",
        "last_flush_ms",
        "last_stable_offset",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "lower_checkpoint",
        "monotonic",
        "needs_dir_sync",
        "partition",
        "pool",
        "producers",
        "recovery_lock",
        "recovery_point",
        "segments",
        "single_replica",
        "snapshots",
        "topic",
        "topic_id",
        "truncations",
        "unsynced_snapshots",
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
        self.pool = context.pool
        self.clock = context.clock
        self.monotonic = context.monotonic
        self.single_replica = context.single_replica
        self.segments = parts.segments
        self.producers = parts.producers
        self.epochs = parts.epochs
        self.snapshots = parts.snapshots
        self.log_start_offset = parts.log_start_offset
        self.log_end_offset = parts.log_end_offset
        self.recovery_point = parts.recovery_point
        self.last_flush_ms = context.monotonic()
        self.first_dirty_offset = 0  # what is below has been compacted
        self.deleted_files: list[tuple[int, str]] = []  # since when, which
        self.flush_lock = threading.Lock()  # between flushing threads
        self.recovery_lock = threading.Lock()  # around the recovery point
        self.checkpointed_recovery_point = 0  # what a start after a crash goes by; the manager keeps it
        self.lower_checkpoint: Callable[[], None] = _no_checkpoint
        self.truncations = 0
        self.needs_dir_sync = parts.needs_dir_sync
        self.unsynced_snapshots: list[str] = []
        self._rules = LogRules.of(config)
        self.is_flush_due = self.durable_end_offset < self.log_end_offset
        """Whether the last append left `flush.messages` or more that are not on disk."""
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset -> where it is read from
        self._active = self.segments[-1]
        self._sealed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._high_watermark = self.last_stable_offset = self.log_start_offset
        self.high_watermark = self.durable_end_offset if self.single_replica else self.log_start_offset

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self._active.size

    @property
    def uncompressed_bytes_max(self) -> int:
        """How far a batch may unpack where the broker has to look inside."""
        return self._rules.uncompressed_bytes_max

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    @property
    def durable_end_offset(self) -> int:
        """What is below is as safe from a power loss as `flush.messages` asks for."""
        end_offset, recovery_point = self.log_end_offset, self.recovery_point
        return end_offset if end_offset - recovery_point < self._rules.flush_messages else recovery_point

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
        rules = self._rules
        if is_prepared:
            header = read_header(records)
        else:
            records, header = self._checked(rules, records, now_ms, origin)
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
        self.is_flush_due = is_flush_due = next_offset - self.recovery_point >= rules.flush_messages
        # Where a flush of earlier records is still awaited, its end moves the high watermark, and tells who waits.
        if not is_flush_due and self._high_watermark == base_offset and self.single_replica:
            if self.producers.has_transactions:
                self.high_watermark = next_offset
            else:
                self._high_watermark = self.last_stable_offset = next_offset
        append_time_ms = now_ms if rules.log_append_time else -1
        return AppendInfo(base_offset, next_offset - 1, append_time_ms, self.log_start_offset, header.count)

    @staticmethod
    def _checked(
        rules: LogRules, records: memoryview | bytearray, now_ms: int, origin: AppendOrigin
    ) -> tuple[memoryview | bytearray, BatchHeader]:
        """The batch as it is to be stored, and its header."""
        header = read_header(records)
        size = header.length + LOG_OVERHEAD
        if size != len(records):
            raise wrong_size(records, header)
        if size > rules.segment_bytes or (size > rules.max_message_bytes and origin is AppendOrigin.CLIENT):
            rules.check_size(size)  # a coordinator's step is one batch, however many members its group has
        check_batch(records, 0, header, strict=origin is AppendOrigin.CLIENT)
        rules.check_header(records, header, now_ms)
        if not rules.headers_suffice and origin is AppendOrigin.CLIENT:
            return rules.apply(records, header, now_ms)
        return records, header

    def has_to_look_into(self, records: memoryview | None) -> TypeGuard[memoryview]:
        """Whether the append has to go through the records of the batch, and there may be many."""
        return not self._rules.headers_suffice and records is not None and len(records) > SMALL_BYTES

    def prepare(self, records: memoryview | bytearray, now_ms: int) -> memoryview | bytearray:
        """What `append` does with a produced batch before it writes it. Any thread may call it."""
        return self._checked(self._rules, records, now_ms, AppendOrigin.CLIENT)[0]

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
                raise CorruptRecordError(f"a batch of {self.name} claims to end before its first offset")
            if header.base_offset != self.log_end_offset:
                if header.base_offset < self.log_end_offset:
                    truncation.make_room_before_end(self, header)
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
                f"{len(view)} bytes for {self.name} hold no batch to append at offset {end_offset}"
            )
        if self.single_replica:
            self.high_watermark = max(self.high_watermark, self.durable_end_offset)
        return self.log_end_offset

    def _write(
        self,
        data: bytes | bytearray | memoryview,
        header: BatchHeader,
        base_offset: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Puts one batch into the active segment, or into a new one; on failure the file is as it was."""
        if self.log_dir.offline:
            self.log_dir.check_online()
        size = len(data)
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
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
                # At the log end, though the batch may come after a gap; unless that is too wide for the indexes.
                end_offset = self.log_end_offset
                segment = self._roll(end_offset if last_offset - end_offset <= MAX_RELATIVE_OFFSET else base_offset)
                position = 0
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            segment.append(data, size, last_offset, max_timestamp)
        except OSError as error:
            self.producers.end_offset = self.log_end_offset  # a roll may have moved it
            self._cut(segment, position)
            raise self.log_dir.storage_error(f"cannot append to {self.name}", error) from error
        if not position:
            segment.first_timestamp = max_timestamp
            segment.set_roll_deadline(self.config.max_segment_ms)

    def _cut(self, segment: Segment, position: int) -> None:
        """Takes a half-written batch off the file again."""
        if segment.file is None:
            return  # it was never opened, so nothing was written
        try:
            segment.cut(position)
        except OSError as error:
            # Bytes that nobody acknowledged stay behind the end: the next start has to look for them.
            self.log_dir.take_offline(f"cannot cut {segment.path} to {position} bytes: {error}")

    def _end_transaction(self, header: BatchHeader, marker: EndTxnMarker, base_offset: int) -> None:
        """What a marker that was just written means to producer state and transaction index."""
        aborted = self.producers.aborted_by(header, marker, base_offset)
        if aborted is not None:
            try:
                self._active.txn_index.append(aborted)
            except OSError as error:
                # Without the entry, aborted records would pass for committed: take the marker back.
                self._take_back(base_offset)
                raise self.log_dir.storage_error(f"cannot abort in {self.name}", error) from error
        self.producers.append_marker(header, marker, base_offset)

    def _take_back(self, base_offset: int) -> None:
        try:
            self._active.truncate_to(base_offset)
        except OSError as error:
            self.log_dir.take_offline(f"cannot cut {self._active.path} before offset {base_offset}: {error}")

    # -- segments

    def roll(self) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        if self._active.size:
            try:
                self._roll(self.log_end_offset)
            except OSError as error:
                raise self.log_dir.storage_error(f"cannot roll {self.name}", error) from error

    def _roll(self, base_offset: int) -> Segment:
        """A new active segment; OSError leaves the old one active, and no file of the new one."""
        old = self._active
        if old.writable:
            old.write_indexes()
        self.producers.end_offset = base_offset
        durability.take_snapshot(self)
        # Last, when the old one is complete: recovery takes a segment's name for the end of the one before.
        new = Segment.create(str(self.directory), base_offset, self.pool, self.clock())
        self.make_writable(new)
        old.writable = False
        if old.size:
            self._sealed_bytes += old.size
            self.segments.append(new)
        else:  # an empty segment, too low to count the next offset from
            self.deleted_files += [(self.monotonic(), path) for path in old.mark_deleted()]
            self.segments[-1:] = [new]
        self._active = new
        self.needs_dir_sync = True
        return new

    def make_writable(self, segment: Segment) -> None:
        config = self.config
        segment.make_writable(
            segment_ms=config.max_segment_ms,
            jitter_ms=random.randrange(min(config.segment_jitter_ms, config.max_segment_ms) + 1),
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """For a log whose `partition.metadata` is missing or unreadable: its id was the zero one."""
        try:
            write_partition_metadata(self.log_dir.disk, self.directory, topic_id)
        except OSError as error:
            raise self.log_dir.storage_error(f"cannot write the topic id of {self.name}", error) from error
        self.topic_id = topic_id
        self.needs_dir_sync = True

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._rules = LogRules.of(config)
        self.is_flush_due = self.durable_end_offset < self.log_end_offset
        if self._active.writable:
            self.make_writable(self._active)

    def drop_segments(self, gone: list[Segment]) -> None:
        """Takes some of the segments out of the log; their files follow after `file.delete.delay.ms`."""
        names = set(gone)
        self.segments[:] = [segment for segment in self.segments if segment not in names]
        self.mark_deleted(gone)
        self._sealed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._hints.clear()

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Puts a cleaned segment in the place of neighbours whose files are out of the way already."""
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]
        self._sealed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._hints.clear()
        self.needs_dir_sync = True

    def mark_deleted(self, segments: list[Segment], *, keep_snapshot_at: int = -1) -> None:
        now_ms = self.monotonic()
        for segment in segments:
            self.deleted_files += [(now_ms, path) for path in segment.mark_deleted()]
        self.needs_dir_sync = True  # or the files are back after a power loss
        retention.delete_snapshots(self, {segment.base_offset for segment in segments} - {keep_snapshot_at})

    def set_end(self, offset: int) -> None:
        """After a truncation: the log ends at `offset`, in its last segment."""
        self.log_end_offset = self.producers.end_offset = offset
        self._active = self.segments[-1]
        self._sealed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._hints.clear()

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
            segment, position = self._hints.get(offset) or self._locate(offset)
            if position >= segment.size:
                if segment is self._active:
                    return b"", offset
                segment, position = self._following(segment), 0
            next_offset = end_offset if segment is self._active else self._following(segment).base_offset
            end = segment.size if upto_offset >= next_offset else segment.position_of(upto_offset)
            if end - position <= max_bytes:
                data: bytes | memoryview = segment.read(position, end - position)
                next_offset = min(next_offset, upto_offset)
            else:
                data, next_offset = segment.read_batches(position, max_bytes, end, min_one)
        except OSError as error:
            raise self.log_dir.storage_error(f"cannot read {self.name}", error) from error
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = (segment, position + len(data))
        return data, next_offset

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`."""
        segments = self.segments
        number = max(0, bisect_right(segments, offset, key=base_offset_of) - 1)
        while True:
            segment = segments[number]
            position = segment.position_of(offset)
            if position < segment.size or segment is self._active:
                return segment, position
            number += 1  # the rest of this segment was compacted away

    def _following(self, segment: Segment) -> Segment:
        """The next segment that holds anything; the active one at the last."""
        segments = self.segments
        number = bisect_right(segments, segment.base_offset, key=base_offset_of)
        while number < len(segments) - 1 and not segments[number].size:
            number += 1
        return segments[min(number, len(segments) - 1)]

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than `timestamp_ms`."""
        return lookups.at_once(lookups.by_timestamp(self, timestamp_ms))

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the newest record; the first one, if several are."""
        return lookups.at_once(lookups.by_max_timestamp(self))

    def aborted_transactions(self, start_offset: int, upto_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions with records in [start, upto)."""
        return lookups.aborted_transactions(self, start_offset, upto_offset)

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` and its end offset; (-1, -1) when unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which `offset` was written; -1 when unknown."""
        return self.epochs.epoch_of(offset)

    # -- durability, retention, truncation: each in its own file

    def flush(self, upto_offset: int | None = None) -> None:
        """Forces the log to disk up to `upto_offset` (default: its end); then the recovery point is there.

        Any thread may call it while the owner appends: the end is taken first, the rest waits.
        """
        durability.flush(self, upto_offset)

    def close(self) -> None:
        """Puts everything on disk that a quick start needs, and closes the files for good."""
        durability.close(self)

    def close_files(self) -> None:
        """Lets go of the files without writing anything."""
        for segment in self.segments:
            segment.close_files()

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start offset up to `before_offset` (-1: the high watermark); returns where it is."""
        return retention.delete_records(self, before_offset)

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Deletes segments that time, size or the log start offset overtook."""
        return retention.enforce(self, now_ms)

    def purge_deleted(self, now_ms: int) -> None:
        """Removes files that were taken out of the log `file.delete.delay.ms` ago. Any thread may call it."""
        retention.purge_deleted(self, now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on; False when there is nothing there."""
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the next record gets `offset`."""
        truncation.truncate_fully_and_start_at(self, offset)
