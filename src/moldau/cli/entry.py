"""The function behind each installed command: `kafka_topics` for `kafka-topics`, with or without `.sh`.

Until a command handles Ctrl-C itself, it has nothing to clean up: Ctrl-C ends the process at once and prints nothing.
A KeyboardInterrupt would not do, for it strikes in the middle of imports, which print it or turn it into other errors.
So this module imports little, and the command only after the handler is in place.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_INTERRUPTED = 130
"""What a shell says of a program that SIGINT ended."""


def __getattr__(name: str) -> Callable[[], int]:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return lambda: _run(name)


def _run(function: str) -> int:
    _end_on_interrupt()
    from moldau.cli.registry import load

    try:
        return load(function)()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        _end_on_interrupt()  # an event loop that closes leaves Python's own handler behind


def _end_on_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # `nohup` and `&` in a script ignore it
        signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: object) -> None:
    try:
        sys.stdout.flush()
    finally:
        os._exit(EXIT_INTERRUPTED)
