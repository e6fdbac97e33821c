"""Requests for the state of share partitions (83–87), to the share coordinator on this broker or on another.

The leader of a partition reads the state and writes acknowledgements; the group's coordinator initializes and deletes
it. Requests to one broker keep their order, so acknowledgements are written in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from moldau.broker.background import Spawn
from moldau.broker.cluster.outbox import Outbox
from moldau.broker.cluster.peers import Peers
from moldau.broker.coordination.coordinator_shell import CoordinatorShell
from moldau.coordinators.effects import Effects
from moldau.coordinators.share.partition import StateBatch, StateWrite
from moldau.coordinators.share.state_shard import UNINITIALIZED, Epochs, ShareKey, ShareState, ShareStateShard
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema

ASK_TIMEOUT_S = 5.0
"""Acknowledgements wait for this. A share partition whose state cannot be written is stopped and loaded again."""

Answer = Any | Awaitable[Any]
"""A reply that is there, or an awaitable of it."""

NAMES = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: ("Initialize", ""),
    ApiKey.READ_SHARE_GROUP_STATE: ("Read", ""),
    ApiKey.WRITE_SHARE_GROUP_STATE: ("Write", ""),
    ApiKey.DELETE_SHARE_GROUP_STATE: ("Delete", ""),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: ("Read", "Summary"),
}
"""What the five messages' classes are called: `ReadStateSummaryData` is of `ReadShareGroupStateSummaryRequest`."""

NO_STATE = ShareState(0, 0, -1, UNINITIALIZED, 0, -1, ())


class _Request(NamedTuple):
    api: ApiKey
    key: ShareKey
    fields: dict[str, Any]


class ShareStateClient:
    def __init__(self, coordinator: CoordinatorShell[ShareStateShard], peers: Peers, spawn: Spawn) -> None:
        self._coordinator = coordinator
        self._peers = peers
        self._outbox: Outbox[_Request, Any] = Outbox(spawn, self._send)

    def read(self, key: ShareKey, leader_epoch: int) -> Answer:
        """The ShareState with which a leader begins."""
        return self._ask(
            _Request(ApiKey.READ_SHARE_GROUP_STATE, key, {"leader_epoch": leader_epoch}),
            lambda shard, waiter, _: shard.read(waiter, key, leader_epoch),
        )

    def write(self, key: ShareKey, epochs: Epochs, write: StateWrite) -> Answer:
        fields = {
            "state_epoch": epochs.state,
            "leader_epoch": epochs.leader,
            "start_offset": write.start_offset,
            "delivery_complete_count": write.delivery_complete_count,
            "state_batches": write.batches,
        }
        return self._ask(
            _Request(ApiKey.WRITE_SHARE_GROUP_STATE, key, fields),
            lambda shard, waiter, _: shard.write(waiter, key, epochs, write),
        )

    def initialize(self, key: ShareKey, start_offset: int, state_epoch: int) -> Answer:
        fields = {"state_epoch": state_epoch, "start_offset": start_offset}
        return self._ask(
            _Request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, key, fields),
            lambda shard, waiter, _: shard.initialize(waiter, key, start_offset, state_epoch),
        )

    def delete(self, key: ShareKey) -> Answer:
        return self._ask(
            _Request(ApiKey.DELETE_SHARE_GROUP_STATE, key, {}), lambda shard, waiter, _: shard.delete(waiter, key)
        )

    def summary(self, key: ShareKey) -> Answer:
        """The ShareState, without what became of single records; one without a start offset if there is none."""
        return self._ask(
            _Request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, key, {"leader_epoch": -1}),
            lambda shard, waiter, _: reply_summary(shard, waiter, key),
        )

    def _ask(self, request: _Request, step: Callable[[ShareStateShard, Any, int], Effects]) -> Answer:
        coordinator, key = self._coordinator, request.key.coordinator_key
        if coordinator.leads(key):
            return coordinator.ask(key, step)
        return self._outbox.put(coordinator.leader_for(key), request)

    async def _send(self, broker_id: int, requests: Sequence[_Request]) -> list[Any]:
        """A message is about one group, and of one kind."""
        answers: list[Any] = []
        peer = self._peers.broker(broker_id, "share state")
        for (api, group_id), run in groupby(requests, key=lambda one: (one.api, one.key.group_id)):
            alike = list(run)

            def build(schema: Schema, alike: Sequence[_Request] = alike) -> Any:
                return _packed(schema, alike)

            try:
                answer = await peer.ask(api, build, timeout_s=ASK_TIMEOUT_S)
                results = [one for topic in answer.results for one in topic.partitions]
                answers += [_unpacked(api, one) for one in results]
            except KafkaError as error:
                answers += [
                    KafkaError(error.code, f"cannot ask for the share state of group {group_id}: {error.message}")
                ] * len(alike)
        return answers


def reply_summary(shard: ShareStateShard, waiter: Any, key: ShareKey) -> Effects:
    effects = Effects()
    effects.reply(waiter, shard.states.get(key, NO_STATE))
    return effects


def _packed(schema: Schema, requests: Sequence[_Request]) -> Any:
    verb, suffix = NAMES[requests[0].api]
    make_request = getattr(schema, f"{verb}ShareGroupState{suffix}Request")
    make_topic = getattr(schema, f"{verb}State{suffix}Data")
    topics = []
    for _, key, fields in requests:
        batches = {name: pack_batches(schema, value) for name, value in fields.items() if name == "state_batches"}
        partition = schema.PartitionData(partition=key.partition, **{**fields, **batches})
        topics.append(make_topic(topic_id=key.topic_id, partitions=(partition,)))
    return make_request(group_id=requests[0].key.group_id, topics=tuple(topics))


def pack_batches(schema: Schema, batches: Sequence[StateBatch]) -> tuple[Any, ...]:
    return tuple(
        schema.StateBatch(
            first_offset=one.first, last_offset=one.last, delivery_state=one.state, delivery_count=one.delivery_count
        )
        for one in batches
    )


def unpack_batches(batches: Sequence[Any]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count) for one in batches
    )


def _unpacked(api: ApiKey, result: Any) -> ShareState | KafkaError | None:
    if result.error_code:
        return KafkaError(ErrorCode(result.error_code), result.error_message or "")
    if api is ApiKey.READ_SHARE_GROUP_STATE:
        return NO_STATE._replace(
            state_epoch=result.state_epoch,
            start_offset=result.start_offset,
            batches=unpack_batches(result.state_batches),
        )
    if api is ApiKey.READ_SHARE_GROUP_STATE_SUMMARY:
        return NO_STATE._replace(
            state_epoch=result.state_epoch,
            leader_epoch=result.leader_epoch,
            start_offset=result.start_offset,
            delivery_complete_count=result.delivery_complete_count,
        )
    return None
