"""Mixed faults against three brokers, with a history that is checked at the end.

    python -m soak --cluster 300 --seed 7

Holds when one log explains everything that clients were told, all replicas have the same bytes, and no broker
said anything of an error of its own.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from moldau import Cluster
from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient, PartitionMetadata
from moldau.client.config import ClientConfig, parse_servers
from moldau.errors import KafkaError, MoldauError
from moldau.testing.faults import Network
from soak.cluster_faults import FAULTS, Victims, inject
from soak.cluster_load import AckClock, EndAsker, Place, Reader, TransactionWriter, Worker, Writer, end_of, read_all
from soak.history import History, check
from soak.host_clusters import HostCluster

TOPIC = "soak"
PARTITIONS = 4
SETTLE_TIMEOUT_S = 90.0
ASK_TIMEOUT_MS = 3_000
CONFIG: Mapping[str, object] = {
    # A fault of ten seconds is to be one that brokers are fenced for, and a follower leaves the in-sync set for.
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 4_000,
    # Small segments: a kill then also meets rolls, indexes and producer snapshots.
    "log.segment.bytes": 1 << 20,
}


class Schedule(NamedTuple):
    """Every `interval_s` one of the faults, for a while within it."""

    interval_s: float
    lasts_s: tuple[float, float]
    faults: Sequence[str] = tuple(FAULTS)

    def within(self, left_s: float) -> Schedule:
        return self._replace(interval_s=min(self.interval_s, left_s))


@dataclass
class Report:
    history: History
    problems: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    longest_gap_s: float = 0.0
    elapsed_s: float = 0.0


@contextmanager
def brokers(config: Mapping[str, object] = CONFIG, **options: Any) -> Iterator[tuple[Cluster, Network]]:
    """Three, behind proxies; their data goes away unless something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="moldau-soak-"))
    cluster = Cluster(3, config, data_dir=folder, **options)
    network = Network(cluster)
    try:
        with cluster:
            yield cluster, network
    except BaseException:
        print(f"the brokers' data and logs are in {folder}")
        raise
    finally:
        network.close()
    shutil.rmtree(folder, ignore_errors=True)


def run_mixed_faults(
    cluster: Cluster,
    network: Network,
    *,
    duration_s: float,
    seed: int,
    schedule: Schedule,
    rate_per_s: float = 60.0,
    report: Callable[[str], None] = lambda _: None,
) -> Report:
    """`cluster` is running."""
    make_topic(cluster.bootstrap_servers, TOPIC, PARTITIONS)
    history, clock = History(), AckClock()
    workers = _workers(network.bootstrap_servers, history, clock, seed, rate_per_s)
    victims = Victims(cluster, network, TOPIC, PARTITIONS, random.Random(seed))
    result = Report(history, [])
    started_s = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        while (left_s := duration_s - (time.monotonic() - started_s)) > 0:
            _one_fault(victims, result, clock, schedule.within(left_s), report)
    finally:
        victims.heal()
        result.problems += _settle(cluster)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()
    result.longest_gap_s = max(result.longest_gap_s, clock.lap_s())
    result.problems += [surprise for worker in workers for surprise in worker.surprises]
    result.problems += finish(cluster, history)
    result.elapsed_s = time.monotonic() - started_s
    return result


def _one_fault(
    victims: Victims,
    result: Report,
    clock: AckClock,
    schedule: Schedule,
    report: Callable[[str], None],
) -> None:
    began_s = time.monotonic()
    rng = victims.rng
    name, fault_s = rng.choice(schedule.faults), min(rng.uniform(*schedule.lasts_s), schedule.interval_s)
    try:
        whom = inject(name, victims, fault_s)
    except MoldauError as error:
        result.problems.append(f"{name}: {error}")
        victims.heal()
        whom = "nobody"
    time.sleep(max(0.0, schedule.interval_s - (time.monotonic() - began_s)))  # the time to recover
    gap_s = clock.lap_s()
    result.faults[name] += 1
    result.longest_gap_s = max(result.longest_gap_s, gap_s)
    outcomes = dict(result.history.outcomes())
    report(f"{name:>16} ({whom}) for {fault_s:4.1f} s: longest gap {gap_s:5.2f} s; writes {outcomes}")


def _workers(bootstrap: str, history: History, clock: AckClock, seed: int, rate_per_s: float) -> list[Worker]:
    def common(name: str) -> tuple[str, Place, History, int]:
        return name, Place(bootstrap, TOPIC, PARTITIONS), history, seed

    return [
        *(Writer(*common(f"writer-{n}"), clock=clock, rate_per_s=rate_per_s) for n in range(2)),
        *(TransactionWriter(*common(f"txn-{n}"), clock=clock, rate_per_s=rate_per_s) for n in range(2)),
        Reader(*common("reader"), committed=False),
        Reader(*common("committed-reader"), committed=True),
        EndAsker(*common("asker")),
    ]


def finish(
    cluster: Cluster | HostCluster, history: History, topic: str = TOPIC, partitions: int = PARTITIONS
) -> list[str]:
    """Everything read once more, and checked; what is wrong."""
    problems: list[str] = []
    bootstrap = cluster.bootstrap_servers
    for partition in range(partitions):
        end = end_of(bootstrap, topic, partition, committed=False)
        if not until(lambda p=partition, e=end: end_of(bootstrap, topic, p, committed=True) >= e):
            problems.append(f"hanging: the last stable offset of partition {partition} does not reach {end}")
            continue
        for committed in (False, True):
            history.final.append(read_all(bootstrap, topic, partition, committed=committed))
    problems += [str(anomaly) for anomaly in check(history)]
    problems += differing_logs(cluster, topic, partitions)
    for broker in cluster.brokers:
        assert broker.log_path is not None
        text = broker.log_path.read_text(errors="replace")
        if "Traceback" in text:
            problems.append(f"broker {broker.node_id}: {text.count('Traceback')} tracebacks in {broker.log_path}")
    return problems


def make_topic(bootstrap: str, topic: str, partitions: int, **configs: object) -> None:
    with ClusterClient(ClientConfig.from_properties(bootstrap, {})) as client:
        create_topic(
            client,
            topic,
            partitions=partitions,
            replication_factor=3,
            configs={key.replace("_", "."): str(value) for key, value in configs.items()},
        )


def in_sync(cluster: Cluster | HostCluster, topic: str, timeout_s: float = SETTLE_TIMEOUT_S) -> bool:
    """Whether every broker says, within that time, that all replicas of all partitions are in sync.

    All of them, because a leader that was cut off tells of the time before the cut until it hears of its successor:
    Kafka's leaders have no lease. What is read of it then is the past.
    """

    return until(lambda: is_in_sync([_told_by(broker.address, topic) for broker in cluster.brokers]), timeout_s)


def is_in_sync(told: Sequence[Sequence[PartitionMetadata]]) -> bool:
    """`told` by each broker."""
    agreed = told[0] if all(each == told[0] for each in told) else []
    return bool(agreed) and all(each.leader >= 0 and len(each.isr) == len(each.replicas) for each in agreed)


def _told_by(address: str, topic: str) -> list[PartitionMetadata]:
    """No partitions if it does not answer."""
    config = ClientConfig(parse_servers(address), request_timeout_ms=ASK_TIMEOUT_MS, api_timeout_ms=ASK_TIMEOUT_MS)
    with suppress(KafkaError, KeyError, OSError), ClusterClient(config) as client:
        found = client.metadata([topic]).topics[topic].partitions
        return sorted(each._replace(isr=tuple(sorted(each.isr))) for each in found)
    return []


def _settle(cluster: Cluster) -> list[str]:
    try:
        cluster.wait_until_ready(SETTLE_TIMEOUT_S)
    except MoldauError as error:
        return [f"the cluster does not come back: {error}"]
    return [] if in_sync(cluster, TOPIC) else [f"not all replicas are in sync after {SETTLE_TIMEOUT_S:.0f} s"]


def differing_logs(cluster: Cluster | HostCluster, topic: str, partitions: int) -> list[str]:
    """Partitions whose replicas, all in sync and at rest, do not have the same bytes."""

    def bytes_of(folder: Path) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def differ(partition: int) -> bool:
        logs = {bytes_of(broker.data_dir / f"{topic}-{partition}") for broker in cluster.brokers}
        return len(logs) != 1

    return [
        f"the replicas of partition {partition} differ"
        for partition in range(partitions)
        if not until(lambda p=partition: not differ(p), 10.0)
    ]


def until(is_so: Callable[..., bool], timeout_s: float = SETTLE_TIMEOUT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
