"""The leader's end: what a fetch with a replica id, played by the test, may bring about."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from moldau.broker.replicas.partition import Partition
from moldau.errors import ErrorCode
from moldau.metadata.records import BrokerRecord, PartitionRecord, TopicRecord
from moldau.wire.apis import ApiKey
from moldau.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from moldau.wire.messages import request_head
from tests.unit.broker.offline import OfflineBroker, StartOffline

FOLLOWER = 7
BROKER_EPOCH = 40
TOPIC_ID = uuid.UUID(int=5)


class Led:
    """A partition that this broker leads, with a follower that has nothing yet."""

    def __init__(self, broker: OfflineBroker) -> None:
        self.broker = broker

    async def start(self) -> Led:
        replicas = (self.broker.node.node_id, FOLLOWER)
        await self.broker.node.controller.change(
            lambda _: [
                BrokerRecord(FOLLOWER, BROKER_EPOCH, (("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT"),)),
                TopicRecord("t", TOPIC_ID),
                PartitionRecord(TOPIC_ID, 0, replicas, replicas, self.broker.node.node_id),
            ]
        )
        self.broker.write("t", 3)
        return self

    @property
    def partition(self) -> Partition:
        return self.broker.node.find_partition("t", None, 0)

    async def fetch(self, offset: int, broker_epoch: int) -> int:
        """The code it is told."""
        ((_, _, (result,)),) = (await self.send(offset, broker_epoch)).topics
        return result.error_code

    async def send(
        self, offset: int, broker_epoch: int, session: tuple[int, int] = (0, 0), made_up: int = 0
    ) -> FetchResponse:
        """On a connection of its own; the partition comes behind those that are `made_up`."""
        asked = [FetchPartition(index, 0, offset, -1, 0, 1 << 20) for index in (*range(1, made_up + 1), 0)]
        request = FetchRequest(
            replica_id=FOLLOWER,
            replica_epoch=broker_epoch,
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(None, TOPIC_ID.bytes, asked)],
        )
        body = encode_fetch_request(17, request)
        head = request_head(ApiKey.FETCH, 17, 1, "test", len(body))
        return parse_fetch_response(17, memoryview((await self.broker.send(head[4:] + body))[4:]))


@pytest.fixture
async def led(start_offline: StartOffline) -> Led:
    return await Led(start_offline()).start()


async def test_what_the_follower_says_that_it_has_is_committed(led: Led) -> None:
    assert await led.fetch(3, BROKER_EPOCH) == 0
    assert led.partition.log.high_watermark == 3


@pytest.mark.parametrize("broker_epoch", [-1, BROKER_EPOCH - 1, BROKER_EPOCH + 1])
async def test_whoever_is_not_the_registered_life_of_the_follower_commits_nothing(led: Led, broker_epoch: int) -> None:
    assert await led.fetch(3, broker_epoch) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.partition.log.high_watermark == 0


async def test_what_arrives_late_on_a_connection_that_the_follower_gave_up_is_not_believed(led: Led) -> None:
    given_up = (await led.send(0, BROKER_EPOCH)).session_id
    await led.fetch(3, BROKER_EPOCH)
    late = await led.send(1, BROKER_EPOCH, (given_up, 1))
    assert late.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert led.partition.leadership is not None
    assert led.partition.leadership.followers[FOLLOWER].log_end_offset == 3


async def test_nobody_ends_the_session_of_a_follower_in_its_name(led: Led) -> None:
    session = (await led.send(0, BROKER_EPOCH)).session_id
    await led.send(0, BROKER_EPOCH - 1)
    assert (await led.send(3, BROKER_EPOCH, (session, 1))).error_code == 0
    assert led.partition.log.high_watermark == 3


async def test_a_replica_that_was_about_to_join_and_died_is_waited_for_no_longer(led: Led) -> None:
    node = led.broker.node
    part = node.metadata.image.topics["t"].partitions[0]
    await led.fetch(3, BROKER_EPOCH)
    await led.fetch(2, BROKER_EPOCH)  # not enough to be proposed again, enough to be waited for
    await node.controller.change(lambda _: [part.record(TOPIC_ID, isr=(node.node_id,), partition_epoch=1)])
    led.broker.write("t", 1)
    assert led.partition.log.high_watermark == 3
    await node.controller.change(lambda image: [replace(image.brokers[FOLLOWER], fenced=True)])
    assert led.partition.log.high_watermark == 4


async def test_a_session_that_is_replaced_while_it_takes_turns_leaves_nothing_behind(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.broker.turns.TURN_S", 0.0)
    first = asyncio.ensure_future(led.send(3, BROKER_EPOCH, made_up=50))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    assert await led.fetch(1, BROKER_EPOCH) == 0
    assert (await first).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(led.partition.subscribers) == 1
    assert led.partition.log.high_watermark == 1, "what the first one had yet to say does not count"
