"""As in the documents: three `server.properties`, three `kafka-server-start`, a ZooKeeper that `--zookeeper` asks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.broker_process import command, free_port
from tests.integration.cli.conftest import Commands
from tests.integration.conftest import cluster_at
from tests.integration.waiting import eventually
from tests.integration.zookeeper import ZooKeeper


@pytest.fixture
def ensemble(zookeeper: ZooKeeper) -> str:
    """With a chroot of this test's own."""
    return f"{zookeeper.connect}/{uuid.uuid4().hex}"


@pytest.fixture
def three(tmp_path: Path, ensemble: str) -> Iterator[str]:
    """The bootstrap servers of three brokers that know of each other through ZooKeeper only."""
    ports = [free_port() for _ in range(3)]
    processes = []
    for number, port in enumerate(ports):
        properties = tmp_path / f"server-{number}.properties"
        properties.write_text(
            f"broker.id={number}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port}\n"
            f"log.dirs={tmp_path}/kafka-logs-{number}\n"
            f"zookeeper.connect={ensemble}\n"
            "zookeeper.connection.timeout.ms=18000\n"
            "delete.topic.enable=true\n"
            "offsets.topic.replication.factor=3\n"
        )
        with (tmp_path / f"server-{number}.log").open("wb") as output:
            processes.append(
                subprocess.Popen(
                    [command("kafka-server-start"), str(properties)],
                    stderr=output,
                    env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
                )
            )
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)

    def members() -> set[int]:
        assert all(each.poll() is None for each in processes), (tmp_path / "server-0.log").read_text()
        with cluster_at(servers) as client:
            return set(client.brokers())

    try:
        eventually(lambda: _answers(ports) and members() == {0, 1, 2}, "all are members")
        yield servers
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answers(ports: list[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return False
    return True


def test_three_brokers_find_each_other_through_zookeeper_and_commands_find_them(three: str, ensemble: str) -> None:
    def old_style(name: str, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "moldau", name, "--zookeeper", ensemble, *args],
            input=stdin, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    created = old_style("topics", "--create", "--topic", "t", "--partitions", "3", "--replication-factor", "3")
    assert (created.returncode, created.stdout) == (0, "Created topic t.\n"), created
    assert "--bootstrap-server host:9092" in created.stderr
    commands = Commands(three)
    assert commands.ok("topics", "--list") == "t\n"
    assert old_style("configs", "--describe", "--topic", "t").returncode == 0
    commands.ok("console-producer", "--topic", "t", stdin="one\ntwo\n")
    read = old_style("console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "2")
    assert sorted(read.stdout.splitlines()) == ["one", "two"], read
    commands.ok("topics", "--delete", "--topic", "t")
    assert "t" not in commands.ok("topics", "--list").splitlines()


def test_an_ensemble_without_brokers_says_so(ensemble: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "topics", "--list", "--zookeeper", ensemble],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"no broker is registered in the ZooKeeper at {ensemble}")
