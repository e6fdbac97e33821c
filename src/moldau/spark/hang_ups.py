"""Silences the error of a Python worker whose connection the JVM has closed, which is not a failure.

Spark closes the connection when it has all the rows it needs: `show(2)` and `limit` read the first rows of a task, and
`query.stop()` stops a stream reader. PySpark then fails to write to the socket, prints a traceback and ends the worker.
The worker has to end, but the traceback of a query that worked is noise.

The error is raised in PySpark's own code, after the data source has returned, so a reader cannot catch it. Errors of
user code do not get there, because PySpark sends them to the JVM. The traceback is therefore suppressed where it is
printed, only in processes of workers: the daemon's module gets a `traceback` that omits these errors, and a process
that Spark starts for one module (`python -m pyspark.sql.streaming.python_streaming_source_runner`) an `excepthook`.

`fork_client` runs such a module through this one, so that the hook is in place before the first error:

    python -m moldau.spark.hang_ups <module>
"""

from __future__ import annotations

import runpy
import sys
import traceback
from socketserver import BaseServer
from types import TracebackType
from typing import Any

_DAEMON = "pyspark.daemon"
HANG_UPS = (BrokenPipeError, ConnectionResetError, EOFError)


class _Traceback:
    """As much of `traceback` as PySpark's daemon uses."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not _is_hang_up(sys.exception()):
            traceback.print_exc()


def ignore_hang_ups() -> None:
    """In the process of PySpark's daemon or of one of its workers; in any other, nothing happens.

    Spark runs the daemon as a script (`python -m pyspark.daemon`), and ours imports it.
    """
    for name in (_DAEMON, "__main__"):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is None or spec is None:
            continue
        if spec.name == _DAEMON:
            module.traceback = _Traceback  # type: ignore[attr-defined]
        elif spec.name.startswith("pyspark."):
            sys.excepthook = _print_unless_hang_up


def ignore_hang_ups_in(server: BaseServer) -> None:
    """In the driver: of the server that takes the updates of accumulators, from tasks that may be cancelled."""
    tell = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not _is_hang_up(sys.exception()):
            tell(request, address)

    server.handle_error = handle_error  # type: ignore[method-assign, assignment]


def _print_unless_hang_up(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if not _is_hang_up(error):
        sys.__excepthook__(kind, error, where)


def _is_hang_up(error: BaseException | None) -> bool:
    """A JVM that listens no more has hung up, too; one that still waits for its worker says so itself."""
    return isinstance(error, HANG_UPS) or "[CANNOT_OPEN_SOCKET]" in str(error)


def run_module(name: str) -> int:
    """Do what `python -m` does, in a process that may have imported the module before; its exit code."""
    sys.excepthook = _print_unless_hang_up
    sys.modules.pop(name, None)  # Python would warn that it is loaded twice
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # whatever it is, it ends the process
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    del sys.argv[0]
    sys.exit(run_module(sys.argv[0]))
