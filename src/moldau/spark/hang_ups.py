"""A JVM that closes the connection to a Python worker first, which is no failure.

Spark does so whenever it has all it wants: `show(2)` and `limit` read the first rows of a task and close the socket
while the task still writes. PySpark's daemon then fails to flush that socket, prints a traceback, and ends the worker.
The worker has to end; the traceback of a query that worked is noise.

The error appears in the daemon's own frames, after the last line of any data source has run, so a reader cannot catch
it. Instead, the daemon's module gets a `traceback` that leaves these errors out. The module is that of a worker's own
process, and what comes from a user's code never gets there: PySpark sends it to the JVM.
"""

from __future__ import annotations

import sys
import traceback

_DAEMON = "pyspark.daemon"
HANG_UPS = (BrokenPipeError, ConnectionResetError)


class _Traceback:
    """As much of `traceback` as PySpark's daemon uses."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), HANG_UPS):
            traceback.print_exc()


def ignore_hang_ups() -> None:
    """In the process of PySpark's daemon or of one of its workers; in any other, nothing happens.

    Spark runs the daemon as a script (`python -m pyspark.daemon`), and ours imports it.
    """
    for name in (_DAEMON, "__main__"):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and spec is not None and spec.name == _DAEMON:
            module.traceback = _Traceback  # type: ignore[attr-defined]
