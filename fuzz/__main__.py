"""Starts a broker, attacks it, says what happened; exit code 1 when the broker was hurt.

First come damaged frames, for `--seconds`; then, to another broker, the largest valid requests of every API.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fuzz import holds
from fuzz.attack import Attack
from fuzz.target import prepare, served_versions
from soak.broker_process import BrokerProcess


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Mutated frames and huge requests against a live broker."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of mutated frames; 0: none")
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run; default: a new one, printed")
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument(
        "--largest", metavar="NAME", default="", help="of the largest requests, only those of APIs with NAME in theirs"
    )
    arguments = parser.parse_args(argv)
    frames = _send_frames(arguments) if arguments.seconds > 0 else 0
    return _send_largest(arguments.largest) or frames


def _send_frames(arguments: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    with (
        tempfile.TemporaryDirectory(prefix="moldau-fuzz-") as folder,
        BrokerProcess(Path(folder), log_level="WARNING") as broker,
    ):
        return _attack(broker, seed, arguments.seconds, arguments.connections)


def _send_largest(only: str) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="moldau-fuzz-") as folder,
        holds.WatchedBroker(Path(folder)) as broker,
    ):
        print(holds.HEAD)
        outcomes = []
        for outcome in holds.attack(broker, only=only):
            outcomes.append(outcome)
            print(outcome, flush=True)
        slow = sum(outcome.is_slow for outcome in outcomes)
        silent = sum(outcome.answer == "silent" for outcome in outcomes)
        print(
            f"{len(outcomes)} requests: {slow} held the loop for more than {1000 * holds.HOLD_MAX_S:.0f} ms, "
            f"{silent} were not answered"
        )
        return 1 if slow or silent or "Traceback" in broker.output() else 0


def _attack(broker: BrokerProcess, seed: int, seconds: float, connections: int) -> int:
    versions = served_versions(broker.bootstrap)
    attack = Attack(broker.bootstrap, prepare(broker.bootstrap), versions, seed)
    before_bytes = broker.rss_bytes()

    def progress(now: Attack) -> None:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(now.outcomes.items()))
        print(f"{now.sent:>10,} frames: {counts}; broker {broker.rss_bytes() / 1e6:.0f} MB", flush=True)

    asyncio.run(attack.run(seconds=seconds, connections=connections, progress=progress))
    progress(attack)
    unexpected = int(broker.metrics()["moldau_unexpected_errors_total"])
    growth_mb = (broker.rss_bytes() - before_bytes) / 1e6
    print(f"{len(versions)} API versions, seed {seed}: {unexpected} unexpected errors, {growth_mb:+.0f} MB")
    if "Traceback" in broker.output():
        print(broker.output()[-10_000:], file=sys.stderr)
        return 1
    return 1 if unexpected or attack.outcomes["silent"] else 0


if __name__ == "__main__":
    sys.exit(main())
