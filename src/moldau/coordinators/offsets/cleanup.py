"""Offsets are deleted: by request, with their topic or group, or when they have expired.

An offset expires `offsets.retention.minutes` after a moment that depends on who might still need it:

    group without members            since the last one left; where that is not known, since its commit
    simple group                     since its commit: it has no members that could leave
    classic consumers, Stable        since its commit, for topics that no member is subscribed to any more
    group of the newer protocol      the same, whatever its state
    any other group with members     never

A commit of an old client may say itself when it expires. An offset whose partition has another one pending in a
transaction stays. A group without members and offsets goes, too. All these times are in records, so the wall clock
tells how long ago they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import Group, GroupType
from moldau.coordinators.offsets.records import NO_EXPIRY, OffsetCommitKey, OffsetCommitValue
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

OFFSETS_PER_STEP = 1_000
"""Looked at before others get their turn: a millisecond or so. A group is looked at as a whole."""
TOMBSTONES_PER_STEP = 10_000
"""In one batch; what is left of a group that has more expires next time."""

EXPIRE = (None, "expire")
"""What the shard is woken with: no group's, so there is no group id in it."""

_CONSUMERS = "consumer"
_MS_PER_MINUTE = 60_000


def delete_offsets(shard: GroupShard, waiter: Waiter, group_id: str, partitions: Sequence[TopicPartition]) -> Effects:
    """Replies with one error code for each of the partitions."""
    group = _group(shard, group_id)
    if group.type is GroupType.CLASSIC and not group.is_empty and group.protocol_type != _CONSUMERS:
        # What the members of such a group are subscribed to is written in a way only they know.
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
    effects = Effects()
    effects.reply(
        waiter,
        [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, _ in partitions
        ],
    )
    wanted = [
        OffsetCommitKey(group_id, *one) for one in dict.fromkeys(partitions) if not group.is_subscribed_to(one[0])
    ]
    _write_tombstones(shard, [key for key in wanted if shard.offsets.holds(key)], effects)
    return effects


def delete_group(shard: GroupShard, waiter: Waiter, group_id: str) -> Effects:
    """The group and all that it committed; replies with None."""
    group = _group(shard, group_id)
    group.validate_delete()
    effects = Effects()
    effects.reply(waiter, None)
    _write_tombstones(shard, shard.offsets.keys(group_id), effects)
    _delete_group_records(shard, group, effects)
    return effects


def delete_offsets_of_deleted_topics(shard: GroupShard) -> Effects:
    """Topics were deleted: a new topic of the same name must not begin where the old one was left."""
    effects = Effects()
    _write_tombstones(
        shard, shard.offsets.keys_of_topics(lambda topic: shard.topics.partition_count(topic) is None), effects
    )
    return effects


class Expiry:
    """When to look for expired offsets next, and which groups are still to be looked at this time."""

    def __init__(self) -> None:
        self._due_ms = 0
        self._groups: list[str] = []

    def schedule(self, effects: Effects, at_ms: int) -> None:
        self._due_ms = at_ms
        effects.wake(at_ms, EXPIRE)

    def wake(self, shard: GroupShard, now_ms: int) -> Effects:
        effects = Effects()
        if now_ms < self._due_ms:
            return effects  # meant for a shard that was here before, and had its own time
        groups = self._groups or list(shard.groups)
        seen = 0
        while groups and seen < OFFSETS_PER_STEP:
            seen += 1 + _expire_group(shard, groups.pop(), effects)
        self._groups = groups
        self.schedule(effects, now_ms + (1 if groups else shard.config.offsets_retention_check_interval_ms))
        return effects


def _expire_group(shard: GroupShard, group_id: str, effects: Effects) -> int:
    """How many offsets it had."""
    group = shard.groups.get(group_id)
    if group is None or group.type is GroupType.SHARE:
        return 0
    retention_ms = shard.config.offsets_retention_minutes * _MS_PER_MINUTE
    timestamp_ms = shard.wall_clock()
    offsets = list(shard.offsets.of_group(group_id))
    expired = [
        OffsetCommitKey(group_id, topic, partition)
        for (topic, partition), value in offsets
        if _is_expired(group, value, timestamp_ms, retention_ms)
        and not group.is_subscribed_to(topic)
        and not shard.offsets.is_pending(group_id, topic, partition)
    ]
    room = max(0, TOMBSTONES_PER_STEP - len(effects.records))
    _write_tombstones(shard, expired[:room], effects)
    if group.is_empty and not shard.offsets.has_any(group_id):
        _delete_group_records(shard, group, effects)
    return len(offsets)


def _is_expired(group: Group, value: OffsetCommitValue, timestamp_ms: int, retention_ms: int) -> bool:
    since_ms: int | None = value.commit_timestamp
    if group.type is GroupType.CLASSIC and group.protocol_type:
        if group.is_empty:
            empty_since_ms = group.empty_since_ms()
            since_ms = since_ms if empty_since_ms is None else empty_since_ms
        elif group.protocol_type != _CONSUMERS or group.state_name != "Stable":
            since_ms = None
    if since_ms is None:
        return False
    if value.expire_timestamp != NO_EXPIRY:
        return timestamp_ms >= value.expire_timestamp
    return timestamp_ms - since_ms >= retention_ms


def _group(shard: GroupShard, group_id: str) -> Group:
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"unknown group {group_id!r}")
    return group


def _write_tombstones(shard: GroupShard, keys: Iterable[OffsetCommitKey], effects: Effects) -> None:
    for key in keys:
        effects.record(key, None)
        shard.offsets.apply(key, None)


def _delete_group_records(shard: GroupShard, group: Group, effects: Effects) -> None:
    for key in group.tombstones():
        effects.record(key, None)
    del shard.groups[group.group_id]
