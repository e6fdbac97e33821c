"""Group commit: many writers that wait for the disk share one fsync.

While a log's fsync runs, later writers gather; when it ends, one more fsync serves them all. A slow disk so
makes larger groups, not a longer queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.broker.partition import Partition
from moldau.broker.threads import Lane
from moldau.log.partition_log import PartitionLog


class GroupCommit:
    def __init__(self, loop: asyncio.AbstractEventLoop, lane: Callable[[Path], Lane]) -> None:
        self._loop = loop
        self._lane = lane
        self._running: set[PartitionLog] = set()
        self._next: dict[PartitionLog, asyncio.Future[None]] = {}

    def flushed(self, log: PartitionLog) -> asyncio.Future[None]:
        """Done when everything now in `log` is on the disk; failed with a StorageError if the disk says no."""
        waiting = self._next.get(log)
        if waiting is None:
            waiting = self._next[log] = self._loop.create_future()
            if log not in self._running:
                self._start(log)
        return asyncio.shield(waiting)  # of many: who goes away must not take the others along

    def safe(self, partition: Partition, flush_messages: int) -> asyncio.Future[Any] | None:
        """Done when all that is in the partition now is committed, and on the disk if it waits for `flush_messages` or
        more; None if it is. Fails where another broker leads."""
        committed = partition.committed(partition.log.log_end_offset)
        if partition.log.unflushed_messages < flush_messages:
            return committed
        flushed = self.flushed(partition.log)
        return flushed if committed is None else asyncio.gather(flushed, committed)

    def flush_soon(self, log: PartitionLog) -> None:
        """For a writer that wants no answer: nobody waits, and a failure is the log directory's to tell."""
        if log in self._running and log in self._next:
            return  # the fsync after the running one has these records, too
        self.flushed(log).add_done_callback(lambda done: done.exception())

    def _start(self, log: PartitionLog) -> None:
        group = self._next.pop(log)
        self._running.add(log)

        def ended(done: asyncio.Future[None]) -> None:
            self._running.discard(log)
            if log in self._next:
                self._start(log)
            if group.done():
                return
            if done.cancelled():  # the broker stops
                group.cancel()
            elif (error := done.exception()) is not None:
                group.set_exception(error)
            else:
                group.set_result(None)

        self._lane(log.log_dir.path)(log.flush).add_done_callback(ended)
