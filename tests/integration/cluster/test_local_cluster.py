"""Several brokers on one machine: `moldau.Cluster`, and `moldau start --brokers` with its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import moldau
from moldau.client.admin import Resource, create_topic, describe_configs
from moldau.errors import ConfigError, MoldauError
from moldau.local_cluster import BrokerProcess
from moldau.wire.constants import ResourceType
from soak.broker_process import free_port
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at
from tests.integration.waiting import eventually

CONFLUENT = CLIENTS[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.Cluster]:
    with moldau.Cluster(3) as three:
        yield three


@pytest.fixture
def whole(cluster: moldau.Cluster) -> Iterator[moldau.Cluster]:
    """Every broker is a member, before the test and after it."""
    yield cluster
    for broker in cluster.brokers:
        if broker.is_paused:
            broker.resume()
        if not broker.is_alive:
            broker.start()
    cluster.wait_until_ready()


def is_running(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


# -- moldau.Cluster


def test_three_brokers_are_three_processes_of_one_cluster(cluster: moldau.Cluster) -> None:
    assert [broker.node_id for broker in cluster.brokers] == [1, 2, 3]
    assert len({broker.pid for broker in cluster.brokers} | {os.getpid()}) == 4
    for broker in cluster.brokers:
        with cluster_at(broker.address) as client:
            assert sorted(client.brokers()) == [1, 2, 3]
            assert client.metadata(()).controller_id == cluster.controller().node_id


def test_a_topic_is_replicated_unless_told_otherwise(cluster: moldau.Cluster) -> None:
    with cluster_at(cluster.bootstrap_servers) as client:
        create_topic(client, "replicated", partitions=3)
        partitions = client.metadata(["replicated"]).topics["replicated"].partitions
        assert [len(each.replicas) for each in partitions] == [3, 3, 3]
        assert {each.leader for each in partitions} == {1, 2, 3}
        resource = Resource(ResourceType.TOPIC, "replicated")
        values = {entry.name: entry.value for entry in describe_configs(client, [resource])[resource]}
        assert values["min.insync.replicas"] == "2"


def test_a_killed_leader_has_a_successor_and_comes_back_where_it_was(whole: moldau.Cluster) -> None:
    with cluster_at(whole.bootstrap_servers) as client:
        create_topic(client, "led", partitions=1)
    CONFLUENT.produce(whole.bootstrap_servers, "led", [Message(b"before", partition=0)])
    leader = whole.leader_of("led")
    port, pid = leader.port, leader.pid
    leader.kill()
    assert not leader.is_alive
    assert not is_running(pid)
    assert leader.exit_code == -signal.SIGKILL
    assert whole.leader_of("led").node_id != leader.node_id
    CONFLUENT.produce(whole.bootstrap_servers, "led", [Message(b"after", partition=0)])
    leader.start()
    whole.wait_until_ready()
    assert (leader.port, leader.is_alive) == (port, True)
    assert [record.value for record in CONFLUENT.read(leader.address, "led", count=2)] == [b"before", b"after"]


def test_a_killed_controller_has_a_successor(whole: moldau.Cluster) -> None:
    controller = whole.controller()
    controller.kill()
    successor = whole.controller()
    assert successor.node_id != controller.node_id
    with cluster_at(whole.bootstrap_servers) as client:
        create_topic(client, "made-by-the-successor", partitions=1)


def test_commands_go_on_when_their_controller_dies(whole: moldau.Cluster) -> None:
    """One client through a kill: it finds the next controller by itself."""
    with cluster_at(whole.bootstrap_servers) as client:
        create_topic(client, "first", partitions=1)
        whole.controller().kill()
        create_topic(client, "second", partitions=1)
        assert {"first", "second"} <= client.metadata().topics.keys()


def test_a_stopped_broker_hands_over_and_a_paused_one_goes_on(whole: moldau.Cluster) -> None:
    broker = whole.brokers[2]
    broker.stop()
    assert (broker.is_alive, broker.exit_code) == (False, 0)
    assert "stopped" in broker.last_lines()
    broker.start()
    whole.wait_until_ready()
    broker.pause()
    assert psutil.Process(broker.pid).status() == psutil.STATUS_STOPPED
    broker.resume()
    with cluster_at(broker.address) as client:
        assert client.metadata(()).brokers
    with pytest.raises(MoldauError, match="already running"):
        broker.start()


def test_a_killed_broker_is_started_again_where_that_is_wanted() -> None:
    with moldau.Cluster(1, restart=True) as one:
        (broker,) = one.brokers
        pid = broker.pid
        broker.kill()
        eventually(lambda: broker.is_alive and broker.pid != pid, "it was started again")
        one.wait_until_ready()
        broker.stop()
        assert not broker.is_alive, "stopped on purpose"


def test_data_in_a_folder_of_yours_stays_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with moldau.Cluster(1, data_dir=tmp_path) as one:
        with cluster_at(one.bootstrap_servers) as client:
            create_topic(client, "kept", partitions=1)
        CONFLUENT.produce(one.bootstrap_servers, "kept", [Message(b"kept", partition=0)])
    with moldau.Cluster(1, data_dir=tmp_path) as one:
        assert [record.value for record in CONFLUENT.read(one.bootstrap_servers, "kept", count=1)] == [b"kept"]
    with moldau.Cluster(1) as one:
        folder = one.data_dir
        assert folder.exists()
    assert not folder.exists()


def test_nothing_is_left_after_an_exception() -> None:
    pids: list[int] = []

    def fail() -> None:
        with moldau.Cluster(2) as two:
            pids.extend(broker.pid for broker in two.brokers)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_brokers_do_not_outlive_the_process_that_made_them() -> None:
    code = "import moldau, time; c = moldau.Cluster(1).start(); print(c.brokers[0].pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        eventually(lambda: not is_running(pid), "the broker noticed")


def test_a_broker_that_cannot_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(MoldauError, match=r"(?s)broker \d exited with code \d.*zookeeper\.connect"):
        moldau.Cluster(2, zookeeper="127.0.0.1:1", config={"zookeeper.connection.timeout.ms": 100}).start()


@pytest.mark.parametrize(
    ("count", "config", "words"),
    [
        (0, {}, "1 to 100"),
        (3, {"listeners": "PLAINTEXT://:9092"}, "listeners: cannot be set"),
        (3, {"auto.create.topics.enabled": "true"}, "did you mean auto.create.topics.enable"),
    ],
)
def test_what_makes_no_cluster_is_refused_before_anything_starts(count: int, config: Any, words: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=words):
        moldau.Cluster(count, config)


# -- moldau start --brokers


class Supervisor:
    """`moldau start --brokers 2`, found by a `moldau stop` of its own."""

    def __init__(self, folder: Path, *options: str, count: int = 2) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.log_path = folder / "supervisor.log"
        self.port = free_port(count)
        with self.log_path.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "moldau", "start", "--brokers", str(count), "--port", str(self.port)),
                    *("--data-dir", str(folder / "data"), *options),
                ],
                stderr=output,
                env=self.environment,
            )

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_until_ready(self) -> None:
        eventually(lambda: "bootstrap" in self.log() or self.process.poll() is not None, "the cluster is ready")
        assert "bootstrap" in self.log(), self.log()

    def brokers(self) -> dict[int, int]:
        """Node ids and processes."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it died meanwhile
                found[child.pid] = re.search(r"broker-(\d+)\.properties", " ".join(child.cmdline()))
        return {int(match[1]): pid for pid, match in found.items() if match}

    def stop(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.moldau("stop", *options)

    def moldau(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "moldau", *arguments],
            capture_output=True, text=True, timeout=60, check=False, env=self.environment,
        )  # fmt: skip

    def __enter__(self) -> Supervisor:
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_a_dead_broker_is_started_again_and_one_command_stops_all(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        ports = (supervisor.port, supervisor.port + 1)
        assert f"bootstrap=127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}" in supervisor.log()
        before = supervisor.brokers()
        assert sorted(before) == [1, 2]
        assert {"broker-1", "broker-2", "metadata"} <= {each.name for each in (tmp_path / "data").iterdir()}
        os.kill(before[2], signal.SIGKILL)
        eventually(lambda: supervisor.brokers().get(2, before[2]) != before[2], "it was started again")
        assert "broker 2 was killed by SIGKILL; restarting it in 0.2 s" in supervisor.log()

        def members() -> list[int]:
            with cluster_at(f"127.0.0.1:{ports[0]}") as client:
                return sorted(client.brokers())

        eventually(lambda: members() == [1, 2], "it is a member again")
        pids = supervisor.brokers().values()
        stopped = supervisor.stop()
        assert (stopped.returncode, stopped.stdout.count("stopping")) == (0, 1), stopped
        assert supervisor.process.wait(10) == 0
        assert not any(is_running(pid) for pid in pids)
        assert "[broker 1] stopped" in supervisor.log()
        assert "restarting it" not in supervisor.log().partition("INFO    stopping")[2]


def test_a_rolling_restart_is_two_commands_for_each_broker(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        before = supervisor.brokers()
        for node_id in ("1", "2"):
            assert "already running" in supervisor.moldau("start", "--node-id", node_id).stderr
            assert supervisor.stop("--node-id", node_id).returncode == 0
            status = supervisor.moldau("cluster", "status", "--bootstrap-server", f"127.0.0.1:{supervisor.port}")
            assert status.returncode in (1, 3), status.stdout  # no broker answers, or the other one says degraded
            started = supervisor.moldau("start", "--node-id", node_id)
            assert (started.returncode, "is ready on" in started.stdout) == (0, True), started
        after = supervisor.brokers()
        assert sorted(after) == [1, 2]
        assert not set(after.values()) & set(before.values())
        assert "are 1 to 2" in supervisor.moldau("start", "--node-id", "3").stderr
    assert (
        "no cluster is running; start one with moldau start --brokers 3"
        in supervisor.moldau("start", "--node-id", "1").stderr
    )


def test_a_broker_stopped_by_its_id_stays_stopped_and_ctrl_c_stops_the_rest(tmp_path: Path) -> None:
    with Supervisor(tmp_path, "--log-format", "json") as supervisor:
        lines = [json.loads(line) for line in supervisor.log().splitlines()]
        assert {line.get("broker") for line in lines} >= {1, 2, None}
        assert supervisor.stop("--node-id", "2").returncode == 0
        eventually(lambda: "broker 2 was stopped and is not restarted" in supervisor.log(), "it was noticed")
        assert sorted(supervisor.brokers()) == [1]
        supervisor.process.send_signal(signal.SIGINT)
        assert supervisor.process.wait(20) == 0


def test_a_cluster_whose_port_is_taken_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with moldau.Broker(port=free_port()) as broker:
        supervisor = Supervisor(tmp_path, "--port", str(broker.port - 1))
        try:
            assert supervisor.process.wait(30) == 2
            assert "in use" in supervisor.log()
        finally:
            supervisor.process.kill()


def test_ports_of_metrics_that_brokers_need_are_refused_before_anything_starts(tmp_path: Path) -> None:
    port = free_port()
    supervisor = Supervisor(tmp_path, "--port", str(port), "--override", f"moldau.metrics.port={port + 1}")
    try:
        assert supervisor.process.wait(30) == 2
        assert "choose ports that do not overlap" in supervisor.log()
    finally:
        supervisor.process.kill()


def test_a_second_cluster_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with Supervisor(tmp_path, count=1) as supervisor:
        data = ("--data-dir", str(tmp_path / "data"))
        second = supervisor.moldau("start", "--brokers", "1", "--port", str(free_port()), *data)
        assert second.returncode == 2, second
        assert f"a cluster that is already running on 127.0.0.1:{supervisor.port}: stop it with" in second.stderr


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        pids = supervisor.brokers()
        os.kill(pids[1], signal.SIGSTOP)
        supervisor.process.send_signal(signal.SIGTERM)
        eventually(lambda: "INFO    stopping" in supervisor.log(), "it stops")
        supervisor.process.send_signal(signal.SIGTERM)
        supervisor.process.wait(20)
        assert not any(is_running(pid) for pid in pids.values())


def test_handles_can_be_used_from_several_threads_at_once(whole: moldau.Cluster) -> None:
    broker = whole.brokers[0]
    broker.kill()
    refused: list[MoldauError] = []

    def start(handle: BrokerProcess) -> None:
        try:
            handle.start()
        except MoldauError as error:
            refused.append(error)

    threads = [threading.Thread(target=start, args=(broker,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    whole.wait_until_ready()
