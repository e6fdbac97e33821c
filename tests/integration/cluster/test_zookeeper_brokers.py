"""Brokers on a real ZooKeeper: two that want the same id, and an ensemble that goes away and comes back."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import uuid
from pathlib import Path

import pytest

from moldau.broker.server import Server
from moldau.config.broker import BrokerConfig
from soak.broker_process import command
from tests.integration.waiting import until
from tests.integration.zookeeper import ZooKeeper

SESSION_MS = 2_000


def properties(folder: Path, connect: str, number: int) -> dict[str, str]:
    return {
        "broker.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder / f"data-{number}"),
        "zookeeper.connect": connect,
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "zookeeper.connection.timeout.ms": "20000",
        "broker.session.timeout.ms": str(SESSION_MS),
    }


async def test_a_broker_whose_id_is_taken_says_so_and_exits(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    first = Server(BrokerConfig.from_properties(properties(tmp_path, connect, 1), strict=True)[0])
    await first.start()
    try:
        file = tmp_path / "second.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties(tmp_path, connect, 2).items()))
        second = await asyncio.to_thread(
            subprocess.run, [command("kafka-server-start"), str(file)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 2, second.stderr
        host, port = first.bound["PLAINTEXT"]
        assert second.stderr.splitlines()[-1] == (
            f"moldau: broker.id=7 (node.id) is taken: a broker of this cluster with the same id runs at {host}:{port}. "
            "Give each broker an id of its own, or stop that one first"
        )
        assert first.node.controller.is_active, "the one that was there first does not notice"
    finally:
        await first.stop()


async def test_a_zookeeper_that_goes_away_and_comes_back_costs_two_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ZooKeeper(tmp_path / "ensemble") as ensemble:
        caplog.set_level(logging.INFO)
        server = Server(BrokerConfig.from_properties(properties(tmp_path, ensemble.connect, 1), strict=True)[0])
        await server.start()
        try:
            caplog.clear()
            ensemble.servers[0].kill()
            await until(lambda: server.node.controller.term is None, "it has no controller")
            ensemble.servers[0].start()
            await until(lambda: "this broker is the controller" in caplog.messages, "it is the controller again")
            said = [record.getMessage() for record in caplog.records if record.name.startswith(("kazoo", "moldau"))]
        finally:
            await server.stop()
    assert said == [
        "ZooKeeper does not respond: no elections and no metadata changes until it does",
        "this broker is no longer the controller",
        "ZooKeeper responds again",
        "this broker is the controller",
    ]
