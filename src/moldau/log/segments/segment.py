"""One segment: a `.log` file of whole record batches and the indexes beside it.

Files are opened when first used and closed by the `FilePool`; the segment at the end of a log is the only
one that is written to. Everything here belongs to one thread, except `flush`. Which batch may be appended is
decided in `partition_log.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import attrgetter

from moldau.disk import Data, File
from moldau.errors import CorruptFileError, CorruptRecordError
from moldau.log.files import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FilePool,
    file_name,
)
from moldau.log.segments.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from moldau.log.segments.offset_index import OffsetIndex
from moldau.log.segments.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from moldau.log.segments.time_index import TimeIndex
from moldau.log.segments.txn_index import TxnIndex
from moldau.wire.batch import NO_TIMESTAMP, BatchHeader, read_header
from moldau.wire.batch_layout import HEADER_SIZE, HOP, LENGTH_MIN, LOG_OVERHEAD

logger = logging.getLogger(__name__)

base_offset_of = attrgetter("base_offset")
_unpack_hop = HOP.unpack_from  # once: a call of a method of an imported object is slower
_PEEK = 64  # bytes read past what was asked for, to see the header of the batch that follows
_HOP_CHUNK = 8192  # two index intervals: one read finds nearly every offset
_SCAN_CHUNK = 1 << 20
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
UNKNOWN = -2  # a timestamp that has not been read from disk yet; -1 says that there is none
MAX_RELATIVE_OFFSET = 2**31 - 1


def scan(
    file: File, start: int, end: int, *, chunk_bytes: int = _SCAN_CHUNK
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of every batch in [start, end); CorruptRecordError where none can be.

    Headers are only checked for a length that fits: the CRC is the caller's.
    """
    position = start
    while position < end:
        buffer = memoryview(file.read(min(chunk_bytes, end - position), position))
        at = 0
        while at + HEADER_SIZE <= len(buffer):
            header = read_header(buffer, at)
            size = header.length + LOG_OVERHEAD
            if size < HEADER_SIZE or position + at + size > end:
                raise CorruptRecordError(
                    f"batch at byte {position + at} claims {size} bytes, {end - position - at} remain"
                )
            if at + size > len(buffer):
                if at or len(buffer) < min(chunk_bytes, end - position):
                    break
                buffer = memoryview(file.read(size, position))
                if len(buffer) < size:
                    raise CorruptRecordError(f"batch at byte {position} is cut short")
            yield position + at, header, buffer[at : at + size]
            at += size
        if not at:
            raise CorruptRecordError(f"{end - position} bytes at byte {position} are not a batch")
        position += at


class Segment:
    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "file",
        "first_timestamp",
        "index_full",
        "index_interval_bytes",
        "max_index_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "offset_limit",
        "path",
        "pool",
        "roll_deadline_ms",
        "roll_jitter_ms",
        "size",
        "time_index",
        "txn_index",
        "writable",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        pool: FilePool,
        *,
        size: int = 0,
        new: bool = False,
        has_txn_index: bool = False,
        created_ms: int = 0,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
        self.file: File | None = None
        self.size = size
        self.pool = pool
        index_paths = [f"{directory}/{file_name(base_offset, suffix)}" for suffix in _INDEX_SUFFIXES]
        self.offset_index = OffsetIndex(pool.disk, index_paths[0], base_offset, new=new)
        self.time_index = TimeIndex(pool.disk, index_paths[1], base_offset, new=new)
        self.txn_index = TxnIndex(pool.disk, index_paths[2], base_offset, exists=has_txn_index)
        self.max_timestamp = NO_TIMESTAMP if new else UNKNOWN
        self.max_timestamp_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP if new else UNKNOWN
        self.created_ms = created_ms
        self.bytes_since_index = 0
        self.index_interval_bytes = 0
        self.max_index_bytes = 0
        self.index_full = False
        self.offset_limit = base_offset + MAX_RELATIVE_OFFSET
        self.roll_jitter_ms = 0
        self.roll_deadline_ms = 0
        self.writable = False

    @classmethod
    def create(cls, directory: str, base_offset: int, pool: FilePool, created_ms: int) -> Segment:
        """A new, empty segment with its files; OSError leaves none of them behind."""
        segment = cls(directory, base_offset, pool, new=True, created_ms=created_ms)
        paths = (segment.offset_index.path, segment.time_index.path, segment.path)
        try:
            for path in paths:
                pool.disk.open(path, write=True, create=True, truncate=True).close()
        except OSError:
            for path in paths:
                pool.disk.remove(path)
            raise
        return segment

    # -- files

    def open(self) -> File:
        """The `.log` file."""
        file = self.file
        if file is None:
            file = self.file = self.pool.disk.open(self.path, write=True)
            self.pool.add(self)
        return file

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        if not self.writable:  # the writable one's entries are nowhere else
            self.offset_index.unload()
            self.time_index.unload()

    def close(self) -> None:
        """Writes the indexes of the segment that was being written to, and closes its files."""
        try:
            if self.writable:
                self.write_indexes()
        finally:
            self.close_files()

    def close_files(self) -> None:
        self.writable = False
        self.pool.discard(self)
        self.release()

    def write_indexes(self) -> None:
        """Puts the indexes in their files; the newest timestamp becomes the last entry, as Kafka has it."""
        self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        self.offset_index.write()
        self.time_index.write()

    def flush(self, *, with_indexes: bool) -> None:
        """Forces the files to disk; those of the active segment's indexes need not be. Any thread may call it."""
        sync = self.pool.disk.sync
        sync(self.path)
        if with_indexes:
            sync(self.offset_index.path)
            sync(self.time_index.path)
        self.txn_index.flush()

    def mark_deleted(self) -> list[str]:
        """Renames the files out of the way; returns their new names, for deletion later."""
        self.close_files()
        disk = self.pool.disk
        renamed = []
        for path in (self.path, self.offset_index.path, self.time_index.path, self.txn_index.path):
            target = path + DELETED_SUFFIX
            number = 0
            while disk.exists(target):  # an earlier one: replacing it would delete it, which takes time
                number += 1
                target = f"{path}.{number}{DELETED_SUFFIX}"
            try:
                disk.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
        return renamed

    # -- writing

    def make_writable(
        self, *, segment_ms: int, jitter_ms: int, index_interval_bytes: int, max_index_bytes: int
    ) -> None:
        """Loads what appending needs; also takes over a changed configuration."""
        self.load_indexes()
        self.index_interval_bytes = index_interval_bytes
        self.max_index_bytes = max_index_bytes
        self.roll_jitter_ms = jitter_ms
        self.first_batch_timestamp()
        self.set_roll_deadline(segment_ms)
        self._note_index_sizes(len(self.offset_index), len(self.time_index))
        self.writable = True

    def set_roll_deadline(self, segment_ms: int) -> None:
        begin_ms = self.first_timestamp if self.first_timestamp >= 0 else self.created_ms
        self.roll_deadline_ms = begin_ms + segment_ms - self.roll_jitter_ms

    def append(self, data: Data, size: int, last_offset: int, max_timestamp: int) -> None:
        """Appends one batch, checked and stamped. On OSError the caller cuts off what was half written."""
        file = self.file
        if file is None:
            file = self.open()
        position = self.size
        file.write(data, position)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.add_index_entry(last_offset, position)
        self.bytes_since_index += size
        self.size = position + size

    def add_index_entry(self, last_offset: int, position: int) -> None:
        self._note_index_sizes(
            self.offset_index.append(last_offset, position),
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset),
        )
        self.bytes_since_index = 0

    def _note_index_sizes(self, offset_entries: int, time_entries: int) -> None:
        # Sealing adds one last time entry: its place is kept free.
        self.index_full = (
            offset_entries >= self.max_index_bytes // OFFSET_ENTRY_SIZE
            or time_entries >= self.max_index_bytes // TIME_ENTRY_SIZE - 1
        )

    def cut(self, size: int) -> None:
        """Shortens the file to `size`: what lies behind was never acknowledged."""
        self.open().truncate(size)
        self.size = size

    def truncate_to(self, offset: int) -> None:
        """Drops the batch that holds `offset` and everything after it."""
        position = self.position_of(offset)
        self.load_indexes()
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.cut(position)
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        start = self.offset_index.lookup(self.max_timestamp_offset)
        for _, header, _ in scan(self.open(), start, self.size):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        if not self.size:
            self.first_timestamp = NO_TIMESTAMP

    # -- reading

    def position_of(self, offset: int) -> int:
        """Where the first batch begins that ends at or after `offset`; the file's size if there is none."""
        if not self.offset_index.loaded:
            self.load_indexes()
        position = self._hop(self.offset_index.lookup(offset), offset)
        if position < 0:
            logger.warning("the index of %s does not point to a batch; rebuilding it", self.path)
            self.rebuild_indexes()
            position = self._hop(0, offset)
            if position < 0:
                raise CorruptRecordError(f"{self.path} holds no readable batch at offset {offset}")
        return position

    def _hop(self, position: int, offset: int) -> int:
        """Walks batch headers from `position`; negative when it meets something else."""
        file = self.open()
        size = self.size
        base_limit = self.offset_limit
        while position < size:
            chunk = file.read(_HOP_CHUNK, position)
            usable = len(chunk) - HOP.size
            at = 0
            while at <= usable:
                base, length, delta = _unpack_hop(chunk, at)
                if length < LENGTH_MIN or delta < 0 or not self.base_offset <= base + delta <= base_limit:
                    return -1
                if base + delta >= offset:
                    return position + at
                at += length + LOG_OVERHEAD
            if not at:
                return -1
            position += at
        return size if position == size else -1

    def next_offset(self) -> int:
        """The offset after the last batch, found from the last index entry; negative if the tail is torn."""
        if not self.size:
            return self.base_offset
        start = self.offset_index.peek_last_position()
        position = start if start < self.size else 0
        next_offset = -1
        file = self.open()
        while position < self.size:
            chunk = file.read(_HOP_CHUNK, position)
            at = 0
            while at + HOP.size <= len(chunk):
                base, length, delta = _unpack_hop(chunk, at)
                next_offset = base + delta + 1
                if length < LENGTH_MIN or not self.base_offset < next_offset <= self.offset_limit + 1:
                    return -1
                at += length + LOG_OVERHEAD
            if not at:
                return -1
            position += at
        return next_offset if position == self.size else -1

    def read(self, position: int, size: int) -> bytes:
        file = self.file
        if file is None:
            file = self.open()
        data = file.read(size, position)
        if len(data) != size:
            raise OSError(0, f"{self.path} ends at byte {position + len(data)}, {self.size} bytes were written")
        return data

    def read_batches(self, position: int, max_bytes: int, end: int, min_one: bool) -> tuple[bytes | memoryview, int]:
        """Whole batches from `position` within `max_bytes`, and the offset that follows them (-1: unknown).

        At least the first batch when `min_one`, however large. The index says where the last few batches
        begin, so that no more than one index interval is walked.
        """
        data = self.read(position, min(max(max_bytes, 0) + _PEEK, end - position))
        if not self.offset_index.loaded:
            self.load_indexes()
        at = max(0, self.offset_index.last_position_upto(position + max_bytes) - position)
        if at and not self._is_header(data, at):
            at = 0  # a damaged index: walk from the first batch instead
        next_offset = -1
        while at + HOP.size <= len(data):
            base, length, delta = _unpack_hop(data, at)
            if length < LENGTH_MIN or position + at + length + LOG_OVERHEAD > end:
                if at:
                    break  # the next read begins there
                raise CorruptRecordError(f"{self.path} holds no readable batch at byte {position}")
            if at + length + LOG_OVERHEAD > max_bytes:
                if at or not min_one:
                    next_offset = base
                    break
                return self.read(position, length + LOG_OVERHEAD), base + delta + 1
            at += length + LOG_OVERHEAD
            next_offset = base + delta + 1
        return (memoryview(data)[:at], next_offset) if at else (b"", -1)

    def _is_header(self, data: bytes, at: int) -> bool:
        """Whether a batch of this segment can begin there, as far as `data` reaches."""
        if at + HOP.size > len(data):
            return at <= len(data)
        base, length, delta = _unpack_hop(data, at)
        return bool(length >= LENGTH_MIN and delta >= 0 and self.base_offset <= base <= self.offset_limit - delta)

    def batches_from(self, offset: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        return scan(self.open(), self.position_of(offset), self.size)

    def newest_timestamp(self) -> int:
        """The largest record timestamp; -1 when no record has one."""
        if self.max_timestamp == UNKNOWN:
            last = self.time_index.peek_last()
            if last is not None:
                self.max_timestamp, self.max_timestamp_offset = last
            else:
                self.load_indexes()
        return self.max_timestamp

    def largest_timestamp(self) -> int:
        """What time retention goes by: the newest record, else the age of the file."""
        timestamp = self.newest_timestamp()
        return timestamp if timestamp >= 0 else int(self.pool.disk.modified_s(self.path) * 1000)

    def first_batch_timestamp(self) -> int:
        """The newest timestamp of the first batch; -1 when there is none."""
        if self.first_timestamp == UNKNOWN:
            self.first_timestamp = read_header(self.read(0, HEADER_SIZE)).max_timestamp if self.size else NO_TIMESTAMP
        return self.first_timestamp

    # -- indexes

    def load_indexes(self) -> None:
        """Reads both indexes unless they are in memory; a missing or damaged one is rebuilt."""
        try:
            self.offset_index.load(self.size)
            self.time_index.load()
        except CorruptFileError as error:
            logger.warning("%s; rebuilding it", error)
            self.rebuild_indexes()
        if self.max_timestamp == UNKNOWN:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()

    def rebuild_indexes(self) -> None:
        """Builds offset and time index from the batch headers, and writes them unless appends will."""
        self.reset_indexes()
        last_position = 0
        for position, header, _ in scan(self.open(), 0, self.size):
            last_position = self.index_batch(header, position, last_position)
        if not self.writable:
            self.write_indexes()

    def reset_indexes(self) -> None:
        self.offset_index.reset()
        self.time_index.reset()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def index_batch(self, header: BatchHeader, position: int, last_position: int) -> int:
        """One step of rebuilding the indexes; returns the position of the newest entry."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if position - last_position > self.index_interval_bytes:
            self.offset_index.append(header.last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            return position
        return last_position
