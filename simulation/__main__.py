"""Runs seeds, all scenarios in turn; exit code 1 when one of them fails, with the command line that repeats it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from multiprocessing import Pool

from simulation.planted import PLANTED, planted
from simulation.run import Outcome, run
from simulation.scenarios import SCENARIOS

FAILURES_SHOWN = 3
LINES_SHOWN = 80
"""Of the timeline of a failure, unless the whole of it is asked for."""


def _run(task: tuple[str, int, str | None]) -> Outcome:
    name, seed, bug = task
    with planted(bug) if bug is not None else nullcontext():
        return run(name, seed)


def _run_briefly(task: tuple[str, int, str | None]) -> Outcome:
    """Without the timeline of a run in which nothing is wrong."""
    outcome = _run(task)
    return outcome if outcome.problem is not None else outcome._replace(timeline=[])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description="Clusters of real brokers under faults, each run from a seed."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many; the scenarios take turns")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--scenario", choices=SCENARIOS, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: the whole timeline")
    parser.add_argument("--planted", choices=PLANTED, help="with this bug in the brokers; ends when it is found")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    bug = arguments.planted
    scenario = arguments.scenario or (PLANTED[bug][1] if bug is not None else None)
    names = list(SCENARIOS) if scenario is None else [scenario]
    if arguments.seed is not None:
        outcome = _run((names[arguments.seed % len(names)], arguments.seed, bug))
        return 1 if _print(outcome, bug, whole=arguments.trace) else 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    tasks = [(names[seed % len(names)], seed, bug) for seed in seeds]
    return _run_all(tasks, arguments.workers)


def _run_all(tasks: Sequence[tuple[str, int, str | None]], workers: int) -> int:
    """With a bug planted, until it is found."""
    began_s = time.monotonic()
    count = failures = acknowledged = 0
    virtual_s = 0.0
    bug = tasks[0][2]
    for outcome in _outcomes(tasks, workers):
        count += 1
        virtual_s += outcome.virtual_s
        acknowledged += outcome.acknowledged
        if outcome.problem is not None:
            failures += 1
            if failures <= FAILURES_SHOWN:
                _print(outcome, bug, whole=False)
            if bug is not None:
                print(f"{bug}: found by run {count}")
                break
    elapsed_s = time.monotonic() - began_s
    print(
        f"{count:,} runs, {virtual_s:,.0f} virtual seconds, {acknowledged:,} records acknowledged, {failures} failures "
        f"in {elapsed_s:.0f} s ({count / elapsed_s:.1f} runs/s)"
    )
    return 1 if failures else 0


def _outcomes(tasks: Sequence[tuple[str, int, str | None]], workers: int) -> Iterable[Outcome]:
    if workers == 1:
        yield from map(_run, tasks)
        return
    with Pool(workers) as pool:
        yield from pool.imap_unordered(_run_briefly, tasks)


def _print(outcome: Outcome, bug: str | None, *, whole: bool) -> bool:
    """True for a failure."""
    if whole or outcome.problem is not None:
        print(*(outcome.timeline if whole else outcome.timeline[-LINES_SHOWN:]), sep="\n")
    verdict = "nothing is wrong" if outcome.problem is None else f"FAILED: {outcome.problem}"
    print(f"{outcome.scenario}, seed {outcome.seed}, {outcome.virtual_s:.3f} virtual seconds: {verdict}", flush=True)
    if outcome.problem is not None:
        print(f"  again: {outcome.command}{'' if bug is None else f' --planted {bug}'}\n", flush=True)
    return outcome.problem is not None


if __name__ == "__main__":
    # Sets of texts are ordered by their hashes, which differ from process to process unless this is set.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    sys.exit(main())
