"""`.lock`: one broker per log directory. The end of the process frees it, however it ends."""

from __future__ import annotations

from pathlib import Path

from moldau.disk import Disk, Lock, LockedError
from moldau.errors import ConfigError

LOCK_FILE = ".lock"


class DirLock:
    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory = directory
        self._disk = disk
        self._lock: Lock | None = None

    def acquire(self) -> None:
        """ConfigError, naming the holder, when another broker has the directory."""
        try:
            self._lock = self._disk.lock(self.directory / LOCK_FILE)
        except LockedError as error:
            who = f"process {error.holder}" if error.holder is not None else "another process"
            raise ConfigError(
                f"log directory {self.directory} is in use by {who}: stop that broker, or give this one other log.dirs"
            ) from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
