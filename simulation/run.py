"""One run: a scenario with a seed."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from simulation.cluster import Cluster
from simulation.faults import Faults
from simulation.scenarios import DATA, SCENARIOS
from simulation.world import MS, Violation, World

SETTLE_MS = 60_000
"""Of virtual time, for a healed cluster: sessions of 2 s, transactions of 2.5 s, backoffs, several of them in a row."""


class Outcome(NamedTuple):
    scenario: str
    seed: int
    steps: int
    committed: int
    """Records, over all partitions."""
    problem: str | None
    trace: list[str]

    @property
    def command(self) -> str:
        return f"python -m simulation --scenario {self.scenario} --seed {self.seed} --trace"


def run(name: str, seed: int, *, keeps_trace: bool = False) -> Outcome:
    scenario = SCENARIOS[name]
    world = World(f"{name}/{seed}", keeps_trace=keeps_trace)
    cluster = Cluster(world, scenario.broker_count, unclean=scenario.unclean)
    problem = None
    try:
        cluster.boot(scenario.topics)
        cluster.start(scenario.clients(cluster))
        faults = Faults(cluster, scenario.faults, moves=[DATA])
        world.run(world.now_us + scenario.faults_ms * MS)
        faults.stop()
        cluster.heal()
        cluster.settle(SETTLE_MS)
    except Violation as violation:
        problem = str(violation)
    except Exception:
        problem = traceback.format_exc()
    return Outcome(name, seed, world.steps, cluster.checker.committed_count, problem, world.trace())
