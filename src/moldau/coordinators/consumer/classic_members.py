"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup as steps of the reconciliation.

Such a member takes its member epoch for its generation. A join is its heartbeat: it tells the subscription and what the
member owns, and reconciles it one step; the sync after it fetches the partitions. Whenever the group has something new
for it, its heartbeat says REBALANCE_IN_PROGRESS and it joins again. Nobody waits for anybody, and there is no leader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.coordinators.classic.events import Heartbeat, Join, JoinReply, Leave, Sync, SyncReply
from moldau.coordinators.consumer import migration
from moldau.coordinators.consumer.embedded import (
    PROTOCOL_TYPE,
    Subscription,
    by_topic_id,
    read_subscription,
    write_assignment,
)
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.member import Member, MemberState
from moldau.coordinators.consumer.records import ClassicMemberMetadata, ClassicProtocol
from moldau.coordinators.consumer.step import Step
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import check_size
from moldau.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


# -- joining


def join(shard: GroupShard, group: ConsumerGroup, waiter: Waiter, request: Join, now_ms: int) -> Effects:
    step = Step(shard, group, now_ms)
    subscription = _validated_subscription(group, request)
    before = _joining_member(group, request)
    if before is None and len(group.members) >= shard.config.group_consumer_max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {len(group.members)} members.")
    member_id = request.member_id or request.new_member_id
    if not request.member_id and request.instance_id is None and request.requires_member_id:
        step.effects.reply(waiter, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return step.effects

    others = [member for member in group.members.values() if member is not before]
    is_replaced = before is not None and not before.uses_classic_protocol and before.member_id != member_id
    member = before or Member(member_id)
    if member.member_id != member_id:
        member = step.replace_static_member(member, member_id)
    updated = _updated(member, request, subscription)
    has_subscription_changed = step.update_member(member, updated)
    if is_replaced and migration.may_downgrade(step, [*others, updated]):
        settled = not has_subscription_changed and all(other.is_reconciled_to(group.epoch) for other in others)
        classic = migration.downgrade(step, [*others, updated], leader=member_id if settled else None)
        reply = JoinReply(ErrorCode.NONE, member_id, classic.generation, PROTOCOL_TYPE, classic.protocol_name)
        step.effects.reply(waiter, reply)
        return step.effects
    step.update_target()
    owned = by_topic_id(subscription.owned_partitions, shard.topics)
    updated = step.reconcile(updated, owned, has_subscription_changed=has_subscription_changed)
    group.deadlines.pop(("join", member_id), None)
    step.expect_session(updated)
    step.start_timeout("sync", member_id, updated.rebalance_timeout_ms)
    protocol_name = request.protocols[0][0]
    step.effects.reply(waiter, JoinReply(ErrorCode.NONE, member_id, updated.epoch, PROTOCOL_TYPE, protocol_name))
    return step.effects


def _validated_subscription(group: ConsumerGroup, request: Join) -> Subscription:
    """The subscription of the protocol that the member prefers. All classic members have to share one protocol."""
    classic = [member.classic for member in group.members.values() if member.classic is not None]
    known = Counter(protocol.name for metadata in classic for protocol in metadata.supported_protocols)
    shares_one = any(known[name] == len(classic) for name, _ in request.protocols)
    if request.protocol_type != PROTOCOL_TYPE or not shares_one:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member's protocols do not match those of the group"
        )
    check_size(len(metadata) for _, metadata in request.protocols)
    try:
        return read_subscription(request.protocols[0][1])
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"invalid subscription: {error}") from error


def _joining_member(group: ConsumerGroup, request: Join) -> Member | None:
    if request.instance_id is None:
        return group.members.get(request.member_id)
    if not request.member_id:
        return group.static_member(request.instance_id)
    return group.validated_member(request.member_id, request.instance_id)


def _updated(member: Member, request: Join, subscription: Subscription) -> Member:
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=tuple(ClassicProtocol(name=name, metadata=data) for name, data in request.protocols),
        ),
    )


# -- what follows a join


def sync(shard: GroupShard, group: ConsumerGroup, waiter: Waiter, request: Sync, now_ms: int) -> Effects:
    member, classic = _classic_member(group, request.member_id, request.instance_id, request.generation)
    protocol = classic.supported_protocols[0]
    for said, known in ((request.protocol_type, PROTOCOL_TYPE), (request.protocol_name, protocol.name)):
        if said is not None and said != known:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{said!r} does not match the member's {known!r}")
    step = Step(shard, group, now_ms)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(step, member)
        step.effects.reply(waiter, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        return step.effects
    group.deadlines.pop(("sync", member.member_id), None)
    step.expect_session(member)
    assignment = write_assignment(member.assigned, shard.topics, protocol.metadata)
    step.effects.reply(waiter, SyncReply(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment))
    return step.effects


def heartbeat(shard: GroupShard, group: ConsumerGroup, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
    member, _ = _classic_member(group, request.member_id, request.instance_id, request.generation)
    step = Step(shard, group, now_ms)
    step.expect_session(member)
    code = ErrorCode.NONE
    if _must_rejoin(group, member):
        _expect_join(step, member)
        code = ErrorCode.REBALANCE_IN_PROGRESS
    step.effects.reply(waiter, code)
    return step.effects


def leave(shard: GroupShard, group: ConsumerGroup, waiter: Waiter, request: Leave, now_ms: int) -> Effects:
    codes, gone = [], {}
    for leaver in request.leavers:
        try:
            member = _leaving_member(group, leaver.member_id, leaver.instance_id)
            gone[member.member_id] = member
            codes.append(ErrorCode.NONE)
        except KafkaError as error:
            codes.append(error.code)
    step = Step(shard, group, now_ms)
    if gone:
        migration.fence(step, list(gone.values()))
    step.effects.reply(waiter, tuple(codes))
    return step.effects


def _must_rejoin(group: ConsumerGroup, member: Member) -> bool:
    """There is a newer epoch; or it has partitions to give up; or those it waits for are free."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    target = group.targets.get(member.member_id, {})
    missing = (
        (topic, number) for topic in target for number in target[topic] - member.assigned.get(topic, frozenset())
    )
    return all(group.owner_of(topic, number) is None for topic, number in missing)


def _expect_join(step: Step, member: Member) -> None:
    if ("join", member.member_id) not in step.group.deadlines:
        step.start_timeout("join", member.member_id, member.rebalance_timeout_ms)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicMemberMetadata]:
    member = group.validated_member(member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if generation != member.epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation} does not match the member's epoch {member.epoch}"
        )
    return member, member.classic


def _leaving_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if not member_id and instance_id is not None:  # an operator removes a static member by its name
        member = group.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        return member
    return group.validated_member(member_id, instance_id)
