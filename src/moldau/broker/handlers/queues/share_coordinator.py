"""Requests of brokers to the share coordinator: Initialize-, Read-, Write-, Delete- and ReadShareGroupStateSummary
(83–87).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.coordination.share_state_client import NAMES, pack_batches, reply_summary, unpack_batches
from moldau.broker.handlers.groups.coordinator_replies import reply_of
from moldau.coordinators.effects import Effects
from moldau.coordinators.share.partition import StateWrite
from moldau.coordinators.share.state_shard import Epochs, ShareKey, ShareState, ShareStateShard
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, error
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasTurns, needs.HasMetadata, needs.HasShareState, Protocol):
    """What these handlers use."""


_Step = Callable[[ShareStateShard, Any, ShareKey, Any], Effects]


def _initialize(shard: ShareStateShard, waiter: Any, key: ShareKey, wanted: Any) -> Effects:
    return shard.initialize(waiter, key, wanted.start_offset, wanted.state_epoch)


def _read(shard: ShareStateShard, waiter: Any, key: ShareKey, wanted: Any) -> Effects:
    return shard.read(waiter, key, wanted.leader_epoch)


def _write(shard: ShareStateShard, waiter: Any, key: ShareKey, wanted: Any) -> Effects:
    complete = getattr(wanted, "delivery_complete_count", -1)
    write = StateWrite(wanted.start_offset, complete, unpack_batches(wanted.state_batches))
    return shard.write(waiter, key, Epochs(wanted.state_epoch, wanted.leader_epoch), write)


def _delete(shard: ShareStateShard, waiter: Any, key: ShareKey, wanted: Any) -> Effects:
    return shard.delete(waiter, key)


def _summary(shard: ShareStateShard, waiter: Any, key: ShareKey, wanted: Any) -> Effects:
    return reply_summary(shard, waiter, key)


def _nothing(schema: Schema, state: Any) -> dict[str, Any]:
    return {}


def _whole(schema: Schema, state: ShareState | None) -> dict[str, Any]:
    if state is None:
        return {"state_epoch": 0, "start_offset": 0, "state_batches": ()}
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": pack_batches(schema, state.batches),
    }


def _short(schema: Schema, state: ShareState | None) -> dict[str, Any]:
    if state is None:
        return {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": 0}
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }


_STEPS: dict[int, tuple[_Step, Callable[[Schema, Any], dict[str, Any]]]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (_initialize, _nothing),
    ApiKey.READ_SHARE_GROUP_STATE: (_read, _whole),
    ApiKey.WRITE_SHARE_GROUP_STATE: (_write, _nothing),
    ApiKey.DELETE_SHARE_GROUP_STATE: (_delete, _nothing),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (_summary, _short),
}
"""For each request: the step, and which fields of the state are returned."""


async def handle_share_group_state(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    step, tell = _STEPS[context.key]
    wanted = [
        (ShareKey(request.group_id, topic.topic_id or ZERO_UUID, one.partition), one)
        for topic in request.topics
        for one in topic.partitions
    ]
    # All steps first, in the order of the request; then all of them wait for their records.
    replies = [_ask(broker, step, *each) async for each in broker.turns.each(wanted)]
    results = iter(
        [
            _result(schema, tell, key, *await _outcome(reply))
            async for (key, _), reply in broker.turns.each(zip(wanted, replies, strict=True))
        ]
    )
    verb, suffix = NAMES[ApiKey(context.key)]
    make_topic = getattr(schema, f"{verb}State{suffix}Result")
    make_response = getattr(schema, f"{verb}ShareGroupState{suffix}Response")
    return make_response(
        results=tuple(
            make_topic(topic_id=topic.topic_id, partitions=tuple(next(results) for _ in topic.partitions))
            for topic in request.topics
        )
    )


def _ask(broker: Broker, step: _Step, key: ShareKey, wanted: Any) -> Any:
    """The reply, an awaitable of it, or the refusal."""
    try:
        if not key.group_id or key.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the group id is empty or the partition is negative")
        topic = broker.metadata.image.topic_by_id(key.topic_id)
        if step is not _delete and (topic is None or key.partition >= len(topic.partitions)):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return broker.share_state.ask(key.coordinator_key, lambda shard, waiter, _: step(shard, waiter, key, wanted))
    except KafkaError as refusal:
        return refusal


async def _outcome(reply: Any) -> tuple[Any, KafkaError | None]:
    if isinstance(reply, KafkaError):
        return None, reply
    try:
        return await reply_of(reply), None
    except KafkaError as refusal:
        return None, refusal


def _result(
    schema: Schema,
    tell: Callable[[Schema, Any], dict[str, Any]],
    key: ShareKey,
    state: Any,
    refusal: KafkaError | None,
) -> Any:
    return schema.PartitionResult(
        partition=key.partition,
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
        **tell(schema, state),
    )
