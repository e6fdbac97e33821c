"""A consumer group: what its records say, and what follows from them. The events are in `heartbeat`.

Three epochs follow each other. The *group epoch* is bumped when a member, a subscription or a subscribed topic changes;
then a new *target assignment* is computed for it; then each *member epoch* gets there in its own time, as the member
gives up and takes over partitions. The group's state as shown to the outside is how far they are:

    Empty        no members
    Assigning    the group epoch is ahead of the target assignment
    Reconciling  some member is not at the target yet
    Stable       all are

All that lasts changes in one way: a record is applied (`REPLAY`), by the step that writes it and by a load alike.
Deadlines are not kept: a broker that takes the group over gives every member its full time again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from moldau.coordinators.consumer.assignors import ASSIGNORS, Partitions
from moldau.coordinators.consumer.member import LEAVE, Member, Target, from_topic_partitions
from moldau.coordinators.consumer.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import GroupType
from moldau.coordinators.topics import Topics
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.classic.events import Heartbeat, Join, Leave, Sync
    from moldau.coordinators.group_shard import GroupShard

Deadline: TypeAlias = tuple[str, str]
"""What is due ("session", "rebalance", "join" or "sync"), and from which member."""


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    timestamp_ms: int


class ConsumerGroup:
    type = GroupType.CONSUMER
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Partitions] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False
        """A record that Kafka wrote before 4.1: the next bump of the epoch takes it away."""

        # What follows from the members.
        self.static_members: dict[str, str] = {}
        self.owners: dict[uuid.UUID, dict[int, str]] = {}
        self._subscribed: frozenset[str] | None = None
        """All topics that a member is subscribed to; None while it has to be found again."""

        # What does not last.
        self.may_have_changed_topics = True
        """Topics changed since the last look at those the group is subscribed to."""
        self.stale_regexes: set[str] = set()
        """Regular expressions to be resolved again, since topics changed."""
        self.deadlines: dict[Deadline, int] = {}
        self.armed: dict[Deadline, int] = {}
        """The earliest wake that is asked for: deadlines move with each heartbeat, wakes need not."""

    # -- what other rooms ask of any group

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        knows_epochs: bool = True,
    ) -> None:
        if generation < 0 and not self.members:
            return  # an administrator, or a consumer that only keeps its offsets here
        if is_transactional and generation < 0 and not member_id and instance_id is None:
            return  # a producer that does not say for whom it commits
        member = self.member(member_id)
        if not (is_transactional or knows_epochs or member.uses_classic_protocol):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members with epochs must commit with OffsetCommit version 9 or newer"
            )
        self._validate_epoch(member, generation)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if not member_id and member_epoch < 0:
            return
        self._validate_epoch(self.member(member_id or ""), member_epoch)

    def _validate_epoch(self, member: Member, epoch: int) -> None:
        if epoch != member.epoch:
            code = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
            raise KafkaError(code, f"The received member epoch {epoch} is not the expected one, {member.epoch}.")

    def validate_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id} still has members")

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topic_names()

    def empty_since_ms(self) -> int | None:
        return None

    def tombstones(self) -> list[Any]:
        group_id = self.group_id
        keys: list[Any] = [ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id) for member_id in self.members]
        keys += [ConsumerGroupTargetAssignmentMemberKey(group_id, member_id) for member_id in self.targets]
        keys.append(ConsumerGroupTargetAssignmentMetadataKey(group_id))
        keys += [ConsumerGroupMemberMetadataKey(group_id, member_id) for member_id in self.members]
        keys += [ConsumerGroupRegularExpressionKey(group_id, regex) for regex in self.resolved]
        keys += [ConsumerGroupPartitionMetadataKey(group_id), ConsumerGroupMetadataKey(group_id)]
        return keys

    # -- events, which are in modules that are made of groups

    def wake(self, shard: GroupShard, key: tuple[Any, ...], now_ms: int) -> Effects:
        from moldau.coordinators.consumer import heartbeat

        return heartbeat.wake(shard, self, key, now_ms)

    def classic_join(self, shard: GroupShard, waiter: Waiter, request: Join, now_ms: int) -> Effects:
        from moldau.coordinators.consumer import classic_members

        return classic_members.join(shard, self, waiter, request, now_ms)

    def classic_sync(self, shard: GroupShard, waiter: Waiter, request: Sync, now_ms: int) -> Effects:
        from moldau.coordinators.consumer import classic_members

        return classic_members.sync(shard, self, waiter, request, now_ms)

    def classic_heartbeat(self, shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
        from moldau.coordinators.consumer import classic_members

        return classic_members.heartbeat(shard, self, waiter, request, now_ms)

    def classic_leave(self, shard: GroupShard, waiter: Waiter, request: Leave, now_ms: int) -> Effects:
        from moldau.coordinators.consumer import classic_members

        return classic_members.leave(shard, self, waiter, request, now_ms)

    # -- members

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str) -> Member | None:
        return self.members.get(self.static_members.get(instance_id, ""))

    def validated_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, if it is one; a static member whose place another process took is fenced."""
        if instance_id is None:
            return self.member(member_id)
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Instance id {instance_id} of member {member_id} is now that of {member.member_id}.",
            )
        return member

    def put_member(self, member: Member) -> None:
        """Every change of a member comes by here, so that owners and instance ids follow."""
        before = self.members.get(member.member_id)
        if before is not None:
            self._disown(before)
        if before is None or before.subscribed_topic_names != member.subscribed_topic_names:
            self._subscribed = None
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for partitions in (member.assigned, member.revoking):
            for topic, numbers in partitions.items():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(numbers, member.member_id))

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._disown(member)
        self._subscribed = None
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]

    def _disown(self, member: Member) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic, numbers in partitions.items():
                owners = self.owners.get(topic, {})
                for number in numbers:
                    if owners.get(number) == member.member_id:
                        del owners[number]
                if not owners:
                    self.owners.pop(topic, None)

    def owner_of(self, topic: uuid.UUID, partition: int) -> str | None:
        return self.owners.get(topic, {}).get(partition)

    # -- subscriptions and the target

    def topics_of(self, member: Member) -> frozenset[str]:
        """The names a member is subscribed to, those of its regular expression among them."""
        resolved = self.resolved.get(member.subscribed_topic_regex or "")
        return (
            member.subscribed_topic_names | resolved.topics if resolved is not None else member.subscribed_topic_names
        )

    def resolve(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """None: no member is subscribed to it any more."""
        self._subscribed = None
        if resolved is not None:
            self.resolved[regex] = resolved
        else:
            self.resolved.pop(regex, None)

    def subscribed_topic_names(self) -> frozenset[str]:
        if self._subscribed is None:
            distinct = {member.subscribed_topic_names for member in self.members.values()}
            self._subscribed = frozenset().union(*distinct, *(one.topics for one in self.resolved.values()))
        return self._subscribed

    def regexes(self) -> Counter[str]:
        """How many members are subscribed to each."""
        return Counter(
            member.subscribed_topic_regex for member in self.members.values() if member.subscribed_topic_regex
        )

    def target_of(self, member: Member, topics: Topics) -> Target:
        subscribed = topic_ids(self.topics_of(member), topics)
        return Target(self.target_epoch, self.targets.get(member.member_id, {}), subscribed, self.owner_of)

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for; another broker may have let them ask for one that is not here."""
        asked = Counter(name for one in self.members.values() if (name := one.server_assignor) in ASSIGNORS and name)
        return asked.most_common(1)[0][0] if asked else default

    def compute_metadata_hash(self, topics: Topics) -> int:
        """A hash of all that an assignor knows of the subscribed topics. It is only compared with earlier ones: Apache
        Kafka computes another, so a group that moves between the two is rebalanced once."""
        digest = hashlib.blake2b(digest_size=8)
        known = [name for name in sorted(self.subscribed_topic_names()) if topics.topic_id(name) is not None]
        for name in known:
            digest.update(f"{topics.topic_id(name)} {topics.partition_count(name)} {name}\n".encode())
        return int.from_bytes(digest.digest(), signed=True) if known else 0


def topic_ids(names: frozenset[str], topics: Topics) -> frozenset[uuid.UUID]:
    """The ids of the topics that exist."""
    found = (topics.topic_id(name) for name in names)
    return frozenset(topic_id for topic_id in found if topic_id is not None)


# -- records


def persisted(shard: GroupShard, group_id: str) -> ConsumerGroup:
    """The group that a record belongs to, made by its first one; a group that only has offsets gives way to it."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        group = ConsumerGroup(group_id)
        shard.groups[group_id] = group
    return group


def existing(shard: GroupShard, group_id: str) -> ConsumerGroup:
    """For tombstones, which make no group: an empty group takes those of a deleted one."""
    group = shard.groups.get(group_id)
    return group if isinstance(group, ConsumerGroup) else ConsumerGroup(group_id)


def _replay_metadata(
    shard: GroupShard, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
) -> None:
    if value is not None:
        group = persisted(shard, key.group_id)
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash
    elif isinstance(shard.groups.get(key.group_id), ConsumerGroup):
        del shard.groups[key.group_id]


def _replay_partition_metadata(
    shard: GroupShard, key: ConsumerGroupPartitionMetadataKey, value: ConsumerGroupPartitionMetadataValue | None
) -> None:
    if value is not None:
        persisted(shard, key.group_id).has_partition_metadata = True
    else:
        existing(shard, key.group_id).has_partition_metadata = False


def _replay_member(
    shard: GroupShard, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
) -> None:
    if value is None:
        existing(shard, key.group_id).remove_member(key.member_id)
        return
    group = persisted(shard, key.group_id)
    group.put_member(group.members.get(key.member_id, Member(key.member_id)).with_metadata(value))


def _replay_target_epoch(
    shard: GroupShard,
    key: ConsumerGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | None,
) -> None:
    if value is not None:
        persisted(shard, key.group_id).target_epoch = value.assignment_epoch


def _replay_target(
    shard: GroupShard,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is not None:
        targets = persisted(shard, key.group_id).targets
        targets[key.member_id] = from_topic_partitions(value.topic_partitions)
    else:
        existing(shard, key.group_id).targets.pop(key.member_id, None)


def _replay_assignment(
    shard: GroupShard,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    if value is not None:
        group = persisted(shard, key.group_id)
        group.put_member(group.members.get(key.member_id, Member(key.member_id)).with_assignment(value))
        return
    group = existing(shard, key.group_id)
    member = group.members.get(key.member_id)
    if member is not None:
        group.put_member(replace(member, epoch=LEAVE, previous_epoch=LEAVE, assigned={}, revoking={}))


def _replay_regex(
    shard: GroupShard,
    key: ConsumerGroupRegularExpressionKey,
    value: ConsumerGroupRegularExpressionValue | None,
) -> None:
    if value is not None:
        resolved = ResolvedRegex(frozenset(value.topics), value.timestamp)
        persisted(shard, key.group_id).resolve(key.regular_expression, resolved)
    else:
        existing(shard, key.group_id).resolve(key.regular_expression, None)


REPLAY: dict[type, Callable[[GroupShard, Any, Any | None], None]] = {
    ConsumerGroupMetadataKey: _replay_metadata,
    ConsumerGroupPartitionMetadataKey: _replay_partition_metadata,
    ConsumerGroupMemberMetadataKey: _replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: _replay_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: _replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: _replay_assignment,
    ConsumerGroupRegularExpressionKey: _replay_regex,
}
