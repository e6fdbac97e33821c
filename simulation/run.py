"""One run: a scenario with a seed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import NamedTuple

from moldau.metadata.image import PartitionImage
from moldau.testing.simulation.cluster import SimulatedCluster
from moldau.testing.simulation.loop import MS, SECOND, Timeout, World
from moldau.testing.simulation.patches import patched, quietly_collected
from moldau.testing.simulation.timeline import TimelineHandler, broker_logs_to
from moldau.wire.apis import ApiKey
from moldau.wire.topic_partition import TopicPartition
from simulation.checker import Checker, Violation
from simulation.client import Admin, Client, creating
from simulation.faults import Faults
from simulation.producers import Consumer
from simulation.scenarios import SCENARIOS, Scenario

START_S = 30
SETTLE_S = 30
"""Of virtual time, for a healed cluster: sessions of 2 s, transactions of 2.5 s, backoffs, several of them in a row."""
LOOK_US = 100 * MS


class Outcome(NamedTuple):
    scenario: str
    seed: int
    virtual_s: float
    events: int
    acknowledged: int
    digest: int
    """Of everything that happened."""
    problem: str | None
    timeline: list[str]

    @property
    def command(self) -> str:
        return f"python -m simulation --scenario {self.scenario} --seed {self.seed} --trace"


class Run:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.world = World(f"{scenario.name}/{seed}")
        self.cluster = SimulatedCluster(self.world, scenario.broker_count, scenario.properties)
        self.clients: list[Client] = []
        self.is_over = False
        """Whether readers may stop."""
        self.checker = Checker(self, unclean=scenario.unclean)
        self.cluster.store.watchers.append(self.checker.metadata_changed)

    def add(self, client: Client) -> None:
        self.clients.append(client)
        client.start()

    def partition(self, place: TopicPartition) -> PartitionImage:
        return self.cluster.store.image.topics[place[0]].partitions[place[1]]

    def min_insync(self, place: TopicPartition) -> int:
        """At the least: a change may be under way."""
        return int(self.scenario.topics[place[0]][2].get("min.insync.replicas", "1"))

    def go(self) -> None:
        world = self.world
        self.cluster.start()
        self._wait("the brokers to start", lambda: self.cluster.is_serving, START_S)
        self.add(Admin(self, "admin-create", ApiKey.CREATE_TOPICS, creating(self.scenario.topics)))
        self._wait("the topics", lambda: not self.checker.unrest(), START_S)
        for client in self.scenario.clients(self):
            self.add(client)
        faults = Faults(self, self.scenario.faults)
        world.run_for(self.scenario.faults_ms * MS)
        faults.heal()
        if self.scenario.lasting:
            world.random.choice(self.scenario.lasting)(faults)
            self._wait("the clients, with what is left", lambda: not self._unfinished, SETTLE_S)
            faults.heal()
        self._settle()
        problem = self.checker.different_logs()
        if problem:
            raise Violation(problem)
        self.checker.check_at_end()

    @property
    def _unfinished(self) -> list[str]:
        return [client.name for client in self.clients if not client.is_done and not isinstance(client, Consumer)]

    def _settle(self) -> None:
        """Writers first: readers are done when there is nothing more to read."""
        readers = [client for client in self.clients if isinstance(client, Consumer)]
        self.clients = [client for client in self.clients if client not in readers]
        self._wait("the cluster to come to rest", lambda: not self.checker.unrest(), SETTLE_S)
        self._wait("the readers", lambda: not [one for one in readers if self._is_behind(one)], SETTLE_S)

    def _is_behind(self, reader: Consumer) -> bool:
        place, position = reader.place, reader.position
        leader = self.cluster.brokers[self.partition(place).leader].server
        return leader is None or position < leader.node.logs.logs[place].high_watermark

    def _wait(self, what: str, is_done: Callable[[], bool], limit_s: int) -> None:
        until_us = self.world.now_us + limit_s * SECOND
        while not is_done():
            if self.world.now_us >= until_us:
                raise Violation(f"waited {limit_s} s for {what}: {self.checker.unrest()}")
            self.world.run_for(LOOK_US)


class _LogWatcher(TimelineHandler):
    """What brokers log goes to the timeline; an error with an exception ends the run."""

    def emit(self, record: logging.LogRecord) -> None:
        world, host = self.world, self.world.current
        if host is not None and host.loop is None:
            return  # the process was killed in the middle of this call: what unwinds would not run
        super().emit(record)
        if record.exc_info and record.exc_info[1] is not None and record.levelno >= logging.ERROR:
            error = record.exc_info[1]
            if isinstance(error, Violation):
                world.fail(error)
                return
            text = "".join(traceback.format_exception(error))
            world.fail(Violation(f"{record.getMessage()} ({host.name if host is not None else '?'})\n{text}"))


def run(name: str, seed: int) -> Outcome:
    with quietly_collected():
        return _run(Run(SCENARIOS[name], seed), seed)


def _run(started: Run, seed: int) -> Outcome:
    problem = None
    world = started.world
    with patched(world), broker_logs_to(_LogWatcher(world)):
        try:
            started.go()
        except (Violation, Timeout) as violation:
            problem = str(violation)
        except Exception:
            problem = traceback.format_exc()
        world.close()
    return Outcome(
        started.scenario.name,
        seed,
        world.now_us / SECOND,
        world.events,
        started.checker.acknowledged_count,
        world.digest,
        problem,
        world.timeline(),
    )
