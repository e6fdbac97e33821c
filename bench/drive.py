"""Client processes: started, brought to the line, let go together, and measured.

A client prints `ready` once it is connected, waits for `go`, runs its job (`bench.jobs`) and prints its
result as one line of JSON. So neither imports nor connection set-up are ever inside a measured time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bench.servers.server import pinned

ROOT = Path(__file__).resolve().parent.parent

# A client counts as saturated from this share of one core on, …
CLIENT_SATURATED = 0.9
# … and the broker as having room below this one.
BROKER_HAS_ROOM = 0.7


class Driven(Protocol):
    """What clients need of a server, of however many brokers it is made."""

    bootstrap: str

    def cpu_seconds(self) -> float: ...


class ClientError(Exception):
    """A client process failed; the message carries the end of what it said."""


@dataclass(frozen=True)
class Drive:
    """What the clients measured, and what the broker spent meanwhile."""

    results: list[dict[str, Any]]
    broker_cpu_s: float

    @property
    def result(self) -> dict[str, Any]:
        (only,) = self.results
        return only

    @property
    def seconds(self) -> float:
        return max(float(result["seconds"]) for result in self.results)

    @property
    def is_client_bound(self) -> bool:
        client_cores = max(result["client_cpu_s"] / result["seconds"] for result in self.results)
        broker_cores = self.broker_cpu_s / self.seconds
        return client_cores >= CLIENT_SATURATED and broker_cores < BROKER_HAS_ROOM


class Drivers:
    """Starts the client processes of one run, all with the same pinning."""

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        self._cores = cores

    def run(self, server: Driven, job: str, *parameters: Mapping[str, Any]) -> Drive:
        """Run one client process per parameter set against the server, all at once."""
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self.client(server, job, each)) for each in parameters]
            cpu_before = server.cpu_seconds()
            for client in clients:
                client.go()
            results = [client.result() for client in clients]
            return Drive(results, server.cpu_seconds() - cpu_before)

    def run_alone(self, job: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Run a job that talks to no server."""
        with Client(job, parameters, self._cores) as client:
            client.go()
            return client.result()

    def client(self, server: Driven, job: str, parameters: Mapping[str, Any]) -> Client:
        """One client process, for a scenario that does something else while it runs."""
        return Client(job, {"bootstrap": server.bootstrap, **parameters}, self._cores)


class Client:
    """One client process; entered, it stands ready at the line."""

    def __init__(self, job: str, parameters: Mapping[str, Any], cores: Sequence[int] | None) -> None:
        self._job = job
        with pinned(cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", job, json.dumps(parameters)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )

    def __enter__(self) -> Self:
        self._read_line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._read_line())
        return result

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, complaint = self._process.communicate()
            raise ClientError(f"the client of job {self._job!r} failed: {complaint.strip()[-2000:]}")
        return line
