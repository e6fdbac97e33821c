"""Who is the controller among the processes of one machine: a file to which each candidate adds its claim.

A line is `<crc32 in hex> <json>`: an epoch and who claims it. The kernel puts the lines of all processes behind each
other, whole, and no line is ever changed: so all readers agree that the first claim of an epoch has it, and that an
epoch is over as soon as there is a claim of a later one. No lock is involved that a stopped process could keep. A claim
of no broker is a resignation.

Nothing is flushed: what the file says matters to processes that run, and none outlives a crash of the machine. The
file grows by a line of some 100 bytes per election.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from pathlib import Path
from typing import NamedTuple

from moldau.errors import StorageError

NO_BROKER = -1


class Claim(NamedTuple):
    epoch: int
    node_id: int
    host: str
    port: int
    token: str
    """Tells one process of a broker from its earlier and later ones."""


class Claims:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._position = 0
        self._newest: Claim | None = None
        self._reading = threading.Lock()

    def open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        with self._reading:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def newest(self) -> Claim | None:
        with self._reading:
            if self._fd < 0:
                raise StorageError(f"{self._path} is not open")
            status = os.fstat(self._fd)
            if not status.st_nlink:
                raise StorageError(
                    f"{self._path} was removed while the broker was running; stop all brokers and restore it"
                )
            if status.st_size > self._position:
                self._read_on(status.st_size)
            return self._newest

    def add(self, claim: Claim) -> bool:
        """Whether this broker won the epoch."""
        body = json.dumps(claim, separators=(",", ":")).encode("ascii")
        # Begins with a line feed, since a full disk may have cut the line before it short.
        line = b"\n%08x %s\n" % (zlib.crc32(body), body)
        if os.write(self._fd, line) != len(line):
            raise StorageError(f"cannot write to {self._path}: No space left on device")
        return self.newest() == claim

    def _read_on(self, size: int) -> None:
        data = os.pread(self._fd, size - self._position, self._position)
        whole = data.rfind(b"\n") + 1
        self._position += whole
        for line in data[:whole].splitlines():
            claim = _parse(line)
            if claim is not None and (self._newest is None or claim.epoch > self._newest.epoch):
                self._newest = claim


def _parse(line: bytes) -> Claim | None:
    """None for the empty lines between claims, and for one that was cut short."""
    if line[:8] != b"%08x" % zlib.crc32(line[9:]):
        return None
    return Claim(*json.loads(line[9:]))
