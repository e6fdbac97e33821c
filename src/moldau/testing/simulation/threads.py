"""What a broker does in threads (`moldau.broker.threads`), in virtual time: later, between two turns, in no thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from moldau.broker.threads import Lane
from moldau.testing.simulation.loop import MS, SECOND, SimulatedLoop

T = TypeVar("T")

DELAYS_US = {"disk": (100, 3 * MS), "metadata": (200, 4 * MS), "files": (50, MS), "compute": (20, 300)}
"""What a piece of work takes, by the kind of the lane."""
BLOCKED_RETRY_US = 50 * MS


class WouldBlock(Exception):  # noqa: N818 - no error: the work is to be done again later
    """Raised by work that cannot go on, before it did anything."""


class SimulatedLane(Lane):
    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, size: int) -> None:
        assert isinstance(loop, SimulatedLoop)
        super().__init__(loop, name, size)
        self._simulated = loop
        self._world = loop.world
        self._delays_us = DELAYS_US.get(name.rstrip("0123456789"), (50, MS))
        self._needs_disk = name.startswith(("disk", "files"))
        self._waiting: deque[_Task] = deque()
        self._running: dict[_Task, int] = {}
        """Since when, in virtual time."""

    def __call__(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_stopped:
            future.cancel()
            return future
        self._unfinished += 1
        self._is_idle.clear()
        self._waiting.append(_Task(future, work, args))
        self._begin()
        return future

    @property
    def busy_s(self) -> float:
        since_us = min(self._running.values(), default=self._world.now_us)
        return (self._world.now_us - since_us) / SECOND

    def stop(self) -> None:
        self._is_stopped = True

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._size:
            task = self._waiting.popleft()
            self._running[task] = self._world.now_us
            self._world.after(self._world.between_us(*self._delays_us) // 2, self._run_task, task)

    def _run_task(self, task: _Task) -> None:
        if not self._simulated.in_process(self._run_task, task):
            return
        if self._needs_disk and self._simulated.host.disk_is_hanging:
            self._world.after(BLOCKED_RETRY_US, self._run_task, task)
            return
        result: Any = None
        error: BaseException | None = None
        if not task.future.cancelled() and not self._is_stopped:
            self._world.current = self._simulated.host
            try:
                result = task.work(*task.args)
            except WouldBlock:
                self._world.after(BLOCKED_RETRY_US, self._run_task, task)
                return
            except BaseException as failure:
                error = failure
            finally:
                self._world.current = None
        self._world.after(self._world.between_us(*self._delays_us) // 2, self._tell, task, result, error)

    def _tell(self, task: _Task, result: Any, error: BaseException | None) -> None:
        if self._simulated.in_process(self._tell, task, result, error):
            del self._running[task]
            self._loop.call_soon_threadsafe(self._done, task.future, result, error)
            self._begin()


class _Task:
    __slots__ = ("args", "future", "work")

    def __init__(self, future: asyncio.Future[Any], work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.future, self.work, self.args = future, work, args
