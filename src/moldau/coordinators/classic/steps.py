"""The requests of classic members, as steps of a shard: the group is looked up or made, and takes the event.

A group id may belong to a group of another protocol. A consumer group takes classic members in, too, as long as it has
members of its own kind (`ClassicRequests`); an empty one makes place for a classic group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from moldau.coordinators.classic.events import Heartbeat, Join, Leave, LeaveReply, Sync
from moldau.coordinators.classic.group import ClassicGroup, Step
from moldau.coordinators.classic.records import GroupMetadataKey, GroupMetadataValue
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import Group, GroupType, check_group_id
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.coordinators.group_shard import GroupShard


@runtime_checkable
class ClassicRequests(Protocol):
    """A group of another protocol that understands classic members while it is not empty."""

    def classic_join(self, shard: GroupShard, waiter: Waiter, request: Join, now_ms: int) -> Effects: ...
    def classic_sync(self, shard: GroupShard, waiter: Waiter, request: Sync, now_ms: int) -> Effects: ...
    def classic_heartbeat(self, shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects: ...
    def classic_leave(self, shard: GroupShard, waiter: Waiter, request: Leave, now_ms: int) -> Effects: ...


def join(shard: GroupShard, waiter: Waiter, request: Join, now_ms: int) -> Effects:
    """Replies with a `JoinReply`, once the round's members are known."""
    config = shard.config
    check_group_id(request.group_id)
    if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session timeout {request.session_timeout_ms} ms is below group.min.session.timeout.ms or above "
            "group.max.session.timeout.ms",
        )
    group = shard.groups.get(request.group_id)
    effects = Effects()
    if isinstance(group, ClassicGroup):
        group.join(Step.of(shard, now_ms, effects), waiter, request)
        return effects
    if group is not None and not (group.type is GroupType.CONSUMER and group.is_empty):
        if isinstance(group, ClassicRequests):
            return group.classic_join(shard, waiter, request, now_ms)
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{request.group_id!r} is a {group.type.value} group")
    if request.member_id:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown group {request.group_id!r}")
    for key in group.tombstones() if group is not None else ():
        effects.record(key, None)
    made = ClassicGroup(request.group_id, shard.wall_clock())
    effects.record(GroupMetadataKey(made.group_id), made.record())
    made.join(Step.of(shard, now_ms, effects), waiter, request)
    shard.groups[made.group_id] = made
    return effects


def sync(shard: GroupShard, waiter: Waiter, request: Sync, now_ms: int) -> Effects:
    """Replies with a `SyncReply`, once the leader has assigned."""
    check_group_id(request.group_id)
    group = _group_of_member(shard, request.group_id)
    if not isinstance(group, ClassicGroup):
        return group.classic_sync(shard, waiter, request, now_ms)
    effects = Effects()
    group.sync(Step.of(shard, now_ms, effects), waiter, request)
    return effects


def heartbeat(shard: GroupShard, waiter: Waiter, request: Heartbeat, now_ms: int) -> Effects:
    """Replies with an `ErrorCode`."""
    group = shard.groups.get(request.group_id)
    if not isinstance(group, ClassicGroup):
        check_group_id(request.group_id)
        return _other(group, request.group_id).classic_heartbeat(shard, waiter, request, now_ms)
    effects = Effects()
    effects.reply(waiter, group.heartbeat(request, now_ms))
    return effects


def leave(shard: GroupShard, waiter: Waiter, request: Leave, now_ms: int) -> Effects:
    """Replies with a `LeaveReply`."""
    check_group_id(request.group_id)
    effects = Effects()
    try:
        group = _group_of_member(shard, request.group_id)
    except KafkaError as error:
        effects.reply(waiter, (error.code,) * len(request.leavers))
        return effects
    if not isinstance(group, ClassicGroup):
        return group.classic_leave(shard, waiter, request, now_ms)
    reply: LeaveReply = group.leave(Step.of(shard, now_ms, effects), request.leavers)
    effects.reply(waiter, reply)
    return effects


def loaded(shard: GroupShard, now_ms: int) -> Effects:
    effects = Effects()
    step = Step.of(shard, now_ms, effects)
    for group in shard.groups.values():
        if isinstance(group, ClassicGroup):
            group.loaded(step)
    return effects


def _group_of_member(shard: GroupShard, group_id: str) -> ClassicGroup | ClassicRequests:
    group = shard.groups.get(group_id)
    return group if isinstance(group, ClassicGroup) else _other(group, group_id)


def _other(group: Group | None, group_id: str) -> ClassicRequests:
    if isinstance(group, ClassicRequests):
        return group
    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown classic group {group_id!r}")


def _replay(shard: GroupShard, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    if value is not None:
        shard.groups[key.group] = ClassicGroup.of_record(key.group, value)
    elif isinstance(shard.groups.get(key.group), ClassicGroup):
        del shard.groups[key.group]


REPLAY: dict[type, Callable[[GroupShard, Any, Any | None], None]] = {GroupMetadataKey: _replay}
