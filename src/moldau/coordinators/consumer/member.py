"""One member of a consumer group, and how its partitions follow the target assignment.

A member is a value: a step makes a new one and writes what changed. This is how its assignment gets to the target:

    STABLE                  has its target; `epoch` is the target's. A newer target starts it again
    UNREVOKED_PARTITIONS    has to give partitions up; stays in its epoch until it says it no longer owns them
    UNRELEASED_PARTITIONS   is in the target's epoch, but waits for partitions that their last owners still have
    UNKNOWN                 written by a newer broker: the member has to begin again without partitions

A partition is handed to its next owner only once no member has it, neither assigned nor still revoking it, so no two
members ever have it at once. Epochs say so to the outside: a commit must carry the member's own, and a member that is
in the epoch of the target has given up whatever that target took from it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from moldau.coordinators.consumer.assignors import Partitions, by_number
from moldau.coordinators.consumer.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

LEAVE = -1
"""Member epoch in a heartbeat of a member that leaves for good."""
LEAVE_STATIC = -2
"""Member epoch of a static member that is away and may come back under its instance id."""

OwnerOf: TypeAlias = Callable[[uuid.UUID, int], str | None]
"""Whose the partition is now: assigned to it, or not yet given up by it."""


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Set for a member that uses the classic protocol."""

    epoch: int = 0
    previous_epoch: int = 0
    """Accepted once more: the answer with the new one may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    # -- from and to its two records

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> Member:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def metadata(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.subscribed_topic_names)),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=from_topic_partitions(value.assigned_partitions),
            revoking=from_topic_partitions(value.partitions_pending_revocation),
        )

    def assignment(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=to_topic_partitions(self.assigned),
            partitions_pending_revocation=to_topic_partitions(self.revoking),
        )


def from_topic_partitions(topics: tuple[TopicPartitions, ...]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def to_topic_partitions(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic, partitions=tuple(sorted(partitions[topic])))
        for topic in sorted(partitions, key=by_number)
    )


def is_within(some: Partitions, others: Partitions) -> bool:
    return all(partitions <= others.get(topic, frozenset()) for topic, partitions in some.items())


# -- reconciliation


class Target(NamedTuple):
    """Where a member has to go."""

    epoch: int
    partitions: Partitions
    subscribed: frozenset[uuid.UUID]
    """Topics that the member is subscribed to; its subscription may be newer than the target."""
    owner_of: OwnerOf


def reconcile(member: Member, target: Target, owned: Partitions | None, *, has_subscription_changed: bool) -> Member:
    """The member one step nearer to its target, or itself; `owned` is what it says it has, if it says so."""
    if member.is_reconciled_to(target.epoch):
        return _unsubscribed(member, target.subscribed, owned) if has_subscription_changed else member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _has_any(owned, member.revoking):
            return _unsubscribed(member, target.subscribed, owned) if has_subscription_changed else member
        # A changed subscription can ask for revocation before there is a newer target to go on to.
        epoch = min(member.epoch + 1, target.epoch)
    return _next_assignment(member, epoch, target, owned)


def _next_assignment(member: Member, epoch: int, target: Target, owned: Partitions | None) -> Member:
    keeps: dict[uuid.UUID, frozenset[int]] = {}
    revokes: dict[uuid.UUID, frozenset[int]] = {}
    gets: dict[uuid.UUID, frozenset[int]] = {}
    waits = False
    for topic in target.partitions.keys() | member.assigned.keys():
        wanted = target.partitions.get(topic, frozenset()) if topic in target.subscribed else frozenset[int]()
        has = member.assigned.get(topic, frozenset())
        free = frozenset(
            partition for partition in wanted - has if target.owner_of(topic, partition) in (None, member.member_id)
        )
        waits = waits or len(free) < len(wanted - has)
        _put(keeps, topic, has & wanted)
        _put(revokes, topic, has - wanted)
        _put(gets, topic, free)
    if _has_any(owned, revokes):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=keeps,
            revoking=revokes,
        )
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=target.epoch,
        previous_epoch=member.epoch,
        assigned={topic: keeps.get(topic, frozenset()) | gets.get(topic, frozenset()) for topic in keeps | gets},
        revoking={},
    )


def _unsubscribed(member: Member, subscribed: frozenset[uuid.UUID], owned: Partitions | None) -> Member:
    """Without the topics that it is no longer subscribed to, before there is a target that says so."""
    leaves = {topic: partitions for topic, partitions in member.assigned.items() if topic not in subscribed}
    if not leaves:
        return member
    assigned = {topic: partitions for topic, partitions in member.assigned.items() if topic in subscribed}
    revoking = dict(member.revoking)
    for topic, partitions in leaves.items():
        revoking[topic] = revoking.get(topic, frozenset()) | partitions
    if _has_any(owned, revoking):
        return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking)
    return replace(member, assigned=assigned)


def _has_any(owned: Partitions | None, revoked: Mapping[uuid.UUID, frozenset[int]]) -> bool:
    """Whether the member still has any of these. While it does not say what it has, it has them all."""
    if not revoked:
        return False
    if owned is None:
        return True
    return any(not partitions.isdisjoint(owned.get(topic, ())) for topic, partitions in revoked.items())


def _put(partitions: dict[uuid.UUID, frozenset[int]], topic: uuid.UUID, some: frozenset[int]) -> None:
    if some:
        partitions[topic] = some
