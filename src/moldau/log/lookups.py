"""Questions about a log by timestamp.

The batch in which a timestamp lies is found by the indexes. To find the record, the batch has to be unpacked and
read, which takes up to a second; so that is done in steps (`Lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.wire.batch import BatchHeader, iter_records

if TYPE_CHECKING:
    from moldau.log.partition_log import PartitionLog

SMALL_RECORDS = 500
SMALL_BYTES = 4096
"""A batch up to these sizes is searched at once: it takes a millisecond."""

Found = tuple[int, int, int]  # timestamp, offset, leader epoch
Lookup = Generator[Callable[[], Any] | None, Any, Found | None]
"""A search in steps. It yields work that any thread may do, and is resumed with the result; or None, where the owner of
the log may do something else first. Between two steps the log may change."""


class _Batch(NamedTuple):
    header: BatchHeader
    data: memoryview

    @property
    def is_small(self) -> bool:
        return self.header.count <= SMALL_RECORDS and self.header.size <= SMALL_BYTES


def at_once(lookup: Lookup) -> Found | None:
    """Runs a lookup to its end."""
    result = None
    try:
        while True:
            work = lookup.send(result)
            result = None if work is None else work()
    except StopIteration as end:
        found: Found | None = end.value
        return found


def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> Found | None:
    """The first record that is not older than `timestamp_ms`."""
    return at_once(by_timestamp(log, timestamp_ms))


def max_timestamp(log: PartitionLog) -> Found | None:
    """The newest record; the first one, if several are."""
    return at_once(by_max_timestamp(log))


def by_timestamp(log: PartitionLog, timestamp_ms: int) -> Lookup:
    begin = log.log_start_offset
    while (batch := _batch_not_older(log, timestamp_ms, begin)) is not None:
        found = yield from _looked_into(batch, _first_not_older, timestamp_ms, log)
        if found is not None:
            return found
        begin = batch.header.next_offset  # a producer may claim a newer timestamp than its records have
        yield None
    return None


def _batch_not_older(log: PartitionLog, timestamp_ms: int, begin: int) -> _Batch | None:
    """The first batch from `begin` on whose header promises a record that is not older."""
    try:
        for segment in log.segments:
            if not segment.size or segment.newest_timestamp() < timestamp_ms:
                continue
            segment.load_indexes()
            first = max(segment.time_index.lookup(timestamp_ms), begin, log.log_start_offset)
            for _, header, data in segment.batches_from(first):
                if header.max_timestamp >= timestamp_ms and header.next_offset > begin:
                    return _Batch(header, data)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error
    return None


def _first_not_older(batch: _Batch, timestamp_ms: int, start_offset: int, bytes_max: int) -> Found | None:
    for record in iter_records(batch.data, 0, batch.header, bytes_max):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.timestamp_ms, record.offset, batch.header.leader_epoch
    return None


def _looked_into(
    batch: _Batch, search: Callable[[_Batch, int, int, int], Found | None], timestamp_ms: int, log: PartitionLog
) -> Lookup:
    work = partial(search, batch, timestamp_ms, log.log_start_offset, log.rules.uncompressed_bytes_max)
    return work() if batch.is_small else (yield work)


def by_max_timestamp(log: PartitionLog) -> Lookup:
    kept: Found | None = None  # the newest of what DeleteRecords left of the first segment
    for timestamp_ms, base_offset in _newest_timestamps(log):
        if timestamp_ms < 0 or (kept is not None and kept[0] >= timestamp_ms):
            break
        found = yield from by_timestamp(log, timestamp_ms)
        if found is not None:
            return found
        kept = yield from _newest(log, base_offset)
    return kept


def _newest_timestamps(log: PartitionLog) -> list[tuple[int, int]]:
    """The newest timestamp of each segment, with its base offset; the newest first."""
    try:
        ages = [(segment.newest_timestamp(), segment.base_offset) for segment in log.segments]
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error
    return sorted(ages, key=lambda age: (-age[0], age[1]))


def _newest(log: PartitionLog, base_offset: int) -> Lookup:
    """The newest record of a segment from the log start on, found by reading everything there."""
    newest: Found | None = None
    begin = max(base_offset, log.log_start_offset)
    while (batch := _batch_of_segment(log, base_offset, begin, newest)) is not None:
        found = yield from _looked_into(batch, _newest_in, -1 if newest is None else newest[0], log)
        newest = newest if found is None else found
        begin = batch.header.next_offset
        yield None
    return newest


def _batch_of_segment(log: PartitionLog, base_offset: int, begin: int, newest: Found | None) -> _Batch | None:
    """The first batch of the segment from `begin` on that may hold a newer record."""
    try:
        for segment in log.segments:
            if segment.base_offset != base_offset:
                continue
            for _, header, data in segment.batches_from(begin):
                if header.next_offset > begin and (newest is None or header.max_timestamp > newest[0]):
                    return _Batch(header, data)
    except OSError as error:
        raise log.log_dir.storage_error(f"cannot read {log.name}", error) from error
    return None


def _newest_in(batch: _Batch, newer_than_ms: int, start_offset: int, bytes_max: int) -> Found | None:
    newest: Found | None = None
    for record in iter_records(batch.data, 0, batch.header, bytes_max):
        if record.offset >= start_offset and record.timestamp_ms > newer_than_ms:
            newer_than_ms = record.timestamp_ms
            newest = record.timestamp_ms, record.offset, batch.header.leader_epoch
    return newest
