"""Loads a `PartitionLog` from its directory, and recovers it after a crash.

After a clean shutdown: list the files, find the log end from the last index entry on, read the newest producer
snapshot. After a crash: every segment from the recovery point on is read and each batch checked. The first
batch that is torn, fails its CRC or steps back in offsets ends the log; what follows is dropped. Indexes,
transaction index, leader epochs and producer state of these segments are built again from the batches.
Segments below the recovery point were forced to disk before and are trusted.

After a power loss any of what was not forced to disk may be there: a segment's name without the end of the one before,
or segments that a truncation had removed, behind newer records. A log that goes on behind such a gap would vouch for
records that it lacks. So a segment that does not begin where the one before ends is dropped, too, with what follows,
unless the log was ever compacted: that leaves gaps of its own. (An append never does: a roll begins at the log end.)
And so is a segment whose first batch is of an earlier leader epoch than the batch before it.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from moldau.config.topic import TopicConfig
from moldau.disk import TEMPORARY_SUFFIX, Disk
from moldau.errors import CorruptFileError, CorruptRecordError, KafkaError
from moldau.log.checkpoints import read_partition_metadata, write_partition_metadata
from moldau.log.cleaning.swap import finish_swaps
from moldau.log.context import LogContext, LogParts
from moldau.log.epoch_cache import EpochCache
from moldau.log.files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FilePool,
    file_name,
)
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import ProducerState
from moldau.log.replay import rebuild_producer_state, replay_batch
from moldau.log.segments.segment import Segment, scan
from moldau.log.segments.txn_index import AbortedTxn
from moldau.log.snapshots import ProducerSnapshots
from moldau.wire.batch import BatchHeader, check_batch
from moldau.wire.uuids import ZERO_UUID

logger = logging.getLogger(__name__)

_UNLIMITED = 1 << 30


@dataclass(slots=True)
class _Found:
    """The files of a partition's directory."""

    sizes: dict[int, int] = field(default_factory=dict)  # base offset -> bytes of the `.log` file
    indexes: set[str] = field(default_factory=set)
    snapshots: list[int] = field(default_factory=list)


def create_log(
    directory: Path,
    topic: str,
    partition: int,
    topic_id: uuid.UUID,
    config: TopicConfig,
    *,
    context: LogContext,
) -> PartitionLog:
    """A new, empty log in a new directory; OSError leaves the directory as it was: missing, or another's."""
    disk = context.log_dir.disk
    disk.make_directory(directory)
    try:
        write_partition_metadata(disk, directory, topic_id)
        segment = Segment.create(str(directory), 0, context.pool, context.clock())
    except OSError:
        disk.remove_tree(directory)
        raise
    parts = LogParts(
        segments=[segment],
        producers=ProducerState(context.producer_id_expiration_ms),
        epochs=EpochCache(disk, directory),
        snapshots=ProducerSnapshots(disk, str(directory)),
    )
    return PartitionLog(directory, topic, partition, topic_id, config, context=context, parts=parts)


def load_log(
    directory: Path,
    topic: str,
    partition: int,
    config: TopicConfig,
    *,
    context: LogContext,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    first_dirty_offset: int = 0,
    has_gaps: bool = False,
) -> PartitionLog:
    """The log in `directory`, recovered unless the last stop was `clean`; `has_gaps`: it may have been compacted."""
    try:
        topic_id = read_partition_metadata(context.log_dir.disk, directory)
    except CorruptFileError as error:
        logger.error("%s", error)
        topic_id = ZERO_UUID
    has_gaps = has_gaps or config.compact or first_dirty_offset > 0
    parts = _Loader(directory, config, context, log_start_offset, has_gaps).load(clean, recovery_point)
    # Should the log have lost its end, what is written there next is dirty.
    parts.first_dirty_offset = min(first_dirty_offset, parts.log_end_offset)
    return PartitionLog(directory, topic, partition, topic_id, config, context=context, parts=parts)


class _Loader:
    def __init__(
        self, directory: Path, config: TopicConfig, context: LogContext, log_start_offset: int, has_gaps: bool
    ) -> None:
        self.disk = context.log_dir.disk
        self.directory = directory
        self.config = config
        self.context = context
        self.now_ms = context.clock()
        self.log_start_offset = log_start_offset
        self.has_gaps = has_gaps
        self.last_epoch = -1
        """The newest leader epoch of the batches that were checked."""
        self.producers = ProducerState(context.producer_id_expiration_ms)
        # Loading may run in threads: each has its own files open, and none when it is done.
        self.pool = FilePool(_UNLIMITED, self.disk)
        found = _list_files(self.disk, directory)
        self.snapshots = ProducerSnapshots(self.disk, str(directory), found.snapshots)
        self.segments = [self._open_segment(base, found) for base in sorted(found.sizes)]
        self._drop_strays()
        self.epochs = self._load_epochs()

    def load(self, clean: bool, recovery_point: int) -> LogParts:
        end_offset = self._clean_end() if clean else -1
        is_clean = end_offset >= 0
        if not is_clean:
            end_offset = self._recover(recovery_point)
        starts_over = not self.segments or end_offset < self.log_start_offset
        if starts_over:
            end_offset = self._start_over()
        self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._remove_stray_snapshots(end_offset)
        if is_clean:
            self._load_producers(end_offset)
        for segment in self.segments:
            segment.close_files()
            segment.pool = self.context.pool
        return LogParts(
            segments=self.segments,
            producers=self.producers,
            epochs=self.epochs,
            snapshots=self.snapshots,
            log_start_offset=self.log_start_offset,
            log_end_offset=end_offset,
            recovery_point=end_offset if is_clean else min(recovery_point, end_offset),
            needs_dir_sync=not is_clean or starts_over,
        )

    def _open_segment(self, base_offset: int, found: _Found) -> Segment:
        segment = Segment(
            str(self.directory), base_offset, self.pool,
            size=found.sizes[base_offset], created_ms=self.now_ms,
            has_txn_index=file_name(base_offset, TXN_INDEX_SUFFIX) in found.indexes,
        )  # fmt: skip
        segment.index_interval_bytes = self.config.index_interval_bytes
        return segment

    def _drop_strays(self) -> None:
        """Removes empty segments that begin inside the one before: a roll failed, and the log went on there."""
        kept: list[Segment] = []
        for segment in self.segments:
            if not segment.size and kept and _reaches(kept[-1], segment.base_offset):
                logger.warning(
                    "removing %s: it is empty, and the segment before it extends beyond its start", segment.path
                )
                self._delete_files(segment)
            else:
                kept.append(segment)
        self.segments = kept

    def _load_epochs(self) -> EpochCache:
        try:
            return EpochCache.load(self.disk, self.directory)
        except CorruptFileError as error:
            logger.warning("%s; only the epochs of recovered segments are restored", error)
            return EpochCache(self.disk, self.directory)

    # -- after a clean shutdown

    def _clean_end(self) -> int:
        """The log end offset; negative if the files are not as a clean shutdown leaves them."""
        if not self.segments:
            return self.log_start_offset
        last = self.segments[-1]
        end_offset = last.next_offset()
        if end_offset < 0:
            logger.warning("%s does not end with a whole batch although the last shutdown was clean", last.path)
            return -1
        try:
            for segment in self.segments:
                segment.txn_index.entries()
        except CorruptFileError as error:
            logger.warning("%s; recovering", error)
            return -1
        return end_offset

    def _load_producers(self, end_offset: int) -> None:
        if self.snapshots.offsets:
            self._rebuild_producers(end_offset)
        else:
            # As in Kafka: a clean shutdown always leaves a snapshot, unless there are no producers.
            self.producers.clear(end_offset)

    def _rebuild_producers(self, upto_offset: int) -> None:
        rebuild_producer_state(self.producers, self.segments, self.snapshots, upto_offset, now_ms=self.now_ms)

    # -- after a crash

    def _recover(self, recovery_point: int) -> int:
        """Returns the log end offset that is left."""
        segments = self.segments
        if not segments:
            return self.log_start_offset
        # Records below the log start are deleted, though their files may be back. The segment that ends at the recovery
        # point is read, too: it may have been truncated there, and be back at its old length.
        trusted_offset = max(recovery_point, self.log_start_offset)
        first = max(0, sum(segment.base_offset < trusted_offset for segment in segments) - 1)
        if not self.epochs.entries():
            first = 0  # the epoch file is lost: only the whole log has them all
        first = min(first, self._first_corrupt_txn_index())
        end_offset = segments[first].base_offset
        self._rebuild_producers(end_offset)
        for number in range(first, len(segments)):
            limit = segments[number].offset_limit
            if number + 1 < len(segments):
                limit = min(limit, segments[number + 1].base_offset - 1)
            end_offset, is_whole = self._recover_segment(segments[number], limit)
            if not is_whole:
                self._drop_from(number + 1, "it follows a batch that is not valid")
                break
            if number + 1 < len(segments) and segments[number + 1].base_offset != end_offset and not self.has_gaps:
                self._drop_from(number + 1, f"it does not begin at offset {end_offset}, where the one before ends")
                break
        return end_offset

    def _drop_from(self, number: int, why: str) -> None:
        for dropped in self.segments[number:]:
            logger.warning("dropping %s: %s", dropped.path, why)
            self._delete_files(dropped)
        del self.segments[number:]

    def _first_corrupt_txn_index(self) -> int:
        for number, segment in enumerate(self.segments):
            try:
                segment.txn_index.entries()
            except CorruptFileError as error:
                logger.warning("%s; recovering from there", error)
                return number
        return len(self.segments)

    def _recover_segment(self, segment: Segment, offset_limit: int) -> tuple[int, bool]:
        """Checks every batch, builds the rest again; returns the end offset and whether all was valid."""
        segment.reset_indexes()
        aborted_txns: list[AbortedTxn] = []
        next_offset = segment.base_offset
        valid_bytes = last_position = 0
        try:
            for position, header, batch in scan(segment.open(), 0, segment.size):
                check_batch(batch, 0, header, strict=False)
                _check_offsets(header, next_offset, offset_limit)
                if not position and 0 <= header.leader_epoch < self.last_epoch:
                    raise CorruptRecordError(
                        f"leader epoch {header.leader_epoch} at offset {header.base_offset} follows {self.last_epoch}"
                    )
                self.last_epoch = max(self.last_epoch, header.leader_epoch)
                replay_batch(self.producers, header, batch, aborted_txns)
                if header.leader_epoch > self.epochs.latest:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
                last_position = segment.index_batch(header, position, last_position)
                next_offset = header.next_offset
                valid_bytes = position + header.size
        except KafkaError as error:
            logger.warning("%s: %s; keeping %d of %d bytes", segment.path, error.message, valid_bytes, segment.size)
        is_whole = valid_bytes == segment.size
        if not is_whole:
            segment.cut(valid_bytes)
        segment.write_indexes()
        segment.txn_index.replace(aborted_txns)
        return next_offset, is_whole

    # -- both

    def _start_over(self) -> int:
        """Nothing left above the log start offset: begin there, so that no offset is used twice."""
        for segment in self.segments:
            logger.warning("deleting %s: it ends before the log start offset %d", segment.path, self.log_start_offset)
            self._delete_files(segment)
        self.segments = [Segment.create(str(self.directory), self.log_start_offset, self.pool, self.now_ms)]
        self.segments[0].index_interval_bytes = self.config.index_interval_bytes
        self.snapshots.delete(list(self.snapshots.offsets))
        self.epochs.clear()
        self.producers.clear(self.log_start_offset)
        return self.log_start_offset

    def _remove_stray_snapshots(self, end_offset: int) -> None:
        """Keeps the snapshots at the start of a segment, and the newest one."""
        bases = {segment.base_offset for segment in self.segments}
        keep = {*(base for base in bases if base <= end_offset), self.snapshots.newest_upto(end_offset)}
        self.snapshots.delete([offset for offset in self.snapshots.offsets if offset not in keep])

    def _delete_files(self, segment: Segment) -> None:
        segment.close_files()
        for path in (segment.path, segment.offset_index.path, segment.time_index.path, segment.txn_index.path):
            self.disk.remove(path)


def _check_offsets(header: BatchHeader, next_offset: int, limit: int) -> None:
    """These fields lie outside the CRC."""
    if header.base_offset < next_offset or header.last_offset_delta < 0 or header.last_offset > limit:
        raise CorruptRecordError(
            f"batch claims offsets {header.base_offset} to {header.last_offset}, "
            f"they must be within {next_offset} to {limit}"
        )


def _reaches(segment: Segment, offset: int) -> bool:
    """Whether a batch of `segment` ends at or after `offset`, as far as it can be read."""
    try:
        return segment.position_of(offset) < segment.size
    except CorruptRecordError:
        return False  # recovery finds out where it ends


def _list_files(disk: Disk, directory: Path) -> _Found:
    """What is there, after completing or removing what a crash left half done."""
    names = disk.names(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        finish_swaps(disk, directory, names)
        names = disk.names(directory)
    found = _Found()
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix in (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX):
            disk.remove(directory / name)
        elif not stem.isdecimal():
            continue  # not a segment's
        elif suffix == LOG_SUFFIX:
            found.sizes[int(stem)] = disk.size(directory / name)
        elif suffix == SNAPSHOT_SUFFIX:
            found.snapshots.append(int(stem))
        elif suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            found.indexes.add(name)
    for name in found.indexes:
        if int(name.partition(".")[0]) not in found.sizes:
            logger.warning("removing %s: there is no segment for it", directory / name)
            disk.remove(directory / name)
    return found
