"""A segment being written by the cleaner: the four files of a segment, each with `.cleaned` after its name.

All four always exist, the transaction index empty if need be: `swap.py` goes by that.
"""

from __future__ import annotations

from moldau.disk import Disk, write_file
from moldau.log.files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from moldau.log.segments.offset_index import OffsetIndex
from moldau.log.segments.time_index import TimeIndex
from moldau.log.segments.txn_index import AbortedTxn, TxnIndex
from moldau.wire.batch import NO_TIMESTAMP, BatchHeader

# Forced to disk bit by bit: one fsync of a gigabyte would hold up the broker's own writes to the same disk.
_SYNC_BYTES = 32 << 20


class CleanedSegment:
    def __init__(
        self, disk: Disk, directory: str, base_offset: int, *, index_interval_bytes: int, buffer_bytes: int
    ) -> None:
        paths = [
            f"{directory}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}"
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        ]
        for path in paths:
            disk.remove(path)  # never write into a file that another worker, about to end, may still have open
        self.size = 0
        self._disk = disk
        self._offset_index = OffsetIndex(disk, paths[1], base_offset, new=True)
        self._time_index = TimeIndex(disk, paths[2], base_offset, new=True)
        self._txn_index = TxnIndex(disk, paths[3], base_offset)
        self._index_interval_bytes = index_interval_bytes
        self._buffer_bytes = buffer_bytes
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._last_indexed = 0
        self._written = self._synced = 0
        self._parts: list[bytes | memoryview] = []
        write_file(disk, paths[3], b"")
        self._file = disk.open(paths[0], write=True, create=True, exclusive=True)

    def append(self, header: BatchHeader, batch: bytes | memoryview, max_timestamp: int) -> None:
        position = self.size
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = header.last_offset
        if position - self._last_indexed > self._index_interval_bytes:
            self._offset_index.append(header.last_offset, position)
            self._time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self._last_indexed = position
        self._parts.append(batch)
        self.size += len(batch)
        if self.size - self._written >= self._buffer_bytes:
            self._write()

    def add_aborted(self, txn: AbortedTxn) -> None:
        self._txn_index.append(txn)

    def _write(self) -> None:
        self._file.write(b"".join(self._parts), self._written)
        self._parts.clear()
        self._written = self.size
        if self._written - self._synced >= _SYNC_BYTES:
            self._file.sync()
            self._synced = self._written

    def finish(self, modified_s: float) -> None:
        """Everything on disk, as old as the segments it stands for: retention may go by that."""
        self._write()
        self._file.set_modified(modified_s)
        self._file.sync()
        self.close()
        self._time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        self._offset_index.write()
        self._time_index.write()
        for path in (self._offset_index.path, self._time_index.path, self._txn_index.path):
            self._disk.sync(path)

    def close(self) -> None:
        self._file.close()
