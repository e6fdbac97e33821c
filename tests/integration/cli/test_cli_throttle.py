"""A move under a throttle takes its time, and nobody else's.

The rate is an average over eleven seconds, as in Kafka: each test throttles brokers that were not throttled before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

import moldau
from tests.integration.cli.conftest import Commands
from tests.integration.waiting import eventually

MB = 1_000_000
SIZE = 6 * MB
RATE = 2 * MB
EXPECTED_S = SIZE / RATE


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.Cluster]:
    with moldau.Cluster(3, config={"min.insync.replicas": "2"}) as three:
        yield three


@pytest.fixture
def commands(cluster: moldau.Cluster) -> Commands:
    return Commands(cluster.bootstrap_servers)


def new_topic(commands: Commands, assignment: str) -> str:
    name = f"moved-{uuid.uuid4().hex[:8]}"
    settings = ("--config", "min.insync.replicas=1")
    commands.ok("topics", "--create", "--topic", name, "--replica-assignment", assignment, *settings)
    return name


def fill(bootstrap: str, topic: str, byte_count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 200_000, "log_level": 0})
    for _ in range(byte_count // 10_000):
        producer.produce(topic, bytes(10_000))
    assert producer.flush(30) == 0


def replicas_of(commands: Commands, topic: str) -> tuple[list[int], list[int]]:
    (described,) = json.loads(commands.ok("topics", "--describe", "--topic", topic, "--json"))
    (partition,) = described["partitions"]
    return partition["replicas"], sorted(partition["isr"])


@contextmanager
def slow_rates(commands: Commands) -> Iterator[None]:
    """Whatever they throttle would take longer than any test waits."""
    rates = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
    for rate in rates:
        commands.ok("configs", "--alter", "--broker-defaults", "--add-config", f"{rate}=1000")
    yield
    for rate in rates:
        commands.ok("configs", "--alter", "--broker-defaults", "--delete-config", rate)


class Mover:
    """Moves a partition from one broker to another."""

    def __init__(self, commands: Commands, source: int, target: int, folder: Path) -> None:
        self.commands = commands
        self.target = target
        self.topic = new_topic(commands, str(source))
        fill(commands.bootstrap_servers, self.topic, SIZE)
        self.plan = folder / "plan.json"
        self.plan.write_text(json.dumps({"partitions": [{"topic": self.topic, "partition": 0, "replicas": [target]}]}))

    def reassign(self, *args: str) -> None:
        self.commands.ok("reassign-partitions", "--reassignment-json-file", str(self.plan), *args)

    def move(self, *args: str, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Seconds until it is there."""

        def is_there() -> bool:
            meanwhile()
            return replicas_of(self.commands, self.topic) == ([self.target], [self.target])

        begun_s = time.monotonic()
        self.reassign("--execute", *args)
        eventually(is_there, "the partition has moved")
        return time.monotonic() - begun_s


def test_a_rate_alone_throttles_no_partition(commands: Commands, tmp_path: Path) -> None:
    mover = Mover(commands, 1, 2, tmp_path)
    with slow_rates(commands):
        mover.move()


def test_a_throttled_move_keeps_to_its_rate_and_delays_nobody_else(
    cluster: moldau.Cluster, commands: Commands, tmp_path: Path
) -> None:
    mover = Mover(commands, 1, 2, tmp_path)
    busy = new_topic(commands, "1:2:3")
    writer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0})
    waits_s = []

    def write() -> None:
        begun_s = time.monotonic()
        writer.produce(busy, b"meanwhile")
        assert writer.flush(10) == 0
        waits_s.append(time.monotonic() - begun_s)

    write()  # the first one connects
    waits_s.clear()
    seconds = mover.move("--throttle", str(RATE), meanwhile=write)
    assert seconds > EXPECTED_S * 0.8
    assert sorted(waits_s)[len(waits_s) // 2] < EXPECTED_S / 4
    mover.reassign("--verify")
    assert "throttled" not in commands.ok("configs", "--describe", "--topic", mover.topic)


@pytest.mark.parametrize(("side", "broker"), [("leader", 2), ("follower", 3)])
def test_either_side_of_a_move_can_be_throttled(commands: Commands, tmp_path: Path, side: str, broker: int) -> None:
    mover = Mover(commands, 2, 3, tmp_path)
    rate, replicas = f"{side}.replication.throttled.rate", f"{side}.replication.throttled.replicas"
    alter = ("configs", "--alter", "--broker", str(broker))
    commands.ok("configs", "--alter", "--topic", mover.topic, "--add-config", f"{replicas}=0:{broker}")
    commands.ok(*alter, "--add-config", f"{rate}={RATE}")
    assert mover.move() > EXPECTED_S * 0.8
    commands.ok(*alter, "--delete-config", rate)


def test_a_replica_that_is_in_sync_is_never_throttled(cluster: moldau.Cluster, commands: Commands) -> None:
    topic = new_topic(commands, "3:2:1")
    for side in ("leader", "follower"):
        throttled = f"{side}.replication.throttled.replicas=*"
        commands.ok("configs", "--alter", "--topic", topic, "--add-config", throttled)
    with slow_rates(commands):
        fill(cluster.bootstrap_servers, topic, SIZE)
        assert replicas_of(commands, topic)[1] == [1, 2, 3]
