"""The scenarios: how large the cluster is, who uses it, what goes wrong. Nothing may be lost, but in the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.wire.topic_partition import TopicPartition
from simulation.client import Churn, Client
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
    faults: Sequence[str]
    clients: Callable[[Run], list[Client]] = _producers
    broker_count: int = 3
    topics: Topics = field(default_factory=lambda: {DATA: (2, 3, SAFE)})
    properties: Mapping[str, str] = field(default_factory=lambda: SAFE)
    faults_ms: int = 4_000
    interval_ms: tuple[int, int] = (150, 1_200)
    """Between two faults."""
    lasting: Sequence[str] = ()
    """One of them stays when the others are over: the cluster has to do without."""
    is_synced: bool = False
    """Whether what is acknowledged is on the disks: then machines lose nothing."""
    unclean: bool = False

    @property
    def data_topic(self) -> str:
        return DATA


_CONTROLLER = ("kill_controller", "pause_controller")
_STORE = ("store_outage", "store_cut", "store_refuses")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("crashes", ("kill", "kill_in_write", "lose_power", "lose_power", "pause", "kill_all")),
        Scenario("network", ("isolate", "isolate", "cut", "cut", "slow", "slow", "pause")),
        Scenario(
            "lasting",
            ("isolate", "cut", "slow", "pause", "kill"),
            faults_ms=1_500,
            lasting=("cut_for_good", "cut_for_good", "pause_for_good", "isolate_for_good"),
        ),
        Scenario("controllers", (*_CONTROLLER, *_STORE, "store_flaps", "kill", "kill", "lose_power")),
        Scenario(
            "power",
            ("lose_power", "lose_power", "lose_power", "kill", "pause", "slow"),
            topics={DATA: (2, 3, SYNCED)},
            is_synced=True,
        ),
        Scenario(
            "moves",
            ("reassign", "reassign", "reassign", "elect", "kill", "lose_power", "isolate", *_CONTROLLER, "slow"),
            broker_count=4,
        ),
        Scenario(
            "minimums",
            ("set_minimum", "set_minimum", "kill", "kill", "lose_power", "isolate", "slow", *_CONTROLLER, "pause"),
        ),
        Scenario(
            "coordinators",
            ("kill", "elect", "isolate", "pause", "lose_power", "cut", "slow", "slow", "kill_controller"),
            clients=_transactors,
        ),
        Scenario("starts", ("restart_follower",), clients=_changers, interval_ms=(50, 500)),
        Scenario(
            "storms", ("restart", "restart", "kill_in_write", "store_flaps"), _one_producer, interval_ms=(10, 150)
        ),
        Scenario("shutdowns", ("shut_down", "shut_down", "shut_down", "kill", "pause_controller", "elect")),
        Scenario(
            "mixed",
            (
                *("kill", "lose_power", "pause", "isolate", "cut", "slow", "shut_down", "jump_clock", "set_minimum"),
                *("elect", *_CONTROLLER, *_STORE),
            ),
            clients=_everybody,
        ),
        Scenario("disks", ("disk_full", "disk_full", "disk_fails", "disk_hangs", "kill", "lose_power", "pause")),
        Scenario(
            "unclean",
            ("lose_any_power", "kill", "isolate", "lose_any_power", "pause"),
            clients=_careless,
            topics={DATA: (1, 3, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})},
            unclean=True,
        ),
    )
}
