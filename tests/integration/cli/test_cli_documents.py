"""The commands of Kafka's documents, run literally: sample files, ZooKeeper, brokers, topics, console clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from soak.broker_process import command, free_port
from tests.integration.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of this machine's other servers is found or stopped."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name not in ("LOG_DIR", "ZOOCFGDIR")}
    return {**kept, "PATH": path, "XDG_RUNTIME_DIR": str(tmp_path)}


def substituted(text: str, folder: Path, zookeeper_port: int, broker_port: int) -> str:
    """With ports that are free and folders of this test."""
    return text.replace("2181", str(zookeeper_port)).replace("9092", str(broker_port)).replace("/tmp/", f"{folder}/")


def stop_all(environment: dict[str, str]) -> None:
    for name in ("kafka-server-stop.sh", "zookeeper-server-stop.sh"):
        subprocess.run([command(name)], env=environment, capture_output=True, timeout=60, check=False)


def test_every_command_of_the_page_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    ports = free_port(), free_port(3)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    samples = f"sed -i {' '.join(_edits(tmp_path, *ports))} config/*.properties\n"
    first, *others = (substituted(block, tmp_path, *ports) for block in blocks)
    script = "set -exo pipefail\n" + first.replace("zookeeper-server-start", samples + "zookeeper-server-start", 1)
    try:
        done = subprocess.run(
            ["bash", "-c", script + "".join(others)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    finally:
        stop_all(environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Created topic test.\ntest\nThis is a message\nThis is a message\n" in done.stdout
    assert re.search(r"test-consumer-group +test +0 +1 +1 +0 ", done.stdout)
    assert "payload: This is a message" in done.stdout
    assert re.search(r"ReplicationFactor: 3\b", done.stdout)
    assert "[0, 1, 2]" in done.stdout
    assert "Mode: standalone" in done.stdout
    assert done.stdout.count("stopping broker ") == 4
    warnings = [line for line in (tmp_path / "logs" / "server.log").read_text().splitlines() if " WARNING " in line]
    assert len([line for line in warnings if "topic=__consumer_offsets replicas=1 configured=3" in line]) == 1
    assert len(warnings) <= 3, warnings  # and that it is no longer the controller, when it stops


def _edits(folder: Path, zookeeper_port: int, broker_port: int) -> list[str]:
    return [f"-e s#2181#{zookeeper_port}#", f"-e s#9092#{broker_port}#", f"-e s#/tmp/#{folder}/#"]


def test_a_zookeeper_in_the_foreground_is_found_and_stopped(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "zoo.cfg"
    file.write_text(f"tickTime=2000\ndataDir={tmp_path}/data\nclientPort={free_port()}\nclientPortAddress=127.0.0.1\n")

    def zk_server(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command("zkServer.sh"), *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert "Error contacting service" in zk_server("status", str(file)).stderr
    with (tmp_path / "zookeeper.out").open("wb") as output:
        server = subprocess.Popen(
            [command("zookeeper-server-start.sh"), str(file)], env=environment, stdout=output, stderr=output
        )
    try:
        eventually(lambda: zk_server("status", str(file)).returncode == 0, "ZooKeeper serves")
        assert "Mode: standalone" in zk_server("status", str(file)).stdout
        second = zk_server("start", str(file))
        assert second.returncode == 2
        assert "a ZooKeeper is already running on clientPort=" in second.stderr
        assert f"(process {server.pid})" in zk_server("stop").stdout
        assert server.wait(20) in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert zk_server("stop").returncode == 1
    finally:
        server.kill()
        server.wait()


def test_a_server_that_cannot_start_in_the_background_says_why(tmp_path: Path, environment: dict[str, str]) -> None:
    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command("kafka-server-start.sh"), "-daemon", *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    port = free_port()
    old = tmp_path / "old.properties"
    old.write_text(f"broker.id=0\nport={port}\nhost.name=127.0.0.1\nlog.dirs={tmp_path}/data\n")
    try:
        first = start(str(old))
        assert first.returncode == 0, first.stderr
        assert f"its log is {tmp_path}/logs/old.log; stop it with kafka-server-stop" in first.stdout
        log = (tmp_path / "logs" / "old.log").read_text()
        assert f"using listeners=PLAINTEXT://127.0.0.1:{port}" in log
        second = start(str(old), "--override", f"log.dirs={tmp_path}/other")
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
        assert f"old did not start; its log is {tmp_path}/logs/old.log" in second.stderr
    finally:
        stop_all(environment)
