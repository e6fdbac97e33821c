"""Client processes: started, brought to the line, let go together, and measured.

A client prints `ready` once it is connected, waits for `go`, runs its job (`bench.jobs`) and prints its
result as one line of JSON. So neither imports nor connection set-up are ever inside a measured time. In between it may
print how far it is. One that takes too long is ended.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bench.progress import PROGRESS
from bench.servers.server import pinned

ROOT = Path(__file__).resolve().parent.parent

# A client counts as saturated from this share of one core on, …
CLIENT_SATURATED = 0.9
# … and the broker as having room below this one.
BROKER_HAS_ROOM = 0.7
# No job is meant to take longer: it hangs, or the machine is far too slow for it.
JOB_TIMEOUT_S = 1_200
# For what a job has started itself, which it ends when it is ended.
END_TIMEOUT_S = 10


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

    def __init__(self, cores: Sequence[int] | None = None, say: Callable[[str], None] = lambda _: None) -> None:
        self._cores = cores
        self._say = say

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
        with Client(job, parameters, self._cores, self._say) as client:
            client.go()
            return client.result()

    def client(self, server: Driven, job: str, parameters: Mapping[str, Any]) -> Client:
        """One client process, for a scenario that does something else while it runs."""
        return Client(job, {"bootstrap": server.bootstrap, **parameters}, self._cores, self._say)


class Client:
    """One client process; entered, it stands ready at the line."""

    def __init__(
        self, job: str, parameters: Mapping[str, Any], cores: Sequence[int] | None, say: Callable[[str], None]
    ) -> None:
        self._job = job
        self._say = say
        self._is_too_late = False
        with pinned(cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", job, json.dumps(parameters)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        self._timer = threading.Timer(JOB_TIMEOUT_S, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self._is_too_late = True
        self._process.terminate()

    def __enter__(self) -> Self:
        self._read_line()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.terminate()
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
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
        while (line := self._process.stdout.readline()).startswith(PROGRESS):
            self._say(f"  {line.removeprefix(PROGRESS).rstrip()}")
        if not line:
            _, complaint = self._process.communicate()
            if self._is_too_late:
                raise ClientError(f"the client of job {self._job!r} did not end within {JOB_TIMEOUT_S} s")
            raise ClientError(f"the client of job {self._job!r} failed: {complaint.strip()[-2000:]}")
        return line
