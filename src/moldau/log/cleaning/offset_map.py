"""The last offset of every key in the dirty part of a log."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.log.cleaning.records import scan_records
from moldau.log.cleaning.transactions import CleanedTransactions
from moldau.log.producer_state import read_marker
from moldau.wire.batch import BatchHeader, check_batch, records_data

# What a key costs at the most: 112 for it or its digest, 32 for the offset, 120 for its share of the table just after
# that has grown, 8 for its place among the latest offsets. (Kafka's map, of hashes in one block of memory, takes 24.)
BYTES_PER_KEY = 272

_NEVER = 1 << 63


class OffsetMap:
    __slots__ = ("_keys_max", "end_offset", "latest")

    def __init__(self, first_offset: int, buffer_bytes: int) -> None:
        self._keys_max = buffer_bytes // BYTES_PER_KEY
        # A record without a key is never the latest of anything.
        self.latest: dict[bytes | None, int] = {None: _NEVER}
        self.end_offset = first_offset  # what is below is in the map

    def __len__(self) -> int:
        return len(self.latest) - 1

    def latest_offsets(self) -> list[int]:
        """All of them, ascending: of what was taken in, these records stay."""
        return sorted(offset for offset in self.latest.values() if offset != _NEVER)

    def add_batches(
        self,
        batches: Iterator[tuple[BatchHeader, memoryview]],
        transactions: CleanedTransactions,
        uncompressed_bytes_max: int,
    ) -> bool:
        """Takes in batch by batch, except what is aborted; False when the next one might not fit.

        The first one always does, or a cleaning would make no progress.
        """
        latest = self.latest
        first_offset = self.end_offset
        for header, batch in batches:
            if header.last_offset < first_offset:
                continue
            check_batch(batch, 0, header, strict=False)
            if header.is_control:
                transactions.on_marker(header, read_marker(batch, header))
            elif not transactions.on_data(header):
                if len(self) and len(self) + header.count > self._keys_max:
                    return False
                records = scan_records(records_data(batch, 0, header, uncompressed_bytes_max), header.count)
                base_offset = header.base_offset
                latest.update(zip(records.keys, map(base_offset.__add__, records.offset_deltas), strict=True))
                latest[None] = _NEVER
            self.end_offset = header.next_offset
        return True
