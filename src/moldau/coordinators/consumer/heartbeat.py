"""The events of a consumer group: a member's heartbeat, its leaving, its silence.

Everything a member sends and receives goes by heartbeats. A full one has all fields: the member joins (epoch 0), or an
answer may have been lost; otherwise a field that has not changed is null. Each goes the same way:

    validate          the member is who it says, in the epoch the group knows it in (or the one before, on a retry)
    update            the member; the regular expressions' topics; the group epoch, when subscriptions or topics changed
    assign            a new target assignment, when the group epoch is ahead of the last one
    reconcile         this member's partitions one step nearer to its target
    answer            its epoch, and its partitions if they changed

Nothing is changed before all is validated, and then only by records. Topics that change bump the epoch at the next
heartbeat of any member, not immediately: no member could learn of it before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.config.broker import BrokerConfig
from moldau.coordinators.consumer import migration
from moldau.coordinators.consumer.assignors import Partitions
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.member import LEAVE_STATIC, Member, MemberState, is_within
from moldau.coordinators.consumer.step import Step
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import check_size
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.re2 import compile_regex

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


class Heartbeat(NamedTuple):
    """ConsumerGroupHeartbeat; None is "as before"."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        has_subscription = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


class HeartbeatReply(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None when it is as before."""


def heartbeat(shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
    _validate_request(shard.config, request)
    if request.member_epoch < 0:
        return _leave(shard, waiter, request, now_ms)
    group = _group(shard, request)
    before = _find_member(group, request)
    _validate_subscription(group, request)
    max_size = shard.config.group_consumer_max_size
    if before is None and len(group.members) >= max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has its maximum of {max_size} members.")

    step = Step(shard, group, now_ms)
    migration.start(step)
    member = before or Member(request.member_id)
    if member.member_id != request.member_id or member.epoch == LEAVE_STATIC:
        member = step.replace_static_member(member, request.member_id)
    updated = _updated(member, request)
    has_subscription_changed = step.update_member(member, updated)
    step.update_target()
    updated = step.reconcile(updated, request.owned, has_subscription_changed=has_subscription_changed)
    step.expect_session(updated)
    is_news = request.member_epoch == 0 or request.is_full or updated.assigned != member.assigned
    step.effects.reply(
        waiter,
        HeartbeatReply(
            updated.member_id,
            updated.epoch,
            shard.group_config(group.group_id).consumer_heartbeat_interval_ms,
            updated.assigned if is_news else None,
        ),
    )
    return step.effects


def _updated(member: Member, request: Heartbeat) -> Member:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        classic=None,
    )


def _group(shard: GroupShard, request: Heartbeat) -> ConsumerGroup:
    """The group, or the one that a joining member makes; that one is not in the shard before `migration.start`."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if request.member_epoch != 0:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
    if group is None:
        return ConsumerGroup(request.group_id)
    return migration.upgraded(shard, group)


# -- leaving


def _leave(shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
    group = shard.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
    member = group.validated_member(request.member_id, request.instance_id)
    step = Step(shard, group, now_ms)
    if request.member_epoch == LEAVE_STATIC:
        # Its partitions stay its own until it is back or its session is over; those it was to give up are given up.
        step.put_assignment(replace(member, epoch=LEAVE_STATIC, revoking={}))
        group.deadlines.pop(("rebalance", member.member_id), None)
    else:
        migration.fence(step, [member])
    step.effects.reply(waiter, HeartbeatReply(request.member_id, request.member_epoch))
    return step.effects


# -- time


def wake(shard: GroupShard, group: ConsumerGroup, key: tuple[Any, ...], now_ms: int) -> Effects:
    """A deadline may be due: whoever missed it is out."""
    step = Step(shard, group, now_ms)
    if len(key) != 3:  # asked for by a group of another type that had this id
        return step.effects
    _, what, member_id = key
    if group.armed.get((what, member_id), now_ms) <= now_ms:
        group.armed.pop((what, member_id), None)
    due_ms = group.deadlines.get((what, member_id))
    if due_ms is None:
        return step.effects
    if due_ms > now_ms:
        step.wake(what, member_id)
    else:
        migration.fence(step, [group.members[member_id]])
    return step.effects


def loaded(shard: GroupShard, now_ms: int) -> Effects:
    effects = Effects()
    for group in shard.groups.values():
        if isinstance(group, ConsumerGroup):
            step = Step(shard, group, now_ms)
            for member in group.members.values():
                step.expect_session(member)
                if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol:
                    step.start_timeout("rebalance", member.member_id, member.rebalance_timeout_ms)
            effects.merge(step.effects)
    return effects


def topics_changed(shard: GroupShard) -> None:
    for group in shard.groups.values():
        if isinstance(group, ConsumerGroup):
            group.may_have_changed_topics = True


# -- validation


def _validate_request(config: BrokerConfig, request: Heartbeat) -> None:
    for name, value in (("MemberId", request.member_id), ("GroupId", request.group_id)):
        if not value:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    for name, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if request.member_epoch == 0:
        _validate_join(request)
    elif request.member_epoch == LEAVE_STATIC and request.instance_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in config.group_consumer_assignors:
        supported = ", ".join(config.group_consumer_assignors)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {supported}.",
        )


def _validate_join(request: Heartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def _validate_subscription(group: ConsumerGroup, request: Heartbeat) -> None:
    check_size(map(len, request.subscribed_topic_names or ()))
    regex = request.subscribed_topic_regex
    if regex and regex not in group.resolved:
        compile_regex(regex)


def _find_member(group: ConsumerGroup, request: Heartbeat) -> Member | None:
    """The member that the request is from, or the static one that it replaces; None when it is new."""
    is_joining = request.member_epoch == 0
    if is_joining and request.instance_id is not None:
        return _released(group.static_member(request.instance_id), request)
    if is_joining and request.member_id not in group.members:
        return None
    member = group.validated_member(request.member_id, request.instance_id)
    _validate_epoch(member, request)
    return member


def _released(member: Member | None, request: Heartbeat) -> Member | None:
    """A static member can be replaced once it said it is away, or when it comes from the classic protocol."""
    if member is None or member.uses_classic_protocol or member.epoch == LEAVE_STATIC:
        return member
    if member.member_id == request.member_id and member.previous_epoch == 0:
        return member  # the answer to its joining was lost
    raise KafkaError(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"Instance id {request.instance_id} is still owned by member {member.member_id}.",
    )


def _validate_epoch(member: Member, request: Heartbeat) -> None:
    epoch = request.member_epoch
    is_retry = (
        epoch == member.previous_epoch and request.owned is not None and is_within(request.owned, member.assigned)
    )
    if epoch > member.epoch or (epoch < member.epoch and not is_retry):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member has epoch {epoch} where the coordinator knows {member.epoch}. "
            "The member must abandon all its partitions and rejoin.",
        )
    if member.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The member is in an unknown state. The member must abandon all its partitions and rejoin.",
        )
