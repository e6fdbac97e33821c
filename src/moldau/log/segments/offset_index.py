"""`.index`: from an offset to a byte position in the segment, one entry per `index.interval.bytes`.

An entry is 8 bytes, big-endian: offset relative to the segment's base, position. Read as one 64-bit number,
entries sort by offset and by position alike, so the whole index is one compact array and a lookup is one
bisect. The offset of an entry is the last one of the batch at that position, as Kafka writes it.

The array is loaded when first needed. The active segment's lives in memory and reaches the file when the
segment is sealed or closed; after a crash it is built again from the segment, so it never has to be flushed
with the data.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right

from moldau.disk import Disk, read_file, write_file
from moldau.errors import CorruptFileError

ENTRY_SIZE = 8
_POSITION = 0xFFFFFFFF


def trim_zeros(data: bytes, entry_size: int) -> bytes:
    """Drops the zeros that Kafka preallocates an active index with and leaves behind when it is killed."""
    size = len(data.rstrip(b"\0"))
    return data[: size + -size % entry_size]


def _position(entry: int) -> int:
    return entry & _POSITION


class OffsetIndex:
    __slots__ = ("_disk", "_entries", "base_offset", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, new: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self._entries: array[int] | None = array("Q") if new else None

    @property
    def loaded(self) -> bool:
        return self._entries is not None

    def load(self, log_size: int) -> array[int]:
        """The entries; CorruptFileError when the file is missing, torn, or ends past the log.

        Only the last entry is looked at, as a large index would hold up the broker; a reader that lands on a
        position where no batch begins has the index built again.
        """
        if self._entries is None:
            try:
                data = trim_zeros(read_file(self._disk, self.path), ENTRY_SIZE)
            except FileNotFoundError as error:
                raise CorruptFileError(f"{self.path} is missing") from error
            if len(data) % ENTRY_SIZE:
                raise CorruptFileError(f"{self.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE}")
            entries = array("Q", data)
            if sys.byteorder == "little":
                entries.byteswap()
            if entries and (entries[-1] & _POSITION >= log_size or entries[-1] < entries[0] or entries[-1] >> 63):
                raise CorruptFileError(f"{self.path} ends with an invalid entry")
            self._entries = entries
        return self._entries

    def peek_last_position(self) -> int:
        """The position in the last entry of the file, without loading it; 0 when there is none."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return 0
        try:
            size = file.size()
            last = file.read(ENTRY_SIZE, size - ENTRY_SIZE) if size >= ENTRY_SIZE else b""
        finally:
            file.close()
        return int.from_bytes(last, "big") & _POSITION

    def unload(self) -> None:
        self._entries = None

    def reset(self) -> None:
        self._entries = array("Q")

    def append(self, offset: int, position: int) -> int:
        """Adds an entry; returns how many there are now. The index must be loaded."""
        entries = self._entries
        assert entries is not None
        entries.append((offset - self.base_offset) << 32 | position)
        return len(entries)

    def lookup(self, offset: int) -> int:
        """The position of the last indexed batch that ends at or before `offset`; 0 when there is none."""
        entries = self._entries
        assert entries is not None
        slot = bisect_right(entries, (offset - self.base_offset) << 32 | _POSITION)
        return entries[slot - 1] & _POSITION if slot else 0

    def last_position_upto(self, position: int) -> int:
        """The last indexed position at or before `position`: a batch begins there."""
        entries = self._entries
        assert entries is not None
        slot = bisect_right(entries, position, key=_position)
        return entries[slot - 1] & _POSITION if slot else 0

    def last(self) -> tuple[int, int]:
        """Offset and position of the last entry; the segment's start when there is none."""
        entries = self._entries
        assert entries is not None
        if not entries:
            return self.base_offset, 0
        return self.base_offset + (entries[-1] >> 32), entries[-1] & _POSITION

    def truncate_to(self, offset: int) -> None:
        """Forgets every entry at or above `offset`."""
        entries = self._entries
        assert entries is not None
        del entries[bisect_left(entries, max(0, offset - self.base_offset) << 32) :]

    def write(self) -> None:
        """Writes the entries to the file, unless they were never loaded: then they have not changed."""
        if self._entries is None:
            return
        entries = self._entries[:]
        if sys.byteorder == "little":
            entries.byteswap()
        write_file(self._disk, self.path, entries.tobytes())

    def __len__(self) -> int:
        return len(self._entries) if self._entries is not None else 0
