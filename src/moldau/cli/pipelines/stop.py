"""`moldau pipeline stop NAME`: end a pipeline after its running micro-batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

from moldau.cli.common import CommandParser, print_json, run
from moldau.cli.pipelines.status import chosen_runs
from moldau.cli.pipelines.workers import add_worker, stop
from moldau.errors import CommandError
from moldau.pipelines.engine.state_files import KnownRun, known_runs

_POLL_S = 0.1


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline stop") -> int:
    parser = CommandParser(
        prog,
        "Stop pipelines that run on this machine after the micro-batches they are in, and wait until they have ended.\n"
        "Other pipelines of the same process keep running.",
        "{prog} page-counts\n{prog} --all --now",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="pipelines or their files")
    parser.add_flag("--all", "all that run")
    parser.add_flag("--now", "do not wait for the end of the micro-batch: it is repeated at the next start")
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="SECONDS", help="longest wait for the end (default: 60)"
    )
    add_worker(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)
    if bool(arguments.names) == arguments.all:
        parser.error("give names of pipelines, or --all")
    if arguments.worker and (arguments.all or arguments.now):
        parser.error("--worker stops pipelines by name, after their micro-batches")

    def work() -> int:
        if arguments.worker:
            return stop(arguments.worker, arguments.names, as_json=arguments.json)
        runs = known_runs() if arguments.all else chosen_runs(arguments.names)
        for each in runs:
            each.ask_to_stop(now=arguments.now)
        for each in runs:
            _wait(each, time.monotonic() + arguments.timeout)
            if not arguments.json:
                print(f"stopped {each.name}")
        if arguments.json:
            print_json([{"pipeline": each.name, "pid": each.facts["pid"], "stopped": True} for each in runs])
        return 0

    return run(prog, work)


def _wait(found: KnownRun, deadline_s: float) -> None:
    while not found.has_ended():
        if time.monotonic() > deadline_s:
            raise CommandError(
                f"pipeline {found.name} has not ended yet: it will after its micro-batch (`--now` does not wait)"
            )
        time.sleep(_POLL_S)
