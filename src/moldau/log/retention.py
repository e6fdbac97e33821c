"""What is deleted, and when: segments that are too old, too many, or below the log start offset.

Kafka's rules. Only whole segments go, from the front, and none that reaches above the high watermark. Time
goes by the newest record of a segment. When everything has expired, the active segment is rolled first, so
that no offset is given twice. A deleted file is renamed at once and removed `file.delete.delay.ms` later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.errors import OffsetOutOfRangeError
from moldau.log.files import SNAPSHOT_SUFFIX, file_name

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog
    from moldau.log.segment import Segment

logger = logging.getLogger(__name__)

_HIGH_WATERMARK = -1  # DeleteRecords: everything that can be read


def enforce(log: PartitionLog, now_ms: int) -> list[Segment]:
    try:
        deleted = _delete_below_start(log)
        if log.config.delete:
            deleted += _delete_by_size(log)
            deleted += _delete_by_time(log, now_ms)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot delete old segments of {log.name}", error) from error
    return deleted


def delete_records(log: PartitionLog, before_offset: int) -> int:
    if before_offset == _HIGH_WATERMARK:
        before_offset = log.high_watermark
    if not 0 <= before_offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"cannot delete records of {log.name} before {before_offset}: the high watermark is {log.high_watermark}"
        )
    try:
        _advance_log_start_offset(log, before_offset)
        _delete_below_start(log)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot delete records of {log.name}", error) from error
    return log.log_start_offset


def _delete_by_size(log: PartitionLog) -> list[Segment]:
    limit = log.config.retention_bytes
    excess = log.size_bytes - limit
    if limit < 0 or excess < 0:
        return []

    def is_excess(segment: Segment, _: int) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    return _delete_while(log, is_excess, f"retention.bytes={limit}")


def _delete_by_time(log: PartitionLog, now_ms: int) -> list[Segment]:
    limit_ms = log.config.retention_ms
    if limit_ms < 0:
        return []

    def is_old(segment: Segment, _: int) -> bool:
        return now_ms - segment.largest_timestamp() > limit_ms

    return _delete_while(log, is_old, f"retention.ms={limit_ms}")


def _delete_below_start(log: PartitionLog) -> list[Segment]:
    """Segments of which nothing is left above the log start offset; the active one always stays."""
    active = log.segments[-1]

    def is_below(segment: Segment, end_offset: int) -> bool:
        return segment is not active and end_offset <= log.log_start_offset

    return _delete_while(log, is_below, f"log start offset {log.log_start_offset}")


def _delete_while(log: PartitionLog, condition: Callable[[Segment, int], bool], reason: str) -> list[Segment]:
    """Deletes segments from the front as long as `condition(segment, its end offset)` holds."""
    segments = log.segments
    count = 0
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        end_offset = log.log_end_offset if is_last else segments[number + 1].base_offset
        if (is_last and not segment.size) or end_offset > log.high_watermark:
            break
        if not condition(segment, end_offset):
            break
        count += 1
    if not count:
        return []
    if count == len(segments):
        log.roll()
    gone = segments[:count]
    upto_offset = segments[count].base_offset
    logger.info("deleting %d segments of %s up to offset %d: %s", count, log.name, upto_offset, reason)
    _advance_log_start_offset(log, upto_offset)
    log.drop_segments(gone)
    return gone


def _advance_log_start_offset(log: PartitionLog, offset: int) -> None:
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.epochs.truncate_from_start(offset)
        log.high_watermark = max(log.high_watermark, offset)


def delete_snapshots(log: PartitionLog, offsets: set[int]) -> None:
    """Producer snapshots go the way of the segments they stand at the start of."""
    for offset in offsets.intersection(log.snapshots):
        log.needs_dir_sync = True  # or it is back after a power loss
        log.log_dir.disk.remove(f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    log.snapshots[:] = [offset for offset in log.snapshots if offset not in offsets]


def purge_deleted(log: PartitionLog, now_ms: int) -> None:
    for entry in list(log.deleted_files):
        since_ms, path = entry
        if now_ms - since_ms >= log.config.file_delete_delay_ms:
            log.log_dir.disk.remove(path)
            log.deleted_files.remove(entry)  # in place: the owner may be adding to it
