"""A real ZooKeeper for tests, from the jars that PySpark brings: one server or an ensemble of three."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from tests.integration.waiting import eventually

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper", "netty-", "slf4j-api", "metrics-core", "snappy-java", "commons-io")
_TICK_MS = 500  # sessions may last from 2 to 20 ticks
_JVM = (
    "-Xmx192m",
    "-Dzookeeper.commitLogCount=50",  # the last 500 transactions in memory may be 500 MB
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=srvr",
    "-Dzookeeper.jmx.log4j.disable=true",
)


class ZooKeeperServer:
    """One server: `start`, `kill` and `start` again as often as the test likes; its data stays."""

    def __init__(self, number: int, folder: Path, port: int) -> None:
        self.number = number
        self.port = port
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, members: list[str]) -> None:
        self._folder.mkdir(parents=True)
        (self._folder / "myid").write_text(str(self.number))
        settings = [
            f"tickTime={_TICK_MS}",
            "initLimit=10",
            "syncLimit=5",
            f"dataDir={self._folder}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            *members,
        ]
        (self._folder / "zoo.cfg").write_text("\n".join(settings) + "\n")

    def start(self) -> None:
        with open(self._folder / "server.log", "ab") as out:
            self._process = subprocess.Popen(
                [_java(), *_JVM, "-cp", _class_path(), _MAIN, str(self._folder / "zoo.cfg")],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def is_serving(self) -> bool:
        """Whether it answers as a member of a working ensemble."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"ZooKeeper ended: {(self._folder / 'server.log').read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in connection.recv(4096)
        return False

    def pause(self) -> None:
        """It takes connections still, and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class ZooKeeper:
    def __init__(self, folder: Path, servers: int = 1) -> None:
        ports = _free_ports(3 * servers)
        self.servers = [
            ZooKeeperServer(number, folder / f"zk-{number}", ports.pop()) for number in range(1, servers + 1)
        ]
        members = [f"server.{each.number}=127.0.0.1:{ports.pop()}:{ports.pop()}" for each in self.servers]
        for server in self.servers:
            server.configure(members if servers > 1 else [])

    @property
    def connect(self) -> str:
        """For `zookeeper.connect`."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def __enter__(self) -> ZooKeeper:
        for server in self.servers:
            server.start()
        for server in self.servers:
            eventually(server.is_serving, f"ZooKeeper server {server.number} serves")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for server in self.servers:
            server.kill()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server for all tests: each uses a chroot of its own, and none stops it."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble


def _class_path() -> str:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("ZooKeeper's jars are those of pyspark, which is not installed")
    jars = (Path(spark.origin).parent / "jars").glob("*.jar")
    return ":".join(str(jar) for jar in sorted(jars) if jar.name.startswith(_JARS))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        pytest.skip("ZooKeeper needs Java")
    return java


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
