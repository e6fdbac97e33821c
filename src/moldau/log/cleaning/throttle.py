"""`log.cleaner.io.max.bytes.per.second`: what is read and written together, over the length of a job."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLEEP_MIN_S = 0.01  # shorter ones are saved up


class Throttle:
    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, count: int) -> None:
        """Sleeps until `count` bytes more are within the rate."""
        self._free_at += count / self._rate
        ahead_s = self._free_at - self._clock()
        if ahead_s >= _SLEEP_MIN_S:
            self._sleep(ahead_s)
