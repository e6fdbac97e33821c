"""`moldau pipeline run FILE…|DIR`: run pipelines until they are stopped, or until `available now` is done.

Exit codes: 0 ended as asked, 1 a pipeline failed, 2 wrong usage or a wrong file.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import FrameType
from typing import TYPE_CHECKING

from moldau.cli.common import EXIT_FAILED, CommandParser, run, warn
from moldau.cli.pipelines.overrides import add_overrides, overridden
from moldau.pipelines.doors.yaml_file import load_pipelines

if TYPE_CHECKING:
    from moldau.pipelines.engine.run import Run

_INTERRUPTED = 130
_WAIT_S = 0.5  # signals are handled in between


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline run") -> int:
    parser = CommandParser(
        prog,
        "Run pipelines in one Spark session until they are stopped. Queries that fail are restarted.\n"
        "Ctrl-C or SIGTERM: end after the running micro-batches. A second Ctrl-C ends at once.",
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
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from moldau.pipelines.engine.run import Run
    from moldau.pipelines.engine.session import silence
    from moldau.pipelines.engine.supervisor import State
    from moldau.pipelines.engine.watching.live_view import open_view
    from moldau.pipelines.engine.watching.metrics import serve_metrics

    if sys.stdout.isatty() and not arguments.json:
        print("starting Spark …", flush=True)
    started = Run(pipelines, master=arguments.master)
    if not arguments.verbose:
        silence(started.spark)
    with ExitStack() as opened:
        if arguments.metrics_port is not None:
            opened.callback(serve_metrics(lambda: started.observer.latest, arguments.metrics_port))
            started.files.more["metrics_port"] = arguments.metrics_port
        started.observer.add_show(opened.enter_context(open_view(sys.stdout, as_json=arguments.json)).show)
        _stop_on_signals(started)
        started.start()
        while not started.wait(_WAIT_S):
            pass
    with suppress(OSError, Py4JError):  # the JVM may be gone
        started.spark.stop()
    return EXIT_FAILED if any(query.state is State.FAILED for query in started.queries) else 0


def _stop_on_signals(started: Run) -> None:
    seen: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if signal.SIGINT in seen and number == signal.SIGINT:
            os._exit(_INTERRUPTED)  # the JVM ends with us; what it was writing is repeated or undone at the next start
        if not seen and number == signal.SIGINT and sys.stderr.isatty():
            warn("ending after the running micro-batches; Ctrl-C again ends at once")
        seen.append(number)
        started.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
