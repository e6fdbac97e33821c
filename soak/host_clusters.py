"""Three brokers on three `Hosts`: Moldau with a ZooKeeper on each, or Apache Kafka in KRaft mode to compare with."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from moldau.client.cluster import ClusterClient
from moldau.client.cluster_admin import describe_quorum
from moldau.client.config import ClientConfig
from moldau.errors import KafkaError
from soak.hosts import Hosts, HostsError

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
ZOOKEEPER_PORT = 2181
READY_TIMEOUT_S = 90.0
SHARED: Mapping[str, object] = {
    # Both systems' own defaults, written out because the figures depend on them.
    "broker.session.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "group.initial.rebalance.delay.ms": 0,
}
ZOOKEEPER: Mapping[str, object] = {
    # A follower that has not heard of its leader for syncLimit ticks looks for another one.
    "tickTime": 1_000,
    "initLimit": 10,
    "syncLimit": 3,
    "maxSessionTimeout": 40_000,
    "maxClientCnxns": 0,
}


class Node:
    """A broker on a host. It keeps its address and data over kills."""

    def __init__(self, hosts: Hosts, node_id: int, folder: Path) -> None:
        self.node_id = node_id
        self.host = hosts.address(node_id)
        self.address = f"{self.host}:{BROKER_PORT}"
        self.data_dir = folder / f"broker-{node_id}"
        self.log_path: Path | None = folder / f"broker-{node_id}.log"
        self.properties_path = folder / f"broker-{node_id}.properties"
        self.command: Sequence[str] = ()
        self._hosts = hosts
        self._process: subprocess.Popen[bytes] | None = None

    def write_properties(self, properties: Mapping[str, object]) -> None:
        self.properties_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def start(self) -> None:
        assert self.log_path is not None
        with self.log_path.open("ab") as output:
            self._process = self._hosts.spawn(
                self.node_id,
                self.command,
                output=output,
                environment={"XDG_RUNTIME_DIR": str(self.log_path.parent)},  # `moldau stop` elsewhere does not see it
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait(self, timeout_s: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)


class HostCluster(ABC):
    """Call its methods on the clients' host."""

    name = ""

    def __init__(self, hosts: Hosts, folder: Path, properties: Mapping[str, object] | None = None) -> None:
        self.hosts = hosts
        self.data_dir = folder
        self.brokers = [Node(hosts, number, folder) for number in hosts.numbers]
        self._properties = {**SHARED, **(properties or {})}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.brokers)

    @abstractmethod
    def prepare(self) -> None: ...

    def start(self) -> None:
        self.prepare()
        for node in self.brokers:
            node.start()
        self.wait_until_ready()

    def broker(self, node_id: int) -> Node:
        return self.brokers[node_id - 1]

    def controller(self) -> Node:
        return self.broker(self._ask(lambda client: describe_quorum(client).leader_id, "the controller"))

    def leader_of(self, topic: str, partition: int = 0) -> Node:
        def leader(client: ClusterClient) -> int:
            return client.metadata([topic]).topics[topic].partitions[partition].leader

        return self.broker(self._ask(leader, f"the leader of {topic}-{partition}"))

    def _ask(self, ask: Callable[[ClusterClient], int], what: str) -> int:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for node in self.brokers:
                config = ClientConfig(((node.host, BROKER_PORT),), request_timeout_ms=3_000, api_timeout_ms=3_000)
                with suppress(KafkaError, KeyError, IndexError, OSError), ClusterClient(config) as client:
                    found = ask(client)
                    if found > 0:
                        return found
            time.sleep(0.1)
        raise TimeoutError(f"no broker tells who is {what}")

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until each broker tells of all of them."""
        deadline_s = time.monotonic() + timeout_s
        waiting = list(self.brokers)
        while waiting:
            waiting = [node for node in waiting if not self._is_ready(node)]
            for node in waiting:
                if node.exit_code is not None:
                    raise RuntimeError(f"broker {node.node_id} ended with {node.exit_code}: see {node.log_path}")
            if waiting and time.monotonic() > deadline_s:
                raise TimeoutError(f"not ready after {timeout_s:.0f} s: {[node.node_id for node in waiting]}")
            time.sleep(0.1 if waiting else 0)

    def _is_ready(self, node: Node) -> bool:
        config = ClientConfig(((node.host, BROKER_PORT),), request_timeout_ms=3_000, api_timeout_ms=3_000)
        with suppress(KafkaError, OSError), ClusterClient(config) as client:
            return len(client.brokers()) == len(self.brokers)
        return False


class MoldauHosts(HostCluster):
    name = "Moldau"

    def prepare(self) -> None:
        ensemble = ",".join(f"{node.host}:{ZOOKEEPER_PORT}" for node in self.brokers)
        self._start_zookeepers()
        for node in self.brokers:
            node.write_properties(
                {
                    "node.id": node.node_id,
                    "listeners": f"PLAINTEXT://{node.address}",
                    "log.dirs": node.data_dir,
                    "zookeeper.connect": f"{ensemble}/moldau",
                    **self._properties,
                }
            )
            node.command = [sys.executable, "-m", "moldau", "start", str(node.properties_path), "--log-level", "INFO"]

    def _start_zookeepers(self) -> None:
        members = [f"server.{node.node_id}={node.host}:2888:3888" for node in self.brokers]
        for node in self.brokers:
            folder = self.data_dir / f"zookeeper-{node.node_id}"
            folder.mkdir(parents=True)
            (folder / "myid").write_text(str(node.node_id))
            settings = {**ZOOKEEPER, "dataDir": folder, "clientPort": ZOOKEEPER_PORT}
            lines = [*(f"{key}={value}" for key, value in settings.items()), *members]
            (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
            command = [sys.executable, "-m", "moldau", "zookeeper-server-start", str(folder / "zoo.cfg")]
            with (folder / "server.log").open("ab") as output:
                environment = {"XDG_RUNTIME_DIR": str(folder)}
                self.hosts.spawn(node.node_id, command, output=output, environment=environment)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not all(self._zookeeper_serves(node) for node in self.brokers):
            if time.monotonic() > deadline_s:
                logs = ", ".join(
                    str(self.data_dir / f"zookeeper-{node.node_id}" / "server.log") for node in self.brokers
                )
                raise TimeoutError(f"the ZooKeepers do not form an ensemble: see {logs}")
            time.sleep(0.1)

    def _zookeeper_serves(self, node: Node) -> bool:
        with suppress(OSError), socket.create_connection((node.host, ZOOKEEPER_PORT), 1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in connection.recv(4096)
        return False


class ApacheHosts(HostCluster):
    name = "Apache Kafka"

    def prepare(self) -> None:
        from bench.servers.apache import CLUSTER_ID, HEAP_FLAGS, JARS, JVM_FLAGS

        voters = ",".join(f"{node.node_id}@{node.host}:{CONTROLLER_PORT}" for node in self.brokers)
        java = [_java(), *HEAP_FLAGS, *JVM_FLAGS, "-cp", f"{JARS.ensure()}/*"]
        for node in self.brokers:
            node.write_properties(
                {
                    "process.roles": "broker,controller",
                    "node.id": node.node_id,
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{node.host}:{CONTROLLER_PORT}",
                    "advertised.listeners": f"PLAINTEXT://{node.address}",
                    "controller.listener.names": "CONTROLLER",
                    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    "log.dirs": node.data_dir,
                    **self._properties,
                }
            )
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(node.properties_path)]
            subprocess.run(tool, check=True, capture_output=True)
            node.command = [*java, "kafka.Kafka", str(node.properties_path)]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise HostsError("Apache Kafka needs Java")
    return java
