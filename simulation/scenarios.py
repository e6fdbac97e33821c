"""The scenarios: how large the cluster is, who uses it, what goes wrong. Nothing may be lost, but in the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.wire.topic_partition import TopicPartition
from simulation.client import Churn, Client
from simulation.faults import Fault, Faults
from simulation.producers import Consumer, Producer
from simulation.transactors import Committer, Transactor

if TYPE_CHECKING:
    from simulation.run import Run

DATA = "data"
SAFE = {"min.insync.replicas": "2"}
_PLACES = [TopicPartition(DATA, 0), TopicPartition(DATA, 1)]
SYNCED = {**SAFE, "flush.messages": "1"}

Topics = Mapping[str, tuple[int, int, Mapping[str, str]]]
"""By name: partitions, replicas, configuration."""


def _producers(run: Run) -> list[Client]:
    return [
        *(Producer(run, f"producer-{number}", TopicPartition(DATA, number % 2), 45) for number in range(3)),
        *(Consumer(run, f"consumer-{index}", TopicPartition(DATA, index)) for index in range(2)),
    ]


def _transactors(run: Run) -> list[Client]:
    return [
        *(Transactor(run, f"transactor-{number}", _PLACES, 12) for number in range(2)),
        Committer(run, "group", DATA, 16),
        *(Consumer(run, f"consumer-{index}", TopicPartition(DATA, index)) for index in range(2)),
    ]


def _everybody(run: Run) -> list[Client]:
    return [
        Producer(run, "producer-0", TopicPartition(DATA, 0), 40),
        Transactor(run, "transactor-0", _PLACES, 10),
        Committer(run, "group", DATA, 10),
        *(Consumer(run, f"consumer-{index}", TopicPartition(DATA, index)) for index in range(2)),
    ]


def _one_producer(run: Run) -> list[Client]:
    return [Producer(run, "producer-0", TopicPartition(DATA, 0), 25)]


def _changers(run: Run) -> list[Client]:
    return [*_one_producer(run), Churn(run, "churn", DATA, 200)]


def _careless(run: Run) -> list[Client]:
    return [Producer(run, "producer-0", TopicPartition(DATA, 0), 40, idempotent=False)]


@dataclass(frozen=True)
class Scenario:
    name: str
    faults: Sequence[Fault]
    clients: Callable[[Run], list[Client]] = _producers
    broker_count: int = 3
    topics: Topics = field(default_factory=lambda: {DATA: (2, 3, SAFE)})
    properties: Mapping[str, str] = field(default_factory=lambda: SAFE)
    faults_ms: int = 4_000
    interval_ms: tuple[int, int] = (150, 1_200)
    """Between two faults."""
    lasting: Sequence[Fault] = ()
    """One of them stays when the others are over: the cluster has to do without."""
    is_synced: bool = False
    """Whether what is acknowledged is on the disks: then machines lose nothing."""
    unclean: bool = False

    @property
    def data_topic(self) -> str:
        return DATA


_CONTROLLER = (Faults.kill_controller, Faults.pause_controller)
_STORE = (Faults.store_outage, Faults.store_cut, Faults.store_refuses)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "crashes",
            (Faults.kill, Faults.kill_in_write, Faults.lose_power, Faults.lose_power, Faults.pause, Faults.kill_all),
        ),
        Scenario(
            "network", (Faults.isolate, Faults.isolate, Faults.cut, Faults.cut, Faults.slow, Faults.slow, Faults.pause)
        ),
        Scenario(
            "lasting",
            (Faults.isolate, Faults.cut, Faults.slow, Faults.pause, Faults.kill),
            faults_ms=1_500,
            lasting=(Faults.cut_for_good, Faults.cut_for_good, Faults.pause_for_good, Faults.isolate_for_good),
        ),
        Scenario(
            "controllers", (*_CONTROLLER, *_STORE, Faults.store_flaps, Faults.kill, Faults.kill, Faults.lose_power)
        ),
        Scenario(
            "power",
            (Faults.lose_power, Faults.lose_power, Faults.lose_power, Faults.kill, Faults.pause, Faults.slow),
            topics={DATA: (2, 3, SYNCED)},
            is_synced=True,
        ),
        Scenario(
            "moves",
            (
                *(Faults.reassign, Faults.reassign, Faults.reassign, Faults.elect, Faults.kill),
                *(Faults.lose_power, Faults.isolate, *_CONTROLLER, Faults.slow),
            ),
            broker_count=4,
        ),
        Scenario(
            "minimums",
            (
                *(Faults.set_minimum, Faults.set_minimum, Faults.kill, Faults.kill, Faults.lose_power),
                *(Faults.isolate, Faults.slow, *_CONTROLLER, Faults.pause),
            ),
        ),
        Scenario(
            "coordinators",
            (
                *(Faults.kill, Faults.elect, Faults.isolate, Faults.pause, Faults.lose_power),
                *(Faults.cut, Faults.slow, Faults.slow, Faults.kill_controller),
            ),
            clients=_transactors,
        ),
        Scenario("starts", (Faults.restart_follower,), clients=_changers, interval_ms=(50, 500)),
        Scenario(
            "storms",
            (Faults.restart, Faults.restart, Faults.kill_in_write, Faults.store_flaps),
            _one_producer,
            interval_ms=(10, 150),
        ),
        Scenario(
            "shutdowns",
            (Faults.shut_down, Faults.shut_down, Faults.shut_down, Faults.kill, Faults.pause_controller, Faults.elect),
        ),
        Scenario(
            "mixed",
            (
                *(Faults.kill, Faults.lose_power, Faults.pause, Faults.isolate, Faults.cut, Faults.slow),
                *(Faults.shut_down, Faults.jump_clock, Faults.set_minimum, Faults.elect, *_CONTROLLER, *_STORE),
            ),
            clients=_everybody,
        ),
        Scenario(
            "disks",
            (
                *(Faults.disk_full, Faults.disk_full, Faults.disk_fails, Faults.disk_hangs),
                *(Faults.kill, Faults.lose_power, Faults.pause),
            ),
        ),
        Scenario(
            "unclean",
            (Faults.lose_any_power, Faults.kill, Faults.isolate, Faults.lose_any_power, Faults.pause),
            clients=_careless,
            topics={DATA: (1, 3, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})},
            unclean=True,
        ),
    )
}
