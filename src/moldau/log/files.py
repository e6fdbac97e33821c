"""The few file operations everything in this room shares, and the cap on open files.

System calls are imported by name, so that a test can put a failing disk in their place here.
What the bytes mean is known elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
from os import fsync, pwrite
from pathlib import Path
from shutil import disk_usage
from typing import NamedTuple, Protocol

from moldau.errors import StorageError

# Kafka's suffixes; a file carries exactly one of the first group, and may wear one of the second on top.
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

# Errors after which nothing on the device can be trusted; a full disk is not among them: space can be freed.
_DEVICE_ERRORS = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV, errno.EROFS})

PROBE_FILE = "moldau-space-probe"
PROBE_BYTES = 1 << 20
"""Room for some batches: a directory with less would be full again at once."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class DiskSpace(NamedTuple):
    total_bytes: int = -1
    usable_bytes: int = -1
    error: str = ""
    """Why the others are -1: unknown."""


class LogDir:
    """One entry of `log.dirs`: where it is, and whether its disk is full or has failed.

    A failed one is offline until the next start. A full one is asked to take what still fits; `probe` finds out when it
    has space again.
    """

    __slots__ = ("error", "is_full", "offline", "path", "space")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offline = False
        self.is_full = False
        self.error = ""
        self.space = DiskSpace()
        """As last measured: who asks for it never waits for the disk."""

    @property
    def is_writable(self) -> bool:
        return not self.offline and not self.is_full

    def storage_error(self, what: str, error: OSError) -> StorageError:
        """The error to raise for `error`; a failing device takes the directory offline on the way."""
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.is_full = True
            advice = "free space there, or move partitions to another of the log.dirs; reads go on meanwhile"
            return StorageError(f"{what}: log directory {self.path} is full ({reason}); {advice}")
        if error.errno in _DEVICE_ERRORS:
            self.take_offline(f"{what}: {reason}")
            return StorageError(
                f"{what}: log directory {self.path} failed ({reason}) and is now offline; replace the disk"
            )
        return StorageError(f"{what}: log directory {self.path}: {reason}")

    def take_offline(self, reason: str) -> None:
        self.offline = True
        self.error = self.error or reason

    def check_online(self) -> None:
        if self.offline:
            raise StorageError(f"log directory {self.path} is offline ({self.error}); nothing can be written there")

    def measure(self) -> None:
        """How much space the disk has. Blocks."""
        try:
            usage = disk_usage(self.path)
            self.space = DiskSpace(usage.total, usage.free)
        except OSError as error:
            self.space = DiskSpace(error=str(error))

    def probe(self) -> None:
        """Whether a full directory has space again. Blocks."""
        path = self.path / PROBE_FILE
        try:
            try:
                write_file(path, bytes(PROBE_BYTES), sync=True)
            finally:
                remove_file(path)
        except OSError as error:
            self.storage_error("cannot write", error)
        else:
            self.is_full = False


def write_at(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Writes all of `data` at `position`: a short write is continued, until it is whole or fails."""
    written = pwrite(fd, data, position)
    size = len(data)
    if written == size:
        return
    view = memoryview(data)
    while written < size:
        step = pwrite(fd, view[written:], position + written)
        if step == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += step


def fsync_path(path: str | Path) -> None:
    """Forces a file or directory to disk, by a descriptor of its own: another thread may close any other.

    A file that is gone was deleted after the caller looked, and needs no flushing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fsync(fd)
    finally:
        os.close(fd)


def write_file(path: str | Path, data: bytes, *, sync: bool = False) -> None:
    """Replaces a file's content in place: for files that carry a checksum or are built again when insane."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_at(fd, data, 0)
        if sync:
            fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replaces a file in one step: a crash leaves the old content or the new one."""
    temporary = f"{path}.tmp"
    write_file(temporary, data, sync=sync)
    os.replace(temporary, path)
    if sync:
        fsync_path(path.parent)


def read_file(path: str | Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, size, 0) if size else b""
    finally:
        os.close(fd)


def remove_file(path: str | Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class Closable(Protocol):
    def release(self) -> None:
        """Lets go of descriptors and of what can be read again from disk."""


class FilePool:
    """Holds the number of open segment files down: thousands of partitions share a few hundred descriptors.

    First opened, first closed. A segment closed while in use opens again by itself, some microseconds later.
    """

    __slots__ = ("_open", "limit")

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self._open: dict[Closable, None] = {}

    def add(self, segment: Closable) -> None:
        self._open[segment] = None
        if len(self._open) > self.limit:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.release()

    def discard(self, segment: Closable) -> None:
        self._open.pop(segment, None)

    def __len__(self) -> int:
        return len(self._open)
