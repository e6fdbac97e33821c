"""Which batches belong to aborted transactions, and which markers nobody needs any more.

Fed with every batch of the log in order. The transaction indexes say where aborted transactions begin; their markers,
and those of commits, end them. A marker can go once no batch of its transaction is left in front of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from moldau.log.producer_state import EndTxnMarker
from moldau.log.segments.txn_index import AbortedTxn
from moldau.wire.batch import BatchHeader


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_has_data", "_upcoming", "still_aborted")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._upcoming = deque(sorted(aborted, key=attrgetter("first_offset")))
        self._aborted: dict[int, AbortedTxn] = {}  # by producer id, those that have begun
        self._has_data: set[int] = set()  # producer ids of those of which a batch was seen
        self._committed: set[int] = set()  # producer ids with data of a transaction that is not known to be aborted
        self.still_aborted: list[AbortedTxn] = []  # for the index of the cleaned segment; the caller empties it

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the batch was aborted."""
        if not header.is_transactional:
            return False
        self._begin_upto(header.last_offset)
        if header.producer_id in self._aborted:
            self._has_data.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_marker(self, header: BatchHeader, marker: EndTxnMarker | None) -> bool:
        """Whether the control batch can go: its transaction has no batch left, or it is empty itself."""
        self._begin_upto(header.last_offset)
        if marker is None:
            return header.count == 0  # else of an unknown kind, which stays
        producer_id = header.producer_id
        if not marker.is_abort:
            is_needed = producer_id in self._committed
            self._committed.discard(producer_id)
            return not is_needed
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._has_data:
            return True
        self._has_data.remove(producer_id)
        self.still_aborted.append(aborted)
        return False

    def _begin_upto(self, offset: int) -> None:
        upcoming = self._upcoming
        while upcoming and upcoming[0].first_offset <= offset:
            txn = upcoming.popleft()
            self._aborted.setdefault(txn.producer_id, txn)
