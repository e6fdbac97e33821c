"""Byte budgets shared by all connections, so that many clients cannot grow the process together.

One is for what comes in: receive buffers beyond each connection's first small one. A connection that cannot have the
bytes it needs stops reading its socket, and TCP tells its client to wait; it is called again when bytes return.
The other is for what goes out: answers that clients are slow to read. They are there already, so they are charged, not
asked for; what is left limits the next fetches.
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

    @property
    def left(self) -> int:
        return max(self.limit - self.used, 0)

    def charge(self, count: int) -> None:
        """For bytes that exist already: they count, whether there is room or not."""
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        if count and self._waiting:
            # Everyone asks again: sizes differ, and the order of the queue keeps it fair.
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()

    def wait(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)
