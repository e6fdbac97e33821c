"""A Spark query copies a topic exactly once, while its driver, its Python workers and the broker are killed.

source ──▶ streaming query (Moldau's source, Moldau's exactly-once sink) ──▶ target

holds when   every record of the source is in the target once, to a reader of committed records, and no
             transaction is left open in the end
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import psutil

from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from moldau.client.transactions import list_transactions
from soak.broker_process import BrokerProcess
from soak.copies import Reader, fill, problems, read_again, wait
from soak.programs import ROOT

DEADLINE_S = 900.0
PATIENCE_S = 60.0  # until a driver that was started shows progress, on a busy machine
EARLY = 0.2  # so many kills do not wait for progress
BATCH_S = 0.5  # about as long as a batch takes: a kill comes in any phase of one
VICTIMS = ("driver", "worker", "broker", "worker", "driver")
UNKILLED = "killed in vain"


class Outcome(NamedTuple):
    records: int
    problems: list[str]
    kills: Counter[str]
    elapsed_s: float


@dataclass
class Driver:
    """The query's driver: a Python process, its JVM, and the Python workers that the JVM starts."""

    bootstrap: str
    folder: Path
    into: str = "stream"
    process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.kill()  # what a driver that ended by itself may have left
        with (self.folder / "driver.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "soak.spark_copier", self.bootstrap, str(self.folder / "checkpoint"), self.into],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """All of it at once, as when the machine goes."""
        if self.process is None:
            return
        for victim in _family(self.process.pid):
            with suppress(psutil.NoSuchProcess):  # some end by themselves when others do
                victim.kill()
        self.process.wait()

    def kill_worker(self, rng: random.Random) -> bool:
        """One Python process under the JVM: a task, the source's planner, or the daemon that forks them."""
        assert self.process is not None
        workers = [one for one in _family(self.process.pid) if one.pid != self.process.pid and _is_python(one)]
        with suppress(psutil.NoSuchProcess):
            if workers:
                rng.choice(workers).kill()
                return True
        return False


def run_spark_copy(
    broker: BrokerProcess,
    *,
    records: int,
    kills_min: int,
    seed: int,
    into: str = "stream",
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """`broker` is running; `into` is stream or foreachBatch.

    After `kills_min` kills the query is left alone until the target is whole.
    """
    rng = random.Random(seed)
    victims = cycle(rng.sample(VICTIMS, len(VICTIMS)))
    expected = fill(broker.bootstrap, records)
    reader = Reader(broker.bootstrap)
    driver = Driver(broker.bootstrap, broker.folder, into)
    kills = Counter[str]()
    started = time.monotonic()
    reader.start()
    try:
        while not reader.has(records) and time.monotonic() - started < DEADLINE_S:
            driver.keep_alive()
            if kills.total() - kills[UNKILLED] >= kills_min:
                wait(0.5, partial(reader.has, records))
                continue
            # By progress, whatever the machine is busy with; but now and then before the query has done anything.
            enough = len(reader.seen) + rng.randrange(1, max(2, 2 * (records - len(reader.seen)) // kills_min))
            patience_s = rng.uniform(0.0, 10.0) if rng.random() < EARLY else PATIENCE_S
            wait(patience_s, partial(reader.has, min(enough, records)))
            wait(rng.uniform(0.0, BATCH_S), partial(reader.has, records))
            victim = next(victims)
            kills[victim if _kill(victim, broker, driver, rng) else UNKILLED] += 1
            report(f"{len(reader.seen):>8,} of {records:,}; kills: {dict(kills)}")
        fresh = read_again(broker.bootstrap, records)
    finally:
        driver.kill()
        reader.stop()
    found = problems("read along", expected, reader.seen) + problems("read afterwards", expected, fresh)
    found += _left_open(broker.bootstrap)
    return Outcome(sum(reader.seen.values()), found, kills, time.monotonic() - started)


def _kill(victim: str, broker: BrokerProcess, driver: Driver, rng: random.Random) -> bool:
    if victim == "worker":
        return driver.kill_worker(rng)
    if victim == "driver":
        driver.kill()
    else:
        broker.kill()
        broker.start()
    return True


def _left_open(bootstrap: str) -> list[str]:
    """The driver that was stopped last may leave one batch; its transactions end by their time-out."""
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:

        def ended() -> bool:
            return all(
                one.state not in ("Ongoing", "PrepareCommit", "PrepareAbort") for one in list_transactions(cluster)
            )

        wait(30, ended)
        return [] if ended() else ["transactions are left open"]


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def _is_python(process: psutil.Process) -> bool:
    try:
        return "python" in process.name()
    except psutil.NoSuchProcess:
        return False
