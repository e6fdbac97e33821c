"""The scenarios: how large the cluster is, who uses it, what goes wrong. Nothing may be lost, but in the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from simulation.clients import Client, Consumer, Producer
from simulation.cluster import Cluster
from simulation.transactors import Committer, Transactor

DATA = "data"
_SAFE = {"min.insync.replicas": "2"}

Topics = dict[str, tuple[int, int, dict[str, str]]]


def _producers(cluster: Cluster) -> list[Client]:
    return [
        *(Producer(cluster, f"producer {number}", (DATA, number % 2), 30) for number in range(3)),
        *(Consumer(cluster, f"consumer {index}", (DATA, index)) for index in range(2)),
    ]


def _transactors(cluster: Cluster) -> list[Client]:
    places = [(DATA, 0), (DATA, 1)]
    return [
        *(Transactor(cluster, f"transactor {number}", places, 10) for number in range(2)),
        Committer(cluster, "group", DATA, 25),
        *(Consumer(cluster, f"consumer {index}", (DATA, index)) for index in range(2)),
    ]


def _careless(cluster: Cluster) -> list[Client]:
    return [Producer(cluster, "producer 0", (DATA, 0), 40, idempotent=False)]


@dataclass(frozen=True)
class Scenario:
    name: str
    faults: Sequence[str]
    clients: Callable[[Cluster], list[Client]] = _producers
    broker_count: int = 3
    topics: Topics = field(default_factory=lambda: {DATA: (2, 3, _SAFE)})
    faults_ms: int = 5_000
    unclean: bool = False


_STATE: Topics = {DATA: (2, 3, _SAFE), GROUPS_TOPIC: (1, 3, _SAFE), TRANSACTIONS_TOPIC: (1, 3, _SAFE)}

_CONTROLLER = ("kill_controller", "pause_controller")
_STORE = ("store_outage", "store_cut", "store_refuses")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("crashes", ("kill", "kill", "crash_machine", "crash_machine", "pause", "kill_all")),
        Scenario("network", ("isolate", "isolate", "cut", "slow", "slow", "lose", "pause")),
        Scenario(
            "controllers",
            (*_CONTROLLER, *_STORE, "kill", "crash_machine"),
        ),
        Scenario(
            "moves",
            ("reassign", "reassign", "reassign", "elect", "kill", "crash_machine", "isolate", *_CONTROLLER, "slow"),
            broker_count=4,
        ),
        Scenario(
            "minimums",
            ("set_minimum", "set_minimum", "kill", "kill", "crash_machine", "isolate", "slow", *_CONTROLLER, "pause"),
        ),
        Scenario(
            "coordinators",
            ("kill", "elect", "isolate", "pause", "crash_machine", "lose", "slow", "slow", "kill_controller"),
            clients=_transactors,
            topics=_STATE,
        ),
        Scenario("shutdowns", ("shut_down", "shut_down", "shut_down", "kill", "pause_controller", "elect")),
        Scenario(
            "unclean",
            ("crash_any_machine", "kill", "isolate", "crash_any_machine", "pause"),
            clients=_careless,
            topics={DATA: (1, 3, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})},
            unclean=True,
        ),
    )
}
