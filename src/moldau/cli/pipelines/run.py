"""`moldau pipeline run FILE…|DIR`: run pipelines until they are stopped, or until `available now` is done.

Exit codes: 0 ended as asked, 1 a pipeline failed, 2 wrong usage or a wrong file.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import FrameType

from moldau.cli.common import EXIT_FAILED, CommandParser, run, warn
from moldau.cli.pipelines.overrides import add_overrides, overridden
from moldau.pipelines.doors.yaml_file import load_pipelines
from moldau.pipelines.model.pipeline import Pipeline
from moldau.pipelines.model.references import hidden

_INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h\n"
_WAIT_S = 0.5  # signals are handled in between


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline run") -> int:
    parser = CommandParser(
        prog,
        "Run pipelines in one Spark session until they are stopped. Queries that fail are restarted.\n"
        "Ctrl-C, SIGTERM or SIGHUP: end after the running micro-batches. A second Ctrl-C ends at once.",
        "{prog} page-counts.yaml\n{prog} pipelines/ --bootstrap-server kafka:9092",
    )
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR", help="pipeline files, or folders with some")
    add_overrides(parser)
    parser.add_flag("--available-now", "process what is there, then end")
    parser.add_flag("--verbose", "print Spark's own log")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics on this port")
    parser.add_json()
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    pipelines = [overridden(pipeline, arguments) for pipeline in load_pipelines(arguments.paths)]
    return run_until_stopped(
        pipelines,
        master=arguments.master,
        is_verbose=arguments.verbose,
        is_json=arguments.json,
        metrics_port=arguments.metrics_port,
    )


def run_until_stopped(
    pipelines: Sequence[Pipeline],
    *,
    master: str | None = None,
    is_verbose: bool = False,
    is_json: bool = False,
    metrics_port: int | None = None,
) -> int:
    """Run them in one Spark session, show how they do, and return the exit code."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from moldau.pipelines.engine.run import Run
    from moldau.pipelines.engine.session import silence
    from moldau.pipelines.engine.supervisor import State
    from moldau.pipelines.engine.watching.live_view import open_view
    from moldau.pipelines.engine.watching.metrics import serve_metrics

    if sys.stdout.isatty() and not is_json:
        print("starting Spark …", flush=True)
    _log_plainly()
    signals = _StopSignals()
    try:
        started = Run(pipelines, master=master)
    except Exception:
        if not signals.is_asked:
            raise
        warn("stopped while Spark was starting")  # the signal may have ended one of Spark's scripts, too
        return 0
    if not is_verbose:
        silence(started.spark)
    with ExitStack() as opened:
        if metrics_port is not None:
            opened.callback(serve_metrics(lambda: started.observer.latest, metrics_port))
            started.files.more["metrics_port"] = metrics_port
        started.observer.add_show(opened.enter_context(open_view(sys.stdout, as_json=is_json)).show)
        signals.set_stop(started.stop)
        started.start()
        while not started.wait(_WAIT_S):
            pass
    with suppress(OSError, Py4JError):  # the JVM may be gone
        started.spark.stop()
    return EXIT_FAILED if any(query.state is State.FAILED for query in started.queries) else 0


def _log_plainly() -> None:
    """Warnings have their time, as the lines of queries have, and never what references stand for."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))


class _StopSignals:
    """What SIGINT, SIGTERM and SIGHUP do. While Spark starts, Ctrl-C ends at once; the others wait for the start."""

    def __init__(self) -> None:
        self.is_asked = False
        self._stop: Callable[[], None] | None = None
        self._is_interrupted = False
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(signal.SIGHUP, self._handle)

    def set_stop(self, stop: Callable[[], None]) -> None:
        """It is called by the signals, and now if one has come."""
        self._stop = stop
        signal.signal(signal.SIGINT, self._handle)  # in place of PySpark's handler, which cancels all jobs
        if self.is_asked:
            stop()

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.is_asked = True
        if number == signal.SIGINT:
            self._interrupted()
        if self._stop is not None:
            self._stop()

    def _interrupted(self) -> None:
        if self._is_interrupted:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)  # the live view has hidden it
            os._exit(_INTERRUPTED)  # the JVM ends with us; what it was writing is repeated or undone at the next start
        self._is_interrupted = True
        if sys.stderr.isatty():
            warn("ending after the running micro-batches; Ctrl-C again ends at once")
