"""Commands against a real broker: those that move records as processes of their own, the rest in this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from moldau.cli.main import main

TIMEOUT_S = 60

# Starting a process takes longer than these commands do; `test_commands_are_processes_too` starts one of each.
IN_PROCESS = (
    "topics", "configs", "get-offsets", "delete-records", "log-dirs", "broker-api-versions",
    "groups", "consumer-groups", "share-groups", "transactions",
    "reassign-partitions", "leader-election", "cluster", "metadata-quorum",
)  # fmt: skip


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Commands:
    """`commands("topics", "--list")` is `kafka-topics --bootstrap-server … --list`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def arguments(self, name: str, *args: str) -> list[str]:
        return [sys.executable, "-m", "moldau", name, "--bootstrap-server", self.bootstrap_servers, *args]

    def __call__(self, name: str, *args: str, stdin: str | bytes = "") -> Result:
        if name in IN_PROCESS:
            return self._in_process([name, "--bootstrap-server", self.bootstrap_servers, *args])
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.arguments(name, *args),
            input=data,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=_environment(),
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _in_process(self, argv: list[str]) -> Result:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
        return Result(code, out.getvalue(), err.getvalue())

    def ok(self, name: str, *args: str, stdin: str | bytes = "") -> str:
        result = self(name, *args, stdin=stdin)
        assert result.code == 0, result
        return result.out

    def start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.arguments(name, *args), stdin=pipe, stdout=pipe, stderr=pipe, env=_environment())


def _environment() -> dict[str, str]:
    """Output is flushed by the commands themselves or not at all."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def commands(kafka_broker: Any) -> Commands:
    return Commands(kafka_broker.bootstrap_servers)


@pytest.fixture
def nowhere() -> Commands:
    """Commands that are told of a broker that is not there."""
    return Commands("127.0.0.1:1")


@pytest.fixture
def new_topic(commands: Commands) -> Iterator[Callable[..., str]]:
    """Creates topics with names of their own and deletes them afterwards."""
    made: list[str] = []

    def create(*args: str) -> str:
        name = f"cli-{uuid.uuid4().hex[:12]}"
        commands.ok("topics", "--create", "--topic", name, *args)
        made.append(name)
        return name

    yield create
    if made:
        commands.ok("topics", "--delete", "--if-exists", "--topic", "|".join(made))
