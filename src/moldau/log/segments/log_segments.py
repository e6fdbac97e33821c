"""The segments of a log in the order of their offsets, as one: sizes, lookups, reads, rolls, deletions.

Only the last one, the active segment, is written to. Deleted files are renamed at once and removed
`file.delete.delay.ms` later, so that no request waits for the removal of a gigabyte.

One thread owns the segments. Another may copy them (`list`) or ask for their size at the same time.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from moldau.config.topic import TopicConfig
from moldau.disk import Data
from moldau.log.context import LogContext, LogParts
from moldau.log.files import TXN_INDEX_SUFFIX, file_name
from moldau.log.segments.segment import MAX_RELATIVE_OFFSET, Segment, base_offset_of
from moldau.log.segments.txn_index import AbortedTxn
from moldau.wire.batch import BatchHeader

# Positions of readers that read on. Beyond this number of readers some have to look in the index again.
_HINTS_MAX = 32


class LogSegments(Sequence[Segment]):
    __slots__ = (
        "_before_roll",
        "_directory",
        "_hints",
        "_sealed_bytes",
        "_segments",
        "active",
        "config",
        "context",
        "deleted_files",
        "needs_dir_sync",
    )

    def __init__(
        self,
        directory: str,
        config: TopicConfig,
        context: LogContext,
        parts: LogParts,
        *,
        before_roll: Callable[[int], None],
    ) -> None:
        """`before_roll` is called with the offset of a new segment before its files are made."""
        self.config = config
        self._before_roll = before_roll
        self.deleted_files: list[tuple[int, str]] = []  # since when, which
        self._directory = directory
        self.context = context
        self.needs_dir_sync = parts.needs_dir_sync
        """Files of the log came, went or were renamed: the next flush forces their directory to disk.

        Set after the change, as a flush in another thread may be about to clear it.
        """
        self._set(parts.segments)

    def _set(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.active = segments[-1]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset -> where it is read from

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self.active.size

    # -- finding

    def index_of(self, offset: int) -> int:
        """The number of the segment whose range includes `offset`."""
        return max(0, bisect_right(self._segments, offset, key=base_offset_of) - 1)

    def locate(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`."""
        number = self.index_of(offset)
        while True:
            segment = self._segments[number]
            position = segment.position_of(offset)
            if position < segment.size or segment is self.active:
                return segment, position
            number += 1  # the rest of this segment was compacted away

    def following(self, segment: Segment) -> Segment:
        """The next segment that holds anything; the active one at the last."""
        segments = self._segments
        number = bisect_right(segments, segment.base_offset, key=base_offset_of)
        while number < len(segments) - 1 and not segments[number].size:
            number += 1
        return segments[min(number, len(segments) - 1)]

    def read(
        self, offset: int, max_bytes: int, upto_offset: int, end_offset: int, min_one: bool
    ) -> tuple[bytes | memoryview, int]:
        """Batches from `offset` below `upto_offset`, and the offset that follows them; -1 where that is not known."""
        hints, active = self._hints, self.active
        segment, position = hints.get(offset) or self.locate(offset)
        if position >= segment.size:
            if segment is active:
                return b"", offset
            segment, position = self.following(segment), 0
        next_offset = end_offset if segment is active else self.following(segment).base_offset
        end = segment.size
        if upto_offset < next_offset:
            next_offset = upto_offset
            end = segment.position_of(upto_offset)
        data: bytes | memoryview
        if end - position <= max_bytes:
            data = segment.read(position, end - position)
        else:
            data, next_offset = segment.read_batches(position, max_bytes, end, min_one)
        if len(hints) >= _HINTS_MAX:
            hints.clear()
        hints[next_offset] = (segment, position + len(data))
        return data, next_offset

    def aborted_transactions(self, start_offset: int, upto_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [start, upto)."""
        found: list[AbortedTxn] = []
        for segment in self._segments[self.index_of(start_offset) :]:
            if segment.txn_index.exists and segment.txn_index.collect(start_offset, upto_offset, found):
                break
        return found

    # -- changing

    def make_writable(self, segment: Segment) -> None:
        config = self.config
        segment.make_writable(
            segment_ms=config.max_segment_ms,
            jitter_ms=random.randrange(min(config.segment_jitter_ms, config.max_segment_ms) + 1),
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        if self.active.writable:
            self.make_writable(self.active)

    def append(self, data: Data, header: BatchHeader, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Puts one batch into the active segment, or into a new one; OSError leaves the file as it was."""
        size = len(data)
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        segment = self.active
        position = segment.size
        try:
            if not segment.writable:
                self.make_writable(segment)
            if (
                position + size > self.config.segment_bytes
                or last_offset > segment.offset_limit
                or segment.index_full
                or (max_timestamp if segment.first_timestamp >= 0 else now_ms) > segment.roll_deadline_ms
            ) and (position or last_offset > segment.offset_limit):
                # At the log end, though the batch may come after a gap; unless that is too wide for the indexes.
                segment = self.roll(end_offset if last_offset - end_offset <= MAX_RELATIVE_OFFSET else base_offset)
                position = 0
            segment.append(data, size, last_offset, max_timestamp)
        except OSError:
            self._cut(segment, position)
            raise
        if not position:
            segment.first_timestamp = max_timestamp
            segment.set_roll_deadline(self.config.max_segment_ms)

    def _cut(self, segment: Segment, position: int) -> None:
        """Removes a half-written batch from the file."""
        if segment.file is None:
            return  # it was never opened, so nothing was written
        try:
            segment.cut(position)
        except OSError as error:
            # Unacknowledged bytes stay behind the end: the next start has to find them.
            self.context.log_dir.take_offline(f"cannot cut {segment.path} to {position} bytes: {error}")

    def roll(self, base_offset: int) -> Segment:
        """A new active segment; OSError leaves the old one active, and no file of the new one."""
        old = self.active
        if old.writable:
            old.write_indexes()
        self._before_roll(base_offset)
        # Last, when the old one is complete: recovery takes a segment's name for the end of the one before.
        new = Segment.create(self._directory, base_offset, self.context.pool, self.context.clock())
        self.make_writable(new)
        old.writable = False
        if old.size:
            self._set([*self._segments, new])
        else:  # it is empty, and its base offset is too low for the next offset
            self._mark_deleted([old])
            self._set([*self._segments[:-1], new])
        self.needs_dir_sync = True
        return new

    def delete(self, gone: Iterable[Segment]) -> None:
        """Takes some of the segments out of the log; at least one stays."""
        gone = set(gone)
        kept = [segment for segment in self._segments if segment not in gone]
        deleted = [segment for segment in self._segments if segment in gone]
        self._set(kept)
        self._mark_deleted(deleted)

    def start_over_at(self, offset: int) -> None:
        """Deletes all segments; one that is empty takes their place."""
        self._mark_deleted(self._segments)
        self._set([Segment.create(self._directory, offset, self.context.pool, self.context.clock())])
        self.needs_dir_sync = True

    def forget_positions(self) -> None:
        """After a truncation: readers must look up their positions again."""
        self._hints.clear()

    def replace(self, old: Sequence[Segment], size: int) -> None:
        """Replaces neighbours by a cleaned segment; their files were moved aside, its own are in place."""
        base_offset = old[0].base_offset
        txn_index = f"{self._directory}/{file_name(base_offset, TXN_INDEX_SUFFIX)}"
        new = Segment(
            self._directory, base_offset, self.context.pool,
            size=size, created_ms=old[-1].created_ms, has_txn_index=self.context.log_dir.disk.exists(txn_index),
        )  # fmt: skip
        new.index_interval_bytes = self.config.index_interval_bytes
        at = self._segments.index(old[0])
        self._set([*self._segments[:at], new, *self._segments[at + len(old) :]])
        self.needs_dir_sync = True

    def move_aside(self, old: Iterable[Segment]) -> None:
        """Renames the files of segments that are about to be replaced."""
        self._mark_deleted(old)

    def _mark_deleted(self, segments: Iterable[Segment]) -> None:
        now_ms = self.context.monotonic()
        for segment in segments:
            self.deleted_files += [(now_ms, path) for path in segment.mark_deleted()]
            self.needs_dir_sync = True  # or the files are back after a power loss

    def purge_deleted(self, now_ms: int) -> None:
        """Removes files that were taken out of the log `file.delete.delay.ms` ago. Any thread may call it."""
        for entry in list(self.deleted_files):
            since_ms, path = entry
            if now_ms - since_ms >= self.config.file_delete_delay_ms:
                self.context.log_dir.disk.remove(path)
                self.deleted_files.remove(entry)  # in place: the owner may be adding to it

    def close_files(self) -> None:
        """Lets go of the files without writing anything."""
        for segment in self._segments:
            segment.close_files()
