"""`.lock`: one broker per log directory. The kernel lets go of it when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from moldau.errors import ConfigError

LOCK_FILE = ".lock"

# A POSIX lock (which Kafka takes too) does not hold off its own process, and goes when any descriptor closes.
_held: set[str] = set()


class DirLock:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / LOCK_FILE
        self._key = os.path.realpath(self._path)
        self._fd = -1

    def acquire(self) -> None:
        """ConfigError, naming the holder, when another broker has the directory."""
        if self._key in _held:
            raise self._taken(os.getpid())
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 20, 0)
            os.close(fd)
            raise self._taken(int(holder) if holder.strip().isdigit() else None) from error
        _held.add(self._key)
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            _held.discard(self._key)
            os.close(self._fd)
            self._fd = -1

    def _taken(self, pid: int | None) -> ConfigError:
        who = f"process {pid}" if pid is not None else "another process"
        return ConfigError(
            f"log directory {self._path.parent} is in use by {who}: stop that broker, or give this one other log.dirs"
        )
