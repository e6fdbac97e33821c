"""Elections in the simulated metadata store, which have to end as they do in a real one."""

from __future__ import annotations

from moldau.metadata.stores.store import Candidate, ControllerTerm
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import MS, SECOND, World
from moldau.testing.simulation.network import Network
from moldau.testing.simulation.store import SimulatedStore


def test_a_resignation_that_the_store_did_not_hear_takes_effect_when_it_can() -> None:
    world = World("resignation")
    network = Network(world)
    store = SimulatedStore(world, network)
    hosts = [Host(world, network, name) for name in ("one", "two")]
    told: list[list[ControllerTerm | None]] = [[], []]
    sessions = [store.session(host.start_process()) for host in hosts]
    for number, session in enumerate(sessions):
        session.campaign(Candidate(number, hosts[number].name, 9092), told[number].append)
    world.run(lambda: store.term is not None, 10 * SECOND)
    assert store.term is not None
    first = store.term.node_id
    world.run(lambda: told[first][-1] == store.term, 10 * SECOND)
    network.cut(hosts[first], store.host)
    sessions[first].resign()
    world.run_for(500 * MS)  # a quarter of its session
    assert store.term.node_id == first
    network.heal()
    world.run(lambda: store.term is not None and store.term.node_id == 1 - first, world.now_us + SECOND)
    sessions[first].campaign_again()
    world.run(lambda: told[first][-1] == store.term, world.now_us + SECOND)
