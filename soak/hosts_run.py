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

from soak.cluster_load import AckClock, Place, Reader, TransactionWriter, Worker, Writer
from soak.cluster_run import finish, in_sync, make_topic, until
from soak.history import History
from soak.host_clusters import ApacheHosts, HostCluster, MoldauHosts
from soak.hosts import Hosts

TOPIC = "soak"
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


@dataclass(frozen=True)
class Gaps:
    """Seconds without an acknowledgement: on all partitions at once, and on the worst one."""

    fault: str
    whom: str
    all_s: float
    worst_s: float

    def __str__(self) -> str:
        return f"{self.fault:>22} ({self.whom}): all {self.all_s:5.1f} s, worst {self.worst_s:5.1f} s"


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
    make_topic(cluster.bootstrap_servers, TOPIC, PARTITIONS)
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
    began_s = time.monotonic()
    if not until(lambda: clock.all_since(began_s)):
        problems.append(f"before {name}: not every partition is written to")
    time.sleep(STEADY_S)  # of a life without faults
    clock.lap()
    cut_s = time.monotonic()
    whom = FAULTS[name](cluster)
    injected_s = time.monotonic()
    if not until(lambda: clock.all_since(max(injected_s, cut_s + fault_min_s)), FAULT_MAX_S):
        problems.append(f"{name}: after {FAULT_MAX_S:.0f} s not every partition is written to")
    all_s, worst_s = clock.lap()
    cluster.hosts.heal()
    for node in cluster.brokers:
        if node.exit_code is not None:
            if node.exit_code > 0:
                problems.append(f"{name}: broker {node.node_id} ended with {node.exit_code}")
            node.start()
    cluster.wait_until_ready()
    if not in_sync(cluster, TOPIC):
        problems.append(f"after {name}: not all replicas are in sync")
    return Gaps(name, whom, all_s, worst_s)


def _workers(bootstrap: str, history: History, clock: AckClock, seed: int) -> list[Worker]:
    def common(name: str) -> tuple[str, Place, History, int]:
        return name, Place(bootstrap, TOPIC, PARTITIONS), history, seed

    return [
        *(Writer(*common(f"writer-{n}"), clock=clock, rate_per_s=60.0) for n in range(2)),
        TransactionWriter(*common("txn"), clock=AckClock(), rate_per_s=30.0),
        Reader(*common("reader"), committed=False),
        Reader(*common("committed-reader"), committed=True),
    ]
