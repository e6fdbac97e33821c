"""The tasks of a broker that run beside its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Spawn(Protocol):
    """`BackgroundTasks.spawn`, for parts that start tasks and leave their end to the broker."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...


class BackgroundTasks:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_closing = False

    def spawn(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Keeps the task alive (the event loop would not) and cancels it when the broker closes."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if self._is_closing:
            task.cancel()
        return task

    async def close(self) -> None:
        self._is_closing = True
        for task in tuple(self._tasks):
            task.cancel()
        while self._tasks:  # the end of one may start another
            await asyncio.gather(*self._tasks, return_exceptions=True)
