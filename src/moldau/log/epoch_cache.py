"""`leader-epoch-checkpoint`: at which offset each leader epoch began.

It answers "where did epoch N end?", by which a follower finds the point up to which it agrees with the
leader. A new epoch is written down only when the data is forced to disk, so that a partition's first append
makes no file: after a crash the batches themselves tell the epochs above the recovery point. An epoch that is
forgotten is forgotten on disk first.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path

from moldau.disk import Disk, replace_file
from moldau.errors import CorruptFileError
from moldau.log.checkpoints import LEADER_EPOCH, format_checkpoint, read_checkpoint

UNDEFINED = (-1, -1)


class EpochCache:
    __slots__ = ("_dirty", "_disk", "_entries", "_epochs", "_path", "_starts", "_unwritten", "_writing", "latest")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / LEADER_EPOCH
        self._entries: list[tuple[int, int]] = []
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = -1
        self._dirty = False
        self._unwritten = False
        self._writing = threading.Lock()

    @classmethod
    def load(cls, disk: Disk, directory: Path) -> EpochCache:
        """CorruptFileError when the file is damaged."""
        cache = cls(disk, directory)
        for entry in read_checkpoint(disk, cache._path, fields=2):
            try:
                cache._set(cache._with(int(entry[0]), int(entry[1])))
            except ValueError as error:
                raise CorruptFileError(f"{cache._path}: {error}") from error
        return cache

    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Notes that `epoch` begins at `start_offset`, unless it is known to begin there or before."""
        if epoch < 0 or (epoch == self.latest and start_offset >= self._starts[-1]):
            return
        self._set(self._with(epoch, start_offset))
        self._unwritten = self._dirty = True

    def _with(self, epoch: int, start_offset: int) -> list[tuple[int, int]]:
        entries = self.entries()
        # Entries that contradict the new one are of a leader that was deposed.
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        return [*entries, (epoch, start_offset)]

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and where it ended; (-1, -1) when unknown."""
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if not higher:  # older than anything here: its records are gone
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was written; -1 when unknown."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets the epochs that began at or after `end_offset`."""
        if self._starts and self._starts[-1] >= end_offset:
            self._replace([entry for entry in self.entries() if entry[1] < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets the epochs that ended before `start_offset`; the one in force there now begins there."""
        slot = bisect_right(self._starts, start_offset)
        if slot > 1 or (slot == 1 and self._starts[0] < start_offset):
            self._replace([(self._epochs[slot - 1], start_offset), *self.entries()[slot:]])

    def clear(self) -> None:
        self._replace([])

    def write(self) -> None:
        """Writes the file if memory is ahead of it. Any thread may call it."""
        with self._writing:
            if self._unwritten:
                self._unwritten = False  # first: an epoch that the owner assigns meanwhile is marked again
                try:
                    self._write(self._entries)
                except OSError:
                    self._unwritten = True
                    raise

    def flush(self) -> None:
        """Forces the file to disk if it changed since. Any thread may call it."""
        self.write()
        if self._dirty:
            self._dirty = False
            try:
                self._disk.sync(self._path)
                self._disk.sync(self._path.parent)
            except OSError:
                self._dirty = True
                raise

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        """First on disk, then in memory: a write that fails changes nothing."""
        with self._writing:
            self._write(entries)
            self._set(entries)
            self._unwritten = False
            self._dirty = True

    def _write(self, entries: list[tuple[int, int]]) -> None:
        lines = (f"{epoch} {start}" for epoch, start in entries)
        replace_file(self._disk, self._path, format_checkpoint(lines), sync=False)

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.latest = self._epochs[-1] if entries else -1
