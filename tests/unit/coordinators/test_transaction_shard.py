"""The transactions of a shard: timeouts, expiry, and what a crash left undone."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.transactions.records import TransactionLogKey
from moldau.coordinators.transactions.shard import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    Markers,
    TransactionShard,
)
from moldau.coordinators.transactions.transaction import Identity, ProducerIdNeeded, State, Transaction
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.topic_partition import TopicPartition

CONFIG, _ = BrokerConfig.from_properties({"log.dirs": "unused", "transactional.id.expiration.ms": "5000"})
WRITER = "writer"
PARTITION = TopicPartition("orders", 0)


HOUR_MS = 3_600_000


class WallClock:
    """Somebody may set it at any time."""

    def __init__(self) -> None:
        self.timestamp_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.timestamp_ms


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
def shard(wall: WallClock) -> TransactionShard:
    return TransactionShard(lambda: CONFIG, WRITER, wall_clock=wall)


def reborn(shard: TransactionShard, *steps: Effects) -> TransactionShard:
    """What a new coordinator loads."""
    new = TransactionShard(lambda: CONFIG, WRITER, wall_clock=shard._wall_clock)
    for step in steps:
        for key, value in step.records:
            new.replay(key, value, offset=0, timestamp_ms=0)
    return new


def begin(shard: TransactionShard, transactional_id: str = "t", now_ms: int = 1000) -> Identity:
    request = InitProducerId(transactional_id, 60_000, fresh_id=7)
    producer: Identity = _replies(shard.init_producer_id("me", request, now_ms))["me"].producer
    shard.add_partitions("me", AddPartitions(transactional_id, producer, [PARTITION], 2), now_ms)
    return producer


def _replies(effects: Effects) -> dict[Any, Any]:
    return dict(effects.replies)


def states(effects: Effects) -> list[State]:
    return [State(value.transaction_status) for _, value in effects.records if value is not None]


def run_wakes(shard: TransactionShard, effects: Effects, now_ms: int) -> Effects:
    """All that is due, in one."""
    together = Effects()
    for at_ms, key in effects.wakes:
        if at_ms <= now_ms:
            together.merge(shard.wake(key, now_ms))
    return together


def test_a_new_id_needs_a_producer_id_and_leaves_no_trace_without(shard: TransactionShard) -> None:
    with pytest.raises(ProducerIdNeeded):
        shard.init_producer_id("me", InitProducerId("t", 60_000), 1000)
    assert not shard.transactions


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(shard: TransactionShard, timeout_ms: int) -> None:
    with pytest.raises(KafkaError) as refused:
        shard.init_producer_id("me", InitProducerId("t", timeout_ms, fresh_id=7), 1000)
    assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not shard.transactions


def test_the_markers_leave_with_the_decision_and_complete_it(shard: TransactionShard) -> None:
    producer = begin(shard)
    effects = shard.end("me", EndTxn("t", producer, True, 2), 2000)
    assert states(effects) == [State.PREPARE_COMMIT]
    markers = Markers("t", Identity(7, 1), True, 2, (PARTITION,))
    assert _replies(effects) == {"me": Identity(7, 1), WRITER: markers}
    assert states(shard.markers_written(markers, [PARTITION], 2000)) == [State.COMPLETE_COMMIT]
    again = shard.end("me", EndTxn("t", producer, True, 2), 2000)
    assert (_replies(again), again.records) == ({"me": Identity(7, 1)}, [])


def test_a_partition_that_cannot_be_written_is_tried_again_alone(shard: TransactionShard) -> None:
    producer = begin(shard)
    shard.add_partitions("me", AddPartitions("t", producer, [TopicPartition("orders", 1)], 2), 1000)
    effects = shard.end("me", EndTxn("t", producer, False, 2), 2000)
    left = shard.markers_written(_replies(effects)[WRITER], [PARTITION], 2000)
    assert states(left) == []
    retry = _replies(run_wakes(shard, left, 10_000))[WRITER]
    assert retry.partitions == (("orders", 1),)
    assert states(shard.markers_written(retry, retry.partitions, 10_000)) == [State.COMPLETE_ABORT]


def test_a_stale_report_of_markers_changes_nothing(shard: TransactionShard) -> None:
    producer = begin(shard)
    stale = Markers("t", producer, True, 2, (PARTITION,))
    assert shard.markers_written(stale, [PARTITION], 2000).records == []
    shard.end("me", EndTxn("t", producer, True, 2), 2000)
    assert shard.markers_written(stale, [PARTITION], 2000).records == []
    assert shard.markers_written(stale._replace(transactional_id="nobody"), [PARTITION], 2000).records == []


def test_an_abort_of_nothing_needs_no_markers(shard: TransactionShard) -> None:
    effects = shard.init_producer_id("me", InitProducerId("t", 60_000, fresh_id=7), 1000)
    producer = _replies(effects)["me"].producer
    ended = shard.end("me", EndTxn("t", producer, False, 2), 2000)
    assert states(ended) == [State.PREPARE_ABORT, State.COMPLETE_ABORT]
    assert _replies(ended) == {"me": Identity(7, 1)}


def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(shard: TransactionShard) -> None:
    producer = begin(shard, now_ms=1000)
    assert run_wakes(shard, shard.wake(("timeouts",), 61_000), 61_000).records == []
    aborted = run_wakes(shard, shard.wake(("timeouts",), 61_001), 61_001)
    assert states(aborted) == [State.PREPARE_ABORT]
    assert _replies(aborted)[WRITER].producer == Identity(7, 1)
    with pytest.raises(KafkaError) as refused:
        shard.add_partitions("me", AddPartitions("t", producer, [PARTITION], 2), 61_001)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_the_timeout_of_a_transaction_does_not_follow_the_wall_clock(
    shard: TransactionShard, wall: WallClock, step_ms: int
) -> None:
    begin(shard, now_ms=1000)
    wall.timestamp_ms += step_ms
    assert run_wakes(shard, shard.wake(("timeouts",), 61_000), 61_000).records == []
    assert states(run_wakes(shard, shard.wake(("timeouts",), 61_001), 61_001)) == [State.PREPARE_ABORT]


@pytest.mark.parametrize(
    ("passed_ms", "left_ms"),
    [(20_000, 40_000), (-HOUR_MS, 60_000), (HOUR_MS, 0)],
    ids=["as it was", "the clock went back", "the clock went forth, or the broker was away"],
)
def test_a_new_coordinator_gives_an_open_transaction_what_is_left_of_its_timeout(
    shard: TransactionShard, wall: WallClock, passed_ms: int, left_ms: int
) -> None:
    producer = _replies(shard.init_producer_id("me", InitProducerId("t", 60_000, fresh_id=7), 1000))["me"].producer
    began = shard.add_partitions("me", AddPartitions("t", producer, [PARTITION], 2), 1000)
    wall.timestamp_ms += passed_ms
    after = reborn(shard, began)
    after.loaded(500)  # the clock of another machine: it began later
    end_ms = 500 + left_ms
    assert run_wakes(after, after.wake(("timeouts",), end_ms), end_ms).records == []
    assert states(run_wakes(after, after.wake(("timeouts",), end_ms + 1), end_ms + 1)) == [State.PREPARE_ABORT]


def test_ids_that_were_silent_are_forgotten_and_open_ones_are_not(shard: TransactionShard, wall: WallClock) -> None:
    begin(shard, "open")
    shard.init_producer_id("me", InitProducerId("idle", 60_000, fresh_id=8), 1000)
    wall.timestamp_ms += 1000
    shard.init_producer_id("me", InitProducerId("young", 60_000, fresh_id=9), 2000)
    wall.timestamp_ms += 4000
    effects = shard.wake(("expiration",), 6000)
    assert [(key.transactional_id, value) for key, value in effects.records] == [("idle", None)]
    assert set(shard.transactions) == {"open", "young"}
    with pytest.raises(KafkaError) as refused:
        shard.verify("idle", Identity(8, 0), [PARTITION])
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_many_expired_ids_go_in_batches_that_fit(shard: TransactionShard) -> None:
    for number in range(50):
        name = f"{number:030000}"
        shard.transactions[name] = Transaction(name, number, 0, 60_000, last_update_ms=0)
    effects = shard.wake(("expiration",), 100_000)
    assert 0 < len(effects.records) < 10
    for _ in range(20):
        effects = shard.wake(("expiration",), effects.wakes[0][0])
    assert not shard.transactions


def test_what_was_decided_before_a_crash_is_done_after_it(shard: TransactionShard) -> None:
    producer = begin(shard)
    ended = shard.end("me", EndTxn("t", producer, True, 2), 2000)
    after = reborn(shard, ended)
    effects = run_wakes(after, after.loaded(3000), 3000)
    assert _replies(effects) == {WRITER: Markers("t", Identity(7, 1), True, 2, (PARTITION,))}


def test_a_tombstone_forgets(shard: TransactionShard) -> None:
    begin(shard)
    shard.replay(TransactionLogKey("t"), None, offset=0, timestamp_ms=0)
    assert not shard.transactions
