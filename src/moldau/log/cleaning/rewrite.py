"""What is left of one batch. The rules are Kafka's:

    data of an aborted transaction          goes
    past the end of the offset map          stays, unread
    no key, or a later record has the key   goes
    delete marker                           stays until its batch's delete horizon
    transaction marker                      stays while its transaction has a batch, then until its delete horizon

A batch of which no record is left goes too, but for an empty header where something hangs on it: the last sequence
or epoch of a producer that is still remembered, or the last offset of what was cleaned. Base offset, last offset,
sequence, epochs and compression of a batch never change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from moldau.log.cleaning.job import CleaningJob
from moldau.log.cleaning.offset_map import OffsetMap
from moldau.log.cleaning.records import Records, newest_delta, pick_records, scan_records, shift_timestamps
from moldau.log.cleaning.transactions import CleanedTransactions
from moldau.log.producer_state import read_marker
from moldau.wire.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    assemble,
    check_batch,
    records_data,
)
from moldau.wire.batch_layout import CODEC_MASK, DELETE_HORIZON
from moldau.wire.compression import compress

# What is left of a batch, and its newest timestamp.
Rest = tuple[bytes | memoryview, int]


class BatchFilter:
    def __init__(self, job: CleaningJob, offset_map: OffsetMap, transactions: CleanedTransactions) -> None:
        self._now_ms = job.now_ms
        self._delete_horizon_ms = job.now_ms + job.delete_retention_ms
        self._upper_offset = job.first_uncleanable_offset
        self._last_records = {producer_id: (offset, epoch) for producer_id, offset, epoch in job.producers}
        self._max_bytes = job.uncompressed_bytes_max
        self._dirty_from = job.first_dirty_offset
        self._latest = offset_map.latest
        self._latest_offsets = offset_map.latest_offsets()
        self._mapped_upto = offset_map.end_offset
        self._transactions = transactions

    def apply(self, header: BatchHeader, batch: memoryview) -> Rest | None:
        """What is left of `batch`; None when nothing is."""
        check_batch(batch, 0, header, strict=False)
        horizon_ms = header.delete_horizon_ms
        horizon_passed = horizon_ms is not None and horizon_ms <= self._now_ms
        rest: Rest | None
        if header.is_control:
            is_void = self._transactions.on_marker(header, read_marker(batch, header))
            if not header.count or (is_void and horizon_passed):
                rest = None
            elif is_void and horizon_ms is None:
                rest = self._with_horizon(header, records_data(batch, 0, header))
            else:
                rest = batch, header.max_timestamp
        elif self._transactions.on_data(header) or not header.count:
            rest = None
        elif header.base_offset >= self._mapped_upto:
            rest = batch, header.max_timestamp
        else:
            rest = self._filter(header, batch, horizon_passed)
        if rest is None and self._is_needed(header):
            rest = _without_records(header), header.max_timestamp
        return rest

    def _filter(self, header: BatchHeader, batch: memoryview, horizon_passed: bool) -> Rest | None:
        found = self._candidates(header, batch)
        if found is None:
            return None
        data, records, kept = found
        needs_horizon = False
        if records.tombstones:
            if horizon_passed:
                kept = sorted(set(kept).difference(records.tombstones))
            elif header.delete_horizon_ms is None:
                needs_horizon = not set(kept).isdisjoint(records.tombstones)
        if not kept:
            return None
        is_whole = len(kept) == header.count
        if is_whole and not needs_horizon:
            return batch, header.max_timestamp
        if not is_whole:
            header, data = _select(header, data, records, kept)
        if needs_horizon:
            return self._with_horizon(header, data)
        return assemble(header, compress(header.codec, data)), header.max_timestamp

    def _candidates(self, header: BatchHeader, batch: memoryview) -> tuple[bytes, Records, Sequence[int]] | None:
        """The records of a batch, or those that matter, and which of them have no later one; None when none has.

        In the dirty part these are known by offset: the map was made from it. So most batches need not be unpacked
        again, and of the others only a few records looked at.
        """
        wanted = None
        if header.last_offset >= self._dirty_from:
            offsets = self._latest_offsets
            first = bisect_left(offsets, header.base_offset)
            end = bisect_right(offsets, header.last_offset, first)
            if first == end:
                return None
            wanted = [offset - header.base_offset for offset in offsets[first:end]]
        data = records_data(batch, 0, header, self._max_bytes)
        if wanted is not None and len(wanted) < header.count == header.last_offset_delta + 1:
            some = pick_records(data, wanted)
            records = scan_records(some, len(wanted))
            if records.offset_deltas == wanted:  # else its offsets are out of order, and numbers are not offsets
                return some, records, range(len(wanted))
        records = scan_records(data, header.count)
        return data, records, self._latest_of(records, header.base_offset)

    def _latest_of(self, records: Records, base_offset: int) -> Sequence[int]:
        latest = self._latest
        if latest.keys().isdisjoint(records.keys):
            return range(len(records.keys))
        find = latest.get
        return [
            number
            for number, (delta, key) in enumerate(zip(records.offset_deltas, records.keys, strict=True))
            if base_offset + delta >= find(key, -1)
        ]

    def _with_horizon(self, header: BatchHeader, data: bytes) -> Rest:
        """The batch with the time from which its markers may go; record timestamps count from it now."""
        data = shift_timestamps(data, header.base_timestamp - self._delete_horizon_ms)
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=self._delete_horizon_ms)
        return assemble(header, compress(header.codec, data)), header.max_timestamp

    def _is_needed(self, header: BatchHeader) -> bool:
        """Whether the batch must stay even when it is empty."""
        last = self._last_records.get(header.producer_id)
        if last is not None:
            offset, epoch = last
            if header.last_offset == offset or (offset < 0 and header.is_control and header.producer_epoch == epoch):
                return True
        return header.next_offset == self._upper_offset


def _select(header: BatchHeader, data: bytes, records: Records, kept: Sequence[int]) -> tuple[BatchHeader, bytes]:
    starts = records.starts
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = header.base_timestamp + newest_delta(data, [starts[number] for number in kept])
    if len(kept) < len(records.keys):
        data = b"".join([data[starts[number] : starts[number + 1]] for number in kept])
    return header._replace(count=len(kept), max_timestamp=max_timestamp), data


def _without_records(header: BatchHeader) -> bytes:
    attributes = header.attributes & ~CODEC_MASK & ~DELETE_HORIZON
    return assemble(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0), b"")
