"""What became of a queue's records, in snapshots and updates."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.share.partition import StateBatch, StateWrite
from moldau.coordinators.share.records import STATE_RECORDS, ShareSnapshotKey, ShareUpdateKey
from moldau.coordinators.share.state_shard import UNINITIALIZED, Epochs, ShareKey, ShareStateShard, merge_batches
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import encode_key, encode_value
from tests.unit.coordinators.consumer_lab import LabTopics

TOPICS = LabTopics(orders=3)
ORDERS = TOPICS.topic_id("orders") or uuid.UUID(int=0)
KEY = ShareKey("queue", ORDERS, 0)
EPOCHS = Epochs(0, 0)


class StateLab:
    def __init__(self, updates_per_snapshot: int = 3) -> None:
        name = "share.coordinator.snapshot.update.records.per.snapshot"
        self._config, _ = BrokerConfig.from_properties({name: str(updates_per_snapshot)})
        self.shard = ShareStateShard(lambda: self._config, TOPICS, wall_clock=lambda: 5)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.kinds: list[type] = []

    def perform(self, effects: Effects) -> None:
        for key, value in effects.records:
            self.kinds.append(type(key))
            self.log.append((encode_key(key), None if value is None else encode_value(value)))

    def initialize(self, start_offset: int, state_epoch: int = 0, key: ShareKey = KEY) -> None:
        self.perform(self.shard.initialize(object(), key, start_offset, state_epoch))

    def write(self, start_offset: int, *batches: StateBatch, epochs: Epochs = EPOCHS) -> None:
        self.perform(self.shard.write(object(), KEY, epochs, StateWrite(start_offset, 0, batches)))

    def reloaded(self) -> ShareStateShard:
        shard = ShareStateShard(lambda: self._config, TOPICS, wall_clock=lambda: 5)
        for number, record in enumerate(self.log):
            pair = STATE_RECORDS.decode(*record)
            assert pair is not None
            shard.replay(*pair, offset=number, timestamp_ms=0)
        return shard


def test_a_snapshot_follows_the_updates_that_are_allowed_between_two() -> None:
    lab = StateLab(updates_per_snapshot=2)
    lab.initialize(0)
    for offset in range(5):
        lab.write(0, StateBatch(offset, offset, 2, 1))
    s, u = ShareSnapshotKey, ShareUpdateKey
    assert lab.kinds == [s, u, u, s, u, u]
    assert lab.shard.states[KEY].batches == (StateBatch(0, 4, 2, 1),)
    assert lab.reloaded().states == lab.shard.states


def test_older_epochs_are_fenced() -> None:
    lab = StateLab()
    lab.initialize(0, state_epoch=3)
    lab.write(0, epochs=Epochs(3, 7))
    for epochs, code in ((Epochs(2, 7), ErrorCode.FENCED_STATE_EPOCH), (Epochs(3, 6), ErrorCode.FENCED_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as refusal:
            lab.write(1, epochs=epochs)
        assert refusal.value.code is code
    with pytest.raises(KafkaError) as refusal:
        lab.initialize(0, state_epoch=2)
    assert refusal.value.code is ErrorCode.FENCED_STATE_EPOCH
    assert lab.shard.states[KEY].start_offset == 0


def test_a_leader_that_reads_the_state_fences_the_one_before() -> None:
    lab = StateLab()
    lab.perform(lab.shard.read(object(), KEY, 4))
    assert lab.shard.states[KEY].start_offset == UNINITIALIZED
    lab.write(7, StateBatch(8, 9, 2, 1), epochs=Epochs(0, 4))
    known = lab.shard.states[KEY]
    lab.perform(lab.shard.read(object(), KEY, 6))
    assert lab.shard.states[KEY] == known._replace(leader_epoch=6, updates=2)
    for late in (lambda: lab.write(9, epochs=Epochs(0, 4)), lambda: lab.shard.read(object(), KEY, 5)):
        with pytest.raises(KafkaError) as refusal:
            late()
        assert refusal.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert lab.reloaded().states == lab.shard.states
    assert lab.shard.read(object(), KEY, 6).records == []


def test_what_is_deleted_cannot_be_written_to() -> None:
    lab = StateLab()
    lab.initialize(0)
    lab.perform(lab.shard.delete(object(), KEY))
    with pytest.raises(KafkaError):
        lab.write(0)
    assert lab.reloaded().states == {}


def test_states_of_a_topic_that_is_gone_go_too() -> None:
    lab = StateLab()
    lab.initialize(0, key=ShareKey("queue", uuid.uuid4(), 0))
    lab.initialize(0)
    lab.perform(lab.shard.loaded(0))
    assert list(lab.shard.states) == [KEY]
    assert lab.reloaded().states == lab.shard.states


def test_everything_can_be_said_again_and_what_was_before_is_not_needed() -> None:
    lab = StateLab()
    for partition in range(3):
        lab.initialize(partition, key=ShareKey("queue", ORDERS, partition))
    lab.write(3, StateBatch(4, 5, 0, 2))
    lab.log.clear()
    lab.perform(lab.shard.snapshot_all())
    assert lab.reloaded().states == lab.shard.states
    lab.write(4)
    assert lab.reloaded().states == lab.shard.states


BATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from([0, 2, 4]), st.integers(0, 2)), max_size=6
)


def spread(parts: list[Any]) -> list[StateBatch]:
    """Batches in order: each begins so far behind the one before, and is so long."""
    batches, position = [], 0
    for gap, size, state, count in parts:
        position += gap
        batches.append(StateBatch(position, position + size - 1, state, count))
        position += size
    return batches


def by_offset(batches: Any) -> dict[int, tuple[int, int]]:
    return {offset: batch[2:] for batch in batches for offset in range(batch.first, batch.last + 1)}


@given(old=BATCHES, new=BATCHES, start_offset=st.integers(0, 30))
def test_merged_batches_say_of_each_offset_what_was_said_last(old: Any, new: Any, start_offset: int) -> None:
    before, fresh = merge_batches((), spread(old), 0), spread(new)
    merged = merge_batches(before, fresh, start_offset)
    said = {**by_offset(before), **by_offset(fresh)}
    assert by_offset(merged) == {offset: what for offset, what in said.items() if offset >= start_offset}
    assert list(merged) == sorted(merged)
    for one, other in pairwise(merged):
        assert one.last < other.first
        assert one[2:] != other[2:] or one.last + 1 < other.first, "neighbours that should be one"


@given(
    writes=st.lists(st.tuples(st.integers(0, 3), BATCHES), max_size=12),
    updates_per_snapshot=st.integers(0, 4),
    pruned=st.integers(0, 12),
)
def test_a_shard_that_is_loaded_again_is_the_one_it_was(writes: Any, updates_per_snapshot: int, pruned: int) -> None:
    lab = StateLab(updates_per_snapshot)
    lab.initialize(0)
    start_offset = 0
    for number, (moved, parts) in enumerate(writes):
        start_offset += moved
        lab.write(start_offset, *spread(parts))
        if number == pruned:
            lab.log.clear()
            lab.perform(lab.shard.snapshot_all())
    assert lab.reloaded().states == lab.shard.states
