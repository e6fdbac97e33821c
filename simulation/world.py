"""Virtual time: events in order, one source of randomness, and the trace of what happened.

Nothing waits for anything here: an event is a call at a moment. A `Process` is what can die (what it had still to do is
gone) or be stopped like by SIGSTOP (it does it all when it goes on, and believes that no time has passed).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

MS = 1_000
"""Microseconds: the clock's unit."""
START_US = 1_000_000 * MS
TRACE_KEPT = 40


class Violation(Exception):  # noqa: N818  (a finding, not a mishap)
    """Something that must never be true is."""


class Process:
    """Whoever does things in the simulation, and has a name in the trace."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.is_running = True
        self.is_paused = False
        self._deferred: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Does something later, unless it is dead by then."""
        self.world.after(delay_us, self._do, self.life, action, args)

    def soon(self, action: Callable[..., None], *args: Any) -> None:
        self.after(0, action, *args)

    def now(self, action: Callable[..., None], *args: Any) -> None:
        """Does something at once, or when it goes on."""
        self._do(self.life, action, args)

    def _do(self, life: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life:
            return
        if self.is_paused:
            self._deferred.append((life, action, args))
        else:
            action(*args)

    def die(self) -> None:
        self.life += 1
        self.is_running = self.is_paused = False
        self._deferred.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for life, action, args in deferred:
            self.world.after(0, self._do, life, action, args)


class World:
    def __init__(self, name: str, *, keeps_trace: bool = False) -> None:
        self.random = random.Random(name)
        self.now_us = START_US
        self.steps = 0
        self.after_step: Callable[[], None] = lambda: None
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._trace: deque[tuple[int, int, str, tuple[Any, ...]]] = deque(maxlen=None if keeps_trace else TRACE_KEPT)

    @property
    def now_ms(self) -> int:
        return self.now_us // MS

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._count, action, args))

    def run(self, until_us: int) -> None:
        """Event after event, until that moment has come."""
        events = self._events
        while events and events[0][0] <= until_us:
            self.now_us, _, action, args = heapq.heappop(events)
            self.steps += 1
            action(*args)
            self.after_step()
        self.now_us = until_us

    def note(self, text: str, *args: Any) -> None:
        """A line of the trace; put together only when somebody reads it."""
        self._trace.append((self.steps, self.now_us, text, args))

    def trace(self) -> list[str]:
        return [
            f"{step:>7} {(now_us - START_US) / 1e6:>10.6f}s  {text.format(*args)}"
            for step, now_us, text, args in self._trace
        ]

    # -- randomness

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between_ms(self, low: float, high: float) -> int:
        """A moment between so many milliseconds, in microseconds."""
        return int(self.random.uniform(low * MS, high * MS))
