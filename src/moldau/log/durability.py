"""The recovery point of a log, and how it moves: what is below it has been forced to disk.

Appends go to the page cache; how often to flush is the caller's choice. A flush runs beside appends, in another thread:
the caller takes the log end first, then the files are synced by descriptors of their own, and only then the recovery
point moves. A truncation meanwhile voids the flush.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from moldau.log.checkpoints import PARTITION_METADATA
from moldau.log.context import LogContext, LogParts
from moldau.log.segments.log_segments import LogSegments
from moldau.log.segments.segment import Segment, base_offset_of

# Not failures of the disk: the process is short of descriptors or memory, and the next attempt may succeed.
_NOT_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _no_checkpoint() -> None:
    """For a log without a manager."""


class Durability:
    __slots__ = (
        "_directory",
        "_epochs",
        "_log_dir",
        "_lower_checkpoint",
        "_monotonic",
        "_moving",
        "_segments",
        "_snapshots",
        "checkpointed",
        "flush_lock",
        "last_flush_ms",
        "recovery_point",
        "truncations",
    )

    def __init__(self, directory: Path, context: LogContext, parts: LogParts, segments: LogSegments) -> None:
        self.recovery_point = parts.recovery_point
        self.last_flush_ms = context.monotonic()
        self.truncations = 0
        self.checkpointed = 0
        """The recovery point that a start after a crash finds in the checkpoint file, or a higher one."""
        self.flush_lock = threading.Lock()  # between flushing threads
        self._moving = threading.Lock()  # around the recovery point
        self._lower_checkpoint: Callable[[], None] = _no_checkpoint
        self._directory = directory
        self._log_dir = context.log_dir
        self._monotonic = context.monotonic
        self._segments = segments
        self._epochs = parts.epochs
        self._snapshots = parts.snapshots

    def flush(self, end_offset: int, truncations: int) -> None:
        """Forces the log to disk up to `end_offset`; void if it was truncated since `truncations` was taken."""
        name = self._directory.name
        with self.flush_lock:
            if end_offset <= self.recovery_point:
                return
            try:
                self._epochs.write()  # a full disk fails here: in `_sync` it would look like a failed fsync
            except OSError as error:
                raise self._log_dir.storage_error(f"cannot flush {name}", error) from error
            try:
                self._sync(end_offset)
            except OSError as error:
                if error.errno not in _NOT_THE_DISK:
                    # The kernel may have dropped what it could not write; only a restart shows what is on disk.
                    self._log_dir.take_offline(f"fsync of {name} failed: {error}")
                raise self._log_dir.storage_error(f"cannot flush {name}", error) from error
            with self._moving:
                if truncations == self.truncations:
                    self.recovery_point = max(self.recovery_point, end_offset)
        self.last_flush_ms = self._monotonic()

    def _sync(self, end_offset: int) -> None:
        segments = list(self._segments)
        # One below the recovery point: a segment that ends there may have been sealed since the last flush.
        first = max(0, bisect_right(segments, self.recovery_point - 1, key=base_offset_of) - 1)
        for segment in segments[first:]:
            if segment.base_offset < end_offset:
                segment.flush(with_indexes=segment is not segments[-1] or not segment.writable)
        self._sync_small_files()

    def _sync_small_files(self) -> None:
        """Marks are cleared only once the files are on disk; the owner may set new ones meanwhile."""
        sync = self._log_dir.disk.sync
        self._snapshots.sync()
        self._epochs.flush()
        if self._segments.needs_dir_sync:
            self._segments.needs_dir_sync = False
            try:
                sync(self._directory / PARTITION_METADATA)
                sync(self._directory)
                sync(self._directory.parent)  # which names this one, if it is new
            except OSError:
                self._segments.needs_dir_sync = True
                raise

    def sync_closed(self, active: Segment, *, was_written: bool) -> None:
        """Forces to disk what closing the log wrote after the last flush."""
        with self.flush_lock:
            if was_written:
                active.flush(with_indexes=True)
            self._sync_small_files()  # even without new records: there may be a new snapshot

    # -- truncations

    def lower(self, offset: int) -> None:
        """Before a truncation: a flush that is under way must not count for what is written after it."""
        with self._moving:
            self.truncations += 1
            self.recovery_point = min(self.recovery_point, offset)
        if offset < self.checkpointed:
            self._lower_checkpoint()  # or a start after a power loss would trust what is written here next

    def start_over_at(self, offset: int) -> None:
        """After everything was deleted."""
        self.recovery_point = offset

    # -- the checkpoint file

    def follow_checkpoint(self, checkpointed: int, lower_checkpoint: Callable[[], None]) -> None:
        """From now on a file has the recovery point, at first `checkpointed`; `lower_checkpoint` writes it again."""
        self.checkpointed = checkpointed
        self._lower_checkpoint = lower_checkpoint

    def checkpoint_begins(self, offset: int) -> None:
        """From now on the file has either this offset or the one before."""
        self.checkpointed = max(self.checkpointed, offset)

    def checkpoint_ended(self, offset: int) -> None:
        self.checkpointed = offset
