"""`.timeindex`: from a timestamp to an offset. "No batch before this offset is newer than this timestamp."

An entry is 12 bytes, big-endian: timestamp in ms, offset relative to the segment's base. Both only grow.
The entries are kept as the file's own bytes; they are loaded when first needed and written when the segment
is sealed or closed, like the offset index.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

from moldau.disk import Disk, read_file, write_file
from moldau.errors import CorruptFileError
from moldau.log.segments.offset_index import trim_zeros
from moldau.wire.batch import NO_TIMESTAMP

ENTRY_SIZE = 12
_ENTRY = struct.Struct(">qi")


class TimeIndex:
    __slots__ = ("_data", "_disk", "base_offset", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, new: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self._data: bytearray | None = bytearray() if new else None

    def load(self) -> None:
        """CorruptFileError when the file is missing, torn or out of order."""
        if self._data is not None:
            return
        try:
            data = trim_zeros(read_file(self._disk, self.path), ENTRY_SIZE)
        except FileNotFoundError as error:
            raise CorruptFileError(f"{self.path} is missing") from error
        if len(data) % ENTRY_SIZE:
            raise CorruptFileError(f"{self.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE}")
        if data:
            first, last = _ENTRY.unpack_from(data), _ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
            if last[0] < first[0] or last[1] < first[1] or first[0] < 0 or first[1] < 0:
                raise CorruptFileError(f"{self.path} is out of order: from {first} to {last}")
        self._data = bytearray(data)

    def peek_last(self) -> tuple[int, int] | None:
        """The last entry of the file, without loading it; None when there is no valid one."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return None
        try:
            size = file.size()
            if not size or size % ENTRY_SIZE:
                return None
            timestamp, relative = _ENTRY.unpack(file.read(ENTRY_SIZE, size - ENTRY_SIZE))
        finally:
            file.close()
        # Zeros are Kafka's preallocation.
        return (timestamp, self.base_offset + relative) if timestamp > 0 and relative >= 0 else None

    def unload(self) -> None:
        self._data = None

    def reset(self) -> None:
        self._data = bytearray()

    def maybe_append(self, timestamp_ms: int, offset: int) -> int:
        """Adds an entry if it is newer than the last; returns how many there are. It must be loaded."""
        assert self._data is not None
        if timestamp_ms > self.last()[0]:
            self._data += _ENTRY.pack(timestamp_ms, offset - self.base_offset)
        return len(self._data) // ENTRY_SIZE

    def lookup(self, timestamp_ms: int) -> int:
        """The offset of the newest entry not newer than `timestamp_ms`: every batch before it is older."""
        slot = bisect_right(range(len(self)), timestamp_ms, key=self._timestamp)
        return self.base_offset + (self._relative_offset(slot - 1) if slot else 0)

    def last(self) -> tuple[int, int]:
        """The newest timestamp and the last offset of its batch; (-1, base offset) when empty."""
        data = self._data
        assert data is not None
        if not data:
            return NO_TIMESTAMP, self.base_offset
        timestamp, relative = _ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
        return timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Forgets every entry at or above `offset`."""
        assert self._data is not None
        keep = bisect_left(range(len(self)), offset - self.base_offset, key=self._relative_offset)
        del self._data[keep * ENTRY_SIZE :]

    def write(self) -> None:
        """Writes the entries to the file, unless they were never loaded: then they have not changed."""
        if self._data is not None:
            write_file(self._disk, self.path, bytes(self._data))

    def _timestamp(self, slot: int) -> int:
        assert self._data is not None
        timestamp: int = _ENTRY.unpack_from(self._data, slot * ENTRY_SIZE)[0]
        return timestamp

    def _relative_offset(self, slot: int) -> int:
        assert self._data is not None
        relative: int = _ENTRY.unpack_from(self._data, slot * ENTRY_SIZE)[1]
        return relative

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE if self._data is not None else 0
