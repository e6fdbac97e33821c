"""Waiting for a state, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

Condition = Callable[..., object]  # called without arguments; a lambda may keep a loop's variable as a default
DEADLINE_S = 30.0
_POLL_S = 0.02


def eventually(is_so: Condition, what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise _never(what, within_s)
        time.sleep(_POLL_S)


async def until(is_so: Condition, what: str, within_s: float = DEADLINE_S) -> None:
    """As `eventually`, where the event loop has to go on meanwhile."""
    try:
        async with asyncio.timeout(within_s):
            while not is_so():
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise _never(what, within_s) from None


def _never(what: str, within_s: float) -> AssertionError:
    return AssertionError(f"not within {within_s:.0f} s: {what}")
