"""The metadata of one machine in one file.

The file is lines of `<crc32 in hex> <json>`. The first line holds a snapshot, every further line one append:
all its records or none, so a topic never exists with half of its partitions; one write and one fsync each.
When the lines outgrow the snapshot, the file is written anew beside itself, fsynced and renamed over.

After a crash the last line may be torn: it was never acknowledged and is cut off. Damage anywhere else means
that acknowledged metadata is gone; that stops the start, since a broker that went on would delete the data of
topics it no longer knows.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moldau.errors import StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record, record_from_json, record_to_json

log = logging.getLogger(__name__)

_FORMAT = 1
# A snapshot is worth its writing once the log behind it is as long as itself, and not for less than this.
_SNAPSHOT_MIN_BYTES = 1024 * 1024


class LocalStore:
    """A `MetadataStore` over `path`, for one process at a time: the data directory's lock sees to that."""

    def __init__(self, path: Path | str, *, snapshot_min_bytes: int = _SNAPSHOT_MIN_BYTES) -> None:
        self._path = Path(path)
        self._beside = self._path.with_name(self._path.name + ".tmp")
        self._snapshot_min_bytes = snapshot_min_bytes
        self._fd = -1
        self._size = 0
        self._snapshot_size = 0
        self._image = MetadataImage()

    def open(self) -> MetadataImage:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._beside.unlink(missing_ok=True)  # a snapshot that a crash left half written
        if self._path.exists():
            self._load()
        else:
            self._image = MetadataImage()
            self._write_snapshot()
        return self._image

    def append(self, records: Sequence[Record]) -> MetadataImage:
        if self._fd < 0:
            raise StorageError(f"metadata file {self._path} is not open")
        if not records:
            return self._image
        image = self._image.apply(records)
        self._write(_encode({"version": image.version, "records": [*map(record_to_json, records)]}))
        self._image = image
        if self._size - self._snapshot_size > max(self._snapshot_min_bytes, self._snapshot_size):
            try:
                self._write_snapshot()
            except StorageError as error:
                # The append itself is safe in the longer file; try again when that has doubled once more.
                log.warning("%s", error)
                self._snapshot_size = self._size
        return image

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: bytes) -> None:
        try:
            _write_all(self._fd, line, self._size)
        except OSError as error:
            self._cut_back()
            raise StorageError(f"cannot write metadata to {self._path}: {error}") from error
        try:
            os.fsync(self._fd)
        except OSError as error:
            # After a failed fsync nobody knows what is on disk: only a fresh read can tell.
            self.close()
            raise StorageError(f"cannot flush metadata to {self._path}: {error}; restart") from error
        self._size += len(line)

    def _cut_back(self) -> None:
        """Take a half-written line off again, or write no more: a line behind it would read as damage."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self.close()

    def _write_snapshot(self) -> None:
        records = [record_to_json(record) for record in self._image.to_records()]
        line = _encode({"format": _FORMAT, "version": self._image.version, "records": records})
        try:
            fd = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                _write_all(fd, line, 0)
                os.fsync(fd)
                os.replace(self._beside, self._path)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            raise StorageError(f"cannot write metadata snapshot {self._path}: {error}") from error
        # From here the path names the new file: an append to the old one would be lost.
        self._use(fd, len(line))
        try:
            _fsync_directory(self._path.parent)
        except OSError as error:
            self.close()
            raise StorageError(f"cannot flush the folder of {self._path}: {error}; restart") from error

    def _use(self, fd: int, snapshot_size: int) -> None:
        self.close()
        self._fd = fd
        self._size = self._snapshot_size = snapshot_size

    def _load(self) -> None:
        data = self._path.read_bytes()
        image = MetadataImage()
        position = snapshot_size = 0
        while position < len(data):
            end = data.find(b"\n", position) + 1 or len(data)
            entry = _decode(data[position:end])
            if entry is None:
                if position == 0 or not _is_torn_tail(data, position, end):
                    raise self._damaged(position, "its checksum does not match")
                break
            image = self._replay(image, entry, position)
            snapshot_size = snapshot_size or end
            position = end
        if not snapshot_size:
            raise self._damaged(0, "it is empty")
        self._use(os.open(self._path, os.O_RDWR | os.O_CLOEXEC), snapshot_size)
        self._size = position
        if position < len(data):
            os.ftruncate(self._fd, position)
            os.fsync(self._fd)
        self._image = image

    def _replay(self, image: MetadataImage, entry: dict[str, Any], position: int) -> MetadataImage:
        if position == 0 and entry.get("format") != _FORMAT:
            raise self._damaged(0, f"its format is {entry.get('format')!r}, this version reads {_FORMAT}")
        try:
            version = int(entry["version"])
            records = [record_from_json(each) for each in entry["records"]]
            if position == 0:
                # A snapshot's records are fewer than those that led to it.
                image = MetadataImage(version=version - len(records))
            image = image.apply(records)
        except (KeyError, TypeError, ValueError, StorageError) as error:
            raise self._damaged(position, str(error)) from error
        if image.version != version:
            raise self._damaged(position, f"it leads to version {version}, but {image.version} was next")
        return image

    def _damaged(self, position: int, reason: str) -> StorageError:
        return StorageError(
            f"metadata file {self._path} is damaged at byte {position}: {reason}. Restore it from a backup; "
            "starting without it would lose topics."
        )


def _encode(entry: dict[str, Any]) -> bytes:
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> dict[str, Any] | None:
    """The entry of a whole line, None for anything else."""
    if len(line) < 10 or not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    body = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(body):
        return None
    entry = json.loads(body)
    return entry if isinstance(entry, dict) else None


def _is_torn_tail(data: bytes, position: int, end: int) -> bool:
    """Whether the bad line from `position` can be what a crash left of the last append.

    A torn write is short, or has holes of zeros where blocks did not reach the disk; a whole last line of
    other bytes was written, acknowledged, and damaged later.
    """
    return end == len(data) and (not data.endswith(b"\n") or b"\0" in data[position:])


def _write_all(fd: int, data: bytes, position: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], position + written)


def _fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
