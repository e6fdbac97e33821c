"""A file of metadata: one image, and what was appended to it since.

The file is lines of `<crc32 in hex> <json>`. The first line holds a snapshot, every further line one append:
all its records or none, so a topic never exists with half of its partitions; one write and one fsync each.
Each line names the epoch of the controller that wrote it. When the lines outgrow the snapshot, a new file is
written beside it, fsynced, and renamed over it.

After a crash the last line may be torn: it was never acknowledged and is cut off. Damage anywhere else means
that acknowledged metadata is lost: the broker does not start, since it would delete the data of topics that it no
longer knows.

Who may write is not decided here but by the stores that keep such files.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moldau.disk import OS_DISK, TEMPORARY_SUFFIX, Disk, File, read_file
from moldau.errors import StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.stores.entries import append_entry, read_append, read_snapshot, snapshot_entry

logger = logging.getLogger(__name__)

SNAPSHOT_MIN_BYTES = 1024 * 1024
"""A snapshot is worth its writing once the log behind it is as long as itself, and not for less than this."""


class Journal:
    def __init__(self, path: Path, *, disk: Disk = OS_DISK, snapshot_min_bytes: int = SNAPSHOT_MIN_BYTES) -> None:
        self.path = path
        self.epoch = 0
        """The epoch of the newest line."""
        self._disk = disk
        self._beside = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._snapshot_min_bytes = snapshot_min_bytes
        self._file: File | None = None
        self._size = 0
        self._snapshot_size = 0
        self._version = 0

    def create(self, image: MetadataImage, epoch: int) -> None:
        """A new file that begins with `image`, in the place of any other of that name."""
        self._disk.make_directory(self.path.parent, parents=True)
        self._write_snapshot(image, epoch)

    def open(self) -> MetadataImage:
        """What the file holds; appends can follow."""
        self._disk.remove(self._beside)  # a snapshot that a crash left half written
        file = self._disk.open(self.path, write=True)
        try:
            data = file.read(file.size(), 0)
            image, size, snapshot_size = self._parse(data)
            if size < len(data):
                file.truncate(size)
                file.sync()
        except BaseException:
            file.close()
            raise
        self._switch_to(file, snapshot_size)
        self._size = size
        self._version = image.version
        return image

    def read(self) -> MetadataImage:
        """What the file holds, while another process may be about to write to it: nothing is touched."""
        return self._parse(read_file(self._disk, self.path))[0]

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        if self._file is None:
            raise StorageError(f"metadata file {self.path} is not open")
        if image.version != self._version + len(records):
            raise StorageError(
                f"{len(records)} records after version {self._version} do not lead to version {image.version}"
            )
        if records:
            self._write(self._file, _line(append_entry(epoch, image.version, records)))
            self._version = image.version
            self.epoch = epoch

    def snapshot_if_due(self, image: MetadataImage) -> None:
        if self._size - self._snapshot_size <= max(self._snapshot_min_bytes, self._snapshot_size):
            return
        try:
            self._write_snapshot(image, self.epoch)
        except StorageError as error:
            # The appends are safe in the longer file; try again when that has doubled once more.
            logger.warning("%s", error)
            self._snapshot_size = self._size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, file: File, line: bytes) -> None:
        try:
            file.write(line, self._size)
        except OSError as error:
            self._truncate_failed_write(file)
            raise StorageError(f"cannot write metadata to {self.path}: {error}") from error
        try:
            file.sync()
        except OSError as error:
            # After a failed fsync it is not known what is on disk until the file is read again.
            self.close()
            raise StorageError(f"cannot flush metadata to {self.path}: {error}; restart the broker") from error
        self._size += len(line)

    def _truncate_failed_write(self, file: File) -> None:
        """Removes a half-written line, or else stops writing: a line after it would read as damage."""
        try:
            file.truncate(self._size)
        except OSError:
            self.close()

    def _write_snapshot(self, image: MetadataImage, epoch: int) -> None:
        line = _line(snapshot_entry(epoch, image))
        try:
            file = self._disk.open(self._beside, write=True, create=True, truncate=True)
            try:
                file.write(line, 0)
                file.sync()
                self._disk.rename(self._beside, self.path)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise StorageError(f"cannot write metadata snapshot {self.path}: {error}") from error
        # From here the path names the new file: an append to the old one would be lost.
        self._switch_to(file, len(line))
        self._version = image.version
        self.epoch = epoch
        try:
            self._disk.sync(self.path.parent)
        except OSError as error:
            self.close()
            raise StorageError(f"cannot flush the directory of {self.path}: {error}; restart the broker") from error

    def _switch_to(self, file: File, snapshot_size: int) -> None:
        self.close()
        self._file = file
        self._size = self._snapshot_size = snapshot_size

    def _parse(self, data: bytes) -> tuple[MetadataImage, int, int]:
        """The image, the size of the whole lines, and of the first of them."""
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
        return image, position, snapshot_size

    def _replay(self, image: MetadataImage, entry: dict[str, Any], position: int) -> MetadataImage:
        try:
            self.epoch = int(entry.get("epoch", 0))  # lines of earlier versions have none
            return read_append(image, entry) if position else read_snapshot(entry)
        except (KeyError, TypeError, ValueError, StorageError) as error:
            raise self._damaged(position, str(error)) from error

    def _damaged(self, position: int, reason: str) -> StorageError:
        return StorageError(
            f"metadata file {self.path} is damaged at byte {position}: {reason}. Restore it from a backup; "
            "starting without it would lose topics."
        )


def _line(body: bytes) -> bytes:
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
