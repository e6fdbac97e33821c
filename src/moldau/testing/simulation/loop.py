"""Virtual time: a heap of events, and asyncio event loops that run on it.

`World` is the scheduler: events in the order of their time, then of their making. Nothing waits: when one event is
done, time jumps to the next. `SimulatedLoop` is the event loop of one process. Like a real one it runs in turns: all
callbacks that are ready, then those that became ready meanwhile; each turn takes some virtual time, so that code which
keeps itself busy does not keep the world from going on.

Everything random comes from the seed of the world, so a seed is a run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from math import ceil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.errors import SimulationError

if TYPE_CHECKING:
    from moldau.testing.simulation.host import Host
    from moldau.testing.simulation.network import Network

logger = logging.getLogger(__name__)

T = TypeVar("T")

MS = 1_000
SECOND = 1_000_000
"""Virtual time is in microseconds, as an integer: sums of floats would differ by the order of their parts."""

TURN_US = (20, 120)
"""What one turn of an event loop takes, at least and at most."""
LONG_TURN_US = (1_000, 15_000)
LONG_TURN_SHARE = 0.01
"""Of the turns: a garbage collection, a large request, another process on the same core."""
START_PACES = (1, 1, 1, 5, 20)
START_US = 500_000
"""A process that has just started may be so many times slower, for so long: it loads code, on a busy machine."""
CUT_TURN_SHARE = 0.05
"""Of the turns, end before all ready callbacks ran: a process can be killed or paused between any two of them."""
NOTES_MAX = 5_000
CLOCK_READS_MAX = 1_000_000
"""Without an `await` in between: a loop that waits for the clock never ends, as no virtual time passes meanwhile."""
_MASK = (1 << 64) - 1


class StalledError(Exception):
    """Nothing is left to happen, but the awaited thing has not happened."""


class Timeout(Exception):  # noqa: N818 - not the error of a program, but of a run
    """The virtual time for a run is over."""


class World:
    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.digest = 0
        """Of everything that happened so far: the same seed gives the same one."""
        self.events = 0
        self.clock_reads = 0
        """During the present event."""
        self.current: Host | None = None
        """Whose code runs at the moment."""
        self.failure: BaseException | None = None
        """Ends the run after the present event."""
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0
        self.loops: list[SimulatedLoop] = []
        self._notes: deque[tuple[int, str, str, tuple[object, ...]]] = deque(maxlen=NOTES_MAX)
        self.retained: list[object] = []
        """Tasks of dead processes, kept until the run ends: collecting them would run their `finally` blocks."""

    def close(self) -> None:
        """The end of all processes. What the collector finds of them afterwards finds a world that does nothing."""
        for loop in self.loops:
            if not loop.is_dead:
                loop.kill()
        self._heap.clear()
        self.retained.clear()

    # -- events

    def at(self, when_us: int, callback: Callable[..., object], *args: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (when_us, self._sequence, callback, args))

    def after(self, delay_us: int, callback: Callable[..., object], *args: Any) -> None:
        self.at(self.now_us + delay_us, callback, *args)

    def mix(self, value: int) -> None:
        self.digest = (self.digest * 1_000_003 ^ value) & _MASK

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    def run(self, is_done: Callable[[], bool], until_us: int | None = None) -> None:
        """Until `is_done`, asked after each event; Timeout at `until_us`, StalledError when nothing is left to do."""
        heap = self._heap
        while not is_done():
            if not heap:
                raise StalledError("nothing is left to happen")
            if until_us is not None and heap[0][0] > until_us:
                self.now_us = until_us
                raise Timeout(f"not done after {until_us / SECOND:g} virtual seconds")
            self.now_us, _, callback, args = heappop(heap)
            self.events += 1
            self.clock_reads = 0
            callback(*args)
            if self.failure is not None:
                raise self.failure

    def on_clock_read(self) -> None:
        self.clock_reads += 1
        if self.clock_reads > CLOCK_READS_MAX:
            error = SimulationError(
                f"{_caller()} has read the clock {CLOCK_READS_MAX:,} times without an await: virtual time passes only"
                " in await; wait with await asyncio.sleep()"
            )
            self.fail(error)
            raise error

    def run_for(self, duration_us: int) -> None:
        over: list[bool] = []
        self.after(duration_us, over.append, True)
        self.run(lambda: bool(over))

    # -- the timeline

    def note(self, who: str, text: str, *args: object) -> None:
        """Something worth reading; `text` has a {} for each of `args`."""
        self._notes.append((self.now_us, who, text, args))

    def note_earlier(self, when_us: int, who: str, text: str) -> None:
        """Something of that time that was not known then."""
        if len(self._notes) == NOTES_MAX:
            self._notes.popleft()
        place = sum(when <= when_us for when, *_ in self._notes)
        self._notes.insert(place, (when_us, who, "{}", (text,)))

    def timeline(self) -> list[str]:
        """The last notes, with their virtual times."""
        return [f"{when_us / SECOND:10.6f}  {who:<14} {text.format(*args)}" for when_us, who, text, args in self._notes]

    # -- chance

    def between_us(self, least: int, most: int) -> int:
        return least + int(self.random.random() * (most - least + 1))

    def chance(self, share: float) -> bool:
        return self.random.random() < share


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process on a host, from its start to its end."""

    def __init__(self, world: World, host: Host, network: Network) -> None:
        self.world = world
        self.host = host
        self.network = network
        self.is_dead = False
        self.is_paused = False
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._wake_us: int | None = None
        """When the next turn is planned."""
        self._free_us = world.now_us
        """When the last turn is over."""
        self._started_us = world.now_us
        self._start_pace = world.random.choice(START_PACES)
        self._deferred: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_factory: Any = None
        world.loops.append(self)

    # -- turns

    def _plan(self, when_us: int) -> None:
        if self._wake_us is None or when_us < self._wake_us:
            self._wake_us = when_us
            self.world.at(when_us, self._turn, when_us)

    def _turn(self, planned_us: int) -> None:
        if planned_us != self._wake_us:
            return
        self._wake_us = None
        if self.is_dead or self.is_paused:
            return
        world, ready, timers = self.world, self._ready, self._timers
        now_us = world.now_us
        while timers and (timers[0][0] <= now_us or timers[0][2]._cancelled):
            handle = heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        count = len(ready)
        if count > 1 and world.random.random() < CUT_TURN_SHARE:
            count = world.between_us(1, count)
        world.mix(now_us * 64 + count)
        world.current = self.host
        events._set_running_loop(self)
        try:
            while count and not self.is_dead:
                count -= 1
                ready_handle = ready.popleft()
                if not ready_handle._cancelled:
                    ready_handle._run()
        finally:
            events._set_running_loop(None)
            world.current = None
        length_us = LONG_TURN_US if world.random.random() < LONG_TURN_SHARE else TURN_US
        pace = self._start_pace if now_us < self._started_us + START_US else 1
        self._free_us = now_us + pace * world.between_us(*length_us)
        self._plan_next()

    def _plan_next(self) -> None:
        if self._ready:
            self._plan(max(self._free_us, self.world.now_us))
        elif self._timers:
            self._plan(max(self._free_us, self._timers[0][0], self.world.now_us))

    # -- the life of the process

    def kill(self) -> None:
        """Nothing of it ever runs again: no callback, no `finally`."""
        self.is_dead = True
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # it never ran, so nothing of it runs now
        self.world.retained += [tasks, self._ready, self._timers]
        self._ready, self._timers, self._deferred = deque(), [], []

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for callback, args in deferred:
            self.world.at(self.world.now_us, callback, *args)
        self._plan_next()

    def in_process(self, callback: Callable[..., object], *args: Any) -> bool:
        """Whether the process can run that now. If it is paused, it runs it when it goes on; if it is dead, never."""
        if self.is_dead:
            return False
        if self.is_paused:
            self._deferred.append((callback, args))
            return False
        return True

    # -- callbacks and time

    def time(self) -> float:
        self.world.on_clock_read()
        return (self.world.now_us + self.host.monotonic_offset_us) / SECOND

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            if self._wake_us is None or self._wake_us > self.world.now_us:
                self._plan(max(self._free_us, self.world.now_us))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at_us(self.world.now_us + ceil(delay * SECOND), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at_us(ceil(when * SECOND) - self.host.monotonic_offset_us, callback, args, context)

    def _call_at_us(
        self, when_us: int, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> asyncio.TimerHandle:
        when_s = (when_us + self.host.monotonic_offset_us) / SECOND
        handle = asyncio.TimerHandle(when_s, callback, args, self, context)
        if not self.is_dead:
            self._timer_count += 1
            heappush(self._timers, (when_us, self._timer_count, handle))
            if self._wake_us is None or when_us < self._wake_us:
                self._plan(max(self._free_us, when_us, self.world.now_us))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if self._task_factory is not None:
            task: asyncio.Task[T] = self._task_factory(self, coro)
            return task
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """In no thread: some time later, between two turns."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if not self.in_process(work) or future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                self.call_soon(_settle, future, None, error)
            else:
                self.call_soon(_settle, future, result, None)

        self.world.after(self.world.between_us(20, MS), work)
        return future

    # -- what asyncio asks of a loop

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def close(self) -> None:
        """A loop ends with its process."""

    def stop(self) -> None:
        raise NotImplementedError("a simulated process ends by its host")

    def run_forever(self) -> None:
        raise NotImplementedError("the world runs it")

    def run_until_complete(self, future: Any) -> Any:
        raise NotImplementedError("the world runs it")

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self) -> None:
        pass

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            error = context.get("exception")
            logger.error("%s in %s", context.get("message"), self.host.name, exc_info=error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    # -- the network

    async def getaddrinfo(  # type: ignore[override]
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Each host has one address: its name."""
        import socket

        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(host), int(port or 0)))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(self, protocol_factory, str(host), int(port))

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return self.network.listen(self, protocol_factory, int(port or 0))


def _caller() -> str:
    """Where the code is that called into this package."""
    frame = sys._getframe()
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _settle(future: asyncio.Future[T], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
