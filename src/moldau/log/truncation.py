"""Cutting the end of a log off: a follower drops what its leader does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.errors import OffsetMismatchError
from moldau.log.durability import lower_recovery_point
from moldau.log.replay import rebuild_producer_state
from moldau.log.retention import delete_snapshots
from moldau.log.segment import Segment
from moldau.wire.batch import BatchHeader

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog


def truncate_to(log: PartitionLog, offset: int) -> bool:
    if offset >= log.log_end_offset:
        # This broker may have noted an epoch as leader and then lost its place before it wrote in it.
        log.epochs.truncate_from_end(log.log_end_offset)
        return False
    if offset < log.segments[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return True
    high_watermark = log.high_watermark
    try:
        lower_recovery_point(log, offset)
        if offset < log.checkpointed_recovery_point:
            log.lower_checkpoint()  # or a start after a power loss would trust what is written here next
        log.drop_segments([segment for segment in log.segments[1:] if segment.base_offset > offset])
        last = log.segments[-1]
        log.make_writable(last)
        last.truncate_to(offset)
        log.set_end(offset)
        log.epochs.truncate_from_end(offset)
        log.log_start_offset = min(log.log_start_offset, offset)
        log.first_dirty_offset = min(log.first_dirty_offset, offset)
        delete_snapshots(log, {snapshot for snapshot in log.snapshots if snapshot > offset})
        directory = str(log.directory)
        rebuild_producer_state(
            log.producers, log.segments, directory, log.snapshots, offset, disk=log.log_dir.disk, now_ms=log.clock()
        )
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot truncate {log.name}", error) from error
    log.high_watermark = high_watermark
    return True


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    try:
        lower_recovery_point(log, offset)
        log.mark_deleted(log.segments)
        log.segments[:] = [Segment.create(str(log.directory), offset, log.pool, log.clock())]
        log.needs_dir_sync = True
        log.set_end(offset)
        log.epochs.clear()
        delete_snapshots(log, set(log.snapshots))
        log.producers.clear(offset)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot truncate {log.name}", error) from error
    log.log_start_offset = log.first_dirty_offset = offset
    log.recovery_point = offset
    log.high_watermark = offset


def make_room_before_end(log: PartitionLog, header: BatchHeader) -> None:
    """For a leader's batch that begins before the end of `log`; OffsetMismatchError unless it may.

    Only an empty log begins inside a batch: records were deleted up to there, and the leader still has the batch whole.
    """
    start_offset = log.log_start_offset
    if not start_offset == log.log_end_offset <= header.last_offset:
        raise OffsetMismatchError(log.name, log.log_end_offset, header.base_offset)
    truncate_fully_and_start_at(log, header.base_offset)
    log.log_start_offset = start_offset
    log.high_watermark = start_offset
