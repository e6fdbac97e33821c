"""One of three brokers cannot write to its disk: the others lead what it led, and it comes back when the disk does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from moldau import Cluster
from moldau.client.admin import create_topic
from moldau.local_cluster import BrokerProcess
from tests.integration.conftest import cluster_at
from tests.integration.raw import RawClient, batch_of
from tests.integration.waiting import eventually

CONFIG = {
    "log.segment.bytes": 1 << 20,
    "replica.lag.time.max.ms": 20_000,  # nobody leaves an ISR for being slow here
    "leader.imbalance.check.interval.seconds": 3_600,
}
DISK_MB = 48
VALUE = bytes(range(256)) * 80  # 20 KB
PARTITIONS = 3
FAILING_DISK = """
import errno, os

real = os.pwrite

def pwrite(fd, data, position):
    if os.path.exists({trigger!r}) and os.readlink(f"/proc/self/fd/{{fd}}").startswith({folder!r}):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return real(fd, data, position)

os.pwrite = pwrite
"""
"""Every Python process runs it at its start. As long as a file is there, nothing in that folder can be written."""

Running = tuple[Cluster, BrokerProcess, Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def running(tmp_path: Path, disk: Path) -> Iterator[Running]:
    """A cluster, the broker on the small disk, and a file to fill the disk with."""
    cluster = Cluster(3, CONFIG, data_dir=tmp_path / "cluster")
    broker = cluster.brokers[2]
    broker.properties["log.dirs"] = str(disk / "data")
    with cluster:
        yield cluster, broker, disk / "ballast"
        for one in cluster.brokers:
            assert "Traceback" not in text_of(one)


def text_of(broker: BrokerProcess) -> str:
    assert broker.log_path is not None
    return broker.log_path.read_text(errors="replace")


def fill_up(ballast: Path) -> None:
    def write_on() -> None:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with pytest.raises(OSError, match="No space"):
        write_on()


def make_topic(cluster: Cluster, topic: str, replication_factor: int = 3) -> None:
    with cluster_at(cluster.bootstrap_servers) as client:
        create_topic(client, topic, partitions=PARTITIONS, replication_factor=replication_factor)


class Writer:
    """Writes to all partitions in turn; knows what was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.acked: dict[int, set[bytes]] = {partition: set() for partition in range(PARTITIONS)}
        self._count = 0
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})

    def write(self, count: int) -> None:
        """Until all of them are acknowledged."""
        for _ in range(count):
            self._count += 1
            value = self._count.to_bytes(8, "big") + VALUE
            self._producer.produce(self.topic, value, partition=self._count % PARTITIONS, on_delivery=self._delivered)
        assert self._producer.flush(30) == 0

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None
        value, partition = message.value(), message.partition()
        assert isinstance(value, bytes)
        assert partition is not None
        self.acked[partition].add(value)


def values(broker: BrokerProcess, topic: str, partition: int) -> set[bytes]:
    with RawClient(broker.address) as client:
        return {record.value for record in client.read_all(topic, partition) if record.value is not None}


def bytes_of(broker: BrokerProcess, partition: str) -> bytes:
    folder = Path(broker.properties["log.dirs"]) / partition
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def have_the_same_bytes(cluster: Cluster, partition: str) -> Callable[[], bool]:
    return lambda: len({bytes_of(broker, partition) for broker in cluster.brokers}) == 1


def states(cluster: Cluster, topic: str) -> list[tuple[int, set[int]]]:
    """Leader and ISR of each partition."""
    with cluster_at(cluster.bootstrap_servers) as client:
        partitions = client.metadata([topic]).topics[topic].partitions
        return [(partition.leader, set(partition.isr)) for partition in partitions]


def is_out_of_sync(cluster: Cluster, broker: BrokerProcess, topic: str) -> Callable[[], bool]:
    return lambda: all(broker.node_id not in isr for _, isr in states(cluster, topic))


def assert_nothing_is_lost(cluster: Cluster, writer: Writer) -> None:
    for partition, acked in writer.acked.items():
        assert acked <= values(cluster.leader_of(writer.topic, partition), writer.topic, partition)


def all_in_sync(cluster: Cluster, topic: str) -> Callable[[], bool]:
    return lambda: all(isr == {1, 2, 3} for _, isr in states(cluster, topic))


def test_a_full_disk_costs_its_broker_the_leaderships_until_there_is_space_again(running: Running) -> None:
    cluster, broker, ballast = running
    make_topic(cluster, "large")
    make_topic(cluster, "idle")
    assert broker.node_id in {leader for leader, _ in states(cluster, "large")}
    writer = Writer(cluster, "large")
    writer.write(30)
    fill_up(ballast)
    writer.write(30)
    for topic in ("large", "idle"):
        eventually(is_out_of_sync(cluster, broker, topic), f"it is not in the ISRs of {topic}")
        assert all(leader != broker.node_id for leader, _ in states(cluster, topic))
    writer.write(300)
    make_topic(cluster, "later")
    Writer(cluster, "later").write(30)
    assert_nothing_is_lost(cluster, writer)
    assert text_of(broker).count("log directory is not writable") == 1
    ballast.unlink()
    for topic in ("large", "idle", "later"):
        eventually(all_in_sync(cluster, topic), f"it is back in the ISRs of {topic}")
    writer.write(30)
    assert_nothing_is_lost(cluster, writer)
    for partition in range(PARTITIONS):
        eventually(have_the_same_bytes(cluster, f"large-{partition}"), f"the replicas of {partition} are the same")


def test_a_failed_disk_costs_its_broker_the_leaderships_until_it_is_started_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(3, CONFIG, data_dir=tmp_path / "cluster")
    broker, trigger = cluster.brokers[2], tmp_path / "failed"
    hook = FAILING_DISK.format(trigger=str(trigger), folder=broker.properties["log.dirs"])
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with cluster:
        make_topic(cluster, "failing")
        assert broker.node_id in {leader for leader, _ in states(cluster, "failing")}
        writer = Writer(cluster, "failing")
        writer.write(30)
        trigger.touch()
        writer.write(30)
        eventually(is_out_of_sync(cluster, broker, "failing"), "it is not in the ISRs")
        writer.write(30)
        assert_nothing_is_lost(cluster, writer)
        broker.kill()
        trigger.unlink()
        broker.start()
        eventually(all_in_sync(cluster, "failing"), "it is back in the ISRs")
        assert_nothing_is_lost(cluster, writer)


def test_the_only_replica_is_read_on_a_full_disk_and_written_again_when_there_is_space(running: Running) -> None:
    cluster, broker, ballast = running
    make_topic(cluster, "single", replication_factor=1)
    partition = next(one for one in range(PARTITIONS) if cluster.leader_of("single", one) is broker)
    with RawClient(broker.address) as client:
        assert client.produce("single", batch_of(VALUE), partition).error_code == 0
        fill_up(ballast)
        assert client.produce("single", batch_of(VALUE), partition).error_code != 0
        eventually(lambda: "log directory is not writable" in text_of(broker), "the broker has noticed")
        assert values(broker, "single", partition) == {VALUE}
        assert cluster.leader_of("single", partition) is broker
        ballast.unlink()
        eventually(lambda: client.produce("single", batch_of(VALUE), partition).error_code == 0, "it is written")
