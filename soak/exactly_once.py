"""Consume, transform, produce, exactly once, while broker and programs are killed at random moments.

source ──▶ copiers (processes; read a group's share, write, commit offsets and records in one transaction) ──▶ target

holds when   every record of the source is in the target once, to a reader of committed records,
             who reads along all the time and never sees a record of a transaction that was aborted
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from soak.copies import Reader, fill, problems, read_again, wait
from soak.programs import Programs

COPIERS = 2
DEADLINE_S = 300.0
KILLS_MIN = 5
"""Or nearly: copiers make progress in transactions, so some kills come later than asked for."""


class Outcome(NamedTuple):
    records: int  # of the target, as the reader who read along has them
    problems: list[str]
    broker_kills: int
    copier_kills: int
    elapsed_s: float


class Victim(Protocol):
    """A broker, or one of several, that is killed and started again."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    def kill(self) -> None: ...

    def start(self) -> float: ...


def run_exactly_once(
    broker: Victim,
    *,
    records: int,
    seed: int,
    pause_s: tuple[float, float] = (0.3, 2.0),
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """`broker` is running. Kills go on until the target is whole."""
    rng = random.Random(seed)
    expected = fill(broker.bootstrap, records)
    reader = Reader(broker.bootstrap)
    copiers = Programs("soak.copier", COPIERS, broker.bootstrap, rng, broker.folder / "copiers.log")
    reader.start()
    kills = Counter[str]()
    started = time.monotonic()
    try:
        while len(reader.seen) < records and time.monotonic() - started < DEADLINE_S:
            copiers.keep_alive()
            # By time or by progress, whichever is first: a fast machine must not be done before the first kill.
            enough = min(records, len(reader.seen) + rng.randrange(1, records // KILLS_MIN))
            wait(rng.uniform(*pause_s), partial(reader.has, enough))
            if rng.random() < 0.5:
                kills["broker"] += 1
                broker.kill()
                broker.start()
            else:
                kills["copier"] += 1
                copiers.kill_one()
            report(f"{len(reader.seen):>8,} of {records:,}; kills: {dict(kills)}")
        copiers.kill_all()
        fresh = read_again(broker.bootstrap, records)
    finally:
        copiers.kill_all()
        reader.stop()
    found = problems("read along", expected, reader.seen) + problems("read afterwards", expected, fresh)
    elapsed_s = time.monotonic() - started
    return Outcome(sum(reader.seen.values()), found, kills["broker"], kills["copier"], elapsed_s)
