"""`moldau stop`, `start --node-id` and `-daemon` find brokers by locked files: looking must not make one invisible."""

from __future__ import annotations

import fcntl
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from moldau.cli.common import _where_brokers_are, default_servers
from moldau.cli.servers import running
from moldau.errors import ErrorCode, KafkaError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_looking_while_a_broker_registers_does_not_remove_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    looked: list[bool] = []

    def flock(file: Any, operation: int) -> None:
        if not looked and operation == fcntl.LOCK_EX:  # the file is there and not locked yet
            looked.append(True)
            assert list(running.find_running()) == []
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with running.registered({"node.id": 1}):
        assert looked
        assert [facts["node.id"] for facts in running.find_running()] == [1]
    assert list(running.folder().iterdir()) == []


def test_two_commands_that_look_do_not_take_each_other_for_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """`moldau stop` would send a signal to whichever process has the dead one's number now."""
    (running.folder() / "12345.json").write_text('{"pid": 12345, "node.id": 1}')
    real = fcntl.flock
    seen: list[list[Any]] = []

    def flock(file: Any, operation: int) -> None:
        real(file, operation)
        if operation & fcntl.LOCK_NB and not seen:  # the first one has the lock for a moment
            seen.append([])
            seen[0] += running.find_running()

    monkeypatch.setattr(fcntl, "flock", flock)
    assert list(running.find_running()) == []
    assert seen == [[]]


def test_a_runtime_folder_that_is_not_there_is_replaced_by_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert running.folder().parent == tmp_path


def test_a_broker_that_cannot_be_registered_runs_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = running.folder()
    place.rmdir()
    place.symlink_to(tmp_path)
    with running.registered({"node.id": 1}):
        assert "kafka-server-stop will not find this broker" in caplog.text


def test_commands_ask_every_broker_of_the_local_cluster_by_default() -> None:
    assert default_servers() == "localhost:9092"
    listeners = [f"PLAINTEXT://127.0.0.1:{port}" for port in (9092, 9093)]
    with running.registered({"node.id": None, "listeners": listeners}):
        assert default_servers() == "127.0.0.1:9092,127.0.0.1:9093"
    with running.registered({"node.id": None, "listeners": [listeners[1]]}):
        assert default_servers() == "localhost:9092"


def test_a_failed_command_names_brokers_that_run_not_those_that_should() -> None:
    supervisor = {
        "pid": 1,
        "node.id": None,
        "listeners": ["PLAINTEXT://127.0.0.1:19092", "PLAINTEXT://127.0.0.1:19093"],
    }
    (running.folder() / "1.json").write_text(json.dumps(supervisor))
    with (running.folder() / "1.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with running.registered({"node.id": 2, "listeners": ["PLAINTEXT://127.0.0.1:19093"]}):
            hint = _where_brokers_are(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker"))
    assert hint == ". Brokers on this machine listen on 127.0.0.1:19093"
