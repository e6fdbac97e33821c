"""The share coordinator: what became of the records of each share partition, one shard per partition of
`__share_group_state`.

A share partition's state is a snapshot and the updates behind it. Each write is an update, until there are
`share.coordinator.snapshot.update.records.per.snapshot` of them: then the whole state is said again in a new snapshot,
under the next snapshot epoch. Loading takes the newest snapshot and merges the updates of its epoch into it.

The topic is not compacted, since an update does not contain the one before it. What is in front of all the newest
snapshots is of no use: `snapshot_all` says everything again, and the shell deletes what was before.

Two epochs keep old writers out. The state epoch grows when the state is reset (offsets were altered): whoever
works on what was before is fenced. The leader epoch does the same for a broker that led the partition before: from the
moment that its successor reads the state.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.share.partition import StateBatch, StateWrite
from moldau.coordinators.share.records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatchRecord,
)
from moldau.coordinators.share.runs import cut, put
from moldau.coordinators.topics import Topics
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.uuids import uuid_to_text

UNINITIALIZED = -1
"""A start offset that is still to be found, by the group's `share.auto.offset.reset`."""


class ShareKey(NamedTuple):
    group_id: str
    topic_id: uuid.UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """What says which partition of the state topic it belongs to."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"


class Epochs(NamedTuple):
    """What a writer believes to be current."""

    state: int
    leader: int


class ShareState(NamedTuple):
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    batches: tuple[StateBatch, ...]
    updates: int = 0
    """Written since the snapshot."""


class ShareStateShard:
    def __init__(self, config: Callable[[], BrokerConfig], topics: Topics, *, wall_clock: Callable[[], int]) -> None:
        self._config = config
        self._topics = topics
        self._wall_clock = wall_clock
        self.states: dict[ShareKey, ShareState] = {}

    # -- events

    def initialize(self, waiter: Waiter, key: ShareKey, start_offset: int, state_epoch: int) -> Effects:
        """Resets the state; an older state epoch than the known one is FENCED_STATE_EPOCH."""
        known = self.states.get(key)
        if known is not None and state_epoch < known.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        leader_epoch = -1 if known is None else known.leader_epoch
        effects = Effects()
        self._snapshot(effects, key, ShareState(0, state_epoch, leader_epoch, start_offset, 0, self._wall_clock(), ()))
        effects.reply(waiter, self.states[key])
        return effects

    def read(self, waiter: Waiter, key: ShareKey, leader_epoch: int) -> Effects:
        """For the leader of the partition, who goes on from there. The reply: the state, a new one if there is none."""
        effects = Effects()
        state = self.states.get(key)
        if state is None:
            self._snapshot(effects, key, ShareState(0, 0, leader_epoch, UNINITIALIZED, 0, self._wall_clock(), ()))
        elif leader_epoch < state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        elif leader_epoch > state.leader_epoch:
            nothing = StateWrite(state.start_offset, state.delivery_complete_count, ())
            self._update(effects, key, leader_epoch, nothing)
        effects.reply(waiter, self.states[key])
        return effects

    def write(self, waiter: Waiter, key: ShareKey, epochs: Epochs, write: StateWrite) -> Effects:
        state = self.states.get(key)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the state of this share partition was deleted")
        if epochs.leader < state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if epochs.state < state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        effects = Effects()
        self._update(effects, key, epochs.leader, write)
        effects.reply(waiter, None)
        return effects

    def delete(self, waiter: Waiter, key: ShareKey) -> Effects:
        effects = Effects()
        self._delete(effects, key)
        effects.reply(waiter, None)
        return effects

    def topics_changed(self, now_ms: int) -> Effects:
        """The state of a deleted topic goes with it."""
        effects = Effects()
        for key in [key for key in self.states if self._topics.topic_name(key.topic_id) is None]:
            self._delete(effects, key)
        return effects

    def snapshot_all(self) -> Effects:
        effects = Effects()
        for key, state in self.states.items():
            self._snapshot(effects, key, state)
        return effects

    def wake(self, key: Any, now_ms: int) -> Effects:
        return Effects()

    def _snapshot(self, effects: Effects, key: ShareKey, state: ShareState) -> None:
        known = self.states.get(key)
        epoch = 0 if known is None else known.snapshot_epoch + 1
        state = self.states[key] = state._replace(snapshot_epoch=epoch, updates=0)
        value = ShareSnapshotValue(
            snapshot_epoch=epoch,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            create_timestamp=state.created_ms,
            write_timestamp=self._wall_clock(),
            state_batches=_to_records(state.batches),
        )
        effects.record(ShareSnapshotKey(*key), value)

    def _update(self, effects: Effects, key: ShareKey, leader_epoch: int, write: StateWrite) -> None:
        state = self.states[key]
        after = _updated(state, leader_epoch, write)
        if after.updates > self._config().share_coordinator_snapshot_update_records_per_snapshot:
            self._snapshot(effects, key, after)
            return
        self.states[key] = after
        value = ShareUpdateValue(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            state_batches=_to_records(write.batches),
        )
        effects.record(ShareUpdateKey(*key), value)

    def _delete(self, effects: Effects, key: ShareKey) -> None:
        if self.states.pop(key, None) is not None:
            effects.record(ShareSnapshotKey(*key), None)

    # -- loading

    def replay(self, key: Any, value: Any | None, *, offset: int, timestamp_ms: int, producer_id: int = -1) -> None:
        share_key = ShareKey(key.group_id, key.topic_id, key.partition)
        if value is None:
            self.states.pop(share_key, None)
        elif isinstance(value, ShareSnapshotValue):
            self.states[share_key] = ShareState(
                value.snapshot_epoch,
                value.state_epoch,
                value.leader_epoch,
                value.start_offset,
                value.delivery_complete_count,
                value.create_timestamp,
                _from_records(value.state_batches),
            )
        else:
            state = self.states.get(share_key)
            if state is not None and state.snapshot_epoch == value.snapshot_epoch:
                batches = _from_records(value.state_batches)
                start_offset = state.start_offset if value.start_offset == UNINITIALIZED else value.start_offset
                write = StateWrite(start_offset, value.delivery_complete_count, batches)
                self.states[share_key] = _updated(state, value.leader_epoch, write)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """There are no transactions here."""

    def loaded(self, now_ms: int) -> Effects:
        return self.topics_changed(now_ms)


def _updated(state: ShareState, leader_epoch: int, write: StateWrite) -> ShareState:
    return state._replace(
        leader_epoch=leader_epoch,
        start_offset=write.start_offset,
        delivery_complete_count=write.delivery_complete_count,
        batches=merge_batches(state.batches, write.batches, write.start_offset),
        updates=state.updates + 1,
    )


def merge_batches(old: Sequence[StateBatch], new: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """`new` over `old`, which is in order and without overlap, as is the result; nothing below the start offset."""
    merged = list(old)
    put(merged, new)
    del merged[: cut(merged, start_offset)]
    return tuple(merged)


def _to_records(batches: Iterable[StateBatch]) -> tuple[StateBatchRecord, ...]:
    return tuple(
        StateBatchRecord(
            first_offset=batch.first,
            last_offset=batch.last,
            delivery_state=batch.state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    )


def _from_records(records: Iterable[StateBatchRecord]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count) for one in records
    )
