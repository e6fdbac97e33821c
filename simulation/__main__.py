"""Runs seeds, all scenarios in turn; exit code 1 when one of them fails, with the command line that repeats it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool

from simulation.run import Outcome, run
from simulation.scenarios import SCENARIOS

FAILURES_SHOWN = 5


def _run(task: tuple[str, int]) -> Outcome:
    outcome = run(*task)
    return outcome if outcome.problem is not None else outcome._replace(trace=[])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="A cluster under faults, from a seed.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many, of each scenario")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--scenario", choices=SCENARIOS, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: every event, from the beginning")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    logging.getLogger("moldau").setLevel(logging.CRITICAL)  # the trace tells it with the time of the simulation
    names = [arguments.scenario] if arguments.scenario else list(SCENARIOS)
    if arguments.seed is not None:
        outcomes = [run(name, arguments.seed, keeps_trace=arguments.trace) for name in names]
        return 1 if sum(_print(outcome, with_trace=arguments.trace) for outcome in outcomes) else 0
    tasks = [(name, seed) for seed in range(arguments.first, arguments.first + arguments.seeds) for name in names]
    return _run_all(tasks, arguments.workers)


def _run_all(tasks: Sequence[tuple[str, int]], workers: int) -> int:
    began_s = time.monotonic()
    steps = committed = failures = 0
    failed: dict[str, int] = {}
    with Pool(workers) as pool:
        for outcome in pool.imap_unordered(_run, tasks, chunksize=8):
            steps += outcome.steps
            committed += outcome.committed
            if outcome.problem is not None:
                failures += 1
                failed[outcome.scenario] = failed.get(outcome.scenario, 0) + 1
                if failures <= FAILURES_SHOWN:
                    _print(outcome, with_trace=True)
    elapsed_s = time.monotonic() - began_s
    print(
        f"{len(tasks):,} runs, {steps:,} steps, {committed:,} records committed, {failures} failures {failed or ''}"
        f" in {elapsed_s:.0f} s ({len(tasks) / elapsed_s:.0f} runs/s)"
    )
    return 1 if failures else 0


def _print(outcome: Outcome, *, with_trace: bool) -> bool:
    """True for a failure."""
    if with_trace:
        print(*outcome.trace, sep="\n")
    verdict = "as it should be" if outcome.problem is None else f"FAILED: {outcome.problem}"
    print(f"{outcome.scenario}, seed {outcome.seed}, step {outcome.steps}: {verdict}", flush=True)
    if outcome.problem is not None:
        print(f"  again: {outcome.command}\n", flush=True)
    return outcome.problem is not None


if __name__ == "__main__":
    sys.exit(main())
