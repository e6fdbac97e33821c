"""One fault of three brokers at a time, each with its promise and its figures; the tests run them in small.

Every job gets a running cluster and its network, and returns what it measured and what went wrong.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from moldau import Cluster
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig
from moldau.local_cluster import BrokerProcess
from moldau.testing.faults import Network
from soak.check import check_topic
from soak.cluster_run import differing_logs, in_sync, make_topic, until
from soak.exactly_once import run_exactly_once
from soak.load import WRITERS, ConfluentWriter, KafkaPythonWriter, Writer

PARTITIONS = 3
WAIT_S = 120.0


@dataclass
class Outcome:
    figures: dict[str, object]
    problems: list[str] = field(default_factory=list)


class Load(NamedTuple):
    """`records` at least, all of them numbered, by these clients."""

    records: int = 20_000
    clients: Sequence[type[Writer]] = WRITERS


LOAD = Load()
PATIENT = Load(clients=(ConfluentWriter, KafkaPythonWriter))
"""aiokafka waits for an answer as long as it waits for a delivery: minutes, where a broker says nothing at all."""


def under_load(cluster: Cluster, network: Network, topic: str, load: Load, faults: Callable[[], None]) -> Outcome:
    """Idempotent writers, acks=all, from before the faults until after them: none lost, none doubled, order kept."""
    make_topic(cluster.bootstrap_servers, topic, PARTITIONS, segment_bytes=1 << 20)
    writers = [each(each.client, network.bootstrap_servers, topic, PARTITIONS) for each in load.clients]
    problems: list[str] = []
    for writer in writers:
        writer.start()
    try:
        _acks(writers, load.records // 4)
        faults()
        _acks(writers, load.records)
        if not in_sync(cluster, topic):
            problems.append("not all replicas came back into the in-sync set")
    finally:
        for writer in writers:
            writer.stop()
    findings = check_topic(cluster.bootstrap_servers, topic, PARTITIONS, writers)
    problems += findings.problems + differing_logs(cluster, topic, PARTITIONS)
    figures: dict[str, object] = {
        "acknowledged": sum(writer.acked for writer in writers),
        "read back": findings.records,
        "longest gap ms": round(1000 * max(writer.longest_gap_s for writer in writers)),
    }
    return Outcome(figures, problems)


def hard_bounces(
    cluster: Cluster, network: Network, *, bounces: int = 5, load: Load = LOAD, pause_s: float = 2.0
) -> Outcome:
    """SIGKILL of a leader, then of the controller, and so on."""
    topic = "bounced"

    def faults() -> None:
        for number in range(bounces):
            victim = cluster.controller() if number % 2 else cluster.leader_of(topic, number % PARTITIONS)
            victim.kill()
            time.sleep(pause_s)  # of the life of a cluster with one broker less
            victim.start()
            cluster.wait_until_ready()
            if not in_sync(cluster, topic):
                raise TimeoutError(f"the replicas of {victim} do not come back into the in-sync set")

    outcome = under_load(cluster, network, topic, load, faults)
    return Outcome({"bounces": bounces, **outcome.figures}, outcome.problems)


def whole_cluster_killed(cluster: Cluster, network: Network, *, load: Load = LOAD) -> Outcome:
    def faults() -> None:
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.start()
        cluster.wait_until_ready()

    return under_load(cluster, network, "killed-at-once", load, faults)


def bad_network(cluster: Cluster, network: Network, *, load: Load = LOAD, lasts_s: float = 5.0) -> Outcome:
    """Late, then a leader cut off from all others, then every connection reset again and again."""
    topic = "bad-network"

    def faults() -> None:
        network.delay(0.05)
        time.sleep(lasts_s)
        network.heal()
        network.cut(cluster.leader_of(topic), from_clients=False)
        time.sleep(lasts_s)
        network.heal()
        for _ in range(10):
            network.reset()
            time.sleep(lasts_s / 10)
        cluster.wait_until_ready()

    return under_load(cluster, network, topic, load, faults)


def cut_follower(cluster: Cluster, network: Network, *, load: Load = PATIENT, lasts_s: float = 20.0) -> Outcome:
    """The in-sync set shrinks, writing goes on, and the follower catches up to the same bytes."""
    topic = "cut-follower"
    figures: dict[str, object] = {}

    def faults() -> None:
        leader = cluster.leader_of(topic)
        follower = next(each for each in cluster.brokers if each is not leader)
        cut_s = time.monotonic()
        network.cut(follower)
        _wait(lambda: follower.node_id not in isr_of(leader, topic), "the in-sync set shrinks")
        figures["shrunk after ms"] = _ms_since(cut_s)
        time.sleep(max(0.0, lasts_s - (time.monotonic() - cut_s)))
        healed_s = time.monotonic()
        network.heal()
        _wait(lambda: len(isr_of(leader, topic)) == len(cluster.brokers), "the in-sync set grows")
        figures["back after ms"] = _ms_since(healed_s)

    outcome = under_load(cluster, network, topic, load, faults)
    return Outcome(outcome.figures | figures, outcome.problems)


def paused_leader(cluster: Cluster, network: Network, *, load: Load = PATIENT, lasts_s: float = 10.0) -> Outcome:
    """SIGSTOP: another leads, and what clients sent to the one that slept is written once."""
    topic = "paused"
    figures: dict[str, object] = {}

    def faults() -> None:
        leader = cluster.leader_of(topic)
        paused_s = time.monotonic()
        leader.pause()
        _wait(lambda: cluster.leader_of(topic) is not leader, "another broker leads")
        figures["another leads after ms"] = _ms_since(paused_s)
        time.sleep(max(0.0, lasts_s - (time.monotonic() - paused_s)))
        leader.resume()
        cluster.wait_until_ready()

    outcome = under_load(cluster, network, topic, load, faults)
    return Outcome(outcome.figures | figures, outcome.problems)


class RandomBroker:
    """For the exactly-once copy: a broker that is another one at each kill."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.folder = folder
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._killed: list[BrokerProcess] = []

    def kill(self) -> None:
        victim = self._rng.choice(self._cluster.brokers)
        victim.kill()
        self._killed.append(victim)

    def start(self) -> float:
        started_s = time.monotonic()
        while self._killed:
            self._killed.pop().start()
        self._cluster.wait_until_ready()
        return time.monotonic() - started_s


def exactly_once(cluster: Cluster, network: Network, *, records: int = 20_000, seed: int = 0) -> Outcome:
    """A copy in transactions, brokers and copiers killed: every record once, to a reader who reads along."""
    copied = run_exactly_once(RandomBroker(cluster, cluster.data_dir, seed), records=records, seed=seed)
    figures: dict[str, object] = {
        "copied": copied.records,
        "broker kills": copied.broker_kills,
        "copier kills": copied.copier_kills,
        "seconds": round(copied.elapsed_s),
    }
    return Outcome(figures, copied.problems)


JOBS: dict[str, Callable[[Cluster, Network], Outcome]] = {
    "hard bounces": hard_bounces,
    "whole cluster killed": whole_cluster_killed,
    "paused leader": paused_leader,
    "cut follower": cut_follower,
    "bad network": bad_network,
    "exactly once": exactly_once,
}


def isr_of(broker: BrokerProcess, topic: str, partition: int = 0) -> tuple[int, ...]:
    """As that broker tells it."""
    with ClusterClient(ClientConfig.from_properties(broker.address, {})) as client:
        return next(
            each.isr for each in client.metadata([topic]).topics[topic].partitions if each.partition == partition
        )


def _acks(writers: Sequence[Writer], records: int) -> None:
    """Until there are so many, and one more of each writer."""
    before = {writer: writer.acked for writer in writers}
    _wait(
        lambda: (
            sum(writer.acked for writer in writers) >= records
            and all(writer.acked > count or writer.failures for writer, count in before.items())
        ),
        f"{records} acknowledged records",
    )


def _wait(is_so: Callable[[], bool], what: str) -> None:
    if not until(is_so, WAIT_S):
        raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")


def _ms_since(moment_s: float) -> int:
    return round(1000 * (time.monotonic() - moment_s))
