"""Group commit: many writers that wait for the disk share one fsync.

While a log's fsync runs, later writers gather; when it ends, one more fsync serves them all. A slow disk so
makes larger groups, not a longer queue. An fsync begins after what the loop does at the moment, so that the appends of
one round share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.broker.replicas.partition import Partition
from moldau.broker.threads import Lane
from moldau.errors import KafkaError, StorageError
from moldau.log.partition_log import PartitionLog

OnFlushed = Callable[[KafkaError | None], None]


class GroupCommit:
    def __init__(self, loop: asyncio.AbstractEventLoop, lane: Callable[[Path], Lane]) -> None:
        self._loop = loop
        self._lane = lane
        self._running: set[PartitionLog] = set()
        self._next: dict[PartitionLog, asyncio.Future[None]] = {}
        self._callbacks: dict[PartitionLog, OnFlushed] = {}
        """Called at the end of the next flush, before its waiters."""

    def flushed(self, log: PartitionLog) -> asyncio.Future[None]:
        """Done when everything now in `log` is on the disk; failed with a StorageError if the disk fails."""
        # Shared by many: one that is cancelled must not cancel the others.
        return asyncio.shield(self._group(log))

    def safe(self, partition: Partition, flush_messages: int) -> asyncio.Future[Any] | None:
        """Done when all that is in the partition now is committed, and on the disk if it waits for `flush_messages` or
        more; None if it is. Fails where another broker leads."""
        committed = partition.committed(partition.log.log_end_offset)
        if partition.log.unflushed_messages < flush_messages:
            return committed
        flushed = self.flushed(partition.log)
        return flushed if committed is None else asyncio.gather(flushed, committed)

    def flush_soon(self, log: PartitionLog, ended: OnFlushed) -> None:
        """Flushes everything that is in the log now; `ended` is called before the waiters of `flushed`."""
        self._callbacks[log] = ended
        self._group(log)

    def _group(self, log: PartitionLog) -> asyncio.Future[None]:
        group = self._next.get(log)
        if group is None:
            group = self._next[log] = self._loop.create_future()
            if log not in self._running:
                self._loop.call_soon(self._start, log)
        return group

    def _start(self, log: PartitionLog) -> None:
        group, callback = self._next.pop(log), self._callbacks.pop(log, None)
        self._running.add(log)

        def ended(done: asyncio.Future[None]) -> None:
            self._running.discard(log)
            if log in self._next:
                self._start(log)
            if done.cancelled():  # the broker stops
                group.cancel()
                return
            error = done.exception()
            if error is not None:
                group.set_exception(error)
                group.exception()  # retrieved, because there may be no waiter; the log directory reports it
            else:
                group.set_result(None)  # waiters continue in the next round of the loop
            if callback is not None:
                callback(error if error is None or isinstance(error, KafkaError) else StorageError(str(error)))

        self._lane(log.log_dir.path)(log.flush).add_done_callback(ended)
