"""Byte budgets shared by all connections, so that many clients cannot grow the process together.

One is for what comes in: requests too long for a connection's first small buffer. Such a request gets its whole length
or waits, with its socket unread, so that TCP tells its client to wait; nobody ever holds one part of a request's bytes
while waiting for another, or two clients could wait for each other for ever.
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

    @property
    def left(self) -> int:
        return max(self.limit - self.used, 0)

    @property
    def contended(self) -> bool:
        """Whether somebody waits for bytes that others hold."""
        return bool(self._waiting)

    def take(self, count: int) -> bool:
        """True when `count` bytes were granted: always, while the limit is not reached.

        One request may so exceed the limit by its own length, and one larger than the limit can pass at all.
        """
        if self.used >= self.limit:
            return False
        self.used += count
        return True

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
