"""Many members in one thread, each on a connection of its own: fifty librdkafkas would measure themselves.

A member is a generator: it yields how long to rest and the frame to send then, and is given the response.
So what a member does reads from top to bottom, and the swarm alone knows sockets and time.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable, Generator
from typing import Any

from bench.raw import CLIENT_ID, RawConnection
from moldau.wire import messages

# Longer than any measured step; a broker that forgets a member must fail the run, not hang it.
STALL_TIMEOUT_S = 60.0

Steps = Generator[tuple[float, bytes], memoryview, None]


def ask(entity: Any, rest_s: float = 0.0) -> Generator[tuple[float, bytes], memoryview, Any]:
    """One step of a member: send a request and decode its response."""
    frame = yield rest_s, messages.encode_request(1, CLIENT_ID, entity)
    return messages.decode_response(entity.__api_key__, entity.__version__, bytes(frame))[1]


class Swarm:
    """Takes members forward whenever their response is there or their rest is over."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._resting: list[tuple[float, int, RawConnection, bytes]] = []
        self._tickets = itertools.count()

    @property
    def is_idle(self) -> bool:
        """Whether every member has come to its end."""
        return not self._selector.get_map()

    def add(self, connection: RawConnection, steps: Steps) -> None:
        self._selector.register(connection.socket, selectors.EVENT_READ, (connection, steps))
        self._send(connection, *next(steps))

    def run_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + STALL_TIMEOUT_S
        while not is_done():
            now = time.perf_counter()
            if now > deadline:
                raise TimeoutError(f"not done after {STALL_TIMEOUT_S:.0f} s")
            while self._resting and self._resting[0][0] <= now:
                _, _, connection, frame = heapq.heappop(self._resting)
                connection.socket.sendall(frame)
            timeout_s = self._resting[0][0] - now if self._resting else 1.0
            for key, _ in self._selector.select(timeout_s):
                self._advance(*key.data)

    def _advance(self, connection: RawConnection, steps: Steps) -> None:
        response = connection.receive()
        try:
            rest_s, frame = steps.send(response)
        except StopIteration:
            self._selector.unregister(connection.socket)
        else:
            self._send(connection, rest_s, frame)

    def _send(self, connection: RawConnection, rest_s: float, frame: bytes) -> None:
        if rest_s:
            # The ticket keeps the heap from ever comparing connections.
            heapq.heappush(self._resting, (time.perf_counter() + rest_s, next(self._tickets), connection, frame))
        else:
            connection.socket.sendall(frame)
