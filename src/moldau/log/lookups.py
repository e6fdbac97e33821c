"""Questions about a log that are not on the hot path: by timestamp, and which transactions were aborted."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from moldau.errors import StorageError
from moldau.log.offset_index import CorruptIndexError
from moldau.log.segment import Segment, base_offset_of
from moldau.log.txn_index import AbortedTxn
from moldau.wire.batch import iter_records

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog

Found = tuple[int, int, int]  # timestamp, offset, leader epoch


def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> Found | None:
    try:
        for segment in log.segments:
            if segment.size and segment.newest_timestamp() >= timestamp_ms:
                found = _find(log, segment, timestamp_ms)
                if found is not None:
                    return found
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error
    return None


def _find(log: PartitionLog, segment: Segment, timestamp_ms: int) -> Found | None:
    start_offset = log.log_start_offset
    segment.load_indexes()
    begin = max(segment.time_index.lookup(timestamp_ms), start_offset)
    for _, header, batch in segment.batches_from(begin):
        if header.max_timestamp >= timestamp_ms:
            for record in iter_records(batch, 0, header, log.uncompressed_bytes_max):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return record.timestamp_ms, record.offset, header.leader_epoch
    return None


def max_timestamp(log: PartitionLog) -> Found | None:
    try:
        by_age = sorted(log.segments, key=lambda segment: (-segment.newest_timestamp(), segment.base_offset))
        kept: Found | None = None  # the newest of what DeleteRecords left of the first segment
        for segment in by_age:
            timestamp_ms = segment.newest_timestamp()
            if timestamp_ms < 0 or (kept is not None and kept[0] >= timestamp_ms):
                break
            found = _find(log, segment, timestamp_ms)
            if found is not None:
                return found
            kept = _newest(log, segment)
        return kept
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error


def _newest(log: PartitionLog, segment: Segment) -> Found | None:
    """The newest record of a segment from the log start on, found by reading everything there."""
    start_offset = log.log_start_offset
    newest: Found | None = None
    for _, header, batch in segment.batches_from(start_offset):
        if newest is None or header.max_timestamp > newest[0]:
            for record in iter_records(batch, 0, header, log.uncompressed_bytes_max):
                if record.offset >= start_offset and (newest is None or record.timestamp_ms > newest[0]):
                    newest = record.timestamp_ms, record.offset, header.leader_epoch
    return newest


def aborted_transactions(log: PartitionLog, start_offset: int, upto_offset: int) -> list[tuple[int, int]]:
    found: list[AbortedTxn] = []
    first = max(0, bisect_right(log.segments, start_offset, key=base_offset_of) - 1)
    for segment in log.segments[first:]:
        try:
            if segment.txn_index.exists and segment.txn_index.collect(start_offset, upto_offset, found):
                break
        except CorruptIndexError as error:
            raise StorageError(f"{error}; restart the broker to build it again") from error
        except OSError as error:
            raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error
    return [(txn.producer_id, txn.first_offset) for txn in found]
