"""The threads of a broker: what may block, sorted by what it may block on.

A disk that hangs holds the threads that wait for it, for good perhaps. So each kind of work has threads of its own, and
nothing waits in a queue behind a disk that it does not need:

    disk(directory)  fsyncs, checkpoints, deletions and free space of one log directory
    metadata         the metadata store, elections in it included
    compute          decoding and encoding of messages too large for the loop; no I/O
    files            loading logs at the start, making folders for new partitions
    cleaning         starting, feeding and ending the processes that compact logs

The threads are daemons: a process that ends does not wait for a disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

DISK_THREADS = 4
"""Fsyncs of several logs at once: the file system makes one commit of them."""
METADATA_THREADS = 4
"""A store that hangs in a write has to hear of an election meanwhile."""
COMPUTE_THREADS = 2
"""More would only take the interpreter's lock from each other."""
FILES_THREADS = 2
CLEANING_THREADS = 4


class Lane:
    """Threads for one kind of work, started as they are needed. Call it with a function, and await what it returns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, size: int) -> None:
        self.name = name
        self._loop = loop
        self._size = size
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        """Works that wait or run; only the loop counts them."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._since: dict[int, float] = {}
        """Since when each busy thread does its work."""
        self._is_stopped = False

    def __call__(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_stopped:
            future.cancel()
            return future
        if self._unfinished >= len(self._threads) < self._size:
            self._start_thread()
        self._unfinished += 1
        self._is_idle.clear()
        self._queue.put((future, work, args))
        return future

    @property
    def busy_s(self) -> float:
        """How long the oldest work that runs has been running; 0.0 if none does. From any thread."""
        since = min(list(self._since.values()), default=None)
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    async def settle(self, timeout_s: float) -> None:
        """Until all work is done, or the time is over. Work goes on where the task that waited for it was cancelled."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)

    def stop(self) -> None:
        """Starts no more work. Running work continues, and nothing waits for it."""
        self._is_stopped = True
        for _ in self._threads:
            self._queue.put(None)

    def _start_thread(self) -> None:
        name = f"moldau-{self.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        me = threading.get_ident()
        while (task := self._queue.get()) is not None:
            future, work, args = task
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled() and not self._is_stopped:
                self._since[me] = time.monotonic()
                try:
                    result = work(*args)
                except BaseException as failure:
                    error = failure
                finally:
                    del self._since[me]
            with suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._done, future, result, error)
            del task, future, work, args, result, error  # or the last of them would live on while the thread waits

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._is_idle.set()
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


class Threads:
    def __init__(self, loop: asyncio.AbstractEventLoop, directories: Iterable[Path], lane: type[Lane] = Lane) -> None:
        self._disks = {
            directory: lane(loop, f"disk{number}", DISK_THREADS) for number, directory in enumerate(directories)
        }
        self.metadata = lane(loop, "metadata", METADATA_THREADS)
        self.compute = lane(loop, "compute", COMPUTE_THREADS)
        self.files = lane(loop, "files", FILES_THREADS)
        self.cleaning = lane(loop, "cleaning", CLEANING_THREADS)

    def disk(self, directory: Path) -> Lane:
        """For what has to reach the disk of one of `log.dirs`."""
        return self._disks[directory]

    async def settle(self, timeout_s: float) -> None:
        """The work on files and disks."""
        await asyncio.gather(*(lane.settle(timeout_s) for lane in (self.files, *self._disks.values())))

    def stop(self) -> None:
        for lane in (*self._disks.values(), self.metadata, self.compute, self.files, self.cleaning):
            lane.stop()
