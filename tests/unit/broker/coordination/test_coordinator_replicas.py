"""A coordinator whose state topic has a second replica: played by the test, which says what it has and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker.coordination import coordinator_shell as shell
from moldau.broker.coordination.coordinator_shell import CoordinatorShell
from moldau.broker.replicas.partition import Partition
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.records import BrokerRecord
from moldau.wire.batch import ControlType, encode_end_txn_marker
from tests.unit.broker.coordination.test_coordinator_shell import Counters, add, counters
from tests.unit.broker.offline import OfflineBroker, StartOffline, until

OTHER = 7
TOPIC = "__counters"


class Replicated:
    def __init__(self, broker: OfflineBroker, min_isr: int) -> None:
        self.node = broker.node
        self.coordinator = counters(broker, {"min.insync.replicas": str(min_isr)})

    async def start(self) -> Replicated:
        await self.coordinator.ready()
        await self.change(isr=(self.node.node_id, OTHER))
        return self

    async def change(self, **changes: Any) -> None:
        """All partitions of the state topic are led, and replicated, otherwise."""
        changes.setdefault("leader", self.node.node_id)

        def plan(image: Any) -> list[Any]:
            topic = image.topics[TOPIC]
            partitions = [
                one.record(topic.topic_id, replicas=(self.node.node_id, OTHER), **changes) for one in topic.partitions
            ]
            return [BrokerRecord(OTHER, 1, (("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT"),)), *partitions]

        await self.node.controller.change(plan)
        self.coordinator.follow()

    @property
    def partition(self) -> Partition:
        return self.node.find_partition(TOPIC, None, self.coordinator.partition_for("a"))

    def follower_has(self, offset: int) -> None:
        assert self.partition.leadership is not None
        follower = self.partition.leadership.followers[OTHER]
        self.partition.fetched(follower, offset, log_start_offset=0, broker_epoch=1, now_ms=self.node.monotonic_ms())


@pytest.fixture
async def replicated(start_offline: StartOffline) -> Replicated:
    return await Replicated(start_offline(), min_isr=1).start()


async def told(reply: Any) -> Any:
    async with asyncio.timeout(10):
        return await reply


async def test_a_reply_waits_until_the_followers_have_its_records(replicated: Replicated) -> None:
    first = replicated.coordinator.ask("a", add("a"))
    second: Any = replicated.coordinator.ask("a", add("a"))
    replicated.follower_has(1)
    assert await told(first) == 1
    await asyncio.sleep(0.01)
    assert not second.done()
    replicated.follower_has(2)
    assert await told(second) == 2


async def test_what_is_only_told_waits_for_what_it_tells_of(replicated: Replicated) -> None:
    coordinator = replicated.coordinator
    written = coordinator.ask("a", add("a"))
    read = coordinator.ask("a", lambda shard, waiter, _: shard.tell(waiter, "a"))
    settled = coordinator.settled("a")
    assert not isinstance(read, int)
    assert settled is not None
    replicated.follower_has(1)
    assert await told(asyncio.gather(written, read, settled)) == [1, 1, None]
    assert coordinator.settled("a") is None
    assert coordinator.ask("a", lambda shard, waiter, _: shard.tell(waiter, "a")) == 1


async def test_whoever_waits_when_the_leader_changes_is_sent_to_the_next_coordinator(replicated: Replicated) -> None:
    waiting = [replicated.coordinator.ask("a", add("a")), replicated.coordinator.settled("a")]
    await replicated.change(leader=OTHER, leader_epoch=1, isr=(OTHER,))
    for one in waiting:
        with pytest.raises(KafkaError) as error:
            await told(one)
        assert error.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as error:
        replicated.coordinator.ask("a", add("a"))
    assert error.value.code is ErrorCode.NOT_COORDINATOR
    assert not replicated.coordinator.leads("a")
    assert replicated.coordinator.leader_for("a") == OTHER


async def test_without_enough_replicas_no_step_begins_and_nothing_is_loaded_again(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RETRY_WAKE_MS", 5)
    replicated = await Replicated(start_offline(), min_isr=2).start()
    coordinator = replicated.coordinator
    shard = coordinator.shard("a")
    asked = coordinator.ask("a", add("a"))
    replicated.follower_has(1)
    assert await told(asked) == 1
    due_ms = replicated.node.monotonic_ms() + 500
    waiting = coordinator.ask("a", lambda shard, waiter, _: shard.wait(waiter, due_ms))
    await replicated.change(isr=(replicated.node.node_id,), partition_epoch=1)
    with pytest.raises(KafkaError) as error:
        coordinator.ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: replicated.node.monotonic_ms() > due_ms + 50)
    assert coordinator.shard("a") is shard
    assert shard.counts == {"a": 1}
    assert shard.woken == []
    await replicated.change(isr=(replicated.node.node_id, OTHER), partition_epoch=2)
    assert await told(waiting) == "woken"  # a timer that came in the bad time comes again


async def test_a_new_leader_loads_what_the_one_before_may_have_acknowledged(replicated: Replicated) -> None:
    node = replicated.node
    replicated.coordinator.ask("a", add("a"))
    again: CoordinatorShell[Counters] = counters(OfflineBroker(node))
    await replicated.change(leader=OTHER, leader_epoch=1, isr=(OTHER, node.node_id))
    await replicated.change(leader=node.node_id, leader_epoch=2, isr=(OTHER, node.node_id))
    again.follow()
    with pytest.raises(KafkaError) as error:
        again.ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert replicated.partition.log.high_watermark == 0
    replicated.follower_has(1)
    await until(lambda: not again.is_loading)
    assert again.shard("a").counts == {"a": 1}


async def test_a_shard_does_not_outlive_its_leader_epoch(replicated: Replicated) -> None:
    shard = replicated.coordinator.shard("a")
    await replicated.change(leader_epoch=2, isr=(OTHER, replicated.node.node_id))
    await until(lambda: not replicated.coordinator.is_loading)
    assert replicated.coordinator.shard("a") is not shard
    assert replicated.coordinator.epoch_for("a") == 2


async def test_a_marker_that_is_written_just_before_a_shard_begins_is_not_missed(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "ENOUGH_REPLICAS_POLL_S", 0.02)
    replicated = await Replicated(start_offline(), min_isr=2).start()
    node, partition = replicated.node, replicated.partition
    made: list[Counters] = []

    def make_shard(_: int) -> Counters:
        made.append(Counters())
        return made[-1]

    monkeypatch.setattr(replicated.coordinator, "_make_shard", make_shard)
    replicated.coordinator.ask("a", add("a"))
    replicated.follower_has(1)
    await replicated.change(leader=OTHER, leader_epoch=1, isr=(node.node_id, OTHER), partition_epoch=1)
    await replicated.change(leader_epoch=2, isr=(node.node_id,), partition_epoch=2)
    await until(lambda: any(shard.replayed for shard in made))  # now it waits for replicas only
    assert replicated.coordinator.is_loading
    await replicated.change(leader_epoch=2, isr=(node.node_id, OTHER), partition_epoch=3)
    marker = encode_end_txn_marker(
        ControlType.COMMIT, coordinator_epoch=0, producer_id=9, producer_epoch=0, timestamp_ms=node.clock()
    )
    partition.append(memoryview(bytearray(marker)), node.clock(), AppendOrigin.COORDINATOR, required_acks=-1)
    replicated.coordinator.marker_written(partition.index, 9, True)
    replicated.follower_has(2)
    await until(lambda: not replicated.coordinator.is_loading)
    assert replicated.coordinator.shard("a").markers == [(9, True)]
