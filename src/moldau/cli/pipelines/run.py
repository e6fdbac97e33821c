"""`moldau pipeline run FILE…|DIR`: run pipelines until they are stopped, or until `available now` is done.

Exit codes: 0 ended as asked, 1 a pipeline failed, 2 wrong usage or a wrong file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from moldau.cli.common import EXIT_FAILED, CommandParser, run, warn
from moldau.clocks import wall_clock_ms
from moldau.pipelines.doors.yaml_file import load_pipelines
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline

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
    parser.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,…", help="brokers, instead of kafka.bootstrap.servers of the files"
    )
    parser.add_argument("--master", help="Spark's master, instead of the files' (local[*], spark://…, yarn, k8s://…)")
    parser.add_argument("--checkpoint", metavar="DIR", help="folder for checkpoints, instead of the files'")
    parser.add_flag("--available-now", "process what is there, then end")
    parser.add_flag("--verbose", "print Spark's own log and full errors")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics on this port")
    parser.add_json()
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    pipelines = [_overridden(pipeline, arguments) for pipeline in load_pipelines(arguments.paths)]
    from moldau.pipelines.engine.run import Run
    from moldau.pipelines.engine.session import quiet_errors
    from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State

    class Lines(Listener):
        """A line for each change of state."""

        def changed(self, query: RunningQuery) -> None:
            if arguments.json:
                facts = {"pipeline": query.pipeline, "query": query.name, "state": query.state, "reason": query.reason}
                print(json.dumps(facts, ensure_ascii=False), flush=True)
            elif query.state is not State.STARTING or not query.restarts:
                print(_line(query), flush=True)

    def _line(query: RunningQuery) -> str:
        wait_ms = max((query.next_try_ms or 0) - wall_clock_ms(), 0)
        when = f" in {wait_ms / 1000:.0f} s" if query.next_try_ms is not None else ""
        return f"{query}: {query.state}{when}{': ' if query.reason else ''}{query.reason}"

    started = Run(pipelines, master=arguments.master, listeners=[Lines()])
    if not arguments.verbose:
        started.spark.sparkContext.setLogLevel("OFF")  # reasons are printed as sentences, without Java's stacks
        quiet_errors()
    _stop_on_signals(started)
    started.start()
    while not started.wait(_WAIT_S):
        pass
    started.spark.stop()
    return EXIT_FAILED if any(query.state is State.FAILED for query in started.queries) else 0


def _overridden(pipeline: Pipeline, arguments: argparse.Namespace) -> Pipeline:
    """The pipeline with what the command line says in place of its settings."""
    given = {
        "kafka.bootstrap.servers": arguments.bootstrap_server,
        "master": arguments.master,
        "checkpoint": arguments.checkpoint and os.path.abspath(arguments.checkpoint),
        "trigger": "available now" if arguments.available_now else None,
    }
    ours = {name: Given(value) for name, value in given.items() if value is not None}
    return replace(pipeline, settings={**pipeline.settings, **ours})


def _stop_on_signals(started: object) -> None:
    from moldau.pipelines.engine.run import Run

    assert isinstance(started, Run)
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
