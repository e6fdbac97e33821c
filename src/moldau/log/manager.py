"""All logs of a broker, over one or several log directories: start, stop, checkpoints, housekeeping.

One thread owns the manager and its logs; `checkpoint`, `flush_due` and `purge_deleted` may run in another.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from moldau.clocks import Clock, monotonic_ms
from moldau.config.storage_keys import DAY_MS
from moldau.config.topic import TopicConfig
from moldau.errors import ConfigError, ErrorCode, KafkaError, StorageError
from moldau.log import checkpoints
from moldau.log.dir_lock import DirLock
from moldau.log.files import FilePool, LogDir
from moldau.log.meta_properties import check_in
from moldau.log.partition_log import LogContext, PartitionLog
from moldau.log.recovery import create_log, load_log
from moldau.log.segment import Segment
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.uuids import ZERO_UUID

logger = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_NAME_MAX = 255
_CLOSING_THREADS = 8  # they wait for the disk, which makes one commit of many fsyncs

TopicPartition = tuple[str, int]
Progress = Callable[[int, int], None]  # logs loaded, logs in all


class DirDescription(NamedTuple):
    path: Path
    error: str  # empty: all is well
    total_bytes: int
    usable_bytes: int
    sizes: dict[TopicPartition, int]


class LogManager:
    def __init__(
        self,
        dirs: Sequence[Path],
        *,
        default_config: TopicConfig,
        node_id: int,
        clock: Clock,
        monotonic: Clock = monotonic_ms,
        recovery_threads: int = 1,
        producer_id_expiration_ms: int = DAY_MS,
        cluster_id: str | None = None,
        max_open_files: int | None = None,
        single_replica: bool = True,
    ) -> None:
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.directories = [Path(os.path.abspath(directory)) for directory in dirs]
        self.directory_ids: dict[Path, str] = {}
        self.cluster_id = cluster_id or ""
        self._default_config = default_config
        self._node_id = node_id
        self._monotonic = monotonic
        self._recovery_threads = recovery_threads
        pool = FilePool(max_open_files or _default_max_open_files())
        self._contexts = {
            directory: LogContext(LogDir(directory), pool, clock, producer_id_expiration_ms, single_replica, monotonic)
            for directory in self.directories
        }
        self.was_clean = False
        """Whether the last stop left everything on disk; known once the logs are open."""
        self._is_open = False
        self._locks: list[DirLock] = []
        self._deleted: list[tuple[int, Path]] = []  # when it is due, what
        self._checkpoint_lock = threading.Lock()
        self._checkpointed: set[TopicPartition] = set()  # whom the checkpoint files speak of

    # -- start and stop

    def lock(self) -> None:
        """Takes the directories, creating missing ones; ConfigError when one is another broker's."""
        if self._locks:
            return
        if len(set(self.directories)) != len(self.directories):
            raise ConfigError(f"log.dirs names a directory twice: {', '.join(map(str, self.directories))}")
        try:
            for directory in self.directories:
                try:
                    directory.mkdir(parents=True, exist_ok=True)
                    lock = DirLock(directory)
                    lock.acquire()
                except OSError as error:
                    raise ConfigError(f"log directory {directory} cannot be used: {error.strerror}") from error
                self._locks.append(lock)
        except ConfigError:
            self._unlock()
            raise

    def check_in(self, cluster_id: str | None = None) -> None:
        """Marks the directories as this node's, in that cluster (None: the one they are of, or a new one)."""
        wanted = cluster_id or self.cluster_id or None
        try:
            self.cluster_id, self.directory_ids = check_in(self.directories, self._node_id, wanted)
        except ConfigError:
            self._unlock()
            raise

    def open(self, topic_configs: Callable[[str], TopicConfig] | None = None, progress: Progress | None = None) -> None:
        """Loads every log; those in directories that were not stopped cleanly are recovered, in threads."""
        self.lock()
        if not self.directory_ids:
            self.check_in()
        jobs: list[Callable[[], PartitionLog | None]] = []
        all_clean = True
        for context in self._contexts.values():
            try:
                clean = checkpoints.take_clean_shutdown(context.log_dir.path)
                jobs += self._jobs(context, clean, topic_configs or (lambda _: self._default_config))
                all_clean = all_clean and clean
            except OSError as error:
                logger.error("%s", context.log_dir.storage_error("cannot load logs", error).message)
                context.log_dir.take_offline(str(error))
        if all_clean or self._recovery_threads <= 1:
            self._collect((job() for job in jobs), len(jobs), progress)
        else:
            with ThreadPoolExecutor(self._recovery_threads, thread_name_prefix="recovery") as executor:
                futures = [executor.submit(job) for job in jobs]
                self._collect((future.result() for future in futures), len(jobs), progress)
        if jobs and not all_clean:
            logger.info("not stopped cleanly the last time: checked the logs", extra={"partitions": len(jobs)})
        self.was_clean = all_clean
        self._is_open = True

    def _jobs(
        self, context: LogContext, clean: bool, topic_configs: Callable[[str], TopicConfig]
    ) -> list[Callable[[], PartitionLog | None]]:
        directory = context.log_dir.path
        recovery_points = _read_offsets(directory / checkpoints.RECOVERY_POINT)
        start_offsets = _read_offsets(directory / checkpoints.LOG_START_OFFSET)
        high_watermarks = _read_offsets(directory / checkpoints.REPLICATION_OFFSET)
        dirty_offsets = _read_offsets(directory / checkpoints.CLEANER_OFFSET)
        self._checkpointed.update(recovery_points, start_offsets, high_watermarks, dirty_offsets)

        def load(name: str, key: TopicPartition) -> PartitionLog | None:
            try:
                log = load_log(
                    directory / name, *key, topic_configs(key[0]), context=context, clean=clean,
                    recovery_point=recovery_points.get(key, 0), log_start_offset=start_offsets.get(key, 0),
                )  # fmt: skip
            except OSError as error:
                logger.error("%s", context.log_dir.storage_error(f"cannot load {name}", error).message)
                context.log_dir.take_offline(str(error))
                return None
            # Should the log have lost its end, what is written there next is dirty.
            log.first_dirty_offset = min(dirty_offsets.get(key, 0), log.log_end_offset)
            if not context.single_replica:
                log.high_watermark = high_watermarks.get(key, 0)
            return log

        jobs: list[Callable[[], PartitionLog | None]] = []
        for name in _subdirectories(directory):
            if name.endswith(DELETE_SUFFIX):
                self._deleted.append((0, directory / name))
                continue
            match = _PARTITION.fullmatch(name)
            if match is not None and match["topic"] != METADATA_TOPIC:
                jobs.append(partial(load, name, (match["topic"], int(match["partition"]))))
        return jobs

    def _collect(self, loaded: Iterable[PartitionLog | None], total: int, progress: Progress | None) -> None:
        for number, log in enumerate(loaded, start=1):
            if progress is not None:
                progress(number, total)
            if log is None:
                continue
            other = self.logs.setdefault((log.topic, log.partition), log)
            if other is not log:
                raise ConfigError(
                    f"{log.name} is in {other.directory} and in {log.directory}: remove the one that is stale"
                )

    def close(self, broker_epoch: int = -1) -> None:
        """Everything to disk, then the mark that makes the next start quick; a failed directory gets none."""
        try:
            if self._is_open:
                failed = self._close_logs()
                for directory, error in self._write_checkpoints().items():
                    logger.error("%s", error.message)
                    failed.add(directory)
                for directory, context in self._contexts.items():
                    if not context.log_dir.offline and directory not in failed:
                        checkpoints.write_clean_shutdown(directory, broker_epoch=broker_epoch)
        except OSError as failure:
            raise StorageError(f"cannot mark a clean stop: {failure}") from failure
        finally:
            with self._checkpoint_lock:
                self._is_open = False
                self.logs.clear()
                self._unlock()

    def _close_logs(self) -> set[Path]:
        """Returns the directories in which a log could not be closed."""
        failed = set()
        logs = list(self.logs.values())
        with ThreadPoolExecutor(_CLOSING_THREADS, thread_name_prefix="close") as executor:
            for log, error in zip(logs, executor.map(_close, logs), strict=True):
                if error is not None:
                    logger.error("%s", error.message)
                    failed.add(log.log_dir.path)
        return failed

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # -- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get((topic, partition))

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicConfig | None = None,
        *,
        is_new: bool = True,
    ) -> PartitionLog:
        """A new log in the directory that has the fewest; the one that exists, if it is the same topic's.

        A partition that is not `is_new` may have its records in a directory that is offline: with one of them
        offline it is refused, lest an empty log take the place of a full one.
        """
        existing = self.logs.get((topic, partition))
        if existing is not None:
            if existing.topic_id == ZERO_UUID:
                existing.assign_topic_id(topic_id)
            if existing.topic_id != topic_id:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"{existing.name} on disk is of topic id {existing.topic_id}, not {topic_id}",
                )
            return existing
        if not is_new and self.offline_dirs:
            raise StorageError(
                f"{topic}-{partition} is in none of the log directories that work, and may be in one that is offline: "
                f"{', '.join(map(str, self.offline_dirs))}"
            )
        with self._checkpoint_lock:  # one that is being written may speak of it, too
            is_checkpointed = (topic, partition) in self._checkpointed
        if is_checkpointed:
            # An earlier partition of that name: its offsets on disk would be taken for the new one's.
            self.checkpoint()
        context = self._contexts[self._emptiest()]
        directory = context.log_dir.path / f"{topic}-{partition}"
        try:
            log = create_log(directory, topic, partition, topic_id, config or self._default_config, context=context)
        except OSError as error:
            raise context.log_dir.storage_error(f"cannot create {topic}-{partition}", error) from error
        self.logs[topic, partition] = log
        return log

    def _emptiest(self) -> Path:
        online = [log_dir for log_dir in self.log_dirs if not log_dir.offline]
        if not online:
            raise StorageError("every log directory is offline; nothing can be created")
        counts = {log_dir.path: 0 for log_dir in online if not log_dir.is_full} or {online[0].path: 0}
        if len(counts) > 1:
            for log in self.logs.values():
                if log.log_dir.path in counts:
                    counts[log.log_dir.path] += 1
        return min(counts, key=counts.__getitem__)

    def delete(self, topic: str, partition: int) -> None:
        """Takes a log out of service at once; `purge_deleted` removes its files later."""
        log = self.logs.pop((topic, partition), None)
        if log is not None:
            renamed = self._rename(log, DELETE_SUFFIX)
            self._deleted.append((self._monotonic() + log.config.file_delete_delay_ms, renamed))

    def set_aside(self, topic: str, partition: int) -> Path:
        """Takes a log that belongs to no known topic out of service; its files stay, for a person to decide."""
        return self._rename(self.logs.pop((topic, partition)), STRAY_SUFFIX)

    @staticmethod
    def _rename(log: PartitionLog, ending: str) -> Path:
        log.close_files()
        suffix = f"-{log.partition}.{uuid.uuid4().hex}{ending}"
        renamed = log.directory.with_name(log.topic[: _NAME_MAX - len(suffix)] + suffix)
        try:
            os.rename(log.directory, renamed)
        except OSError as error:
            raise log.log_dir.storage_error(f"cannot rename {log.name}", error) from error
        return renamed

    # -- housekeeping

    def purge_deleted(self, now_ms: int) -> None:
        """Removes the files of deleted partitions and segments whose time has come, on the monotonic clock."""
        for entry in list(self._deleted):
            if entry[0] <= now_ms:
                shutil.rmtree(entry[1], ignore_errors=True)
                self._deleted.remove(entry)  # in place: the owner may be adding to it
        for log in list(self.logs.values()):
            if log.deleted_files:
                try:
                    log.purge_deleted(now_ms)
                except OSError as error:
                    logger.error("%s", log.log_dir.storage_error(f"cannot remove files of {log.name}", error).message)

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Applies every topic's retention; a log whose disk fails does not keep others from theirs."""
        deleted = []
        for log in list(self.logs.values()):
            try:
                deleted += log.enforce_retention(now_ms)
            except KafkaError as error:
                logger.error("%s", error.message)
        return deleted

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets the idempotent producers that were silent for `expiration_ms`."""
        for log in self.logs.values():
            log.producers.expiration_ms = expiration_ms
            log.producers.remove_expired(now_ms)

    def flush_due(self, now_ms: int) -> None:
        """Flushes the logs whose `flush.messages` or `flush.ms` is reached, on the monotonic clock."""
        for log in list(self.logs.values()):
            unflushed = log.unflushed_messages
            if unflushed > 0 and (
                unflushed >= log.config.flush_messages or now_ms - log.last_flush_ms >= log.config.flush_ms
            ):
                try:
                    log.flush()
                except StorageError as error:
                    logger.error("%s", error.message)

    def checkpoint(self) -> None:
        """Writes recovery points, log start, high watermark and first dirty offsets of every directory that works.

        StorageError is about the first directory that failed; the others have theirs.
        """
        for error in self._write_checkpoints().values():
            raise error

    def _write_checkpoints(self) -> dict[Path, StorageError]:
        """Returns the directories in which they could not be written."""
        failed: dict[Path, StorageError] = {}
        with self._checkpoint_lock:
            if not self._is_open:
                return failed  # the logs are not all there yet, or no more
            by_directory: dict[Path, list[PartitionLog]] = {path: [] for path in self.directories}
            for log in list(self.logs.values()):
                by_directory[log.log_dir.path].append(log)
            named = {(log.topic, log.partition) for logs in by_directory.values() for log in logs}
            self._checkpointed |= named
            for directory, logs in by_directory.items():
                log_dir = self._contexts[directory].log_dir
                if log_dir.offline:
                    continue
                try:
                    _write_checkpoints(directory, logs)
                except OSError as error:
                    failed[directory] = log_dir.storage_error("cannot write checkpoints", error)
            if not failed:
                self._checkpointed = named
        return failed

    def checkpoint_dirty_offsets(self, directory: Path) -> None:
        """Only the first dirty offsets, after a cleaning: a small part of what `checkpoint` writes."""
        log_dir = self._contexts[directory].log_dir
        with self._checkpoint_lock:
            if not self._is_open or log_dir.offline:
                return
            logs = [log for log in list(self.logs.values()) if log.log_dir is log_dir and log.first_dirty_offset]
            self._checkpointed.update((log.topic, log.partition) for log in logs)
            try:
                _write_dirty_offsets(directory, logs)
            except OSError as error:
                raise log_dir.storage_error("cannot write checkpoints", error) from error

    @property
    def log_dirs(self) -> list[LogDir]:
        return [context.log_dir for context in self._contexts.values()]

    @property
    def offline_dirs(self) -> list[Path]:
        return [log_dir.path for log_dir in self.log_dirs if log_dir.offline]

    def describe_dirs(self) -> list[DirDescription]:
        logs = list(self.logs.items())  # another thread may be adding some
        descriptions = []
        for path, context in self._contexts.items():
            sizes = {key: log.size_bytes for key, log in logs if log.log_dir is context.log_dir}
            total_bytes = usable_bytes = -1
            error = context.log_dir.error
            try:
                usage = shutil.disk_usage(path)
                total_bytes, usable_bytes = usage.total, usage.free
            except OSError as failure:
                error = error or str(failure)
            descriptions.append(DirDescription(path, error, total_bytes, usable_bytes, sizes))
        return descriptions


def _write_checkpoints(directory: Path, logs: list[PartitionLog]) -> None:
    checkpoints.write_offsets(
        directory / checkpoints.RECOVERY_POINT,
        {(log.topic, log.partition): log.recovery_point for log in logs},
    )
    checkpoints.write_offsets(
        directory / checkpoints.LOG_START_OFFSET,
        {
            (log.topic, log.partition): log.log_start_offset
            for log in logs
            if log.log_start_offset > log.segments[0].base_offset  # else the first file's name says it
        },
    )
    checkpoints.write_offsets(
        directory / checkpoints.REPLICATION_OFFSET,
        {(log.topic, log.partition): log.high_watermark for log in logs},
    )
    _write_dirty_offsets(directory, logs)


def _write_dirty_offsets(directory: Path, logs: list[PartitionLog]) -> None:
    checkpoints.write_offsets(
        directory / checkpoints.CLEANER_OFFSET,
        {(log.topic, log.partition): log.first_dirty_offset for log in logs if log.first_dirty_offset},
    )


def _close(log: PartitionLog) -> StorageError | None:
    try:
        log.close()
    except StorageError as error:
        return error
    return None


def _subdirectories(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _read_offsets(path: Path) -> dict[TopicPartition, int]:
    try:
        return checkpoints.read_offsets(path)
    except checkpoints.CorruptCheckpointError as error:
        # Lower bounds all of them: starting from zero costs time, nothing else.
        logger.warning("%s; ignoring it", error)
        return {}


def _default_max_open_files() -> int:
    """Half of what the process may open; the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 8192) // 2) if soft > 0 else 4096
