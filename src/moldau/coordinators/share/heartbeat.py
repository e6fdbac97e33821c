"""What happens to a share group: members join, go on, leave and fall silent; topics change; offsets are altered.

Each step writes records and replays them at once, so that memory and log cannot differ (see `group`).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import check_size
from moldau.coordinators.share.assignor import Assignment, assign
from moldau.coordinators.share.group import (
    NOTHING,
    REPLAY,
    ShareGroup,
    ShareMember,
    by_topic,
    member_keys,
    share_group,
)
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
)
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
MEMBER_ID_LENGTH_MAX = 36
"""A UUID as Java writes it: Kafka's own bound on the ids that clients make up."""
_STABLE = 0
_SESSION = "session"


class Heartbeat(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    topics: Collection[str] | None
    """None: as before."""


class HeartbeatReply(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: Assignment | None
    """None: as the member knows."""


def heartbeat(shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
    _check(request)
    if request.member_epoch == LEAVE_EPOCH:
        return _leave(shard, waiter, request)
    is_joining = request.member_epoch == JOIN_EPOCH
    group = _group_to_join(shard, request) if is_joining else share_group(shard, request.group_id)
    known = group.members.get(request.member_id)
    if known is None:
        if not is_joining:
            raise _unknown_member(request)
        if len(group.members) >= shard.config.group_share_max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"Group {group.group_id} is full.")
    else:
        _check_epoch(known, request.member_epoch)
    step = _Step(shard, group.group_id)
    before = NOTHING if known is None else known.assigned
    step.update_member(request, known)
    step.update_target()
    member = step.reconcile(request.member_id)
    effects = step.effects
    config = shard.group_config(group.group_id)
    _extend_session(shard, step.group, request.member_id, effects, now_ms)
    tells = is_joining or request.topics is not None or member.assigned != before
    effects.reply(
        waiter,
        HeartbeatReply(
            request.member_id, member.epoch, config.share_heartbeat_interval_ms, member.assigned if tells else None
        ),
    )
    return effects


def session_ended(shard: GroupShard, group: ShareGroup, member_id: str, now_ms: int) -> Effects:
    step = _Step(shard, group.group_id)
    group.armed.discard(member_id)
    deadline_ms = group.deadlines_ms.get(member_id)
    if deadline_ms is None:
        return step.effects
    if deadline_ms > now_ms:
        _arm(group, member_id, step.effects)
    else:
        step.remove_member(member_id)
    return step.effects


def loaded(shard: GroupShard, now_ms: int) -> Effects:
    """Sessions start again: members could not send heartbeats while there was no coordinator."""
    effects = topics_changed(shard)  # some may have been deleted before this broker was the coordinator
    for group in _share_groups(shard):
        for member_id in group.members:
            _extend_session(shard, group, member_id, effects, now_ms)
    return effects


def add_states(
    shard: GroupShard, waiter: Waiter, group_id: str, partitions: Mapping[uuid.UUID, Iterable[int]]
) -> Effects:
    """Offsets of these partitions are about to be altered; only an empty group allows that. The reply: its epoch."""
    group = shard.groups.get(group_id)
    if group is not None:
        share_group(shard, group_id).validate_delete()
    step = _Step(shard, group_id)
    if group is None:
        step.record(ShareGroupMetadataKey(group_id), ShareGroupMetadataValue(epoch=0, metadata_hash=0))
    step.add_states({topic_id: set(indexes) for topic_id, indexes in partitions.items()})
    step.effects.reply(waiter, step.group.epoch)
    return step.effects


def remove_states(shard: GroupShard, waiter: Waiter, group_id: str, topic_ids: set[uuid.UUID]) -> Effects:
    """Offsets of these topics are deleted; the reply: which of them there were."""
    group = share_group(shard, group_id)
    group.validate_delete()
    step = _Step(shard, group_id)
    step.effects.reply(waiter, group.states.keys() & topic_ids)
    step.write_states([topic for topic in group.states.values() if topic.topic_id not in topic_ids])
    return step.effects


class _Step:
    """Collects the effects of one event; each record is in force as soon as it is written."""

    def __init__(self, shard: GroupShard, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self.effects = Effects()

    @property
    def group(self) -> ShareGroup:
        return share_group(self._shard, self._group_id)

    def record(self, key: Any, value: Any | None) -> None:
        REPLAY[type(key)](self._shard, key, value)
        self.effects.record(key, value)

    def update_member(self, request: Heartbeat, known: ShareMember | None) -> None:
        metadata = ShareGroupMemberMetadataValue(
            rack_id=_given_or_known(request.rack_id, known.metadata.rack_id if known else None),
            client_id=request.client_id,
            client_host=request.client_host,
            subscribed_topic_names=tuple(sorted(set(request.topics)))
            if request.topics is not None
            else (known.metadata.subscribed_topic_names if known else ()),
        )
        is_new = known is None or known.metadata.subscribed_topic_names != metadata.subscribed_topic_names
        if known is None or known.metadata != metadata:
            self.record(ShareGroupMemberMetadataKey(self._group_id, request.member_id), metadata)
        group = self.group
        if is_new or (group.may_have_changed_topics and self._metadata_hash() != group.metadata_hash):
            self._next_epoch()
        group.may_have_changed_topics = False

    def remove_member(self, member_id: str) -> None:
        for key in member_keys(self._group_id, member_id):
            self.record(key, None)
        self._next_epoch()

    def _next_epoch(self) -> None:
        group = self.group
        value = ShareGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=self._metadata_hash())
        self.record(ShareGroupMetadataKey(self._group_id), value)

    def _metadata_hash(self) -> int:
        """A hash of what the assignor knows of the topics; only compared with earlier ones."""
        topics = self._shard.topics
        digest = hashlib.blake2b(digest_size=8)
        names = {name for member in self.group.members.values() for name in member.metadata.subscribed_topic_names}
        for name in sorted(names):
            digest.update(f"{topics.topic_id(name)} {topics.partition_count(name)} {name}\n".encode())
        return int.from_bytes(digest.digest(), signed=True) if names else 0

    def update_target(self) -> None:
        group = self.group
        if group.assignment_epoch >= group.epoch:
            return
        topics = self._shard.topics
        subscriptions: dict[str, list[uuid.UUID]] = {}
        counts: dict[uuid.UUID, int] = {}
        for member_id, member in group.members.items():
            subscriptions[member_id] = []
            for name in member.metadata.subscribed_topic_names:
                topic_id = topics.topic_id(name)
                if topic_id is not None:
                    counts[topic_id] = topics.partition_count(name) or 0
                    subscriptions[member_id].append(topic_id)
        for member_id, target in assign(subscriptions, counts, group.targets).items():
            if group.targets.get(member_id) != target:
                value = ShareGroupTargetAssignmentMemberValue(topic_partitions=by_topic(target))
                self.record(ShareGroupTargetAssignmentMemberKey(self._group_id, member_id), value)
        self.record(
            ShareGroupTargetAssignmentMetadataKey(self._group_id),
            ShareGroupTargetAssignmentMetadataValue(assignment_epoch=group.epoch),
        )
        self._remember_states()

    def reconcile(self, member_id: str) -> ShareMember:
        group = self.group
        member = group.members[member_id]
        if member.epoch != group.assignment_epoch:
            value = ShareGroupCurrentMemberAssignmentValue(
                member_epoch=group.assignment_epoch,
                previous_member_epoch=member.epoch,
                state=_STABLE,
                assigned_partitions=by_topic(group.targets.get(member_id, NOTHING)),
            )
            self.record(ShareGroupCurrentMemberAssignmentKey(self._group_id, member_id), value)
        return member

    def _remember_states(self) -> None:
        """Whatever is assigned to somebody will have a state."""
        wanted: dict[uuid.UUID, set[int]] = {}
        for target in self.group.targets.values():
            for topic_id, index in target:
                wanted.setdefault(topic_id, set()).add(index)
        self.add_states(wanted)

    def add_states(self, wanted: Mapping[uuid.UUID, set[int]]) -> None:
        states = dict(self.group.states)
        for topic_id, indexes in wanted.items():
            known = states.get(topic_id)
            if known is not None and indexes <= set(known.partitions):
                continue
            name = self._shard.topics.topic_name(topic_id)
            if name is not None:
                partitions = tuple(sorted({*indexes, *(known.partitions if known is not None else ())}))
                states[topic_id] = NamedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions)
        if states != self.group.states:
            self.write_states(states.values())

    def write_states(self, states: Iterable[NamedTopicPartitions]) -> None:
        value = ShareGroupStatePartitionMetadataValue(
            initializing_topics=(), initialized_topics=tuple(states), deleting_topics=()
        )
        self.record(ShareGroupStatePartitionMetadataKey(self._group_id), value)


def topics_changed(shard: GroupShard) -> Effects:
    """Groups drop the states of deleted topics; the share coordinator deletes the states themselves."""
    effects = Effects()
    for group in _share_groups(shard):
        group.may_have_changed_topics = True
        kept = [topic for topic in group.states.values() if shard.topics.topic_name(topic.topic_id) is not None]
        if len(kept) < len(group.states):
            step = _Step(shard, group.group_id)
            step.write_states(kept)
            effects.merge(step.effects)
    return effects


def _share_groups(shard: GroupShard) -> list[ShareGroup]:
    return [group for group in shard.groups.values() if isinstance(group, ShareGroup)]


def _leave(shard: GroupShard, waiter: Waiter, request: Heartbeat) -> Effects:
    group = share_group(shard, request.group_id)
    if request.member_id not in group.members:
        raise _unknown_member(request)
    step = _Step(shard, group.group_id)
    step.remove_member(request.member_id)
    step.effects.reply(waiter, HeartbeatReply(request.member_id, LEAVE_EPOCH, 0, None))
    return step.effects


def _group_to_join(shard: GroupShard, request: Heartbeat) -> ShareGroup:
    """A group that is not there yet is made by its first record."""
    if request.group_id in shard.groups:
        return share_group(shard, request.group_id)
    return ShareGroup(request.group_id)


def _extend_session(shard: GroupShard, group: ShareGroup, member_id: str, effects: Effects, now_ms: int) -> None:
    deadline_ms = now_ms + shard.group_config(group.group_id).share_session_timeout_ms
    group.deadlines_ms[member_id] = deadline_ms
    _arm(group, member_id, effects)


def _arm(group: ShareGroup, member_id: str, effects: Effects) -> None:
    """One wake per member, however often it joins and leaves: it moves on by itself for as long as heartbeats come."""
    if member_id not in group.armed:
        group.armed.add(member_id)
        effects.wake(group.deadlines_ms[member_id], (group.group_id, _SESSION, member_id))


def _check(request: Heartbeat) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "GroupId can't be empty.")
    problem = None
    if not request.member_id or len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        problem = f"MemberId must have 1 to {MEMBER_ID_LENGTH_MAX} characters."
    elif request.member_epoch < LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    elif request.member_epoch == JOIN_EPOCH and not request.topics:
        problem = "SubscribedTopicNames must be set in first request."
    elif request.rack_id is not None and not request.rack_id.strip():
        problem = "RackId can't be empty."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    check_size(map(len, request.topics or ()))


def _check_epoch(member: ShareMember, epoch: int) -> None:
    if epoch not in (member.epoch, member.previous_epoch, JOIN_EPOCH):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member's epoch is {member.epoch}, not {epoch}: it must rejoin.",
        )


def _unknown_member(request: Heartbeat) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
    )


def _given_or_known(value: str | None, before: str | None) -> str | None:
    return before if value is None else value
