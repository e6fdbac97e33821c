"""Fetching for a share group: reads bytes from the log, acquires records in them, and waits for more.

Batches are sent whole, as in Fetch; the response lists which of their records were acquired. The header of a batch is
enough to know its offsets. Only control batches are decoded, to find the end of an aborted transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Generic, NamedTuple, TypeVar

from moldau.broker.coordination.share_partitions import LiveSharePartition
from moldau.coordinators.share.partition import Acquired, Span, Wanted
from moldau.coordinators.share.state_shard import ShareKey
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import read_marker
from moldau.wire.batch import BatchHeader, iter_headers

T = TypeVar("T")

READ_MAX_BYTES = 1024 * 1024
"""Read of one partition for one fetch. A fetch may ask for 50 MB, but it acquires some hundred records of them: the
rest would be read for nothing."""
READS_MAX = 8
"""Per partition and turn: a long aborted transaction has nothing to deliver and must not hold up other requests."""


class Delivery(NamedTuple):
    """What one partition gives to one fetch."""

    records: bytes | memoryview
    acquired: Sequence[Acquired]


class _Batch(NamedTuple):
    begin: int
    end: int
    span: Span
    is_visible: bool


def readable_bytes(live: LiveSharePartition, max_bytes: int, *, committed: bool) -> int:
    """How many bytes a delivery would come from, without acquiring anything."""
    machine, log = live.machine, live.partition.log
    return len(_read(log, machine.next_fetch_offset, max_bytes, committed=committed)) if machine.has_room else 0


def deliver(
    live: LiveSharePartition, member: str, wanted: Wanted, max_bytes: int, now_ms: int, *, committed: bool
) -> Delivery:
    """Acquires for `member` what there is, if anything."""
    machine, log = live.machine, live.partition.log
    for _ in range(READS_MAX):
        if not machine.has_room:
            break
        offset = machine.next_fetch_offset
        data = _read(log, offset, max_bytes, committed=committed)
        headers = _headers_upto(data, max(offset, machine.end_offset) + wanted.max_records)
        batches = _batches(log, data, headers, offset, committed=committed)
        if not batches:
            break
        spans = [batch.span for batch in batches if batch.is_visible]
        acquired = machine.acquire(member, spans, batches[-1].span.last + 1, wanted, now_ms)
        if acquired:
            begin = next(batch.begin for batch in batches if batch.span.last >= acquired[0].first)
            end = next(batch.end for batch in batches if batch.span.last >= acquired[-1].last)
            return Delivery(memoryview(data)[begin:end], acquired)
        if machine.next_fetch_offset <= offset:
            break
        # All of it was nothing to deliver: look behind it.
    else:
        live.is_behind = True
    return Delivery(b"", ())


def _read(log: PartitionLog, offset: int, max_bytes: int, *, committed: bool) -> bytes | memoryview:
    upto = log.last_stable_offset if committed else log.high_watermark
    if offset >= upto:
        return b""
    return log.read(offset, min(max_bytes, READ_MAX_BYTES), upto_offset=upto, min_one=True)


def _headers_upto(data: bytes | memoryview, enough_offset: int) -> list[tuple[int, BatchHeader]]:
    """Batches can be small, and many: those that hold more than is wanted are not looked at."""
    return list(takewhile(lambda each: each[1].base_offset < enough_offset, iter_headers(data)))


def _batches(
    log: PartitionLog,
    data: bytes | memoryview,
    headers: Sequence[tuple[int, BatchHeader]],
    offset: int,
    *,
    committed: bool,
) -> list[_Batch]:
    aborted: list[tuple[int, int]] = []
    if committed and headers:
        aborted = sorted(log.aborted_transactions(offset, headers[-1][1].next_offset), key=lambda txn: -txn[1])
    aborting: set[int] = set()
    batches = []
    for position, header in headers:
        while aborted and aborted[-1][1] <= header.last_offset:
            aborting.add(aborted.pop()[0])
        is_visible = not header.is_control
        if header.is_control and header.producer_id in aborting:
            marker = read_marker(memoryview(data)[position:], header)
            if marker is not None and marker.is_abort:
                aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            is_visible = False
        span = Span(header.base_offset, header.last_offset)
        batches.append(_Batch(position, position + header.size, span, is_visible))
    return batches


class DelayedShareFetch(Generic[T]):
    """Waits in share partitions, until `attempt` gives something for those of them that woke it.

    The last attempt, when the time is up, is for all, and what it gives is the answer whatever it is.
    """

    __slots__ = ("_attempt", "_loop", "_queues", "_timer", "_woken", "future")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queues: Iterable[LiveSharePartition],
        wait_ms: int,
        attempt: Callable[[Iterable[ShareKey] | None], T | None],
    ) -> None:
        self.future: asyncio.Future[T | None] = loop.create_future()
        self._loop = loop
        self._queues: dict[LiveSharePartition, None] = {}
        self._attempt = attempt
        self._woken: dict[ShareKey, None] = {}
        self._timer = loop.call_later(wait_ms / 1000, self._try, True)
        self.future.add_done_callback(self._leave)
        self.watch(queues)

    def watch(self, queues: Iterable[LiveSharePartition]) -> None:
        for live in queues:
            self._queues[live] = None
            live.waiting[self] = None
            if live.is_behind:
                live.is_behind = False
                live.wake()

    def wake(self, key: ShareKey) -> None:
        if not self._woken:
            # Not now: the caller is not finished, and a burst of appends should cause one attempt.
            self._loop.call_soon(self._try, False)
        self._woken[key] = None

    def _try(self, is_last: bool) -> None:
        woken, self._woken = self._woken, {}
        if self.future.done():
            return
        try:
            given = self._attempt(None if is_last else woken)
        except Exception as error:  # the connection decides what a failed answer means
            self.future.set_exception(error)
            return
        if given is not None or is_last:
            self.future.set_result(given)

    def _leave(self, _: asyncio.Future[T | None]) -> None:
        self._timer.cancel()
        for live in self._queues:
            live.waiting.pop(self, None)
