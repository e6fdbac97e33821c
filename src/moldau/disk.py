"""The disk, as far as the broker's files need one.

`Disk` and `File` are what the log and the metadata ask for; `OsDisk` is the machine's. Whoever opens files is given a
`Disk`, so that tests can run a broker on one that loses its power or fills up (`moldau.testing.simulation.disk`).

Always on the machine's disk: the worker process of compaction (its function `clean` takes a `Disk` too), the folder
that brokers of one machine share as their metadata store, and the commands that read a broker's files.

System calls are imported by name, so that a test can put a failing disk in their place here.
What the bytes mean is known elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from os import fsync, ftruncate, pread, pwrite
from typing import NamedTuple, Protocol

TEMPORARY_SUFFIX = ".tmp"
"""Of a file that is about to replace another; a crash may leave it behind."""

AnyPath = str | os.PathLike[str]
Data = bytes | bytearray | memoryview


class LockedError(OSError):
    """Another process, or another part of this one, holds the lock. An OSError, as all that a disk raises."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.holder = holder
        """The process id, where it is known."""


class Space(NamedTuple):
    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """An open file. Reads and writes say where; there is no current position."""

    def read(self, size: int, position: int) -> bytes:
        """Fewer bytes than `size` only at the end of the file."""

    def write(self, data: Data, position: int) -> None:
        """Writes all of `data`; after an OSError, some of it may have been written."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def set_modified(self, modified_s: float) -> None: ...

    def sync(self) -> None:
        """Forces the content to the device, not the name: `Disk.sync` of the directory does that."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories, by absolute path. Everything raises OSError."""

    def open(
        self,
        path: AnyPath,
        *,
        write: bool = False,
        create: bool = False,
        truncate: bool = False,
        exclusive: bool = False,
    ) -> File:
        """For reading or, with `write`, for both.

        `create` makes a missing file, `truncate` empties an existing one, `exclusive` refuses one (FileExistsError).
        """

    def sync(self, path: AnyPath) -> None:
        """Forces a file's content, or a directory's entries, to the device; a missing path is not an error.

        The path was deleted after the caller looked, then, and needs no flushing.
        """

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        """In one step; an existing target file is replaced."""

    def remove(self, path: AnyPath) -> None:
        """Removes a file; a missing one is not an error."""

    def truncate(self, path: AnyPath, size: int) -> None: ...

    def exists(self, path: AnyPath) -> bool: ...

    def size(self, path: AnyPath) -> int: ...

    def modified_s(self, path: AnyPath) -> float: ...

    def names(self, directory: AnyPath) -> list[str]:
        """Of everything in the directory."""

    def subdirectories(self, directory: AnyPath) -> list[str]:
        """The names of those directly in it."""

    def make_directory(self, directory: AnyPath, *, parents: bool = False) -> None:
        """FileExistsError if it exists, except with `parents`, which also makes the missing ones above it."""

    def remove_tree(self, directory: AnyPath) -> None:
        """Removes what it can of a directory and everything below; errors are ignored."""

    def space(self, directory: AnyPath) -> Space: ...

    def lock(self, path: AnyPath) -> Lock:
        """Takes the lock file `path`, creating it, or raises LockedError. The end of the process frees it."""


class OsFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, position: int) -> bytes:
        return pread(self._fd, size, position)

    def write(self, data: Data, position: int) -> None:
        written = pwrite(self._fd, data, position)
        if written != len(data):
            self._write_rest(memoryview(data), position, written)

    def _write_rest(self, view: memoryview, position: int, written: int) -> None:
        while written < len(view):
            step = pwrite(self._fd, view[written:], position + written)
            if step == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += step

    def truncate(self, size: int) -> None:
        ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def set_modified(self, modified_s: float) -> None:
        os.utime(self._fd, (modified_s, modified_s))

    def sync(self) -> None:
        fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    def open(
        self,
        path: AnyPath,
        *,
        write: bool = False,
        create: bool = False,
        truncate: bool = False,
        exclusive: bool = False,
    ) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        flags |= os.O_CREAT * create | os.O_TRUNC * truncate | os.O_EXCL * exclusive
        return OsFile(os.open(path, flags, 0o644))

    def sync(self, path: AnyPath) -> None:
        # By a descriptor of its own: another thread may close any other.
        try:
            file = self.open(path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        os.replace(source, target)

    def remove(self, path: AnyPath) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def truncate(self, path: AnyPath, size: int) -> None:
        os.truncate(path, size)

    def exists(self, path: AnyPath) -> bool:
        return os.path.exists(path)

    def size(self, path: AnyPath) -> int:
        return os.stat(path).st_size

    def modified_s(self, path: AnyPath) -> float:
        return os.stat(path).st_mtime

    def names(self, directory: AnyPath) -> list[str]:
        return os.listdir(directory)

    def subdirectories(self, directory: AnyPath) -> list[str]:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def make_directory(self, directory: AnyPath, *, parents: bool = False) -> None:
        if parents:
            os.makedirs(directory, exist_ok=True)
        else:
            os.mkdir(directory)

    def remove_tree(self, directory: AnyPath) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def space(self, directory: AnyPath) -> Space:
        usage = shutil.disk_usage(directory)
        return Space(usage.total, usage.free)

    def lock(self, path: AnyPath) -> Lock:
        return _OsLock(path)


# A POSIX lock (which Kafka takes too) does not hold off its own process, and goes when any descriptor closes.
_held: set[str] = set()


class _OsLock:
    def __init__(self, path: AnyPath) -> None:
        self._key = os.path.realpath(path)
        if self._key in _held:
            raise LockedError(os.getpid())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 20, 0)
            os.close(fd)
            raise LockedError(int(holder) if holder.strip().isdigit() else None) from error
        _held.add(self._key)
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            _held.discard(self._key)
            os.close(self._fd)
            self._fd = -1


OS_DISK: Disk = OsDisk()


def read_file(disk: Disk, path: AnyPath) -> bytes:
    file = disk.open(path)
    try:
        size = file.size()
        return file.read(size, 0) if size else b""
    finally:
        file.close()


def write_file(disk: Disk, path: AnyPath, data: bytes, *, sync: bool = False) -> None:
    """Replaces a file's content in place: for files that carry a checksum or are rebuilt when damaged."""
    file = disk.open(path, write=True, create=True, truncate=True)
    try:
        file.write(data, 0)
        if sync:
            file.sync()
    finally:
        file.close()


def replace_file(disk: Disk, path: AnyPath, data: bytes, *, sync: bool = True) -> None:
    """Replaces a file in one step: a crash leaves the old content or the new one."""
    temporary = os.fspath(path) + TEMPORARY_SUFFIX
    write_file(disk, temporary, data, sync=sync)
    disk.rename(temporary, path)
    if sync:
        disk.sync(os.path.dirname(path))
