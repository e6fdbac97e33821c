"""A share group: its members, who of them fetches from which partition, and the epochs that order it all.

Membership is as in consumer groups, but simpler: since partitions are shared, no member has to give one up before
another may have it. A heartbeat takes up the target assignment at once.

    group epoch        counts changes of members, subscriptions and topics
    assignment epoch   the group epoch that the target assignment was made for
    member epoch       the assignment epoch that the member knows; a heartbeat with another one is fenced, but for the
                       one before, whose answer may have been lost

Beside its members the group remembers for which partitions it has a state (`states`), so that it can be described, and
deleted with all that belongs to it. The state itself is with the share coordinator (`state_shard`).

What happens is in `heartbeat`; here is what is remembered: the memory of a group is exactly what its records say, since
`heartbeat` changes it by replaying the records it writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.coordinators.effects import Effects
from moldau.coordinators.group import GroupType
from moldau.coordinators.share.assignor import Assignment
from moldau.coordinators.share.records import (
    NamedTopicPartitions,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

NOTHING: Assignment = frozenset()
_UNKNOWN = ShareGroupMemberMetadataValue(rack_id=None, client_id="", client_host="", subscribed_topic_names=())


@dataclass(slots=True)
class ShareMember:
    metadata: ShareGroupMemberMetadataValue
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Assignment = NOTHING


@dataclass(slots=True)
class ShareGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    states: dict[uuid.UUID, NamedTopicPartitions] = field(default_factory=dict)
    """Partitions, by topic, that have a state: delivered to somebody, or altered."""

    # What does not last: after a restart every member has its whole session again.
    deadlines_ms: dict[str, int] = field(default_factory=dict, compare=False)
    """When a silent member is out."""
    armed: set[str] = field(default_factory=set, compare=False)
    """Members, perhaps former ones, for whom a wake is scheduled."""
    may_have_changed_topics: bool = field(default=True, compare=False)
    """Topics changed since the last look at those the group is subscribed to."""

    @property
    def type(self) -> GroupType:
        return GroupType.SHARE

    @property
    def state_name(self) -> str:
        return "Empty" if self.is_empty else "Stable"

    @property
    def protocol_type(self) -> str:
        return "share"

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
        raise self._no_offsets()

    def validate_offset_fetch(self, member_id: str, member_epoch: int) -> None:
        raise self._no_offsets()

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} is not empty.")

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.metadata.subscribed_topic_names for member in self.members.values())

    def empty_since_ms(self) -> int | None:
        return None

    def tombstones(self) -> list[Any]:
        keys: list[Any] = []
        for member_id in self.members:
            keys += member_keys(self.group_id, member_id)
        keys.append(ShareGroupTargetAssignmentMetadataKey(self.group_id))
        keys.append(ShareGroupStatePartitionMetadataKey(self.group_id))
        keys.append(ShareGroupMetadataKey(self.group_id))
        return keys

    def wake(self, shard: GroupShard, key: tuple[Any, ...], now_ms: int) -> Effects:
        from moldau.coordinators.share.heartbeat import session_ended  # it needs the group

        # A group of another type that had this id may have asked for other wakes.
        return session_ended(shard, self, key[2], now_ms) if len(key) == 3 else Effects()

    def state_keys(self) -> list[tuple[uuid.UUID, int]]:
        return [(topic.topic_id, index) for topic in self.states.values() for index in topic.partitions]

    def _no_offsets(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")


def share_group(shard: GroupShard, group_id: str) -> ShareGroup:
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    return group


def member_keys(group_id: str, member_id: str) -> list[Any]:
    return [
        ShareGroupCurrentMemberAssignmentKey(group_id, member_id),
        ShareGroupTargetAssignmentMemberKey(group_id, member_id),
        ShareGroupMemberMetadataKey(group_id, member_id),
    ]


def by_topic(partitions: Iterable[tuple[uuid.UUID, int]]) -> tuple[TopicPartitions, ...]:
    grouped: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        grouped.setdefault(topic_id, []).append(index)
    return tuple(TopicPartitions(topic_id=topic_id, partitions=tuple(found)) for topic_id, found in grouped.items())


def _flat(topics: Iterable[TopicPartitions]) -> Assignment:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)


# -- records


def _persisted(shard: GroupShard, group_id: str) -> ShareGroup:
    """The group that a record belongs to, made by its first one."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        group = shard.groups[group_id] = ShareGroup(group_id)
    return group


def _existing(shard: GroupShard, group_id: str) -> ShareGroup:
    """For tombstones, which make no group."""
    group = shard.groups.get(group_id)
    return group if isinstance(group, ShareGroup) else ShareGroup(group_id)


def _replay_metadata(shard: GroupShard, key: ShareGroupMetadataKey, value: ShareGroupMetadataValue | None) -> None:
    if value is not None:
        group = _persisted(shard, key.group_id)
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash
    elif isinstance(shard.groups.get(key.group_id), ShareGroup):
        del shard.groups[key.group_id]


def _replay_member(
    shard: GroupShard, key: ShareGroupMemberMetadataKey, value: ShareGroupMemberMetadataValue | None
) -> None:
    if value is None:
        group = _existing(shard, key.group_id)
        group.members.pop(key.member_id, None)
        group.deadlines_ms.pop(key.member_id, None)
        return
    members = _persisted(shard, key.group_id).members
    if key.member_id in members:
        members[key.member_id].metadata = value
    else:
        members[key.member_id] = ShareMember(value)


def _replay_assignment_epoch(
    shard: GroupShard,
    key: ShareGroupTargetAssignmentMetadataKey,
    value: ShareGroupTargetAssignmentMetadataValue | None,
) -> None:
    if value is not None:
        _persisted(shard, key.group_id).assignment_epoch = value.assignment_epoch


def _replay_target(
    shard: GroupShard,
    key: ShareGroupTargetAssignmentMemberKey,
    value: ShareGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        _existing(shard, key.group_id).targets.pop(key.member_id, None)
    else:
        _persisted(shard, key.group_id).targets[key.member_id] = _flat(value.topic_partitions)


def _replay_current(
    shard: GroupShard,
    key: ShareGroupCurrentMemberAssignmentKey,
    value: ShareGroupCurrentMemberAssignmentValue | None,
) -> None:
    if value is None:
        return  # the member goes with its own record
    # In a log that was compacted, a member's own record may come behind this one.
    member = _persisted(shard, key.group_id).members.setdefault(key.member_id, ShareMember(_UNKNOWN))
    member.epoch = value.member_epoch
    member.previous_epoch = value.previous_member_epoch
    member.assigned = _flat(value.assigned_partitions)


def _replay_states(
    shard: GroupShard, key: ShareGroupStatePartitionMetadataKey, value: ShareGroupStatePartitionMetadataValue | None
) -> None:
    if value is None:
        _existing(shard, key.group_id).states = {}
        return
    # Apache's broker writes down what it is about to begin, too; here that is not distinguished.
    topics = [*value.initializing_topics, *value.initialized_topics]
    merged: dict[uuid.UUID, NamedTopicPartitions] = {}
    for topic in topics:
        known = merged.get(topic.topic_id)
        partitions = set(topic.partitions) | set(known.partitions if known is not None else ())
        merged[topic.topic_id] = NamedTopicPartitions(
            topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=tuple(sorted(partitions))
        )
    _persisted(shard, key.group_id).states = merged


REPLAY: dict[type, Callable[[GroupShard, Any, Any | None], None]] = {
    ShareGroupMetadataKey: _replay_metadata,
    ShareGroupMemberMetadataKey: _replay_member,
    ShareGroupTargetAssignmentMetadataKey: _replay_assignment_epoch,
    ShareGroupTargetAssignmentMemberKey: _replay_target,
    ShareGroupCurrentMemberAssignmentKey: _replay_current,
    ShareGroupStatePartitionMetadataKey: _replay_states,
}
