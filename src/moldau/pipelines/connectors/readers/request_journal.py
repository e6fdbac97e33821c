"""An append-only journal of requests, so that a micro-batch can be read again after a kill.

Positions count bytes over all files. A file is named after the position where it begins, and holds frames:

    length (4 bytes), CRC-32 (4 bytes), payload: a line of JSON (path, headers, time), then the body

What `append` has returned is on disk. A kill may leave a torn frame at the end, which nobody was told of: the next
`Journal` cuts it off.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from moldau.errors import DataLossError

_HEAD = struct.Struct(">II")
_FILE_BYTES = 64 * 1024 * 1024
_SUFFIX = ".requests"


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    received_us: int
    body: bytes

    def encoded(self) -> bytes:
        head = json.dumps([self.path, self.headers, self.received_us]).encode()
        payload = head + b"\n" + self.body
        return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload

    @classmethod
    def decoded(cls, payload: bytes) -> Request:
        head, _, body = payload.partition(b"\n")
        path, headers, received_us = json.loads(head)
        return cls(path, headers, received_us, body)


class Journal:
    """The one writer. `end` is the position after the last request."""

    def __init__(self, folder: str, file_bytes: int = _FILE_BYTES) -> None:
        self._folder = Path(folder)
        self._file_bytes = file_bytes
        self._folder.mkdir(parents=True, exist_ok=True)
        begins = _begins(self._folder)
        self._begin = begins[-1] if begins else 0
        self._file = _appending(_path(self._folder, self._begin))
        self.end = self._begin + _whole_bytes(self._file.name)
        self._file.truncate(self.end - self._begin)
        _sync_folder(self._folder)

    @property
    def first(self) -> int:
        """The position of the oldest request that is kept."""
        return _begins(self._folder)[0]

    def append(self, frames: Sequence[bytes]) -> None:
        if self.end - self._begin >= self._file_bytes:
            self.begin_at(self.end)
        try:
            for frame in frames:
                _write_all(self._file, frame)
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self.end - self._begin)  # a part of a frame would hide all that follows
            raise
        self.end += sum(map(len, frames))

    def begin_at(self, position: int) -> None:
        """Go on at this position, in a new file."""
        self._file.close()
        self._begin = self.end = position
        self._file = _appending(_path(self._folder, position))
        _sync_folder(self._folder)

    def forget(self, position: int) -> None:
        """Delete files that end at this position or before."""
        begins = _begins(self._folder)
        for begin, following in pairwise(begins):
            if following <= position:
                _path(self._folder, begin).unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()


def read_requests(folder: str, begin: int, end: int) -> Iterator[tuple[int, Request]]:
    """The requests of [begin, end), each with its position."""
    position = begin
    begins = _begins(Path(folder))
    for number, start in enumerate(begins):
        following = begins[number + 1] if number + 1 < len(begins) else end
        if start <= position < min(following, end):
            with open(_path(Path(folder), start), "rb") as file:
                file.seek(position - start)
                while position < min(following, end) and (payload := _next(file)) is not None:
                    yield position, Request.decoded(payload)
                    position += _HEAD.size + len(payload)
    if position < end:
        raise DataLossError(
            f"the journal {folder} has no requests from position {position} to {end}: if they are lost for good, start "
            "the pipeline over with `moldau pipeline reset`"
        )


def _appending(path: Path) -> FileIO:
    return open(path, "ab", buffering=0)


def _write_all(file: FileIO, frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[file.write(view) :]


def _next(file: BinaryIO) -> bytes | None:
    """The next payload; None at the end, and for a torn frame."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    size, crc = _HEAD.unpack(head)
    payload = file.read(size)
    return payload if len(payload) == size and zlib.crc32(payload) == crc else None


def _whole_bytes(path: str) -> int:
    size = 0
    with open(path, "rb") as file:
        while (payload := _next(file)) is not None:
            size += _HEAD.size + len(payload)
    return size


def _begins(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*{_SUFFIX}"))


def _path(folder: Path, begin: int) -> Path:
    return folder / f"{begin:020d}{_SUFFIX}"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
