"""All logs of a broker, over one or several log directories: start, stop, checkpoints, housekeeping.

One thread owns the manager and its logs; `checkpoint`, `flush_due` and `purge_deleted` may run in another.
"""

from __future__ import annotations

import logging
import os
import re
import resource
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from moldau.clocks import Clock, monotonic_ms
from moldau.config.storage_keys import DAY_MS
from moldau.config.topic import TopicConfig
from moldau.disk import OS_DISK, Disk
from moldau.errors import ConfigError, ErrorCode, KafkaError, StorageError
from moldau.log import checkpoints
from moldau.log.closing import Closing, StartThread, start_daemon_thread
from moldau.log.context import LogContext
from moldau.log.dir_checkpoints import DirCheckpoints
from moldau.log.dir_lock import DirLock
from moldau.log.files import FilePool, LogDir
from moldau.log.meta_properties import check_in
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery import create_log, load_log
from moldau.log.segments.segment import Segment
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID, random_uuid

logger = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_NAME_MAX = 255

Progress = Callable[[int, int], None]  # logs loaded, logs in all


class DirDescription(NamedTuple):
    path: Path
    error: str  # empty: none
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
        disk: Disk = OS_DISK,
        start_thread: StartThread = start_daemon_thread,
        new_uuid: Callable[[], UUID] = random_uuid,
    ) -> None:
        self.disk = disk
        self._new_uuid = new_uuid
        self._start_thread = start_thread
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.directories = [Path(os.path.abspath(directory)) for directory in dirs]
        self.directory_ids: dict[Path, str] = {}
        self.cluster_id = cluster_id or ""
        self._default_config = default_config
        self._node_id = node_id
        self._monotonic = monotonic
        self._recovery_threads = recovery_threads
        pool = FilePool(max_open_files or _default_max_open_files(), disk)
        self._contexts = {
            directory: LogContext(
                LogDir(directory, disk), pool, clock, producer_id_expiration_ms, single_replica, monotonic
            )
            for directory in self.directories
        }
        self.was_clean = False
        """Whether the last stop left everything on disk; known once the logs are open."""
        self._is_open = False
        self._locks: list[DirLock] = []
        self._deleted: list[tuple[int, Path]] = []  # when it is due, what
        self._checkpoints = {path: DirCheckpoints(context.log_dir) for path, context in self._contexts.items()}

    # -- start and stop

    def lock(self) -> None:
        """Locks the directories, creating missing ones; ConfigError when another broker has one of them."""
        if self._locks:
            return
        if len(set(self.directories)) != len(self.directories):
            raise ConfigError(f"log.dirs names a directory twice: {', '.join(map(str, self.directories))}")
        try:
            for directory in self.directories:
                try:
                    self.disk.make_directory(directory, parents=True)
                    lock = DirLock(self.disk, directory)
                    lock.acquire()
                except OSError as error:
                    raise ConfigError(f"log directory {directory} cannot be used: {error.strerror}") from error
                self._locks.append(lock)
                self._contexts[directory].log_dir.measure()
        except ConfigError:
            self._unlock()
            raise

    def check_in(self, cluster_id: str | None = None) -> None:
        """Writes `meta.properties`: this node and that cluster (None: the one that is there, or a new one)."""
        wanted = cluster_id or self.cluster_id or None
        try:
            self.cluster_id, self.directory_ids = check_in(
                self.disk, self.directories, self._node_id, wanted, new_uuid=self._new_uuid
            )
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
                clean = checkpoints.take_clean_shutdown(self.disk, context.log_dir.path)
                jobs += self._jobs(context, clean, topic_configs or (lambda _: self._default_config))
                all_clean = all_clean and clean
            except OSError as error:
                context.log_dir.take_offline_at_start("its logs", error)
        if all_clean or self._recovery_threads <= 1:
            self._collect((job() for job in jobs), len(jobs), progress)
        else:
            with ThreadPoolExecutor(self._recovery_threads, thread_name_prefix="recovery") as executor:
                futures = [executor.submit(job) for job in jobs]
                self._collect((future.result() for future in futures), len(jobs), progress)
        if jobs and not all_clean:
            logger.info("recovered the logs after an unclean shutdown", extra={"partitions": len(jobs)})
        self.was_clean = all_clean
        self._is_open = True
        for each in self._checkpoints.values():
            each.is_open = True

    def _jobs(
        self, context: LogContext, clean: bool, topic_configs: Callable[[str], TopicConfig]
    ) -> list[Callable[[], PartitionLog | None]]:
        directory = context.log_dir.path
        recovery_points, start_offsets, high_watermarks, dirty_offsets = self._checkpoints[directory].read()
        has_gaps = self._checkpoints[directory].lost_dirty_offsets

        def load(name: str, key: TopicPartition) -> PartitionLog | None:
            try:
                log = load_log(
                    directory / name, *key, topic_configs(key[0]), context=context, clean=clean,
                    recovery_point=recovery_points.get(key, 0), log_start_offset=start_offsets.get(key, 0),
                    first_dirty_offset=dirty_offsets.get(key, 0), has_gaps=has_gaps,
                )  # fmt: skip
            except OSError as error:
                context.log_dir.take_offline_at_start(name, error)
                return None
            log.durability.follow_checkpoint(recovery_points.get(key, 0), partial(self.checkpoint, directory))
            _make_durable(log)
            if not context.single_replica:
                log.high_watermark = high_watermarks.get(key, 0)
            return log

        jobs: list[Callable[[], PartitionLog | None]] = []
        for name in self.disk.subdirectories(directory):
            if name.endswith(DELETE_SUFFIX):
                self._deleted.append((0, directory / name))
                continue
            match = _PARTITION.fullmatch(name)
            if match is not None and match["topic"] != METADATA_TOPIC:
                jobs.append(partial(load, name, TopicPartition(match["topic"], int(match["partition"]))))
        return jobs

    def _collect(self, loaded: Iterable[PartitionLog | None], total: int, progress: Progress | None) -> None:
        for number, log in enumerate(loaded, start=1):
            if progress is not None:
                progress(number, total)
            if log is None:
                continue
            other = self.logs.setdefault(TopicPartition(log.topic, log.partition), log)
            if other is not log:
                raise ConfigError(f"{log.name} is in {other.directory} and in {log.directory}: remove the stale copy")

    def close(self, broker_epoch: int = -1, *, timeout_s: float | None = None) -> None:
        """Puts everything on disk, then writes the clean shutdown files; a failed directory gets none.

        With a timeout, a directory that does not come on for so long is left behind: without the mark, and locked.
        """
        closings = []
        if self._is_open:
            self._is_open = False
            closings = [
                Closing(
                    context.log_dir,
                    self._logs_in(directory),
                    self._checkpoints[directory],
                    broker_epoch,
                    self._start_thread,
                )
                for directory, context in self._contexts.items()
            ]
        stuck = {closing.log_dir.path for closing in closings if not closing.wait(timeout_s)}
        for directory in stuck:
            logger.error(
                "a log directory does not respond: it was not closed, and the next start recovers its logs",
                extra={"folder": str(directory), "waited_s": timeout_s},
            )
        self.logs.clear()
        self._unlock(except_for=stuck)
        for closing in closings:
            if closing.error is not None:
                raise closing.error

    def _unlock(self, except_for: Collection[Path] = ()) -> None:
        for lock in self._locks:
            if lock.directory not in except_for:
                lock.release()
        self._locks.clear()

    # -- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get(TopicPartition(topic, partition))

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: TopicConfig | None = None,
        *,
        is_new: bool = True,
    ) -> PartitionLog:
        """A new log in the directory that has the fewest; the one that exists, if it is the same topic's.

        A partition that is not `is_new` may have its records in a directory that is offline: with one of them
        offline it is refused, lest an empty log take the place of a full one.
        """
        existing = self.logs.get(TopicPartition(topic, partition))
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
        context = self._contexts[self._emptiest()]
        if self._checkpoints[context.log_dir.path].mention(TopicPartition(topic, partition)):
            # Of an earlier partition of that name: its offsets on disk would be taken for those of the new one.
            self.checkpoint(context.log_dir.path)
        directory = context.log_dir.path / f"{topic}-{partition}"
        try:
            log = create_log(directory, topic, partition, topic_id, config or self._default_config, context=context)
        except OSError as error:
            raise context.log_dir.storage_error(f"cannot create {topic}-{partition}", error) from error
        log.durability.follow_checkpoint(0, partial(self.checkpoint, context.log_dir.path))
        self.logs[TopicPartition(topic, partition)] = log
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
        log = self.logs.pop(TopicPartition(topic, partition), None)
        if log is not None:
            renamed = self._rename(log, DELETE_SUFFIX)
            self._deleted.append((self._monotonic() + log.config.file_delete_delay_ms, renamed))

    def set_aside(self, topic: str, partition: int) -> Path:
        """Takes a log that belongs to no known topic out of service; its files stay, for a person to decide."""
        return self._rename(self.logs.pop(TopicPartition(topic, partition)), STRAY_SUFFIX)

    def _rename(self, log: PartitionLog, ending: str) -> Path:
        log.close_files()
        suffix = f"-{log.partition}.{self._new_uuid().hex}{ending}"
        renamed = log.directory.with_name(log.topic[: _NAME_MAX - len(suffix)] + suffix)
        try:
            self.disk.rename(log.directory, renamed)
        except OSError as error:
            raise log.log_dir.storage_error(f"cannot rename {log.name}", error) from error
        return renamed

    # -- housekeeping

    def purge_deleted(self, now_ms: int, directory: Path | None = None) -> None:
        """Removes the files of deleted partitions and segments whose time has come, on the monotonic clock."""
        for entry in list(self._deleted):
            if entry[0] <= now_ms and directory in (None, entry[1].parent):
                self.disk.remove_tree(entry[1])
                self._deleted.remove(entry)  # in place: the owner may be adding to it
        for log in self._logs_in(directory):
            if log.segments.deleted_files:
                try:
                    log.segments.purge_deleted(now_ms)
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

    def flush_due(self, now_ms: int, directory: Path | None = None) -> list[PartitionLog]:
        """Flushes the logs whose `flush.messages` or `flush.ms` is reached, on the monotonic clock; returns them."""
        flushed = []
        for log in self._logs_in(directory):
            unflushed = log.unflushed_messages
            if unflushed > 0 and (
                unflushed >= log.config.flush_messages or now_ms - log.durability.last_flush_ms >= log.config.flush_ms
            ):
                try:
                    log.flush()
                    flushed.append(log)
                except StorageError as error:
                    logger.error("%s", error.message)
        return flushed

    def checkpoint(self, directory: Path | None = None) -> None:
        """Writes recovery points, log start, high watermark and first dirty offsets of one or every directory.

        StorageError is about the first directory that failed; the others have theirs.
        """
        failures = []
        for path in self.directories if directory is None else [directory]:
            try:
                self._checkpoints[path].write(partial(self._logs_in, path))
            except StorageError as error:
                failures.append(error)
        for failure in failures:
            raise failure

    def checkpoint_dirty_offsets(self, directory: Path) -> None:
        """Only the first dirty offsets, after a cleaning: a small part of what `checkpoint` writes."""
        self._checkpoints[directory].write_dirty_offsets(partial(self._logs_in, directory))

    def _logs_in(self, directory: Path | None) -> list[PartitionLog]:
        """The logs of one directory, or all; from any thread."""
        return [log for log in list(self.logs.values()) if directory is None or log.log_dir.path == directory]

    @property
    def log_dirs(self) -> list[LogDir]:
        return [context.log_dir for context in self._contexts.values()]

    @property
    def offline_dirs(self) -> list[Path]:
        return [log_dir.path for log_dir in self.log_dirs if log_dir.offline]

    def describe_dirs(self) -> list[DirDescription]:
        """From memory, in any thread; `LogDir.measure` asks the disks."""
        logs = list(self.logs.items())  # another thread may be adding some
        descriptions = []
        for path, context in self._contexts.items():
            sizes = {key: log.size_bytes for key, log in logs if log.log_dir is context.log_dir}
            space = context.log_dir.space
            error = context.log_dir.error or space.error
            descriptions.append(DirDescription(path, error, space.total_bytes, space.usable_bytes, sizes))
        return descriptions


def _make_durable(log: PartitionLog) -> None:
    """What a process that was killed wrote last may not be on disk yet, and nobody may read it before."""
    if log.durable_end_offset < log.log_end_offset:
        try:
            log.flush()
        except StorageError as error:
            logger.error("%s", error.message)
        if log.single_replica:
            log.high_watermark = log.durable_end_offset


def _default_max_open_files() -> int:
    """Half of what the process may open; the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 8192) // 2) if soft > 0 else 4096
