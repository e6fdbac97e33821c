"""Brokers without sockets, for the tests of the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moldau.broker.node import BrokerNode
from moldau.config.broker import BrokerConfig
from moldau.metadata.records import BrokerRecord
from tests.unit.broker.offline import ADVERTISED, LISTENER, OfflineBroker, StartOffline


@pytest.fixture
async def start_offline(tmp_path: Path) -> AsyncIterator[StartOffline]:
    """`start_offline({"num.partitions": "3"})` opens a broker without sockets, closed at the end of the test."""
    nodes: list[BrokerNode] = []

    def start(properties: dict[str, str] | None = None) -> OfflineBroker:
        folder = tmp_path / f"data-{len(nodes)}"
        config, _ = BrokerConfig.from_properties({"log.dirs": str(folder), **(properties or {})}, strict=True)
        node = BrokerNode(config, asyncio.get_running_loop())
        node.open()
        node.local.advertised[LISTENER] = ADVERTISED
        me = BrokerRecord(
            node.node_id, node.metadata.image.version + 1, ((LISTENER, *ADVERTISED, "PLAINTEXT"),), config.broker_rack
        )
        node.metadata.begin_with(node.controller.adopt([me]))
        node.begin()
        node.is_serving.set()
        nodes.append(node)
        return OfflineBroker(node)

    yield start
    for node in nodes:
        await node.close()


@pytest.fixture
async def offline_broker(start_offline: StartOffline) -> OfflineBroker:
    return start_offline()
