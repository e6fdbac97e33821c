"""How long the steps of an event loop take.

Counted in CPU time of the loop's thread: a busy machine, or a thread that takes the interpreter's lock for a moment,
is not the step's fault. Only asyncio's own loop can be watched; uvloop's steps are not seen from Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def watched_steps(tell: Callable[[float], None], thread_name: str | None = None) -> Iterator[None]:
    """Tells the seconds of each step of the loops in this process, or of the one in the thread of that name."""
    handle_class: Any = asyncio.events.Handle  # its `_run` is not for everybody
    original = handle_class._run

    def run(handle: asyncio.Handle) -> None:
        if thread_name is not None and threading.current_thread().name != thread_name:
            original(handle)
            return
        before_s = time.thread_time()
        original(handle)
        tell(time.thread_time() - before_s)

    handle_class._run = run
    try:
        yield
    finally:
        handle_class._run = original
