"""Real brokers on virtual time."""

from __future__ import annotations

from moldau.testing.simulation.cluster import SimulatedCluster
from moldau.testing.simulation.loop import SECOND, World
from moldau.testing.simulation.patches import patched


def run(seed: int) -> int:
    world = World(seed)
    with patched(world):
        cluster = SimulatedCluster(world)
        cluster.start()
        world.run(lambda: cluster.is_serving, 10 * SECOND)
        cluster.brokers[1].kill()
        world.run_for(SECOND)
        cluster.brokers[1].start()
        world.run(lambda: cluster.is_serving, 20 * SECOND)
        world.close()
    return world.digest


def test_a_seed_is_a_run() -> None:
    first, again, other = (run(seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
