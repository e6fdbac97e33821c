"""`.txnindex`: the aborted transactions whose marker is in the segment; readers of committed data skip them.

An entry is 34 bytes, big-endian: version 0, producer id, first offset, last offset (the marker's), and the
last stable offset when the marker was written. The file exists only once something was aborted.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from moldau.log.files import fsync_path, read_file, write_at
from moldau.log.offset_index import CorruptIndexError

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
VERSION = 0


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    __slots__ = ("base_offset", "path", "size")

    def __init__(self, path: str, base_offset: int, *, exists: bool = False, size: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size = os.stat(path).st_size if exists else size  # of whole entries

    @property
    def exists(self) -> bool:
        return self.size > 0

    def append(self, txn: AbortedTxn) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            write_at(fd, _ENTRY.pack(VERSION, *txn), self.size)
        finally:
            os.close(fd)
        self.size += ENTRY_SIZE

    def entries(self) -> list[AbortedTxn]:
        """All entries; CorruptIndexError when the file is torn, of a newer version, or not this segment's."""
        if not self.size:
            return []
        data = read_file(self.path)[: self.size]  # behind that lies at most a write that failed
        if len(data) % ENTRY_SIZE:
            raise CorruptIndexError(f"{self.path} has {len(data)} bytes, no multiple of {ENTRY_SIZE}")
        result = []
        for version, *fields in _ENTRY.iter_unpack(data):
            txn = AbortedTxn(*fields)
            if version > VERSION or txn.last_offset < self.base_offset:
                raise CorruptIndexError(f"{self.path} has an entry that cannot be right: version {version}, {txn}")
            result.append(txn)
        return result

    def collect(self, start_offset: int, upto_offset: int, into: list[AbortedTxn]) -> bool:
        """Adds the transactions that overlap [start, upto); True once no later segment can hold another."""
        for txn in self.entries():
            if txn.last_offset >= start_offset and txn.first_offset < upto_offset:
                into.append(txn)
            if txn.last_stable_offset >= upto_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Forgets the transactions whose marker is at or above `offset`."""
        for number, txn in enumerate(self.entries()):
            if txn.last_offset >= offset:
                self.size = number * ENTRY_SIZE
                os.truncate(self.path, self.size)
                return

    def reset(self) -> None:
        if self.size:
            os.truncate(self.path, 0)
            self.size = 0

    def flush(self) -> None:
        if self.size:
            fsync_path(self.path)
