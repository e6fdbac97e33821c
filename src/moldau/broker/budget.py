"""A byte budget shared by all connections, so that many clients cannot grow the process together.

What counts: receive buffers beyond each connection's first small one. A connection that cannot have the
bytes it needs stops reading its socket, and TCP tells its client to wait; it is called again when bytes return.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteBudget:
    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, count: int) -> bool:
        """True when `count` bytes were granted. The first taker always gets them: one request must be able to pass."""
        if self.used and self.used + count > self.limit:
            return False
        self.used += count
        return True

    def give_back(self, count: int) -> None:
        self.used -= count
        if count and self._waiting:
            # Everyone asks again: sizes differ, and the order of the queue keeps it fair.
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()

    def wait(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)
