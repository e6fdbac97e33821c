"""File names, the state of a log directory, and the cap on open files. The operations themselves are a `Disk`'s."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import NamedTuple, Protocol

from moldau.disk import OS_DISK, Disk, write_file
from moldau.errors import StorageError

logger = logging.getLogger(__name__)

# Kafka's suffixes. A file has one of the first group, and sometimes one of the second after it.
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

    __slots__ = ("disk", "error", "is_full", "offline", "path", "space")

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        self.path = path
        self.disk = disk
        self.offline = False
        self.is_full = False
        self.error = ""
        self.space = DiskSpace()
        """As last measured: reading it never waits for the disk."""

    @property
    def is_writable(self) -> bool:
        return not self.offline and not self.is_full

    def storage_error(self, what: str, error: OSError) -> StorageError:
        """The error to raise for `error`. A failing device also takes the directory offline."""
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

    def take_offline_at_start(self, what: str, error: OSError) -> None:
        """Also if it is only full: its logs could not be recovered, and nobody loads them later."""
        self.take_offline(str(error))
        logger.error(
            "cannot load %s: log directory %s is offline (%s); mend it, or free space there, then restart the broker",
            what,
            self.path,
            error.strerror or error,
        )

    def check_online(self) -> None:
        if self.offline:
            raise StorageError(f"log directory {self.path} is offline ({self.error}); nothing can be written there")

    def measure(self) -> None:
        """How much space the disk has. Blocks."""
        try:
            self.space = DiskSpace(*self.disk.space(self.path))
        except OSError as error:
            self.space = DiskSpace(error=str(error))

    def probe(self) -> None:
        """Whether a full directory has space again. Blocks."""
        path = self.path / PROBE_FILE
        try:
            try:
                write_file(self.disk, path, bytes(PROBE_BYTES), sync=True)
            finally:
                self.disk.remove(path)
        except OSError as error:
            self.storage_error("cannot write", error)
        else:
            self.is_full = False


class Closable(Protocol):
    def release(self) -> None:
        """Closes descriptors and drops what can be read again from disk."""


class FilePool:
    """Limits the number of open segment files: thousands of partitions share a few hundred descriptors.

    First opened, first closed. A segment closed while in use opens again by itself, some microseconds later.
    """

    __slots__ = ("_open", "disk", "limit")

    def __init__(self, limit: int = 512, disk: Disk = OS_DISK) -> None:
        self.limit = limit
        self.disk = disk
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
