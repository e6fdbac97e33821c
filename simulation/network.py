"""Requests and answers between processes: late, lost, cut off, refused.

What one connection carries arrives in order; a connection that is given up is replaced by a new one, and what the old
one still carries may arrive after what the new one does. A dead process refuses; a dead machine, or one that is cut
off, says nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from simulation.world import Process, World


class Failure(Enum):
    """What comes in place of an answer."""

    REFUSED = "nobody listens there"
    LOST = "no answer came"


Answer = Callable[[Any], None]


class Host(Process):
    """A process that others reach. Requests come in at its `on_<what>(request, answer)`."""

    is_machine_up = True

    def handler_of(self, what: str) -> Callable[[Any, Answer], None]:
        handler: Callable[[Any, Answer], None] = getattr(self, "on_" + what)
        return handler

    def peer_closed(self, peer: Process) -> None:
        """The connections of that process are closed: it died, on a machine that lives."""


class _Call:
    __slots__ = ("answer", "destination", "is_over", "life", "source")

    def __init__(self, source: Process, destination: Host, answer: Answer) -> None:
        self.source = source
        self.destination = destination
        self.life = destination.life
        self.answer = answer
        self.is_over = False


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = 0.0
        """The share of messages that get lost, with the connection they were on."""
        self.slow_us: dict[Process, int] = {}
        self._cuts: set[tuple[Process, Process]] = set()
        self._last_arrival: dict[tuple[Process, Process, str], int] = {}
        self._calls: dict[_Call, None] = {}

    # -- faults

    def cut(self, one: Process, other: Process, *, both_ways: bool = True) -> None:
        self._cuts.add((one, other))
        if both_ways:
            self._cuts.add((other, one))

    def heal(self) -> None:
        self._cuts.clear()
        self.slow_us.clear()
        self.loss = 0.0

    def connects(self, source: Process, destination: Process) -> bool:
        return (source, destination) not in self._cuts and (destination, source) not in self._cuts

    def process_died(self, dead: Process) -> None:
        """Its machine closes its connections, if there is a machine left."""
        for call in [one for one in self._calls if dead in (one.source, one.destination)]:
            if call.source is dead:
                call.is_over = True
                self._calls.pop(call, None)
            elif call.destination.is_machine_up and self.connects(dead, call.source):
                self._later(dead, call.source, self._over, call, Failure.LOST)

    # -- requests

    def ask(
        self,
        source: Process,
        destination: Host,
        what: str,
        request: Any,
        answer: Answer,
        *,
        timeout_us: int,
        connection: str = "",
    ) -> None:
        """Sends a request; `answer` is called once, with what comes back or a Failure."""
        call = _Call(source, destination, answer)
        self._calls[call] = None
        way = (source, destination, connection or what)
        source.after(timeout_us, self._timed_out, call, way)
        if not self._is_lost(source, destination):
            self._deliver(way, self._arrived, call, what, request)

    def _arrived(self, call: _Call, what: str, request: Any) -> None:
        destination = call.destination
        if not self.connects(call.source, destination) or not destination.is_machine_up:
            return
        if not destination.is_running:
            self._later(destination, call.source, self._over, call, Failure.REFUSED)
            return
        if destination.life != call.life:  # the connection was to the process before
            self._later(destination, call.source, self._over, call, Failure.LOST)
            return
        destination.now(self._handle, call, what, request)

    def _handle(self, call: _Call, what: str, request: Any) -> None:
        call.destination.handler_of(what)(request, lambda answer: self._answered(call, answer))

    def _answered(self, call: _Call, answer: Any) -> None:
        source, destination = call.source, call.destination
        if not call.is_over and not self._is_lost(destination, source):
            self._later(destination, source, self._over, call, answer)

    def _later(self, source: Process, destination: Process, action: Callable[..., None], *args: Any) -> None:
        self.world.after(self.latency_us(source, destination), destination.now, action, *args)

    def _over(self, call: _Call, answer: Any) -> None:
        if not call.is_over:
            call.is_over = True
            self._calls.pop(call, None)
            call.answer(answer)

    def _timed_out(self, call: _Call, way: tuple[Process, Process, str]) -> None:
        if not call.is_over:
            self._last_arrival.pop(way, None)  # the next request is on a connection of its own
            self._over(call, Failure.LOST)

    # -- the way

    def _is_lost(self, source: Process, destination: Process) -> bool:
        return not self.connects(source, destination) or (self.loss > 0 and self.world.chance(self.loss))

    def latency_us(self, source: Process, destination: Process) -> int:
        slow_us = max(self.slow_us.get(source, 0), self.slow_us.get(destination, 0))
        random = self.world.random.random()
        return int(200 + random * 800 + random * slow_us) + (20_000 if random > 0.995 else 0)

    def _deliver(self, way: tuple[Process, Process, str], action: Callable[..., None], *args: Any) -> None:
        arrival_us = self.world.now_us + self.latency_us(way[0], way[1])
        arrival_us = max(arrival_us, self._last_arrival.get(way, 0) + 1)
        self._last_arrival[way] = arrival_us
        self.world.after(arrival_us - self.world.now_us, action, *args)
