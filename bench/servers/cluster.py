"""Three brokers as one server: started together, ready when each knows all, measured as a sum.

A node keeps its port and its data over kills, as a `ServerProcess` does. What differs between Moldau and Apache Kafka
is how the nodes are made: `moldau_cluster.py` and `apache_cluster.py`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.servers.server import HOST, ServerProcess
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from moldau.errors import KafkaError

NODES = 3
# Each poll is a connection and two requests: often enough to time a start of half a second.
READY_POLL_S = 0.02
# Below those that outgoing connections get: a client that retries could be given the port of a dead broker.
PORTS = range(10_000, 30_000)

# Kafka's defaults for a topic of one broker, turned to what is safe with three; the same on both.
SHARED_PROPERTIES = {"default.replication.factor": NODES, "min.insync.replicas": 2}


def quiet_ports(count: int) -> list[int]:
    """Free ports that nobody is given by chance while a broker is down."""
    choose = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = choose.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if port not in found:
                found.append(port)
    return found


class ServerCluster(ABC):
    name: str
    title: str

    def __init__(self, directory: Path, *, cores: Sequence[int] | None = None) -> None:
        self.directory = directory
        self.extra: dict[str, object] = {}
        self.nodes = self.make_nodes(directory, cores)
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)

    @abstractmethod
    def make_nodes(self, directory: Path, cores: Sequence[int] | None) -> Sequence[ServerProcess]:
        """The nodes, in the order of their ids, which begin at 1."""

    def node(self, node_id: int) -> ServerProcess:
        return self.nodes[node_id - 1]

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def start(self) -> float:
        """The seconds from the first spawn until every node knows of all of them."""
        for node in self.nodes:
            node.extra = self.extra
            node.prepare_directory()
        started = time.perf_counter()
        for node in self.nodes:
            node.launch()
        self._await_ready(started)
        return time.perf_counter() - started

    def restart_node(self, node: ServerProcess) -> None:
        """Bring back a node that was killed; returns when it is a member again."""
        node.kill()
        started = time.perf_counter()
        node.launch()
        self._await_ready(started)

    def _await_ready(self, started: float) -> None:
        for node in self.nodes:
            while _members(node.bootstrap) < len(self.nodes):
                for each in self.nodes:
                    each.expect_alive(started)
                time.sleep(READY_POLL_S)

    def stop(self) -> None:
        """All at once: the data goes away, and nothing asks how a cluster stops in order."""
        for node in self.nodes:
            node.kill()

    def discard(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_seconds(self) -> float:
        total = 0.0
        for node in self.nodes:
            # A node that a scenario killed has spent what it has spent; nobody asks for that.
            with contextlib.suppress(psutil.NoSuchProcess):
                total += node.cpu_seconds()
        return total

    def pss_bytes(self) -> int:
        return sum(node.pss_bytes() for node in self.nodes)

    def client(self) -> ClusterClient:
        """For what an administrator asks, the same of both servers."""
        return ClusterClient(ClientConfig(parse_servers(self.bootstrap)))


def _members(bootstrap: str) -> int:
    """How many brokers one of them knows; none while it does not answer."""
    config = ClientConfig(parse_servers(bootstrap), request_timeout_ms=2_000, api_timeout_ms=2_000)
    try:
        with ClusterClient(config) as client:
            return len(client.brokers())
    except KafkaError:
        return 0
