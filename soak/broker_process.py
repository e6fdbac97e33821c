"""A broker as a process of its own, as a user starts it; port and data stay over restarts and kills."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_HOST = "127.0.0.1"
# Below the range from which outgoing connections get theirs: a client that retries while the broker is down
# could otherwise take the very port, or connect to itself.
_PORTS = range(10_000, 30_000)
# ApiVersions v0.
_PROBE = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody uses."""
    choose = random.SystemRandom()
    while True:
        first = choose.choice(_PORTS)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind((_HOST, port))
            return first


def command(name: str) -> str:
    """The path of an installed command, beside this Python."""
    return str(Path(sys.executable).with_name(name))


class BrokerProcess:
    def __init__(
        self, folder: Path, properties: Mapping[str, object] | None = None, *, log_level: str = "INFO"
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.metrics_port = free_port()
        self.bootstrap = f"{_HOST}:{self.port}"
        self.data_dir = folder / "data"
        self.output_path = folder / "broker.log"
        self.properties_path = folder / "server.properties"
        self.properties: dict[str, object] = {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": self.data_dir,
            "moldau.metrics.port": self.metrics_port,
            **(properties or {}),
        }
        self.program = [command("kafka-server-start")]
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """Brokers of this folder are found by `kafka-server-stop` with this environment, and by no other."""
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}

    def start(self) -> float:
        """Returns the seconds until the first answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.properties_path.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        started = time.monotonic()
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                [*self.program, str(self.properties_path), "--log-level", self._log_level],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended with code {self._process.returncode}: {self.output()}")
            if time.monotonic() - started > START_TIMEOUT_S:
                self.kill()
                raise RuntimeError(f"the broker did not answer in {START_TIMEOUT_S:.0f} s: {self.output()}")
            time.sleep(0.01)
        return time.monotonic() - started

    def _answers(self) -> bool:
        try:
            with socket.create_connection((_HOST, self.port), timeout=5) as probe:
                probe.sendall(_PROBE)
                return len(probe.recv(4)) == 4
        except OSError:
            return False

    def stop(self) -> int:
        """As SIGTERM does; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9; nothing happens when it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def output(self) -> str:
        """All it ever said."""
        return self.output_path.read_text(errors="replace")

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def _scrape(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{_HOST}:{self.metrics_port}/metrics", timeout=10) as answer:
                    return str(answer.read(), "utf-8")
            except urllib.error.URLError:
                # The endpoint opens a moment after the broker's own port.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def metrics(self) -> dict[str, float]:
        """Name, with labels, to value."""
        text = self._scrape()
        return {name: float(value) for name, value in re.findall(r"^([^#\s][^ ]*(?:\{.*\})?) (\S+)$", text, re.M)}
