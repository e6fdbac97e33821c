"""The follower's end: what a leader, played by the test, answers, and what of it goes into the log."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from offline import StartOffline

from moldau.broker.node import BrokerNode
from moldau.broker.partition import Partition
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord
from moldau.wire.batch import encode_batch
from moldau.wire.fetch import FetchPartitionResult, FetchRequest, encode_fetch_response, parse_fetch_request
from moldau.wire.primitives import Buffer

LEADER = 7
TOPIC_ID = uuid.UUID(int=5)


class Leader:
    """Broker 7: each request waits until the test answers it."""

    def __init__(self) -> None:
        self._requests: asyncio.Queue[tuple[FetchRequest, asyncio.Future[memoryview]]] = asyncio.Queue()

    async def ask_raw(self, key: int, version: int, body: Sequence[Buffer], *, timeout_s: float) -> memoryview:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        request = parse_fetch_request(version, memoryview(b"".join(body)))
        self._requests.put_nowait((request, answer))
        return await answer

    async def asked(self) -> tuple[FetchRequest, asyncio.Future[memoryview]]:
        async with asyncio.timeout(10):
            return await self._requests.get()


def answer(*results: FetchPartitionResult) -> memoryview:
    frame = encode_fetch_response(17, 0, [(None, TOPIC_ID.bytes, list(results))], session_id=1)
    return memoryview(b"".join(frame)[4:])


def records(count: int) -> FetchPartitionResult:
    batch = encode_batch([(None, b"value", 1_700_000_000_000, ())] * count)
    return FetchPartitionResult(0, 0, high_watermark=0, last_stable_offset=0, log_start_offset=0, records=batch)


class Following:
    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self.node = node
        self.leader = leader

    @property
    def partition(self) -> Partition:
        return self.node.find_partition(None, TOPIC_ID.bytes, 0)


@pytest.fixture
async def following(start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch) -> Following:
    node = start_offline().node
    node.broker_epoch = 1
    leader = Leader()
    monkeypatch.setattr(node.peers, "broker", lambda broker_id, purpose: leader)
    replicas = (node.node_id, LEADER)
    await node.change_metadata(
        lambda _: [
            BrokerRecord(LEADER, 1, (("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT"),)),
            TopicRecord("t", TOPIC_ID),
            PartitionRecord(TOPIC_ID, 0, replicas, replicas, LEADER),
        ]
    )
    return Following(node, leader)


async def test_what_the_leader_sends_is_appended_and_asked_for_no_more(following: Following) -> None:
    _, first = await following.leader.asked()
    first.set_result(answer(records(3)))
    request, _ = await following.leader.asked()
    assert request.topics[0].partitions[0].fetch_offset == following.partition.log.log_end_offset == 3


async def test_an_answer_of_a_leader_that_this_broker_replaced_is_not_appended(following: Following) -> None:
    _, asked = await following.leader.asked()
    part = following.node.image.topics["t"].partitions[0]
    asked.set_result(answer(records(3)))
    # The partition is told first, its fetcher a moment later: the answer comes between.
    me = following.node.node_id
    following.partition.follow_image(replace(part, leader=me, leader_epoch=1, partition_epoch=1))
    await following.leader.asked()
    assert following.partition.log.log_end_offset == 0


async def test_a_broker_that_is_not_registered_asks_for_nothing(following: Following) -> None:
    _, first = await following.leader.asked()
    following.node.broker_epoch = -1
    first.set_result(answer(records(1)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await following.leader.asked()
    following.node.broker_epoch = 2
    request, _ = await following.leader.asked()
    assert request.replica_epoch == 2


async def test_where_each_record_has_to_be_on_disk_the_follower_says_that_it_has_it_only_then(
    following: Following,
) -> None:
    await following.node.change_metadata(lambda _: [ConfigRecord("topic", "t", "flush.messages", "1")])
    _, first = await following.leader.asked()
    first.set_result(answer(records(3)))
    request, _ = await following.leader.asked()
    while not request.topics:  # it may have to say that it is there in the meantime
        request, _ = await following.leader.asked()
    assert request.topics[0].partitions[0].fetch_offset == 3
    assert following.partition.log.recovery_point == 3
