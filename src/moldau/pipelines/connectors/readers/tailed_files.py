"""Which bytes of growing files are new: found by inode, so that a renamed file is read to its end.

What is known of a file is an `Entry`: its path, the bytes [begin, end) that the last batch has of it, and a checksum of
its first bytes. All entries together are the offset of a batch, which can be read again from them alone.

A file is known by device and inode. A file of the same inode that is shorter than before, or begins with other bytes,
was truncated (logrotate's copytruncate), or it is another one to which the system gave the inode of a deleted one: it
is read from its beginning. A file that no longer has a name that matches is looked for in its folder: that is how
logrotate renames. Files that are gone are remembered for a while, because a disk may come back.
"""

from __future__ import annotations

import glob
import logging
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from moldau.clocks import Clock, wall_clock_ms
from moldau.errors import ConfigError

# All of them are in every offset of the checkpoint.
FILES_MAX = 10_000
_GONE_MAX = 100
_HEAD_BYTES = 1024
_BLOCK_BYTES = 256 * 1024

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    path: str
    begin: int
    end: int
    head_bytes: int = 0
    head_crc: int = 0

    @property
    def has_bytes(self) -> bool:
        return self.end > self.begin

    def is_same_file(self, file: BinaryIO, size: int) -> bool:
        """Whether what was read of the file is still there."""
        return size >= self.end and _head(file, self.head_bytes) == self.head_crc


Entries = Mapping[str, Entry]  # by "device:inode"


@dataclass
class TailedFiles:
    patterns: list[str]
    unfinished_ms: int
    now_ms: Clock = wall_clock_ms
    # Where the search for the end of an unfinished line has come to, so that it is not begun again with each look.
    _searched: dict[str, int] = field(default_factory=dict)
    # What a file was like when it had nothing new: size, time of change, position.
    _quiet: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        return {key: status.st_size for key, (_, status) in self._found({}).items()}

    def next(
        self, known: Entries, bytes_max: int, *, is_from_latest: bool = False, sizes: Mapping[str, int] | None = None
    ) -> Entries:
        """The entries of the next batch; `known` itself if there is nothing new. `sizes` hides what came later."""
        found = self._found(known)
        entries = {key: entry._replace(begin=entry.end) for key, entry in _with_new_devices(known, found).items()}
        has_news = False
        left = bytes_max
        for number, (key, (path, status)) in enumerate(found.items()):
            last, size = entries.get(key), status.st_size if sizes is None else min(sizes.get(key, 0), status.st_size)
            is_idle = self.now_ms() - status.st_mtime_ns // 1_000_000 >= self.unfinished_ms
            looks = size, status.st_mtime_ns, last.end if last else 0
            if (last is None and not size) or (self._quiet.get(key) == looks and (looks[2] == size or not is_idle)):
                continue
            share = size if last is None and is_from_latest else left // (len(found) - number)
            entry = self._look(key, path, last, min(size, status.st_size), max(share, 1), is_idle=is_idle)
            if entry is None:
                continue
            if last is None and is_from_latest:
                entry = entry._replace(begin=entry.end)
            if entry.has_bytes or entry.end < (last.end if last else 0) or (last is None and is_from_latest):
                has_news = True
                left -= entry.end - entry.begin
                entries[key] = entry
            else:
                self._quiet[key] = looks
        return self._without_gone(entries, found) if has_news else known

    def _look(self, key: str, path: str, last: Entry | None, size: int, share: int, *, is_idle: bool) -> Entry | None:
        """What is new of one file; None if it is no longer what it was when its folder was listed."""
        try:
            with open(path, "rb") as file:
                if _key(os.fstat(file.fileno())) != key:
                    return None
                begin = last.end if last is not None else 0
                if last is not None and not last.is_same_file(file, size):
                    logger.info("%s was truncated or replaced: reading it from the beginning", path)
                    begin = 0
                    self._searched.pop(key, None)
                end = self._end_of_lines(file, key, begin, size, share)
                if end is None:
                    end = size if is_idle else begin
                head_bytes = min(end, _HEAD_BYTES)
                return Entry(path, begin, end, head_bytes, _head(file, head_bytes))
        except FileNotFoundError:
            return None

    def _end_of_lines(self, file: BinaryIO, key: str, begin: int, size: int, share: int) -> int | None:
        """After the last line break up to `share` bytes from the beginning, or else after the first one there is."""
        limit = min(size, begin + share)
        searched = max(begin, self._searched.get(key, 0))
        end = _last_break(file, searched, limit)
        if end is None and limit < size:
            end = _first_break(file, max(limit, searched), size)
        if end is None:
            self._searched[key] = size
        else:
            self._searched.pop(key, None)
        return end

    def _found(self, known: Entries) -> dict[str, tuple[str, os.stat_result]]:
        found: dict[str, tuple[str, os.stat_result]] = {}
        for path in sorted({path for pattern in self.patterns for path in glob.iglob(pattern, recursive=True)}):
            _add(found, path)
        folders = {os.path.dirname(entry.path) for key, entry in known.items() if key not in found}
        for folder in folders:
            for path in _files_with(folder, known.keys() - found.keys()):
                _add(found, path, only=known)
        if len(found) > FILES_MAX:
            raise ConfigError(
                f"path {', '.join(self.patterns)}: {len(found)} files match, at most {FILES_MAX} can be read"
            )
        # Renamed files first: what they have is older.
        return dict(sorted(found.items(), key=lambda item: item[1][1].st_mtime_ns))

    def _without_gone(self, entries: dict[str, Entry], found: Mapping[str, object]) -> Entries:
        gone = [key for key in entries if key not in found]
        for key in gone[: max(len(gone) - _GONE_MAX, 0)]:
            del entries[key]
            self._searched.pop(key, None)
            self._quiet.pop(key, None)
        return entries


def _with_new_devices(known: Entries, found: Mapping[str, tuple[str, os.stat_result]]) -> Entries:
    """A device may have another number after a restart of the machine: then inode and first bytes tell."""
    renamed = {}
    gone = {_inode(key): key for key in known if key not in found}
    for key, (path, status) in found.items():
        old = gone.get(_inode(key))
        if key in known or old is None or not known[old].head_bytes:
            continue
        with open(path, "rb") as file:
            if known[old].is_same_file(file, status.st_size):
                renamed[old] = key
    return {renamed.get(key, key): entry for key, entry in known.items()}


def open_entry(key: str, entry: Entry) -> BinaryIO | None:
    """The file of an entry, wherever it is now; None if its bytes are no longer there."""
    for path in (entry.path, *_files_with(os.path.dirname(entry.path), {key})):
        try:
            file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
        except OSError:
            continue
        status = os.fstat(file.fileno())
        if status.st_ino == _inode(key) and entry.is_same_file(file, status.st_size):
            return file
        file.close()
    return None


def _add(found: dict[str, tuple[str, os.stat_result]], path: str, only: Entries | None = None) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and (only is None or _key(status) in only):
        found.setdefault(_key(status), (path, status))


def _files_with(folder: str, keys: Iterable[str]) -> list[str]:
    """Files of this folder with these inodes, whatever their names are."""
    inodes = {_inode(key) for key in keys}
    try:
        with os.scandir(folder or ".") as items:
            return [item.path for item in items if item.inode() in inodes]
    except FileNotFoundError:
        return []


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _inode(key: str) -> int:
    return int(key.partition(":")[2])


def _head(file: BinaryIO, size: int) -> int:
    return zlib.crc32(os.pread(file.fileno(), size, 0)) if size else 0


def _last_break(file: BinaryIO, begin: int, end: int) -> int | None:
    """The position after the last line break in [begin, end)."""
    while end > begin:
        start = max(begin, end - _BLOCK_BYTES)
        at = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return None


def _first_break(file: BinaryIO, begin: int, end: int) -> int | None:
    while begin < end:
        block = os.pread(file.fileno(), min(_BLOCK_BYTES, end - begin), begin)
        if not block:
            return None
        at = block.find(b"\n")
        if at >= 0:
            return begin + at + 1
        begin += len(block)
    return None
