"""Waiting for a state, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 30.0


def eventually(is_so: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.02)
