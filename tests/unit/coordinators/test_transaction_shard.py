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

CONFIG, _ = BrokerConfig.from_properties({"log.dirs": "unused", "transactional.id.expiration.ms": "5000"})
WRITER = "writer"
PARTITION = ("orders", 0)


@pytest.fixture
def shard() -> TransactionShard:
    return TransactionShard(lambda: CONFIG, WRITER)


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
    shard.add_partitions("me", AddPartitions("t", producer, [("orders", 1)], 2), 1000)
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


def test_ids_that_were_silent_are_forgotten_and_open_ones_are_not(shard: TransactionShard) -> None:
    begin(shard, "open")
    shard.init_producer_id("me", InitProducerId("idle", 60_000, fresh_id=8), 1000)
    shard.init_producer_id("me", InitProducerId("young", 60_000, fresh_id=9), 2000)
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
    reborn = TransactionShard(lambda: CONFIG, WRITER)
    for key, value in ended.records:
        reborn.replay(key, value, offset=0, timestamp_ms=0)
    effects = run_wakes(reborn, reborn.loaded(3000), 3000)
    assert _replies(effects) == {WRITER: Markers("t", Identity(7, 1), True, 2, (PARTITION,))}


def test_a_tombstone_forgets(shard: TransactionShard) -> None:
    begin(shard)
    shard.replay(TransactionLogKey("t"), None, offset=0, timestamp_ms=0)
    assert not shard.transactions
