"""The checkpoint files of one log directory: offsets that a start needs and cannot find in the logs themselves.

Any thread may write them, one at a time. A disk that hangs holds that thread and whoever writes here next, but nobody
who only asks which partitions the files speak of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from moldau.disk import Disk
from moldau.errors import CorruptFileError
from moldau.log import checkpoints
from moldau.log.files import LogDir
from moldau.log.partition_log import PartitionLog
from moldau.wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class Checkpointed(NamedTuple):
    recovery_points: Offsets
    start_offsets: Offsets
    high_watermarks: Offsets
    dirty_offsets: Offsets


class DirCheckpoints:
    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._writing = threading.Lock()
        self._naming = threading.Lock()  # never held while something is written
        self._named: set[TopicPartition] = set()
        self.is_open = False
        """From the loading of all logs until they are closed: at other times the files would miss some of them."""
        self.lost_dirty_offsets = False
        """The file of first dirty offsets cannot be read: any of the logs may have been compacted."""

    def read(self) -> Checkpointed:
        """What is on disk at the start."""
        directory = self._log_dir.path
        disk = self._log_dir.disk
        dirty_offsets = _read(disk, directory / checkpoints.CLEANER_OFFSET)
        found = Checkpointed(
            _read(disk, directory / checkpoints.RECOVERY_POINT) or {},
            _read(disk, directory / checkpoints.LOG_START_OFFSET) or {},
            _read(disk, directory / checkpoints.REPLICATION_OFFSET) or {},
            dirty_offsets or {},
        )
        self.lost_dirty_offsets = dirty_offsets is None
        self._named.update(*found)
        return found

    def mention(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint file has an entry of it, or one that is being written may have."""
        with self._naming:
            return partition in self._named

    def write(self, find_logs: Callable[[], Sequence[PartitionLog]]) -> None:
        """Writes all files, for the logs that exist when it begins; StorageError if the disk fails."""
        with self._writing:
            if not self.is_open or self._log_dir.offline:
                return
            with self._naming:
                logs = find_logs()
                named = {_key(log) for log in logs}
                self._named |= named
            try:
                self._write(logs)
            except OSError as error:
                raise self._log_dir.storage_error("cannot write checkpoints", error) from error
            with self._naming:
                self._named = named

    def write_last(self, logs: Sequence[PartitionLog]) -> None:
        """Writes them a last time, when the directory is closed."""
        try:
            self.write(lambda: logs)
        finally:
            self.is_open = False

    def write_dirty_offsets(self, find_logs: Callable[[], Sequence[PartitionLog]]) -> None:
        """Only the first dirty offsets, after a cleaning: a small part of what `write` writes."""
        with self._writing:
            if not self.is_open or self._log_dir.offline:
                return
            with self._naming:
                logs = [log for log in find_logs() if log.first_dirty_offset]
                self._named.update(_key(log) for log in logs)
            try:
                self._write_dirty_offsets(logs)
            except OSError as error:
                raise self._log_dir.storage_error("cannot write checkpoints", error) from error

    def _write(self, logs: Sequence[PartitionLog]) -> None:
        # First, and even where the name of the first segment says it: after a power loss, deleted segments may be back.
        self._write_offsets(
            checkpoints.LOG_START_OFFSET,
            {_key(log): log.log_start_offset for log in logs if log.log_start_offset},
        )
        self._write_recovery_points(logs)
        self._write_offsets(
            checkpoints.REPLICATION_OFFSET,
            {_key(log): log.high_watermark for log in logs},
        )
        self._write_dirty_offsets(logs)

    def _write_recovery_points(self, logs: Sequence[PartitionLog]) -> None:
        offsets = {}
        for log in logs:
            # Not above the high watermark: a follower may truncate its log to there, and would write this first.
            offset = offsets[_key(log)] = min(log.recovery_point, log.high_watermark)
            log.durability.checkpoint_begins(offset)
        self._write_offsets(checkpoints.RECOVERY_POINT, offsets)
        for log in logs:
            log.durability.checkpoint_ended(offsets[_key(log)])

    def _write_dirty_offsets(self, logs: Sequence[PartitionLog]) -> None:
        self._write_offsets(
            checkpoints.CLEANER_OFFSET,
            {_key(log): log.first_dirty_offset for log in logs if log.first_dirty_offset},
        )

    def _write_offsets(self, name: str, offsets: Offsets) -> None:
        checkpoints.write_offsets(self._log_dir.disk, self._log_dir.path / name, offsets)


def _read(disk: Disk, path: Path) -> Offsets | None:
    """None for a file that is damaged."""
    try:
        return checkpoints.read_offsets(disk, path)
    except CorruptFileError as error:
        # All of these offsets are lower bounds: starting from zero costs time, nothing else.
        logger.warning("%s; ignoring it", error)
        return None


def _key(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic, log.partition)
