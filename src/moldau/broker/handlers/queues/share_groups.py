"""ShareGroupHeartbeat (76), ShareGroupDescribe (77), and the offsets of share groups (90, 91, 92)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.coordination.share_state_client import NO_STATE
from moldau.broker.handlers.groups.consumer_groups import GROUP_OPERATIONS
from moldau.broker.handlers.groups.coordinator_replies import answer, reply_of
from moldau.broker.handlers.queues.log_bounds import log_bounds
from moldau.coordinators.share.group import ShareGroup, ShareMember, by_topic, share_group
from moldau.coordinators.share.heartbeat import (
    Heartbeat,
    HeartbeatReply,
    add_states,
    heartbeat,
    remove_states,
)
from moldau.coordinators.share.state_shard import UNINITIALIZED, ShareKey
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.metadata import OPERATIONS_NOT_ASKED
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class HasQueues(needs.HasShareState, needs.HasSharePartitions, Protocol):
    """To delete the state of queues."""


class Broker(
    HasQueues,
    needs.HasTurns,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasPartitions,
    needs.HasPeers,
    needs.HasGroups,
    Protocol,
):
    """What these handlers use."""


_ASSIGNOR = "simple"


# -- ShareGroupHeartbeat


def handle_share_group_heartbeat(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    event = Heartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.rack_id,
        context.client_id or "",
        context.connection.peer_host,
        request.subscribed_topic_names,
    )

    def respond(reply: HeartbeatReply) -> Any:
        return schema.ShareGroupHeartbeatResponse(
            throttle_time=ms(0),
            error_code=error(ErrorCode.NONE),
            error_message=None,
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval=ms(reply.heartbeat_interval_ms),
            assignment=_assignment(schema, reply),
        )

    def refuse(refusal: KafkaError) -> Any:
        return schema.ShareGroupHeartbeatResponse(
            throttle_time=ms(0),
            error_code=error(refusal.code),
            error_message=refusal.message,
            member_id=request.member_id,
            member_epoch=0,
            heartbeat_interval=ms(0),
            assignment=None,
        )

    def ask() -> Any:
        return broker.groups.ask(event.group_id, lambda shard, waiter, now_ms: heartbeat(shard, waiter, event, now_ms))

    return answer(ask, respond, refuse)


def _assignment(schema: Schema, reply: HeartbeatReply) -> Any:
    if reply.assigned is None:
        return None
    return schema.Assignment(
        topic_partitions=tuple(
            schema.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
            for topic in by_topic(reply.assigned)
        )
    )


# -- ShareGroupDescribe


async def handle_share_group_describe(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
    groups = [
        _described(broker, schema, group_id, operations) async for group_id in broker.turns.each(request.group_ids)
    ]
    return schema.ShareGroupDescribeResponse(throttle_time=ms(0), groups=tuple(groups))


def _described(broker: Broker, schema: Schema, group_id: str, operations: int) -> Any:
    refusal = None
    group = ShareGroup(group_id)
    state = "Dead"
    try:
        group = share_group(broker.groups.shard(group_id), group_id)
        state = group.state_name
    except KafkaError as failure:
        refusal = failure
    return schema.DescribedGroup(
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
        group_id=group_id,
        group_state=state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=_ASSIGNOR if refusal is None else "",
        members=tuple(_member(broker, schema, member_id, member) for member_id, member in group.members.items()),
        authorized_operations=operations,
    )


def _member(broker: Broker, schema: Schema, member_id: str, member: ShareMember) -> Any:
    metadata = member.metadata
    return schema.Member(
        member_id=member_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        assignment=schema.Assignment(
            topic_partitions=tuple(
                schema.TopicPartitions(topic_id=topic.topic_id, topic_name=image.name, partitions=topic.partitions)
                for topic in by_topic(member.assigned)
                if (image := broker.metadata.image.topic_by_id(topic.topic_id)) is not None
            )
        ),
    )


# -- DescribeShareGroupOffsets


async def handle_describe_share_group_offsets(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    groups = [await _group_offsets(broker, schema, group) async for group in broker.turns.each(request.groups)]
    return schema.DescribeShareGroupOffsetsResponse(throttle_time=ms(0), groups=tuple(groups))


async def _group_offsets(broker: Broker, schema: Schema, request: Any) -> Any:
    refusal = None
    topics: Sequence[Any] = ()
    try:
        group = share_group(broker.groups.shard(request.group_id), request.group_id)
        if request.topics is None:
            wanted: list[tuple[str, uuid.UUID | None, Sequence[int]]] = [
                (topic.topic_name, topic.topic_id, topic.partitions) for topic in group.states.values()
            ]
        else:
            wanted = [
                (topic.topic_name, image.topic_id if image is not None else None, topic.partitions)
                for topic in request.topics
                for image in (broker.metadata.image.topics.get(topic.topic_name),)
            ]
        topics = [
            schema.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=topic_id or ZERO_UUID,
                partitions=tuple(
                    [
                        await _partition_offsets(
                            broker, schema, ShareKey(request.group_id, topic_id or ZERO_UUID, index)
                        )
                        async for index in broker.turns.each(partitions)
                    ]
                ),
            )
            async for name, topic_id, partitions in broker.turns.each(wanted)
        ]
    except KafkaError as failure:
        refusal = failure
    return schema.DescribeShareGroupOffsetsResponseGroup(
        group_id=request.group_id,
        topics=tuple(topics),
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
    )


async def _partition_offsets(broker: Broker, schema: Schema, key: ShareKey) -> Any:
    start_offset, leader_epoch, lag, code = UNINITIALIZED, 0, -1, ErrorCode.NONE
    try:
        topic = broker.metadata.image.topic_by_id(key.topic_id)
        if topic is None or topic.partition(key.partition) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state = NO_STATE
        if broker.share_state.exists:
            state = await reply_of(broker.share_partitions.states.summary(key))
        if state.start_offset != UNINITIALIZED:
            start_offset, leader_epoch = state.start_offset, max(0, state.leader_epoch)
            log_start_offset, high_watermark = await log_bounds(broker, topic, key.partition)
            undelivered = high_watermark - max(start_offset, log_start_offset)
            lag = max(0, undelivered - max(0, state.delivery_complete_count))
    except KafkaError as failure:
        code = failure.code
    return schema.DescribeShareGroupOffsetsResponsePartition(
        partition_index=key.partition,
        start_offset=start_offset,
        leader_epoch=leader_epoch,
        lag=lag,
        error_code=error(code),
        error_message=None if code is ErrorCode.NONE else code.name,
    )


# -- AlterShareGroupOffsets


async def handle_alter_share_group_offsets(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    refusal = None
    responses: list[Any] = []
    try:
        _check_group_id(request.group_id)
        known = {
            image.topic_id: {each.partition_index for each in topic.partitions if image.partition(each.partition_index)}
            async for topic in broker.turns.each(request.topics)
            if (image := broker.metadata.image.topics.get(topic.topic_name)) is not None
        }
        await broker.groups.ready()
        await broker.share_state.ready()
        epoch = await reply_of(
            broker.groups.ask(
                request.group_id, lambda shard, waiter, _: add_states(shard, waiter, request.group_id, known)
            )
        )
        responses = [
            await _altered_topic(broker, schema, request.group_id, topic, epoch)
            async for topic in broker.turns.each(request.topics)
        ]
    except KafkaError as failure:
        refusal = failure
    return schema.AlterShareGroupOffsetsResponse(
        throttle_time=ms(0),
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
        responses=tuple(responses),
    )


async def _altered_topic(broker: Broker, schema: Schema, group_id: str, topic: Any, epoch: int) -> Any:
    image = broker.metadata.image.topics.get(topic.topic_name)
    partitions = []
    async for wanted in broker.turns.each(topic.partitions):
        code = ErrorCode.NONE
        if image is None or not 0 <= wanted.partition_index < len(image.partitions):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            key = ShareKey(group_id, image.topic_id, wanted.partition_index)
            try:
                await _reset_to(broker, key, wanted.start_offset, epoch)
            except KafkaError as failure:
                code = failure.code
        partitions.append(
            schema.AlterShareGroupOffsetsResponsePartition(
                partition_index=wanted.partition_index,
                error_code=error(code),
                error_message=None if code is ErrorCode.NONE else code.name,
            )
        )
    return schema.AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        topic_id=image.topic_id if image is not None else ZERO_UUID,
        partitions=tuple(partitions),
    )


async def _reset_to(broker: Broker, key: ShareKey, start_offset: int, epoch: int) -> None:
    await reply_of(broker.share_partitions.states.initialize(key, start_offset, epoch))
    broker.share_partitions.forget((key,))


# -- DeleteShareGroupOffsets


async def handle_delete_share_group_offsets(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    refusal = None
    responses: list[Any] = []
    try:
        _check_group_id(request.group_id)
        ids = {
            topic.topic_name: image.topic_id
            for topic in request.topics
            if (image := broker.metadata.image.topics.get(topic.topic_name)) is not None
        }
        wanted = set(ids.values())
        group = share_group(broker.groups.shard(request.group_id), request.group_id)
        group.validate_delete()
        # The states first: should a crash come between, the group still knows what is to be deleted.
        await delete_states(broker, request.group_id, [key for key in group.state_keys() if key[0] in wanted])
        deleted = await reply_of(
            broker.groups.ask(
                request.group_id, lambda shard, waiter, _: remove_states(shard, waiter, request.group_id, wanted)
            )
        )
        responses = [
            _deleted_topic(schema, topic.topic_name, ids.get(topic.topic_name), deleted)
            async for topic in broker.turns.each(request.topics)
        ]
    except KafkaError as failure:
        refusal = failure
    return schema.DeleteShareGroupOffsetsResponse(
        throttle_time=ms(0),
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
        responses=tuple(responses),
    )


def _deleted_topic(schema: Schema, name: str, topic_id: uuid.UUID | None, deleted: set[uuid.UUID]) -> Any:
    code, message = ErrorCode.NONE, None
    if topic_id not in deleted:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = code.name if topic_id is None else "There is no offset information to delete."
    return schema.DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=topic_id or ZERO_UUID, error_code=error(code), error_message=message
    )


async def delete_states(broker: HasQueues, group_id: str, partitions: Sequence[tuple[uuid.UUID, int]]) -> None:
    """Forgets what became of the records of these partitions; for a group that is deleted, too."""
    if not broker.share_state.exists:
        return  # no share group has ever fetched
    for topic_id, index in partitions:
        key = ShareKey(group_id, topic_id, index)
        await reply_of(broker.share_partitions.states.delete(key))
        broker.share_partitions.forget((key,))


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "GroupId can't be empty.")
