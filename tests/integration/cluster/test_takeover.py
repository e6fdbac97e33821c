"""A controller that says nothing is replaced by those who do not hear it, if they are most brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.cluster import membership, metadata_fetcher
from moldau.broker.cluster.metadata_feed import MetadataFeed
from moldau.broker.environment import Environment
from moldau.broker.handlers.api_table import API_TABLE
from moldau.broker.network.request import RequestContext
from moldau.broker.server import Server
from moldau.metadata.stores.shared_store import SharedStore
from moldau.wire.apis import ApiKey
from moldau.wire.fetch import FetchRequest
from tests.integration.servers import server_of
from tests.integration.waiting import until

SESSION_MS = 3_000
NEVER_MS = 3_600_000


def _quick(session_ms: int) -> dict[str, object]:
    return {"broker.session.timeout.ms": session_ms, "broker.heartbeat.interval.ms": 100}


@pytest.fixture
async def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Server]]:
    """The first one is the controller, and to the store it will be for an hour, however silent it is."""
    environment = Environment(make_store=lambda _: SharedStore(tmp_path / "metadata", session_timeout_ms=NEVER_MS))
    servers = [server_of(tmp_path, node_id, _quick(SESSION_MS), environment) for node_id in (1, 2, 3)]
    for each in servers:
        await each.start()
    assert servers[0].node.controller.is_active
    yield servers
    monkeypatch.undo()
    for each in reversed(servers):
        await each.stop()


def lose_answers(monkeypatch: pytest.MonkeyPatch, controller: Server, brokers: set[int]) -> None:
    """The controller hears these brokers still, but they do not hear it: packets are dropped in one direction."""
    beat, feed = API_TABLE[ApiKey.BROKER_HEARTBEAT].handler, MetadataFeed.handle

    def handle_heartbeat(node: Any, context: RequestContext, request: Any) -> Any:
        answer = beat(node, context, request)
        if node is controller.node and request.broker_id in brokers:
            node.spawn(answer)
            return node.loop.create_future()
        return answer

    def handle_fetch(self: MetadataFeed, context: RequestContext, request: FetchRequest) -> Any:
        answer = feed(self, context, request)
        if self is controller.node.controller.feed and request.replica_id in brokers:
            return controller.node.loop.create_future()
        return answer

    monkeypatch.setitem(
        API_TABLE, ApiKey.BROKER_HEARTBEAT, replace(API_TABLE[ApiKey.BROKER_HEARTBEAT], handler=handle_heartbeat)
    )
    monkeypatch.setattr(MetadataFeed, "handle", handle_fetch)


async def test_a_controller_that_nobody_hears_is_replaced_before_the_store_counts_it_as_gone(
    three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch, three[0], {2, 3})
    await until(lambda: any(each.node.controller.is_active for each in three[1:]), "another one is the controller")
    await until(lambda: not three[0].node.controller.is_active, "it learns so")
    successor = next(each.node for each in three if each.node.controller.is_active)
    await until(lambda: successor.controller.feed.is_connected(1), "it follows its successor")
    assert not successor.controller.image.brokers[1].fenced, "it lives, and had its session"


async def test_a_broker_that_alone_does_not_hear_the_controller_is_outvoted(
    three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    vote, answers = API_TABLE[ApiKey.VOTE].handler, []

    def handle_vote(node: Any, context: RequestContext, request: Any) -> Any:
        answer = vote(node, context, request)
        answers.append((node.node_id, answer.topics[0].partitions[0].vote_granted))
        return answer

    monkeypatch.setitem(API_TABLE, ApiKey.VOTE, replace(API_TABLE[ApiKey.VOTE], handler=handle_vote))
    lose_answers(monkeypatch, three[0], {2})
    await until(lambda: len(answers) > 5, "it asks")
    assert set(answers) == {(3, False)}
    assert three[0].node.controller.is_active
    assert three[0].node.controller.epoch == 1


async def test_a_silent_machine_does_not_keep_a_new_controller_from_fencing_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(*_: object) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await answer

    for part in (membership, metadata_fetcher):
        monkeypatch.setattr(part, "refuses", no_answer)  # neither does it refuse, nor accept
    first, second = (server_of(tmp_path, node_id, _quick(NEVER_MS)) for node_id in (1, 2))
    await first.start()
    await second.start()
    try:
        await first.node.threads.metadata(first.node.membership.close)  # dead, to the store
        await until(lambda: second.node.controller.is_active, "the other one is the controller")
        await until(lambda: second.node.controller.image.brokers[1].fenced, "the one before is fenced")
    finally:
        await second.stop()
        await first.stop()
