"""Groups and transactions on fewer brokers than their state topics are configured to have replicas."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.broker.server import Server
from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from tests.integration.clients import present
from tests.integration.servers import server_of
from tests.integration.waiting import until

Start = Callable[[int], Awaitable[Server]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    servers: list[Server] = []

    async def start_broker(node_id: int) -> Server:
        few = {"offsets.topic.num.partitions": 6, "transaction.state.log.num.partitions": 6}
        server = server_of(tmp_path, node_id, few)
        await server.start()
        servers.append(server)
        return server

    yield start_broker
    for server in reversed(servers):
        await server.stop()


def address(*servers: Server) -> str:
    return ",".join("{}:{}".format(*server.bound["PLAINTEXT"]) for server in servers)


def copy_once(servers: str) -> int | None:
    """One record read, one written and the offset committed, in one transaction; the offset that is committed then."""
    plain = Producer({"bootstrap.servers": servers})
    plain.produce("in", b"a")
    assert plain.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["in"])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
    try:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("out", message.value())
        position = TopicPartition("in", 0, present(message.offset()) + 1)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(20)
        return committed(consumer)
    finally:
        consumer.close()


def committed(consumer: Consumer) -> int:
    (found,) = consumer.committed([TopicPartition("in", 0)], 20)
    return int(found.offset)


def committed_at(servers: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    try:
        return committed(consumer)
    finally:
        consumer.close()


async def test_groups_and_transactions_work_on_one_broker_and_are_replicated_when_others_join(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "moldau.broker")
    first = await start(1)
    assert await asyncio.to_thread(copy_once, address(first)) == 1
    warned = [record for record in caplog.records if "fewer replicas than configured" in record.getMessage()]
    assert Counter(getattr(record, "topic", None) for record in warned) == {GROUPS_TOPIC: 1, TRANSACTIONS_TOPIC: 1}
    second = await start(2)
    third = await start(3)

    def is_whole(topic: str) -> bool:
        parts = third.node.metadata.image.topics[topic].partitions
        return all({*one.replicas} == {*one.isr} == {1, 2, 3} and not one.adding for one in parts)

    await until(lambda: is_whole(GROUPS_TOPIC) and is_whole(TRANSACTIONS_TOPIC), "each broker has a replica")
    preferred = Counter(one.replicas[0] for one in third.node.metadata.image.topics[GROUPS_TOPIC].partitions)
    assert preferred == {1: 2, 2: 2, 3: 2}
    await first.stop()
    assert await asyncio.to_thread(committed_at, address(second, third)) == 1
