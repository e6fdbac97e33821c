"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (keys 68, 69): groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.groups.coordinator_replies import answer
from moldau.coordinators.consumer.assignors import Partitions
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.heartbeat import Heartbeat, HeartbeatReply, heartbeat
from moldau.coordinators.consumer.member import Member
from moldau.coordinators.topics import Topics
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.metadata import OPERATIONS_NOT_ASKED
from moldau.wire.uuids import ZERO_UUID, uuid_to_text

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasEnvironment, needs.HasTurns, needs.HasLocalBroker, needs.HasGroups, Protocol):
    """What these handlers use."""


GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe and alter configurations: all that can be done with a group."""
_CLIENT_MADE_IDS_VERSION_MIN = 1
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def handle_consumer_group_heartbeat(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema

    def respond(reply: HeartbeatReply) -> Any:
        assignment = None
        if reply.assignment is not None:
            assignment = schema.Assignment(topic_partitions=_topic_partitions(schema, reply.assignment))
        return schema.ConsumerGroupHeartbeatResponse(
            throttle_time=ms(0),
            error_code=error(ErrorCode.NONE),
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval=ms(reply.heartbeat_interval_ms),
            assignment=assignment,
        )

    def refuse(refusal: KafkaError) -> Any:
        return schema.ConsumerGroupHeartbeatResponse(
            throttle_time=ms(0),
            error_code=error(refusal.code),
            error_message=refusal.message,
            member_epoch=0,
            heartbeat_interval=ms(0),
        )

    def ask() -> Any:
        _check_enabled(broker)
        event = _event(broker, context, request)
        return broker.groups.ask(event.group_id, lambda shard, waiter, now: heartbeat(shard, waiter, event, now))

    return answer(ask, respond, refuse)


def _event(broker: Broker, context: RequestContext, request: Any) -> Heartbeat:
    member_id = request.member_id
    if not member_id and context.version < _CLIENT_MADE_IDS_VERSION_MIN and request.member_epoch == 0:
        member_id = uuid_to_text(broker.environment.new_uuid())
    names = request.subscribed_topic_names
    return Heartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // ms(1),
        subscribed_topic_names=None if names is None else frozenset(names),
        subscribed_topic_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=context.client_id or "",
        client_host=f"/{context.connection.peer_host}",
    )


def _owned(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    owned: dict[uuid.UUID, set[int]] = {}
    for topic in topics:
        if topic.partitions:
            owned.setdefault(topic.topic_id or ZERO_UUID, set()).update(topic.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _topic_partitions(schema: Schema, partitions: Partitions) -> tuple[Any, ...]:
    return tuple(
        schema.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions[topic_id])))
        for topic_id in sorted(partitions)
    )


def _check_enabled(broker: Broker) -> None:
    if "consumer" not in broker.local.config.group_coordinator_rebalance_protocols:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "the consumer protocol is disabled (group.coordinator.rebalance.protocols)"
        )


# -- describing


async def handle_consumer_group_describe(broker: Broker, context: RequestContext, request: Any) -> Any:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
    groups = [
        _described(broker, context.schema, group_id, operations)
        async for group_id in broker.turns.each(request.group_ids)
    ]
    return context.schema.ConsumerGroupDescribeResponse(throttle_time=ms(0), groups=tuple(groups))


def _described(broker: Broker, schema: Schema, group_id: str, operations: int) -> Any:
    try:
        group, topics = _find(broker, group_id)
    except KafkaError as refusal:
        return schema.DescribedGroup(
            error_code=error(refusal.code),
            error_message=refusal.message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
            authorized_operations=OPERATIONS_NOT_ASKED,
        )
    return schema.DescribedGroup(
        error_code=error(ErrorCode.NONE),
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(broker.local.config.group_consumer_assignors[0]),
        members=tuple(_described_member(schema, group, member, topics) for member in group.members.values()),
        authorized_operations=operations,
    )


def _find(broker: Broker, group_id: str) -> tuple[ConsumerGroup, Topics]:
    _check_enabled(broker)
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    shard = broker.groups.shard(group_id)
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return group, shard.topics


def _described_member(schema: Schema, group: ConsumerGroup, member: Member, topics: Topics) -> Any:
    return schema.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_named(schema, member.assigned, topics),
        target_assignment=_named(schema, group.targets.get(member.member_id, {}), topics),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _named(schema: Schema, partitions: Partitions, topics: Topics) -> Any:
    """With the topics' names; those that are gone have none."""
    return schema.Assignment(
        topic_partitions=tuple(
            schema.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(sorted(partitions[topic_id])))
            for topic_id in sorted(partitions)
            if (name := topics.topic_name(topic_id)) is not None
        )
    )
