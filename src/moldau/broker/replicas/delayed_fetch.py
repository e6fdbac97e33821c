"""A fetch that waits for `fetch.min.bytes` or `fetch.max.wait.ms`, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from moldau.broker.network.client_connection import Buffers
from moldau.broker.replicas.partition import Partition


class DelayedFetch:
    """Sits in `Partition.waiting` of every partition it reads; `read` makes the answer once, at the end.

    Bytes are counted as they are appended, so waiting costs nothing per append but an addition.
    """

    __slots__ = ("_done", "_loop", "_missing_bytes", "_partitions", "_read", "_timer", "committed", "future")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partitions: Sequence[Partition],
        *,
        missing_bytes: int,
        wait_ms: int,
        committed: bool,
        read: Callable[[], Buffers],
    ) -> None:
        self.future: asyncio.Future[Buffers] = loop.create_future()
        self.committed = committed
        self._loop = loop
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._read = read
        self._done = False
        self._timer = loop.call_later(wait_ms / 1000, self._finish)
        self.future.add_done_callback(self._left)
        for partition in partitions:
            partition.waiting[self] = None

    def more(self, byte_count: int) -> None:
        self._missing_bytes -= byte_count
        if self._missing_bytes <= 0 and not self._done:
            # Not now: the append that woke us is still on the stack, and a burst of appends makes one answer.
            self._leave()
            self._loop.call_soon(self._answer)

    def _finish(self) -> None:
        if not self._done:
            self._leave()
            self._answer()

    def _answer(self) -> None:
        if self.future.done():
            return
        try:
            self.future.set_result(self._read())
        except Exception as error:  # the connection decides what a failed answer means
            self.future.set_exception(error)

    def _left(self, _: asyncio.Future[Buffers]) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._done:
            self._done = True
            self._timer.cancel()
            for partition in self._partitions:
                partition.waiting.pop(self, None)
