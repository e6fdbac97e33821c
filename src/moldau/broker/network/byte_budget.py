"""Byte budgets shared by all connections, so that many clients together cannot exhaust the memory.

The receive budget is for requests that are too long for a connection's first small buffer. Such a request reserves its
whole length, or waits while its socket is not read, so that TCP slows its client down. No request holds one part of its
bytes while it waits for another, so two clients cannot block each other.
The send budget is for responses that clients are slow to read. They exist already, so they are charged without waiting;
what is left limits the next fetches.
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
        """Whether a request waits for bytes that others hold."""
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
