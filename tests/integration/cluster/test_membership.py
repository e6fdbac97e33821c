"""A broker's place in its cluster: what it does when the others are not there, and what it leaves behind."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.cluster.controller_channel import FORWARD_TIMEOUT_S
from moldau.broker.cluster.membership import ClusterMembership
from moldau.broker.cluster.metadata_fetcher import MetadataFetcher
from moldau.broker.cluster.peers import FORWARDING
from moldau.broker.handlers.api_table import API_TABLE
from moldau.broker.network.request import RequestContext
from moldau.broker.server import Server
from moldau.metadata.stores.shared_store import SharedStore
from moldau.metadata.stores.store import Candidate
from moldau.metadata.topics import plan_create_topic
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import Schema, ms, request_head
from soak.broker_process import command
from tests.integration.servers import server_of
from tests.integration.waiting import eventually

SESSION_MS = 6_000
QUICK = {"broker.session.timeout.ms": SESSION_MS, "broker.heartbeat.interval.ms": 100}


@pytest.fixture
def silent_controller(tmp_path: Path) -> Iterator[Path]:
    """The folder of a cluster whose controller takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        store = SharedStore(tmp_path / "metadata")
        store.open()
        told: list[object] = []
        store.campaign(Candidate(9, "127.0.0.1", listening.getsockname()[1]), told.append)
        try:
            eventually(lambda: told and told[-1] is not None, "it is elected")
            yield tmp_path / "metadata"
        finally:
            store.close()


@pytest.mark.parametrize("how", ["SIGTERM", "the end of its input"])
def test_a_broker_that_waits_for_its_cluster_can_be_stopped(tmp_path: Path, silent_controller: Path, how: str) -> None:
    properties = {
        "node.id": 1,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": tmp_path / "data",
        "moldau.metadata.dir": silent_controller,
        "broker.session.timeout.ms": 600_000,
    }
    overrides = [part for key, value in properties.items() for part in ("--override", f"{key}={value}")]
    said = tmp_path / "said"
    with said.open("wb") as output:
        broker = subprocess.Popen(
            [command("moldau"), "start", "--child", *overrides], stdin=subprocess.PIPE, stderr=output, stdout=output
        )
    try:
        eventually(lambda: "waiting for a controller" in said.read_text(), "it waits")
        if how == "SIGTERM":
            broker.send_signal(signal.SIGTERM)
        else:
            assert broker.stdin is not None
            broker.stdin.close()
        assert broker.wait(10) == 0, said.read_text()
    finally:
        broker.kill()
        broker.wait()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """The controller, and another broker."""
    first, second = (server_of(tmp_path, node_id, QUICK) for node_id in (1, 2))
    await first.start()
    await second.start()
    assert first.node.controller.is_active
    yield first, second
    await second.stop()
    await first.stop()


async def test_a_controller_that_is_deposed_while_it_starts_keeps_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server_of(tmp_path, 1, QUICK)
    await before.start()
    await before.node.controller.change(
        lambda image: plan_create_topic(image, "t", topic_id=uuid.uuid4(), broker_config=before.node.local.config)
    )
    await before.stop()

    async def depose(self: ClusterMembership) -> None:
        self._controller.deposed()

    monkeypatch.setattr(ClusterMembership, "_fence_dead_brokers", depose)  # the first thing that it does
    after = server_of(tmp_path, 1, QUICK)
    starting = asyncio.ensure_future(after.start())
    async with asyncio.timeout(10):
        while not after.node.is_open:
            await asyncio.sleep(0)
    assert [one.name for one in after.node.hosted] == ["t-0"]
    after.give_up()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_broker_that_never_was_the_controller_leaves_its_place_as_well(
    tmp_path: Path, two: tuple[Server, Server]
) -> None:
    await two[1].stop()
    await asyncio.sleep(0)
    running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert MetadataFetcher._follow.__qualname__ not in running
    with (tmp_path / "metadata" / "broker-2.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_heartbeat_that_gets_lost_is_followed_by_another_in_time(
    two: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, answered = API_TABLE[ApiKey.BROKER_HEARTBEAT].handler, asyncio.Event()
    lost: list[asyncio.Future[None]] = []

    def lose_one(node: Any, context: RequestContext, request: Any) -> Any:
        if request.broker_id == 2 and not lost:
            lost.append(asyncio.get_running_loop().create_future())
            return lost[0]
        if request.broker_id == 2:
            answered.set()
        return handle(node, context, request)

    monkeypatch.setitem(
        API_TABLE, ApiKey.BROKER_HEARTBEAT, replace(API_TABLE[ApiKey.BROKER_HEARTBEAT], handler=lose_one)
    )
    async with asyncio.timeout(SESSION_MS / 1000):
        await answered.wait()


async def test_a_heartbeat_does_not_wait_for_what_takes_long(
    two: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def everywhere(version: int) -> None:
        begun.set()
        await may_end.wait()

    monkeypatch.setattr(first.node.controller, "everywhere", everywhere)

    def topic(schema: Schema) -> Any:
        wanted = schema.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
        return schema.CreateTopicsRequest(topics=(wanted,), timeout=ms(10_000), validate_only=False)

    creating = asyncio.ensure_future(
        second.node.controller_channel.ask(ApiKey.CREATE_TOPICS, topic, purpose=FORWARDING)
    )
    await begun.wait()
    assert isinstance(second.node.membership, ClusterMembership)
    async with asyncio.timeout(SESSION_MS / 1000):
        await second.node.controller_channel.ask(ApiKey.BROKER_HEARTBEAT, second.node.membership._lifecycle.heartbeat)
    assert not creating.done()
    may_end.set()
    assert (await creating).topics[0].error_code == 0


async def test_what_is_no_request_is_not_sent_on_to_the_controller(two: tuple[Server, Server]) -> None:
    version = APIS[ApiKey.CREATE_TOPICS].max_version
    reader, writer = await asyncio.open_connection(*two[1].bound["PLAINTEXT"])
    writer.write(request_head(ApiKey.CREATE_TOPICS, version, 1, "tester", 3) + b"\xff" * 3)
    async with asyncio.timeout(FORWARD_TIMEOUT_S / 2):
        assert await reader.read() == b"", "closed at once"
    writer.close()
    controller = two[1].node.peers.at(two[0].bound["PLAINTEXT"], FORWARDING)
    assert controller._wire is None
