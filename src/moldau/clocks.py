"""The two clocks.

The wall clock says what time it is. It goes into records and answers, and an administrator or NTP may set it, back as
well as forth. The monotonic clock says how long something takes: its zero means nothing, and nobody can set it. So
deadlines, timeouts and intervals are monotonic, and the wall clock is only compared with what was written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
