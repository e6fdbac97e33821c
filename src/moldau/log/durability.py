"""Forcing a log to disk, producer snapshots, closing. Appends go to the page cache; how often to flush is the caller's.

A flush runs beside appends, in another thread: it takes the log end first, opens descriptors of its own, and
only then moves the recovery point. A truncation meanwhile voids it.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from typing import TYPE_CHECKING

from moldau.disk import write_file
from moldau.log.checkpoints import PARTITION_METADATA
from moldau.log.files import SNAPSHOT_SUFFIX, file_name
from moldau.log.segment import base_offset_of

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog

# Not the disk's failures: there are too many open files, and the next try may find fewer.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def flush(log: PartitionLog, upto_offset: int | None) -> None:
    truncations = log.truncations
    end_offset = log.log_end_offset
    if upto_offset is not None:
        end_offset = min(end_offset, upto_offset)
    with log.flush_lock:
        if end_offset <= log.recovery_point:
            return
        try:
            log.epochs.write()  # a full disk is told here: further down it would look like a failed fsync
        except OSError as error:
            raise log.log_dir.storage_error(f"cannot flush {log.name}", error) from error
        try:
            _sync(log, end_offset)
        except OSError as error:
            if error.errno not in _OURS:
                # The kernel may have dropped what it could not write; only a restart shows what is on disk.
                log.log_dir.take_offline(f"fsync of {log.name} failed: {error}")
            raise log.log_dir.storage_error(f"cannot flush {log.name}", error) from error
        with log.recovery_lock:
            if truncations == log.truncations:
                log.recovery_point = max(log.recovery_point, end_offset)
    log.last_flush_ms = log.monotonic()


def _sync(log: PartitionLog, end_offset: int) -> None:
    segments = list(log.segments)
    # One below the recovery point: a segment that ends there may have been sealed since the last flush.
    first = max(0, bisect_right(segments, log.recovery_point - 1, key=base_offset_of) - 1)
    for segment in segments[first:]:
        if segment.base_offset < end_offset:
            segment.flush(with_indexes=segment is not segments[-1] or not segment.writable)
    _sync_small_files(log)


def _sync_small_files(log: PartitionLog) -> None:
    """What is marked here is only unmarked once it is on disk; the owner may be marking more meanwhile."""
    sync = log.log_dir.disk.sync
    snapshots = list(log.unsynced_snapshots)
    for path in snapshots:
        sync(path)
    del log.unsynced_snapshots[: len(snapshots)]
    log.epochs.flush()
    if log.needs_dir_sync:
        log.needs_dir_sync = False
        try:
            sync(log.directory / PARTITION_METADATA)
            sync(log.directory)
            sync(log.directory.parent)  # which names this one, if it is new
        except OSError:
            log.needs_dir_sync = True
            raise


def take_snapshot(log: PartitionLog) -> None:
    """Writes the producer state as of its end offset, unless that is there already; the next flush forces it."""
    offset = log.producers.end_offset
    if offset == log.producers.snapshot_offset:
        return
    path = f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
    write_file(log.log_dir.disk, path, log.producers.encode())
    log.producers.snapshot_offset = offset
    log.snapshots.append(offset)
    log.unsynced_snapshots.append(path)
    log.needs_dir_sync = True


def close(log: PartitionLog) -> None:
    active = log.segments[-1]
    changed = active.writable
    try:
        active.close()
        take_snapshot(log)
        flush(log, None)
        with log.flush_lock:
            if changed:
                active.flush(with_indexes=True)
            _sync_small_files(log)  # there may be some though no record is: the snapshot of just now
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot close {log.name}", error) from error
    finally:
        log.close_files()


def lower_recovery_point(log: PartitionLog, offset: int) -> None:
    """Before a truncation: a flush that is under way must not count for what is written after it."""
    with log.recovery_lock:
        log.truncations += 1
        log.recovery_point = min(log.recovery_point, offset)
