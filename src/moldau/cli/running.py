"""Which brokers of this user run on this machine: one small locked file each, so that `kafka-server-stop` finds them.

A process holds the lock on its file as long as it lives. A file nobody locks is of a process that died; it is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def folder() -> Path:
    """Private to the user: another user's file could name any process to be stopped."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"moldau-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user; remove it, or set XDG_RUNTIME_DIR to a folder of yours")
    return path


@contextmanager
def registered(facts: dict[str, Any]) -> Iterator[None]:
    """This process is found by `kafka-server-stop` while it lasts."""
    path = folder() / f"{os.getpid()}.json"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": os.getpid(), **facts}, file)
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def find_running() -> Iterator[dict[str, Any]]:
    """The facts of each broker that lives."""
    for path in sorted(folder().glob("*.json")):
        try:
            with path.open() as file:
                if _is_locked(file):
                    yield json.load(file)
                else:
                    path.unlink(missing_ok=True)
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # it ended, or is just starting, while we looked


def is_running(pid: int) -> bool:
    return any(facts["pid"] == pid for facts in find_running())


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
