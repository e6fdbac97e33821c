"""What is deleted, and when: segments that are too old, too many, or below the log start offset.

Kafka's rules. Only whole segments go, from the front, and none that reaches the high watermark. Time goes by the newest
record of a segment. When everything has expired, the active segment is rolled first, so that no offset is given twice.
A deleted file is renamed at once and removed `file.delete.delay.ms` later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.log.files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name, remove_file

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog
    from moldau.log.segment import Segment

logger = logging.getLogger(__name__)


def enforce(log: PartitionLog, now_ms: int) -> list[Segment]:
    try:
        deleted = delete_segments_below_start(log)
        if log.config.delete:
            deleted += _delete_by_size(log)
            deleted += _delete_by_time(log, now_ms)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot delete old segments of {log.name}", error) from error
    return deleted


def _delete_by_size(log: PartitionLog) -> list[Segment]:
    limit = log.config.retention_bytes
    excess = log.size_bytes - limit
    if limit < 0 or excess < 0:
        return []

    def fits(segment: Segment, _: int) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    return _delete_while(log, fits, f"retention.bytes={limit}")


def _delete_by_time(log: PartitionLog, now_ms: int) -> list[Segment]:
    limit_ms = log.config.retention_ms
    if limit_ms < 0:
        return []
    return _delete_while(
        log, lambda segment, _: now_ms - segment.largest_timestamp() > limit_ms, f"retention.ms={limit_ms}"
    )


def delete_segments_below_start(log: PartitionLog) -> list[Segment]:
    """Segments of which DeleteRecords has left nothing; the active one always stays."""
    active = log.segments[-1]
    return _delete_while(
        log,
        lambda segment, end_offset: segment is not active and end_offset <= log.log_start_offset,
        "log start offset",
    )


def _delete_while(log: PartitionLog, condition: Callable[[Segment, int], bool], reason: str) -> list[Segment]:
    """Deletes segments from the front as long as `condition(segment, its end offset)` holds."""
    segments = log.segments
    count = 0
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        end_offset = log.log_end_offset if is_last else segments[number + 1].base_offset
        if (
            (is_last and not segment.size)
            or end_offset > log.high_watermark
            or not condition(segment, end_offset)
        ):
            break
        count += 1
    if not count:
        return []
    if count == len(segments):
        log.roll()
    deletable = segments[:count]
    advance_log_start_offset(log, segments[count].base_offset)
    logger.info(
        "deleting %d segments of %s up to offset %d: %s", count, log.name, segments[count].base_offset, reason
    )
    log.drop_segments(deletable)
    return deletable


def advance_log_start_offset(log: PartitionLog, offset: int) -> None:
    if offset <= log.log_start_offset:
        return
    log.log_start_offset = offset
    log.epochs.truncate_from_start(offset)
    log.high_watermark = max(log.high_watermark, offset)
    log.advance_recovery_point(offset)


def delete_snapshots(log: PartitionLog, offsets: set[int]) -> None:
    """Snapshots go the way of the segments they belong to."""
    for offset in offsets.intersection(log.snapshots):
        remove_file(f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    log.snapshots = [offset for offset in log.snapshots if offset not in offsets]


def purge_deleted(log: PartitionLog, now_ms: int) -> None:
    delay_ms = log.config.file_delete_delay_ms
    kept = []
    for since_ms, path in log.deleted_files:
        if now_ms - since_ms >= delay_ms:
            assert path.endswith(DELETED_SUFFIX)
            remove_file(path)
        else:
            kept.append((since_ms, path))
    log.deleted_files = kept
