"""The clocks and the randomness of the standard library, taken over while a world runs.

Brokers get theirs from their `Environment`. This is for everything else that runs inside: client libraries, tests, and
what of the standard library they call.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moldau.testing.simulation.host import WALL_CLOCK_START_US
from moldau.testing.simulation.loop import World


@contextmanager
def quietly_collected() -> Iterator[None]:
    """Around a run from its making on: what its processes leave is collected at the end. Their coroutines never ended,
    and would complain about that."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.freeze()  # what was there before is not looked through again
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # clients that a killed process could not close
            gc.collect()
        gc.unfreeze()
        sys.unraisablehook = hook


@contextmanager
def patched(world: World) -> Iterator[None]:
    """`time`, `uuid`, `random`, `secrets` and `os.urandom` answer from the world, in this thread.

    The garbage collector waits: what it would run in the middle (`__del__`, the `finally` of a forgotten coroutine)
    would come at another moment in each run.
    """

    def wall_ns() -> int:
        world.on_clock_read()
        offset_us = world.current.wall_offset_us if world.current is not None else 0
        return (WALL_CLOCK_START_US + world.now_us + offset_us) * 1_000

    def monotonic_ns() -> int:
        world.on_clock_read()
        offset_us = world.current.monotonic_offset_us if world.current is not None else 0
        return (world.now_us + offset_us) * 1_000

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=world.random.getrandbits(128), version=4)

    replacements: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: wall_ns() / 1e9),
        (time, "time_ns", wall_ns),
        (time, "monotonic", lambda: monotonic_ns() / 1e9),
        (time, "monotonic_ns", monotonic_ns),
        (uuid, "uuid4", new_uuid),
        (os, "urandom", world.random.randbytes),
        (secrets, "randbits", world.random.getrandbits),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    random_state = random.getstate()
    gc_was_on = gc.isenabled()
    for module, name, replacement in replacements:
        setattr(module, name, _in_this_thread(replacement, getattr(module, name)))
    random.seed(world.random.random())
    gc.disable()
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
        random.setstate(random_state)
        if gc_was_on:
            gc.enable()


def _in_this_thread(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Other threads of the process, such as those of a real broker, live in real time."""
    simulating = threading.get_ident()

    def call(*args: Any) -> Any:
        return (replacement if threading.get_ident() == simulating else original)(*args)

    return call
