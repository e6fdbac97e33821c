"""`.txnindex`: the aborted transactions whose marker is in the segment; readers of committed data skip them.

An entry is 34 bytes, big-endian: version 0, producer id, first offset, last offset (the marker's), and the
last stable offset when the marker was written. The file exists only once something was aborted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from moldau.disk import Disk, read_file, replace_file
from moldau.errors import CorruptFileError

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_POS = 18
VERSION = 0


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    __slots__ = ("_disk", "base_offset", "path", "size")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, exists: bool = False, size: int = 0) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self.size = disk.size(path) if exists else size  # of whole entries

    @property
    def exists(self) -> bool:
        return self.size > 0

    def append(self, txn: AbortedTxn) -> None:
        file = self._disk.open(self.path, write=True, create=True)
        try:
            file.write(_ENTRY.pack(VERSION, *txn), self.size)
        finally:
            file.close()
        self.size += ENTRY_SIZE

    def entries(self) -> list[AbortedTxn]:
        """All entries; CorruptFileError when the file is torn, of a newer version, or not this segment's."""
        data = self._read()
        return [self._entry(data, position) for position in range(0, len(data), ENTRY_SIZE)]

    def _read(self) -> bytes:
        if not self.size:
            return b""
        data = read_file(self._disk, self.path)[: self.size]  # a failed write may have left more
        if len(data) % ENTRY_SIZE:
            raise CorruptFileError(f"{self.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE}")
        return data

    def _entry(self, data: bytes, position: int) -> AbortedTxn:
        version, *fields = _ENTRY.unpack_from(data, position)
        txn = AbortedTxn(*fields)
        if version > VERSION or txn.last_offset < self.base_offset:
            raise CorruptFileError(f"{self.path} has an invalid entry: version {version}, {txn}")
        return txn

    def collect(self, start_offset: int, upto_offset: int, into: list[AbortedTxn]) -> bool:
        """Adds the transactions that overlap [start, upto); True once no later segment can hold another."""
        data = self._read()
        positions = range(0, len(data), ENTRY_SIZE)

        def last_offset(position: int) -> int:
            offset: int = _LAST_OFFSET.unpack_from(data, position + _LAST_OFFSET_POS)[0]
            return offset

        # The markers are in the order of their offsets, and a reader may be far behind most of them.
        for position in positions[bisect_left(positions, start_offset, key=last_offset) :]:
            txn = self._entry(data, position)
            if txn.first_offset < upto_offset:
                into.append(txn)
            if txn.last_stable_offset >= upto_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Forgets the transactions whose marker is at or above `offset`."""
        for number, txn in enumerate(self.entries()):
            if txn.last_offset >= offset:
                self.size = number * ENTRY_SIZE
                self._disk.truncate(self.path, self.size)
                return

    def replace(self, txns: Sequence[AbortedTxn]) -> None:
        """Replaces all entries, in one step and durably: the segment may lie below the recovery point."""
        data = b"".join(_ENTRY.pack(VERSION, *txn) for txn in txns)
        if data != (read_file(self._disk, self.path) if self.size else b""):
            replace_file(self._disk, self.path, data)
        self.size = len(data)

    def flush(self) -> None:
        if self.size:
            self._disk.sync(self.path)
