"""Keeps the signals that ask a program to end away from Spark's processes: the driver handles them and ends Spark.

Ctrl-C and `timeout` signal a whole process group, systemd every process of a unit. If the JVM or a Python worker ended
by itself then, the driver could not finish the batches that run. None of these processes needs the signals: each ends
when the one that started it closes its standard input or its socket, also after `kill -9`.

The JVM is started with the signals ignored (`java.home_for_scripts`). Python processes handle them by doing nothing,
because a program that they execute would inherit ignored signals; what they fork gets the usual handling back.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, ModuleType
from typing import Any

END_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def shield_process(*, forks_too: bool = False) -> None:
    """This process, and with `forks_too` what it forks."""
    for number in END_SIGNALS:
        signal.signal(number, _do_nothing)
    if not forks_too:
        os.register_at_fork(after_in_child=_handle_as_usual)


def shield_daemon(module: ModuleType) -> None:
    """PySpark's daemon and the workers it forks set handlers of their own."""
    module.signal = _DaemonSignals()  # type: ignore[attr-defined]


class _DaemonSignals:
    """As much of `signal` as PySpark's daemon uses. SIGHUP is left alone: by it the daemon ends its workers."""

    def __init__(self) -> None:
        self._worker: int | None = None

    def signal(self, number: int, handler: Any) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)
            return
        signal.signal(number, _do_nothing)
        if handler is signal.default_int_handler and self._worker != os.getpid():  # only a worker sets that one
            self._worker = os.getpid()
            os.register_at_fork(after_in_child=_handle_as_usual)

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The driver ends this process."""


def _handle_as_usual() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
