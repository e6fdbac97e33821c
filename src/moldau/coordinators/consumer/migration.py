"""From the classic to the consumer protocol and back, while the members go on reading.

Upgrade: a member of the consumer protocol joins a classic group. The group becomes a consumer group with the classic
members in it, each with what it was last assigned; they have to rejoin, and from then on their JoinGroup, SyncGroup
and heartbeats are steps of the reconciliation (`classic_members`). Downgrade: the last member of the consumer protocol
goes, and the classic ones are a classic group again, which begins a round. `group.consumer.migration.policy` says which
of the two may happen; an empty group changes its type whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.classic.group import Step as ClassicStep
from moldau.coordinators.classic.members import Member as ClassicMember
from moldau.coordinators.classic.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from moldau.coordinators.consumer.embedded import (
    PROTOCOL_TYPE,
    Subscription,
    by_topic_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.member import Member
from moldau.coordinators.consumer.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from moldau.coordinators.consumer.step import Step
from moldau.coordinators.group import Group, check_size
from moldau.coordinators.topics import Topics
from moldau.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

_UPGRADE = ("bidirectional", "upgrade")
_DOWNGRADE = ("bidirectional", "downgrade")
_KNOWN_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The clients' own. librdkafka's sticky ones send data along that nobody reads; Apache's broker takes any data for a
custom assignor's, and does not let such groups change."""


# -- upgrade


def upgraded(shard: GroupShard, group: Group) -> ConsumerGroup:
    """The consumer group that a member's joining makes of `group`; GROUP_ID_NOT_FOUND if it must not."""
    if not isinstance(group, ClassicGroup):
        raise _not_upgraded(group, f"it is a {group.type.value} group")
    if group.is_empty:
        return ConsumerGroup(group.group_id)
    if shard.config.group_consumer_migration_policy.lower() not in _UPGRADE:
        raise _not_upgraded(group, "online upgrade is disabled")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _not_upgraded(group, "it does not use the consumer embedded protocol")
    if len(group.members) > shard.config.group_consumer_max_size:
        raise _not_upgraded(group, "it has more members than a consumer group may have")
    try:
        for member in group.members:
            check_size(len(metadata) for _, metadata in member.protocols)
    except KafkaError as error:
        raise _not_upgraded(group, error.message) from error
    made = ConsumerGroup(group.group_id)
    made.epoch = made.target_epoch = group.generation
    protocol = group.protocol_name or group.members.elect_protocol()
    try:
        subscriptions = {one.member_id: read_subscription(one.metadata(protocol)) for one in group.members}
        for member in group.members:
            _check_assignor(member, protocol)
            made_one = _upgraded_member(member, subscriptions[member.member_id], group.generation, shard.topics)
            if any(made.owner_of(topic, number) for topic, numbers in made_one.assigned.items() for number in numbers):
                raise ProtocolError("two members have the same partition")
            made.put_member(made_one)
    except ProtocolError as error:
        raise _not_upgraded(group, f"its embedded protocol is invalid: {error}") from error
    _retain_owned(made, subscriptions, shard.topics)
    made.targets.update((member.member_id, member.assigned) for member in made.members.values())
    made.metadata_hash = made.compute_metadata_hash(shard.topics)
    return made


def _retain_owned(group: ConsumerGroup, subscriptions: dict[str, Subscription], topics: Topics) -> None:
    """Partitions that members said they have when they last joined, and that were not assigned since.

    In the middle of a round there are no assignments, but cooperative members go on reading. One that has given a
    partition up will say so when it joins the next time. Of two that say the same, the later generation knows better.
    """
    for member_id in sorted(subscriptions, key=lambda one: subscriptions[one].generation_id, reverse=True):
        member = group.members[member_id]
        assigned = dict(member.assigned)
        for topic, claimed in by_topic_id(subscriptions[member_id].owned_partitions, topics).items():
            free = frozenset(number for number in claimed if group.owner_of(topic, number) is None)
            if free:
                assigned[topic] = assigned.get(topic, frozenset()) | free
        group.put_member(replace(member, assigned=assigned))


def _check_assignor(member: ClassicMember, protocol: str) -> None:
    if protocol not in _KNOWN_ASSIGNORS and read_assignment(member.assignment).user_data:
        raise ProtocolError("a custom assignor with user data is in use")


def _upgraded_member(classic: ClassicMember, subscription: Subscription, generation: int, topics: Topics) -> Member:
    return Member(
        classic.member_id,
        instance_id=classic.instance_id,
        rack_id=subscription.rack_id,
        client_id=classic.client_id,
        client_host=classic.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=tuple(ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols),
        ),
        epoch=generation,
        previous_epoch=generation,
        assigned=by_topic_id(read_assignment(classic.assignment).assigned_partitions, topics),
    )


def _not_upgraded(group: Group, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade group {group.group_id} to a consumer group: {why}."
    )


def start(step: Step) -> None:
    """Puts the group into the shard if it is not there yet, in the place of the classic one it was made from."""
    shard, group = step.shard, step.group
    before = shard.groups.get(group.group_id)
    if before is group:
        return
    if isinstance(before, ClassicGroup):
        before.fail_all(ClassicStep.of(shard, step.now_ms, step.effects))
        for key in before.tombstones():
            step.effects.record(key, None)
    shard.groups[group.group_id] = group
    if not group.members:
        return
    members = list(group.members.values())
    for member in members:
        step.put_metadata(member)
    step.write(
        ConsumerGroupMetadataKey(group.group_id),
        ConsumerGroupMetadataValue(epoch=group.epoch, metadata_hash=group.metadata_hash),
    )
    for member in members:
        step.put_target(member.member_id, member.assigned)
    step.write(
        ConsumerGroupTargetAssignmentMetadataKey(group.group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=group.target_epoch),
    )
    for member in members:
        step.put_assignment(member)
        step.expect_session(member)


# -- downgrade


def fence(step: Step, members: list[Member]) -> None:
    """Puts members out of their group; one that is left with classic members only becomes a classic group."""
    gone = {member.member_id for member in members}
    staying = [member for member in step.group.members.values() if member.member_id not in gone]
    if may_downgrade(step, staying):
        downgrade(step, staying, leader=None)
        return
    for member in members:
        step.remove_member(member.member_id)
    step.resolve_regexes()
    step.bump_epoch()


def may_downgrade(step: Step, staying: list[Member]) -> bool:
    config = step.shard.config
    return (
        0 < len(staying) <= config.group_max_size
        and all(member.uses_classic_protocol for member in staying)
        and config.group_consumer_migration_policy.lower() in _DOWNGRADE
    )


def downgrade(step: Step, staying: Iterable[Member], *, leader: str | None) -> ClassicGroup:
    """Without a leader the classic group begins with a round, also if a crash comes between."""
    shard, group, topics = step.shard, step.group, step.shard.topics
    protocols = [(member, dict(_protocols(member))) for member in staying]
    name = next(name for name in protocols[0][1] if all(name in known for _, known in protocols))
    record = GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=name,
        leader=leader,
        current_state_timestamp=shard.wall_clock(),
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=step.session_timeout_ms(member),
                subscription=known[name],
                assignment=write_assignment(group.targets.get(member.member_id, {}), topics, known[name]),
            )
            for member, known in protocols
        ),
    )
    for key in group.tombstones():
        step.write(key, None)
    classic = ClassicGroup.of_record(group.group_id, record)
    step.effects.record(GroupMetadataKey(group.group_id), record)
    shard.groups[group.group_id] = classic
    classic.loaded(ClassicStep.of(shard, step.now_ms, step.effects))
    return classic


def _protocols(member: Member) -> Iterable[tuple[str, bytes]]:
    for protocol in member.classic.supported_protocols if member.classic is not None else ():
        yield protocol.name, protocol.metadata
