"""Which segments are to be deleted, and why: those that are too old, too many, or below the log start offset.

Kafka's rules. Only whole segments go, from the front, and none that reaches above the high watermark. Time
goes by the newest record of a segment. When everything has expired, the active segment is rolled first, so
that no offset is given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog
    from moldau.log.segments.segment import Segment


def due(log: PartitionLog, now_ms: int) -> Iterator[tuple[int, str]]:
    """How many segments at the front are to be deleted, and why. They are before the next answer."""
    yield below_start(log)
    if log.config.delete:
        yield _over_size(log)
        yield _too_old(log, now_ms)


def below_start(log: PartitionLog) -> tuple[int, str]:
    """Segments of which nothing is left above the log start offset; the active one always stays."""
    active, start_offset = log.segments.active, log.log_start_offset

    def is_below(segment: Segment, end_offset: int) -> bool:
        return segment is not active and end_offset <= start_offset

    return _count_while(log, is_below), f"log start offset {start_offset}"


def _over_size(log: PartitionLog) -> tuple[int, str]:
    limit = log.config.retention_bytes
    excess = log.size_bytes - limit

    def is_excess(segment: Segment, _: int) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    is_over = limit >= 0 and excess >= 0
    return _count_while(log, is_excess) if is_over else 0, f"retention.bytes={limit}"


def _too_old(log: PartitionLog, now_ms: int) -> tuple[int, str]:
    limit_ms = log.config.retention_ms

    def is_old(segment: Segment, _: int) -> bool:
        return now_ms - segment.largest_timestamp() > limit_ms

    return _count_while(log, is_old) if limit_ms >= 0 else 0, f"retention.ms={limit_ms}"


def _count_while(log: PartitionLog, condition: Callable[[Segment, int], bool]) -> int:
    """How many segments at the front can go for which `condition(segment, its end offset)` holds."""
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
    return count
