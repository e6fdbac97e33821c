"""Somebody sets the wall clock an hour back or forth: what times out, and what does not, stays the same.

The wall clock is patched for the whole process, so whoever reads it, by whatever way, is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.broker.handlers.queues.share_fetch import _deliver, _Fetch
from moldau.cluster.replica import LeaderState
from moldau.coordinators.share.partition import RecordState, Wanted
from moldau.coordinators.share.state_shard import ShareKey
from moldau.coordinators.transactions.shard import AddPartitions, InitProducerId
from moldau.coordinators.transactions.transaction import State
from moldau.metadata.image import PartitionImage
from moldau.wire.messages import ms
from moldau.wire.topic_partition import TopicPartition
from tests.unit.broker.handlers.test_handlers_groups import Group
from tests.unit.broker.offline import OfflineBroker, StartOffline, until

HOUR_S = 3600
QUICK_ABORTS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10",
    "transaction.state.log.num.partitions": "1",
}
SetClock = Callable[[int], None]

pytestmark = pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S], ids=["back", "forth"])


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    real, real_ns = time.time, time.time_ns

    def step(by_s: int) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + by_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + by_s * 10**9)

    return step


async def test_a_dead_member_goes_after_its_session_and_a_living_one_stays(
    start_offline: StartOffline, set_clock: SetClock, step_s: int
) -> None:
    broker = start_offline({"group.min.session.timeout.ms": "10", "group.initial.rebalance.delay.ms": "0"})
    await broker.node.groups.ready()
    group = Group(broker)
    living = await group.join(session_timeout=ms(600_000))
    # The round that a second member starts waits for the first one.
    dead = asyncio.ensure_future(group.join(session_timeout=ms(200)))
    machine = broker.node.groups.shard(group.group_id).groups[group.group_id]
    await until(lambda: len(machine.members) == 2)  # type: ignore[attr-defined]
    living = await group.join(living.member_id, session_timeout=ms(600_000))
    assert (await dead).error_code == 0
    set_clock(step_s)
    await until(lambda: len(machine.members) == 1)  # type: ignore[attr-defined]
    assert machine.members.ids == [living.member_id]  # type: ignore[attr-defined]


async def open_transaction(broker: OfflineBroker, name: str, timeout_ms: int, producer_id: int) -> None:
    transactions = broker.node.transactions
    request = InitProducerId(name, timeout_ms, fresh_id=producer_id)
    told: Any = transactions.ask(name, lambda shard, reply, now_ms: shard.init_producer_id(reply, request, now_ms))
    added = AddPartitions(name, told.producer, [TopicPartition("t", 0)], 2)
    transactions.ask(name, lambda shard, reply, now_ms: shard.add_partitions(reply, added, now_ms))


async def test_an_open_transaction_is_aborted_after_its_timeout_and_not_before(
    start_offline: StartOffline, set_clock: SetClock, step_s: int
) -> None:
    broker = start_offline(QUICK_ABORTS)
    await broker.create("t")
    await broker.node.transactions.ready()
    await open_transaction(broker, "long", 900_000, 7)
    await open_transaction(broker, "short", 100, 8)
    set_clock(step_s)
    known = broker.node.transactions.shard("short").transactions
    await until(lambda: known["short"].state is not State.ONGOING)
    assert known["long"].state is State.ONGOING


async def test_a_shard_that_is_loaded_again_aborts_what_is_overdue(
    start_offline: StartOffline, set_clock: SetClock, step_s: int
) -> None:
    """Its start is known from the record alone; a clock that went back may add the whole timeout, and no more."""
    broker = start_offline(QUICK_ABORTS)
    await broker.create("t")
    transactions = broker.node.transactions
    await transactions.ready()
    await open_transaction(broker, "short", 300, 8)
    set_clock(step_s)
    transactions._load_soon(0)
    before = transactions._shards.pop(0)
    await until(lambda: not transactions.is_loading)
    known = transactions.shard("short").transactions
    assert known is not before.transactions
    await until(lambda: known["short"].state is not State.ONGOING)


async def test_a_lock_on_a_record_of_a_queue_ends_with_its_duration(
    start_offline: StartOffline, set_clock: SetClock, step_s: int
) -> None:
    broker = start_offline()
    node = broker.node
    await broker.create("t", partitions=2)
    await node.share_state.ready()
    topic_id = node.metadata.image.topics["t"].topic_id
    queues = []
    for partition, lock_ms in enumerate((200, 600_000)):
        broker.write("t", 1, partition)
        config = replace(
            node.share_partitions.group_config("q"),
            share_auto_offset_reset="earliest",
            share_record_lock_duration_ms=lock_ms,
        )
        queues.append(node.share_partitions.get(ShareKey("q", topic_id, partition), config))
    given = _deliver(node, queues, _Fetch("q", "dead", Wanted(10, 10), 1, 10_000, 0), everything=True)
    assert len(given) == 2
    set_clock(step_s)
    await until(lambda: queues[0].machine.next_lock_ms is None)
    assert [run.state for run in queues[0].machine.runs] == [RecordState.AVAILABLE]
    assert [run.state for run in queues[1].machine.runs] == [RecordState.ACQUIRED]


async def test_a_follower_is_in_sync_for_as_long_as_it_was_caught_up(
    start_offline: StartOffline, set_clock: SetClock, step_s: int
) -> None:
    replicas = start_offline().node.replication
    leadership = LeaderState(
        1, PartitionImage(0, 1, 0, (1, 2), (1, 2)), replicas, log_end_offset=0, now_ms=replicas.monotonic_ms()
    )
    follower = leadership.followers[2]
    set_clock(step_s)
    assert follower.is_caught_up(5, replicas.monotonic_ms(), lag_time_max_ms=60_000)
    await until(lambda: not follower.is_caught_up(5, replicas.monotonic_ms(), lag_time_max_ms=50))
