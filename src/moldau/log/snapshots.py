"""`<offset>.snapshot`: the producer state as of an offset. What is in them is in `producer_state.py`.

There is one at the start of each segment, so that a truncation finds the state of any time nearby, and one at the end
after a clean stop.
"""

from __future__ import annotations

from collections.abc import Collection

from moldau.disk import Disk, read_file, replace_file, write_file
from moldau.log.files import SNAPSHOT_SUFFIX, file_name
from moldau.log.producer_state import ProducerState


class ProducerSnapshots:
    __slots__ = ("_directory", "_disk", "_unsynced", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: Collection[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._unsynced: list[str] = []
        self.offsets = sorted(offsets)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def newest_upto(self, offset: int) -> int | None:
        return max((each for each in self.offsets if each <= offset), default=None)

    def read(self, offset: int) -> bytes:
        return read_file(self._disk, self.path(offset))

    def take(self, producers: ProducerState) -> bool:
        """Writes the state as of its end offset, unless that is there already; the next `sync` forces it."""
        offset = producers.end_offset
        if offset == producers.snapshot_offset:
            return False
        write_file(self._disk, self.path(offset), producers.encode())
        producers.snapshot_offset = offset
        self.offsets.append(offset)
        self._unsynced.append(self.path(offset))
        return True

    def rewrite(self, offset: int, data: bytes) -> None:
        replace_file(self._disk, self.path(offset), data, sync=False)
        self._unsynced.append(self.path(offset))

    def delete(self, offsets: Collection[int]) -> bool:
        """Whether there were any."""
        gone = sorted(set(self.offsets).intersection(offsets))
        for offset in gone:
            self._disk.remove(self.path(offset))
        self.offsets[:] = [offset for offset in self.offsets if offset not in gone]
        return bool(gone)

    def sync(self) -> None:
        """Forces them to disk. Any thread may call it: the owner may be taking another meanwhile."""
        paths = list(self._unsynced)
        for path in paths:
            self._disk.sync(path)
        del self._unsynced[: len(paths)]
