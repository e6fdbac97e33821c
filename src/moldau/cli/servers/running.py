"""Which brokers and ZooKeepers of this user run on this machine: one small locked file each, so that
`kafka-server-stop` and `zookeeper-server-stop` find them.

A process holds the lock on its file as long as it lives. A file nobody locks is of a process that died; it is removed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger(__name__)

_POLL_S = 0.05
BROKER, ZOOKEEPER = "json", "zookeeper"
"""Kinds of processes: how their files' names end."""


def folder() -> Path:
    """Private to the user: another user's file could name any process to be stopped.

    After `su`, or in a container, XDG_RUNTIME_DIR may name what is not there or somebody else's.
    """
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = given if given and os.access(given, os.W_OK | os.X_OK) else tempfile.gettempdir()
    path = Path(parent) / f"moldau-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid():
        raise PermissionError(
            f"{path} belongs to another user; remove it, or set XDG_RUNTIME_DIR to a directory of yours"
        )
    return path


@contextmanager
def registered(facts: dict[str, Any]) -> Iterator[None]:
    """This process is found by `kafka-server-stop` while it lasts; where that cannot be, it runs all the same."""
    try:
        file = _register(facts, BROKER)
    except OSError as error:
        logger.warning("kafka-server-stop will not find this broker: %s", error)
        yield
        return
    with file:
        try:
            yield
        finally:
            (folder() / f"{os.getpid()}.{BROKER}").unlink(missing_ok=True)


def register_program(facts: dict[str, Any], kind: str) -> IO[str]:
    """As `registered`, for the program that takes this process over: it inherits the lock and never knows of it."""
    file = _register(facts, kind)
    os.set_inheritable(file.fileno(), True)
    return file


def _register(facts: dict[str, Any], kind: str) -> IO[str]:
    """Under its name only when it is locked and complete: who looks meanwhile would take it for one of the dead."""
    path = folder() / f"{os.getpid()}.{kind}"
    file = path.with_suffix(".new").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    json.dump({"pid": os.getpid(), **facts}, file)
    file.flush()
    os.replace(file.name, path)
    return file


def find_running(kind: str = BROKER) -> Iterator[dict[str, Any]]:
    """The facts of each broker, or other process of that kind, that lives."""
    for path in sorted(folder().glob(f"*.{kind}")):
        try:
            with path.open() as file:
                if _is_locked(file):
                    yield json.load(file)
                else:
                    path.unlink(missing_ok=True)
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # it ended, or is just starting, while we looked


def is_running(pid: int, kind: str = BROKER) -> bool:
    return any(facts["pid"] == pid for facts in find_running(kind))


def is_ready(pid: int) -> bool:
    """Whether a broker runs in this process; for `moldau start --brokers`, whether all its brokers run."""
    found = list(find_running())
    expected = next((facts.get("brokers", 0) for facts in found if facts["pid"] == pid), None)
    return expected is not None and sum(facts.get("parent") == pid for facts in found) >= expected


def wait_until_ended(pids: Iterable[int], timeout_s: float, kind: str = BROKER) -> bool:
    """False, with a word about it on standard error, when one of these processes still runs then."""
    deadline_s = time.monotonic() + timeout_s
    for pid in pids:
        while is_running(pid, kind):
            if time.monotonic() > deadline_s:
                print(f"moldau: process {pid} is still running after {timeout_s:.0f} s", file=sys.stderr)
                return False
            time.sleep(_POLL_S)
    return True


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
