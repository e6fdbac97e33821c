"""What is done to a cluster while clients work: one fault at a time, chosen by the seed, undone after a while."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moldau import Cluster
from moldau.errors import MoldauError
from moldau.local_cluster import BrokerProcess
from moldau.testing.faults import Network

Undo = Callable[[], None]
FIND_TIMEOUT_S = 20.0


@dataclass
class Victims:
    """A cluster, its network and its topic, as a fault sees them."""

    cluster: Cluster
    network: Network
    topic: str
    partitions: int
    rng: random.Random

    def leader(self) -> BrokerProcess:
        return self.cluster.leader_of(self.topic, self.rng.randrange(self.partitions), FIND_TIMEOUT_S)

    def controller(self) -> BrokerProcess:
        return self.cluster.controller(FIND_TIMEOUT_S)

    def anyone(self) -> BrokerProcess:
        return self.rng.choice(self.cluster.brokers)

    def heal(self) -> None:
        """Everything works again; those who are dead are started."""
        self.network.heal()
        for broker in self.cluster.brokers:
            if broker.is_alive and broker.is_paused:
                broker.resume()
            elif not broker.is_alive:
                with contextlib.suppress(MoldauError):
                    broker.start()


def _killed(broker: BrokerProcess) -> Undo:
    broker.kill()
    return broker.start


def _paused(broker: BrokerProcess) -> Undo:
    broker.pause()
    return broker.resume


def _stopped(broker: BrokerProcess) -> Undo:
    broker.stop()
    return broker.start


def _cut(who: Callable[[Victims], BrokerProcess]) -> Fault:
    def fault(victims: Victims) -> tuple[str, Undo]:
        broker = who(victims)
        victims.network.cut(broker)
        return f"{broker.node_id}", victims.network.heal

    return fault


def _cut_follower(victims: Victims) -> tuple[str, Undo]:
    """It reports to the controller as ever, but does not reach the leader."""
    leader = victims.leader()
    follower = victims.rng.choice([each for each in victims.cluster.brokers if each is not leader])
    victims.network.cut_link(follower, leader)
    return f"{follower.node_id} from {leader.node_id}", victims.network.heal


def _slow(victims: Victims) -> tuple[str, Undo]:
    seconds = victims.rng.uniform(0.02, 0.3)
    victims.network.delay(seconds)
    return f"{seconds * 1000:.0f} ms each way", victims.network.heal


def _reset(victims: Victims) -> tuple[str, Undo]:
    victims.network.reset()
    return "all connections", victims.network.reset


def _kill_two(victims: Victims) -> tuple[str, Undo]:
    """A leader, and one of its followers a moment later."""
    leader = victims.leader()
    follower = victims.rng.choice([each for each in victims.cluster.brokers if each is not leader])
    leader.kill()
    time.sleep(victims.rng.uniform(0, 0.5))
    follower.kill()

    def start_both() -> None:
        for broker in victims.rng.sample([leader, follower], 2):
            broker.start()
            time.sleep(victims.rng.uniform(0, 2))

    return f"{leader.node_id}, {follower.node_id}", start_both


def _kill_in_turn(victims: Victims) -> tuple[str, Undo]:
    """Each is killed when the one before is hardly back: who may lead is a question of what each of them has."""
    order = victims.rng.sample(victims.cluster.brokers, len(victims.cluster.brokers))
    for broker in order:
        broker.kill()
        time.sleep(victims.rng.uniform(0, 0.5))
        broker.start()
        time.sleep(victims.rng.uniform(0, 2))
    return ", ".join(str(broker.node_id) for broker in order), lambda: None


def _kill_all(victims: Victims) -> tuple[str, Undo]:
    for broker in victims.cluster.brokers:
        broker.kill()

    def start_all() -> None:
        for broker in victims.rng.sample(victims.cluster.brokers, len(victims.cluster.brokers)):
            broker.start()

    return "all", start_all


def _of(who: Callable[[Victims], BrokerProcess], how: Callable[[BrokerProcess], Undo]) -> Fault:
    def fault(victims: Victims) -> tuple[str, Undo]:
        broker = who(victims)
        return f"{broker.node_id}", how(broker)

    return fault


Fault = Callable[[Victims], tuple[str, Undo]]
"""Does it; tells to whom, and how it is undone."""

FAULTS: Mapping[str, Fault] = {
    "kill leader": _of(Victims.leader, _killed),
    "kill controller": _of(Victims.controller, _killed),
    "kill anyone": _of(Victims.anyone, _killed),
    "pause leader": _of(Victims.leader, _paused),
    "pause controller": _of(Victims.controller, _paused),
    "stop leader": _of(Victims.leader, _stopped),
    "stop anyone": _of(Victims.anyone, _stopped),
    "cut off": _cut(Victims.anyone),
    "cut controller": _cut(Victims.controller),
    "cut follower": _cut_follower,
    "slow network": _slow,
    "reset": _reset,
    "kill two": _kill_two,
    "kill in turn": _kill_in_turn,
    "kill all": _kill_all,
}


def inject(name: str, victims: Victims, lasts_s: float) -> str:
    """To whom it was done; everything is undone when this returns."""
    whom, undo = FAULTS[name](victims)
    try:
        time.sleep(lasts_s)  # the fault itself
    finally:
        undo()
    return whom
