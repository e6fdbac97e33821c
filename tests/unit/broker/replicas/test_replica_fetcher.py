"""The follower's end: what a leader, played by the test, answers, and what of it goes into the log."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from moldau.broker.node import BrokerNode
from moldau.broker.replicas.partition import Partition
from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import PartitionLog
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord
from moldau.wire.batch import encode_batch
from moldau.wire.fetch import FetchPartitionResult, FetchRequest, encode_fetch_response, parse_fetch_request
from moldau.wire.primitives import Buffer
from tests.unit.broker.offline import StartOffline

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


def batch(count: int, offset: int = 0, leader_epoch: int = 0) -> bytes:
    fields = [(None, b"value", 1_700_000_000_000, ())] * count
    return bytes(encode_batch(fields, base_offset=offset, leader_epoch=leader_epoch))


def records(count: int, offset: int = 0) -> FetchPartitionResult:
    return sent(batch(count, offset))


def sent(*batches: bytes) -> FetchPartitionResult:
    data = b"".join(batches)
    return FetchPartitionResult(0, 0, high_watermark=0, last_stable_offset=0, log_start_offset=0, records=data)


class Following:
    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self.node = node
        self.leader = leader

    @property
    def partition(self) -> Partition:
        return self.node.find_partition(None, TOPIC_ID.bytes, 0)

    @property
    def log_end_offset(self) -> int:
        return self.partition.log.log_end_offset

    async def named(self) -> tuple[int, asyncio.Future[memoryview]]:
        """The offset that is asked for next, and where to put the answer."""
        while True:
            request, asked = await self.leader.asked()
            if request.topics:
                return request.topics[0].partitions[0].fetch_offset, asked
            asked.set_result(answer())  # it only says that it is there

    async def leave_isr(self) -> None:
        part = self.node.metadata.image.topics["t"].partitions[0]
        await self.node.controller.change(lambda _: [part.record(TOPIC_ID, isr=(LEADER,), partition_epoch=1)])


@pytest.fixture
async def following(start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch) -> Following:
    node = start_offline().node
    node.local.broker_epoch = 1
    leader = Leader()
    monkeypatch.setattr(node.peers, "broker", lambda broker_id, purpose: leader)
    replicas = (node.node_id, LEADER)
    await node.controller.change(
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
    part = following.node.metadata.image.topics["t"].partitions[0]
    asked.set_result(answer(records(3)))
    # The partition is told first, its fetcher a moment later: the answer comes between.
    me = following.node.node_id
    following.partition.follow_image(replace(part, leader=me, leader_epoch=1, partition_epoch=1))
    await following.leader.asked()
    assert following.partition.log.log_end_offset == 0


async def test_a_broker_that_is_not_registered_asks_for_nothing(following: Following) -> None:
    _, first = await following.leader.asked()
    following.node.local.broker_epoch = -1
    first.set_result(answer(records(1)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await following.leader.asked()
    following.node.local.broker_epoch = 2
    request, _ = await following.leader.asked()
    assert request.replica_epoch == 2


async def test_where_each_record_has_to_be_on_disk_the_follower_says_that_it_has_it_only_then(
    following: Following,
) -> None:
    await following.node.controller.change(lambda _: [ConfigRecord("topic", "t", "flush.messages", "1")])
    _, first = await following.leader.asked()
    first.set_result(answer(records(3)))
    request, _ = await following.leader.asked()
    while not request.topics:  # it may have to say that it is there in the meantime
        request, _ = await following.leader.asked()
    assert request.topics[0].partitions[0].fetch_offset == 3
    assert following.partition.log.recovery_point == 3


async def test_what_waits_for_the_disk_is_vouched_for_in_no_session_and_to_no_leader(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that begins anew and another leader ask for everything: that must not run ahead of a slow fsync."""
    may_sync = threading.Event()
    real_flush = PartitionLog.flush

    def slow_flush(log: PartitionLog, upto_offset: int | None = None) -> None:
        assert may_sync.wait(30)
        real_flush(log, upto_offset)

    monkeypatch.setattr(PartitionLog, "flush", slow_flush)  # the log alone: metadata has to reach its file
    node = following.node
    await node.controller.change(lambda _: [ConfigRecord("topic", "t", "flush.messages", "1")])
    _, asked = await following.named()
    asked.set_result(answer(records(3)))
    request, asked = await following.leader.asked()
    assert not request.topics
    asked.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection broke"))
    request, asked = await following.leader.asked()
    assert request.session_id == 0
    assert not request.topics, "a new session"
    part = node.metadata.image.topics["t"].partitions[0]
    await node.controller.change(lambda _: [part.record(TOPIC_ID, leader_epoch=1, partition_epoch=1)])
    asked.set_result(answer())
    request, asked = await following.leader.asked()
    assert not request.topics, "another leader epoch"
    assert following.partition.log.recovery_point == 0
    may_sync.set()
    asked.set_result(answer())
    assert (await following.named())[0] == following.partition.log.recovery_point == 3


# -- a leader that sends something else than it was asked for


@pytest.mark.parametrize("offset", [1, 3, 4, 100])
async def test_records_that_do_not_begin_at_the_log_end_are_refused_and_fetched_again(
    following: Following, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, asked = await following.named()
    asked.set_result(answer(records(2)))
    for _ in range(3):  # a leader that insists
        fetch_offset, asked = await following.named()
        assert fetch_offset == following.log_end_offset == 2
        asked.set_result(answer(records(1, offset)))
    warnings = [record for record in caplog.records if "do not continue the log" in record.message]
    assert f"t-0 ends at offset 2, the leader sent offset {offset}" in str(vars(warnings[0])["why"])
    fetch_offset, asked = await following.named()
    assert fetch_offset == 2
    asked.set_result(answer(records(1, 2)))
    assert (await following.named())[0] == following.log_end_offset == 3


async def test_an_answer_to_what_was_asked_before_the_log_was_cut_is_refused(following: Following) -> None:
    _, asked = await following.named()
    asked.set_result(answer(records(5)))
    fetch_offset, asked = await following.named()
    assert fetch_offset == 5
    following.partition.truncate_to(3, "a test")
    asked.set_result(answer(records(1, 5)))
    assert (await following.named())[0] == following.log_end_offset == 3


async def test_in_a_compacted_topic_records_may_be_missing(following: Following) -> None:
    await following.node.controller.change(lambda _: [ConfigRecord("topic", "t", "cleanup.policy", "compact")])
    _, asked = await following.named()
    asked.set_result(answer(sent(batch(1, 4), batch(1, 9))))
    assert (await following.named())[0] == following.log_end_offset == 10


async def test_a_replica_that_catches_up_takes_a_gap_that_the_leader_confirms(following: Following) -> None:
    """The topic may have been compacted before: batch by batch, each gap is asked for twice."""
    await following.leave_isr()
    expected = [0, 1, 1, 6, 6]
    for fetch_offset in expected:
        named, asked = await following.named()
        assert named == fetch_offset
        asked.set_result(answer(sent(*(one for one in (batch(1), batch(1, 5), batch(1, 9)) if one[7] >= named))))
    assert (await following.named())[0] == following.log_end_offset == 10


async def test_a_batch_of_a_later_epoch_than_the_leader_was_asked_in_is_left(following: Following) -> None:
    _, asked = await following.named()
    asked.set_result(answer(sent(batch(2), batch(1, 2, leader_epoch=1))))
    assert (await following.named())[0] == following.log_end_offset == 2


async def test_what_is_no_batch_is_not_asked_for_in_a_loop(following: Following) -> None:
    _, asked = await following.named()
    asked.set_result(answer(sent(bytes(200))))
    fetch_offset, asked = await following.named()
    assert fetch_offset == following.log_end_offset == 0
    asked.set_result(answer(records(1)))
    assert (await following.named())[0] == 1
