"""A shard with classic groups, a clock that stands until it is moved, and members that remember what they were told."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.coordinators.classic import steps
from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.events import Heartbeat, Join, JoinReply, Leave, Leaver, Sync, SyncReply
from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_shard import GroupShard
from moldau.errors import ErrorCode, KafkaError

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Nothing:
    """No topics: classic groups ask for none."""

    def partition_count(self, name: str) -> int | None:
        return None

    def topic_id(self, name: str) -> Any:
        return None

    def topic_name(self, topic_id: Any) -> str | None:
        return None

    def names(self) -> tuple[str, ...]:
        return ()


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 3, len(topics)) + names + b"whatever newer versions add"


def protocols(*names: str, topic: str = "t") -> tuple[tuple[str, bytes], ...]:
    return tuple((name, subscription(topic)) for name in names)


class Lab:
    def __init__(self, **config: Any) -> None:
        self.config = BrokerConfig(**config)
        self.now_ms = 1_000_000
        self.records: list[tuple[Any, Any]] = []
        self.replies: dict[int, Any] = {}
        self.asked: dict[int, str] = {}
        """What each waiter asked for."""
        self._wakes: list[tuple[int, int, Any]] = []
        self._count = 0
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        return GroupShard(lambda: self.config, Nothing(), wall_clock=self.wall_clock)

    def wall_clock(self) -> int:
        """Another one than the `now_ms` of steps."""
        return 1_700_000_000_000 + self.now_ms

    # -- the shell

    def perform(self, effects: Effects) -> None:
        self.records += effects.records
        for waiter, reply in effects.replies:
            assert waiter not in self.replies, f"{self.asked[waiter]} was answered twice"
            self.replies[waiter] = reply
        for at_ms, key in effects.wakes:
            self._count += 1
            heapq.heappush(self._wakes, (at_ms, self._count, key))

    def ask(self, step: Callable[..., Effects], request: Any) -> int:
        """The waiter; what it was told is in `replies`. A refusal counts as the reply."""
        self._count += 1
        waiter = self._count
        self.asked[waiter] = f"{step.__name__}: {request}"
        try:
            self.perform(step(self.shard, waiter, request, self.now_ms))
        except KafkaError as error:
            self.replies[waiter] = error.code
        return waiter

    def told(self, step: Callable[..., Effects], request: Any) -> Any:
        return self.replies.get(self.ask(step, request))

    def pass_ms(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while self._wakes and self._wakes[0][0] <= until_ms:
            at_ms, _, key = heapq.heappop(self._wakes)
            self.now_ms = max(self.now_ms, at_ms)
            self.perform(self.shard.wake(key, self.now_ms))
        self.now_ms = until_ms

    def restart(self) -> None:
        """As after a crash: only the records are left."""
        self.shard = self.replayed()
        self._wakes.clear()
        self.perform(steps.loaded(self.shard, self.now_ms))

    def replayed(self) -> GroupShard:
        shard = self._new_shard()
        for key, value in self.records:
            steps.REPLAY[type(key)](shard, key, value)
        return shard

    # -- members

    @property
    def group(self) -> ClassicGroup:
        found = self.shard.groups[GROUP]
        assert isinstance(found, ClassicGroup)
        return found

    @property
    def state(self) -> State:
        return self.group.state

    def join(self, member_id: str = "", **changes: Any) -> int:
        self._count += 1
        request = Join(
            group_id=GROUP,
            member_id=member_id,
            new_member_id=f"member-{self._count}",
            instance_id=None,
            client_id="client",
            client_host="/127.0.0.1",
            protocol_type="consumer",
            protocols=protocols("range"),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            requires_member_id=False,
        )
        return self.ask(steps.join, request._replace(**changes))

    def sync(self, joined: JoinReply, *assignments: tuple[str, bytes], **changes: Any) -> int:
        request = Sync(GROUP, joined.member_id, None, joined.generation, "consumer", joined.protocol_name, assignments)
        return self.ask(steps.sync, request._replace(**changes))

    def heartbeat(self, joined: JoinReply, **changes: Any) -> ErrorCode:
        request = Heartbeat(GROUP, joined.member_id, None, joined.generation)._replace(**changes)
        told = self.told(steps.heartbeat, request)
        assert isinstance(told, ErrorCode)
        return told

    def leave(self, *leavers: tuple[str, str | None]) -> Any:
        return self.told(steps.leave, Leave(GROUP, tuple(Leaver(*leaver) for leaver in leavers)))

    # -- whole stories

    def joined(self, waiter: int) -> JoinReply:
        reply = self.replies[waiter]
        assert isinstance(reply, JoinReply), reply
        assert reply.error is ErrorCode.NONE, reply
        return reply

    def synced(self, waiter: int) -> SyncReply:
        reply = self.replies[waiter]
        assert isinstance(reply, SyncReply), reply
        assert reply.error is ErrorCode.NONE, reply
        return reply

    def stable(self, count: int = 1, *, static: bool = False, **changes: Any) -> list[JoinReply]:
        """A stable group with that many members; the first one leads. Static ones are called i0, i1, …"""
        members: list[JoinReply] = []
        for number in range(count):
            waiters = [self.join(instance_id=f"i{number}" if static else None, **changes)]
            waiters = [self.join_again(member, **changes) for member in members] + waiters
            members = [self.joined(waiter) for waiter in waiters]
            self.sync_all(members)
        assert self.state is State.STABLE
        return members

    def join_again(self, member: JoinReply, **changes: Any) -> int:
        instance_id = self.group.members[member.member_id].instance_id
        return self.join(member.member_id, **{"instance_id": instance_id, **changes})

    def sync_all(self, members: list[JoinReply]) -> list[SyncReply]:
        leader = members[0].leader
        shares = tuple((member.member_id, f"{member.member_id}@{member.generation}".encode()) for member in members)
        waiters = []
        for member in members:
            instance_id = self.group.members[member.member_id].instance_id
            given = shares if member.member_id == leader else ()
            waiters.append(self.sync(member, *given, instance_id=instance_id))
        return [self.synced(waiter) for waiter in waiters]


def durable(shard: GroupShard) -> dict[str, Any]:
    """What a shard that replays the same records has to have, too; of a member's protocols only the elected one lasts,
    and of a round that is under way nothing."""
    return {
        group_id: group.record()
        for group_id, group in shard.groups.items()
        if isinstance(group, ClassicGroup) and group.state in (State.EMPTY, State.STABLE)
    }


def in_state(state: State, **config: int) -> tuple[Lab, list[JoinReply]]:
    """A group of two, brought into the state; the first member leads."""
    lab = Lab(**config)
    members = lab.stable(2)
    if state is State.PREPARING:
        lab.join()
    elif state is State.COMPLETING:
        waiters = [lab.join_again(member) for member in members]
        members = [lab.joined(waiter) for waiter in waiters]
    elif state is State.EMPTY:
        lab.leave(*((member.member_id, None) for member in members))
    assert lab.state is state
    return lab, members
