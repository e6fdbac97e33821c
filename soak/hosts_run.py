"""Hosts that vanish, under load: how long writers wait, and whether anything is lost, doubled or reordered.

    python -m soak --hosts                        # every fault once
    python -m soak --hosts "controller cut"
    python -m soak --hosts --apache               # the same on Apache Kafka, to compare

Each fault lasts until every partition is written to again: `FAULT_MIN_S` at least, `FAULT_MAX_S` at most.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from soak.cluster_load import AckClock, Place, Reader, TransactionWriter, Worker, Writer
from soak.cluster_run import finish, in_sync, make_topic, until
from soak.history import History
from soak.host_clusters import ApacheHosts, HostCluster, MoldauHosts
from soak.hosts import Hosts

TOPIC = "soak"
COPIES = "copies"
PARTITIONS = 12
FAULT_MAX_S = 90.0
FAULT_MIN_S = 15.0
STEADY_S = 4.0

Fault = Callable[[HostCluster], str]
"""Does it, and tells to whom."""


def _controller_cut(cluster: HostCluster) -> str:
    number = cluster.controller().node_id
    cluster.hosts.cut(number)
    return f"{number}"


def _controller_unheard(cluster: HostCluster) -> str:
    number = cluster.controller().node_id
    cluster.hosts.cut_outgoing(number)
    return f"{number}"


def _other_cut(cluster: HostCluster) -> str:
    controller = cluster.controller().node_id
    number = next(each for each in cluster.hosts.numbers if each != controller)
    cluster.hosts.cut(number)
    return f"{number}"


def _link_cut(cluster: HostCluster) -> str:
    controller = cluster.controller().node_id
    number = next(each for each in cluster.hosts.numbers if each != controller)
    cluster.hosts.cut_link(controller, number)
    return f"{controller} and {number}"


def _controller_killed(cluster: HostCluster) -> str:
    node = cluster.controller()
    node.kill()
    return f"{node.node_id}"


def _two_killed(cluster: HostCluster) -> str:
    controller = cluster.controller()
    killed = [controller, next(each for each in cluster.brokers if each is not controller)]
    for node in killed:
        node.kill()
    for node in killed:
        node.start()
    return ", ".join(str(node.node_id) for node in killed)


def _restarted_beside_a_cut_host(cluster: HostCluster) -> str:
    """It starts while one of three ZooKeepers does not answer."""
    controller = cluster.controller().node_id
    cut, restarted = (each for each in cluster.hosts.numbers if each != controller)
    cluster.hosts.cut(cut)
    cluster.broker(restarted).kill()
    cluster.broker(restarted).start()
    return f"{restarted}, {cut} is cut off"


FAULTS: Mapping[str, Fault] = {
    "controller cut": _controller_cut,
    "controller unheard": _controller_unheard,
    "other cut": _other_cut,
    "link cut": _link_cut,
    "controller killed": _controller_killed,
    "two killed": _two_killed,
    "restarted beside a cut": _restarted_beside_a_cut_host,
}

KILLS = frozenset({"controller killed", "two killed"})
"""Faults with a copier. Longer ones are not for it: librdkafka 2.16 drops a broker that Metadata no longer lists and,
if that one coordinated the group, never ends `send_offsets_to_transaction` (its issues 5511 and 5456)."""


@dataclass(frozen=True)
class Gaps:
    """Seconds without an acknowledgement: on all partitions at once, and on the worst one."""

    fault: str
    whom: str
    all_s: float
    worst_s: float
    copier_s: float | None
    """And of transactions that copy what is written, with the offsets of their group."""

    def __str__(self) -> str:
        copier = "" if self.copier_s is None else f", copier {self.copier_s:5.1f} s"
        return f"{self.fault:>22} ({self.whom}): all {self.all_s:5.1f} s, worst {self.worst_s:5.1f} s{copier}"


@contextmanager
def running(*, apache: bool = False, properties: Mapping[str, object] | None = None) -> Iterator[HostCluster]:
    """A cluster on hosts; the block is on the clients' host. The folder stays where something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="moldau-hosts-"))
    try:
        with Hosts(3) as hosts, hosts.clients():
            cluster = (ApacheHosts if apache else MoldauHosts)(hosts, folder, properties)
            cluster.start()
            yield cluster
    except BaseException:
        print(f"data and logs of the brokers are in {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)


def run_faults(
    cluster: HostCluster,
    faults: Sequence[str],
    *,
    seed: int,
    fault_min_s: float = FAULT_MIN_S,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[list[Gaps], list[str]]:
    """What each fault cost, and what was wrong at the end."""
    for topic in (TOPIC, COPIES):
        make_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    history, clock = History(), AckClock(PARTITIONS)
    workers = _workers(cluster.bootstrap_servers, history, clock, seed)
    found: list[Gaps] = []
    problems: list[str] = []
    for worker in workers:
        worker.start()
    try:
        for name in faults:
            found.append(_one(cluster, name, clock, fault_min_s, problems))
            report(str(found[-1]))
    finally:
        cluster.hosts.heal()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()
    problems += [surprise for worker in workers for surprise in worker.surprises]
    problems += finish(cluster, history, TOPIC, PARTITIONS)
    return found, problems


def _one(cluster: HostCluster, name: str, clock: AckClock, fault_min_s: float, problems: list[str]) -> Gaps:
    copies = AckClock(1)
    clocks = [clock, copies] if name in KILLS else [clock]

    def all_since(moment_s: float) -> bool:
        return all(each.all_since(moment_s) for each in clocks)

    place = Place(cluster.bootstrap_servers, TOPIC, PARTITIONS)
    copier = Copier(f"copier-{time.monotonic_ns()}", place, History(), 0, clock=copies)
    if name in KILLS:
        copier.start()
    began_s = time.monotonic()
    if not until(lambda: all_since(began_s)):
        problems.append(f"before {name}: not every partition is written to, or nothing is copied")
    time.sleep(STEADY_S)  # of a life without faults
    for each in clocks:
        each.lap()
    cut_s = time.monotonic()
    whom = FAULTS[name](cluster)
    injected_s = time.monotonic()
    if not until(lambda: all_since(max(injected_s, cut_s + fault_min_s)), FAULT_MAX_S):
        problems.append(f"{name}: after {FAULT_MAX_S:.0f} s not every partition is written to, or nothing is copied")
    all_s, worst_s = clock.lap()
    copier.stop()
    _repair(cluster, name, problems)
    return Gaps(name, whom, all_s, worst_s, copies.lap_s() if name in KILLS else None)


def _repair(cluster: HostCluster, name: str, problems: list[str]) -> None:
    cluster.hosts.heal()
    for node in cluster.brokers:
        if node.exit_code is not None:
            if node.exit_code > 0:
                problems.append(f"{name}: broker {node.node_id} ended with {node.exit_code}")
            node.start()
    cluster.wait_until_ready()
    if not in_sync(cluster, TOPIC):
        problems.append(f"after {name}: not all replicas are in sync")


class Copier(Worker):
    """Consumes, produces, and puts the offsets into the transaction, with librdkafka's own settings of time-outs."""

    def __init__(self, *args: Any, clock: AckClock) -> None:
        super().__init__(*args)
        self._clock = clock

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._session()
            except confluent_kafka.KafkaException as failure:
                # A transaction that a fault outlasts is aborted by the broker, and its producer fenced: begin anew.
                if not failure.args[0].fatal() and not failure.args[0].retriable():
                    raise

    def _session(self) -> None:
        common = {"bootstrap.servers": self._bootstrap, "client.id": self.name, "log_level": 0}
        producer = confluent_kafka.Producer({**common, "transactional.id": self.name, "linger.ms": 5})
        consumer = confluent_kafka.Consumer(
            {**common, "group.id": self.name, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
        try:
            producer.init_transactions()
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                messages = [one for one in consumer.consume(200, 0.5) if one.error() is None]
                if messages:
                    self._copy(producer, consumer, messages)
        finally:
            consumer.close()

    def _copy(self, producer: Any, consumer: Any, messages: Sequence[Any]) -> None:
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce(COPIES, message.value())
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction()
            self._clock.tick(0)
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            producer.abort_transaction()
            for where in consumer.committed(consumer.assignment(), 30):
                where.offset = max(where.offset, 0)
                consumer.seek(where)


def _workers(bootstrap: str, history: History, clock: AckClock, seed: int) -> list[Worker]:
    def common(name: str) -> tuple[str, Place, History, int]:
        return name, Place(bootstrap, TOPIC, PARTITIONS), history, seed

    return [
        *(Writer(*common(f"writer-{n}"), clock=clock, rate_per_s=60.0) for n in range(2)),
        TransactionWriter(*common("txn"), clock=AckClock(), rate_per_s=30.0),
        Reader(*common("reader"), committed=False),
        Reader(*common("committed-reader"), committed=True),
    ]
