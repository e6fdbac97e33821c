"""One interface for both brokers, and the process handling they share.

A server keeps its port and its data directory over restarts, so a scenario can stop, kill and start it
again. How a broker is installed and configured is in `apache.py` and `moldau_server.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

HOST = "127.0.0.1"

# Long enough for Kafka to load thousands of partitions on a busy machine; a broken broker exits much sooner.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
# Fine enough to time a start of 0.2 s, coarse enough not to take the core from the broker that starts.
POLL_INTERVAL_S = 0.002

# Written out by hand so that the poll loop needs no protocol library: ApiVersions v0, client id "bench".
API_VERSIONS_REQUEST = struct.pack(">ihhih5s", 15, 18, 0, 1, 5, b"bench")


class ServerError(Exception):
    """A broker cannot be had, started or stopped; the message says which and carries its last words."""


class Server(Protocol):
    name: str
    title: str
    bootstrap: str

    @property
    def version(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> float:
        """Start, and return the seconds from the spawn of the process to its first answered request."""

    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def cpu_seconds(self) -> float: ...
    def rss_bytes(self) -> int: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Processes spawned inside get these cores from their first instruction: a JVM counts its cores once."""
    if cores is None:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def answers(port: int) -> bool:
    """Whether a broker at the port answers ApiVersions."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class ServerProcess(ABC):
    """A broker as a child process; subclasses say how it is prepared and with which command it starts."""

    name: str
    title: str

    def __init__(self, directory: Path, *, cores: Sequence[int] | None = None, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self.data_directory = directory / "data"
        self.log_path = directory / "server.out"
        self._cores = cores
        # Settings of one scenario, on top of the server's own; to be set before the first start.
        self.extra: dict[str, object] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def prepare(self) -> None:
        """Write the configuration and whatever else the first start needs. Called before every start."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.title} is not running")
        return self._process.pid

    def start(self) -> float:
        self.prepare_directory()
        started = time.perf_counter()
        self.launch()
        while not answers(self.port):
            self.expect_alive(started)
            time.sleep(POLL_INTERVAL_S)
        return time.perf_counter() - started

    def prepare_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()

    def launch(self) -> None:
        """Spawn the process, and wait for nothing."""
        with self.log_path.open("ab") as output, pinned(self._cores):
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # An installed package has its bytecode; a checkout may, too.
                env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
                # Ctrl-C must reach the runner alone, which then stops the brokers in order.
                start_new_session=True,
            )

    def expect_alive(self, started: float) -> None:
        """While it starts: it has not ended, and still has time."""
        assert self._process is not None
        if self._process.poll() is not None:
            code = self._process.returncode
            raise ServerError(f"{self.title} ended with code {code} while starting: {self._last_words()}")
        if time.perf_counter() - started > START_TIMEOUT_S:
            self.kill()
            raise ServerError(f"{self.title} did not answer within {START_TIMEOUT_S:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:].strip() or "it said nothing"

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerError(f"{self.title} did not stop within {STOP_TIMEOUT_S:.0f} s") from error
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def discard(self) -> None:
        """Kill what runs and remove the data: the end of a scenario that owns its server."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _tree(self) -> list[psutil.Process]:
        process = psutil.Process(self.pid)
        return [process, *process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system time of the broker, its children, and its children that have ended."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
                total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return total

    def rss_bytes(self) -> int:
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def pss_bytes(self) -> int:
        """As `rss_bytes`, but what several processes share counts once altogether: Linux alone tells."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = process.memory_full_info()
                total += getattr(memory, "pss", memory.rss)
        return total


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
