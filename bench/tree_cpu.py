"""CPU seconds of the processes below this one: of Spark, its JVM, and the JVM's Python workers."""

from __future__ import annotations

import contextlib
import threading
from typing import Self

import psutil

# Often enough that little of a process that ends is missed, seldom enough to cost a few percent of a core.
INTERVAL_S = 0.2


class TreeCpu:
    """What all processes below this one spend while it is entered.

    Spark's Python daemon never waits for the workers it ends, so they are in no parent's account; they are looked at
    while they live. Java runs programs of a few milliseconds (`chmod`, for each file of a checkpoint) and waits for
    them: they are in its account. This process itself, which waits and watches, is left out.
    """

    def __init__(self) -> None:
        self._before = _sample()
        self._latest = dict(self._before)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self._latest.update(_sample())

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._latest.update(_sample())

    @property
    def seconds(self) -> float:
        return spent(self._before, self._latest)


def spent(before: dict[int, float], latest: dict[int, float]) -> float:
    """The sum over all processes of what each was last seen to have spent since the start, or since its own."""
    return sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in latest.items())


def _sample() -> dict[int, float]:
    seen: dict[int, float] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            waited_for = times.children_user + times.children_system if process.name() == "java" else 0.0
            seen[process.pid] = times.user + times.system + waited_for
    return seen
