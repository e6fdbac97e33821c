"""A classic group: the step machine.

The members assign the partitions among themselves; the broker brings them together in rounds. A round has two halves.
In the first everybody joins, and whoever comes too late is out; that makes a new generation, of which the leader is
told who is in it. In the second the leader hands in what each member gets, everybody fetches their own part with a
sync, and the group is stable until somebody comes, goes, or changes.

                   Empty            PreparingRebalance     CompletingRebalance       Stable
    new member     → Preparing      waits                  → Preparing               → Preparing
    joins again    UNKNOWN_MEMBER   waits                  changed: → Preparing      leader or changed: → Preparing
                                                           else this generation      else this generation
    static member  –                waits                  → Preparing               the same place at once, unless
    comes back                                                                       another protocol wins: → Preparing
    syncs          UNKNOWN_MEMBER   REBALANCE_IN_PROGRESS  waits; leader: → Stable   its assignment
    heartbeats     UNKNOWN_MEMBER   REBALANCE_IN_PROGRESS  ok                        ok
    members gone   –                all here: next         → Preparing               → Preparing
    time is up     –                next                   unsynced out: → Preparing unsynced out: → Preparing

    next = the generation after: → Completing with those who joined, → Empty when there are no members.

What holds at the end of every step:
- Those who wait are members. In PreparingRebalance they wait for their join, in CompletingRebalance for their sync,
  in Empty and Stable no member waits. Every waiter gets exactly one reply.
- Records are written when a group is made, when it becomes Stable or Empty, and when a static member takes its place
  again: a group that is loaded is Empty or Stable, and a round that a crash interrupted starts again.
- A member stays until its deadline, which every request of it extends; one that waits for an answer does not time out.
  Only a new one does: the client may have given up, and a retry would have another member id.

One alarm per group rings at the earliest deadline or before; heartbeats only move deadlines, they never set it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from moldau.config.broker import BrokerConfig
from moldau.coordinators.classic.base import GroupBase, State
from moldau.coordinators.classic.events import Heartbeat, Join, JoinReply, Leaver, Sync, SyncReply
from moldau.coordinators.classic.members import NEVER_MS, Member, new_member
from moldau.coordinators.classic.records import GroupMetadataKey
from moldau.coordinators.effects import Effects, Waiter
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""Kafka's own: how long the join of a new member may wait."""
NOBODY_JOINED_RETRY_MIN_MS = 1_000
"""A rebalance timeout may be 0, but a round that waits for somebody to join must not spin."""
PENDING_MAX = 10_000
"""Member ids of one group that were given out and not used yet: anybody may ask for one, and each is kept."""


class Step(NamedTuple):
    """What an event brings along, and what it leads to."""

    config: BrokerConfig
    now_ms: int
    """For deadlines; only differences mean something."""
    timestamp_ms: int
    """For records: the wall clock's."""
    effects: Effects

    @classmethod
    def of(cls, shard: GroupShard, now_ms: int, effects: Effects) -> Self:
        return cls(shard.config, now_ms, shard.wall_clock(), effects)


class ClassicGroup(GroupBase):
    def __init__(self, group_id: str, timestamp_ms: int | None) -> None:
        super().__init__(group_id, timestamp_ms)
        self._pending: dict[str, int] = {}
        """Member ids that were given out and not used yet, and until when they hold."""
        self._waiting: dict[str, Waiter] = {}
        self._unsynced: set[str] = set()
        """Members that have yet to fetch their assignment of this generation."""
        self._is_first_round = False
        """From Empty: the round lasts its time even when all known members are here, since others may come."""
        self._extension_ms = 0
        """How much longer the first round may last if members keep coming."""
        self._has_newcomer = False
        self._time_up_ms = NEVER_MS
        self._alarm_ms = NEVER_MS

    # -- events

    def join(self, step: Step, waiter: Waiter, request: Join) -> None:
        if not self._has_room(step, request.member_id):
            step.effects.reply(waiter, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            self._remove_members(step, [request.member_id])
            return
        self.check_protocols(request)
        if not request.member_id:
            self._join_unknown(step, waiter, request)
        elif request.member_id in self._pending and request.instance_id is None:
            self._add(step, waiter, request, request.member_id)
        else:
            member = self.members.validated(request.member_id, request.instance_id)
            TABLE[self.state].joins_again(self, step, waiter, request, member)

    def sync(self, step: Step, waiter: Waiter, request: Sync) -> None:
        member = self.members.validated(request.member_id, request.instance_id)
        self.check_generation(request.generation)
        for said, known in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if said is not None and said != known:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{said!r} does not match the group's {known!r}"
                )
        TABLE[self.state].syncs(self, step, waiter, request, member)

    def heartbeat(self, request: Heartbeat, now_ms: int) -> ErrorCode:
        member = self.members.validated(request.member_id, request.instance_id)
        self.check_generation(request.generation)
        member.extend_session(now_ms)
        return TABLE[self.state].heartbeats

    def on_contact(self, member_id: str, now_ms: int) -> None:
        """Committing offsets is one, too."""
        if member_id in self.members:
            self.members[member_id].extend_session(now_ms)

    def leave(self, step: Step, leavers: tuple[Leaver, ...]) -> tuple[ErrorCode, ...]:
        results = []
        gone = []
        for leaver in leavers:
            try:
                gone.append(self._leaving(leaver))
                results.append(ErrorCode.NONE)
            except KafkaError as error:
                results.append(error.code)
        self._remove_members(step, gone)
        return tuple(results)

    def fail_all(self, step: Step) -> None:
        """The group goes on in another protocol: whoever waits has to ask that one."""
        for member_id in tuple(self._waiting):
            self._answer(step, member_id, ErrorCode.REBALANCE_IN_PROGRESS, member_id)

    def loaded(self, step: Step) -> None:
        """Members could not send heartbeats while there was no coordinator: their sessions start now."""
        for member in self.members:
            self._start_session(step, member)
        is_over_limit = len(self.members) > step.config.group_max_size  # it was lowered: the last ones find no room
        if self.members and (is_over_limit or self.leader is None):  # one without a leader was of another protocol
            self._prepare(step)

    def wake(self, shard: GroupShard, key: tuple[Any, ...], now_ms: int) -> Effects:
        step = Step.of(shard, now_ms, Effects())
        if now_ms < self._alarm_ms:
            return step.effects
        self._alarm_ms = NEVER_MS
        self._remove_members(step, self._expired(now_ms))
        if self._time_up_ms <= now_ms:
            self._time_up_ms = NEVER_MS
            TABLE[self.state].time_is_up(self, step)
        deadlines = [member.deadline_ms for member in self.members]
        self._wake_at(step, min((*deadlines, *self._pending.values(), self._time_up_ms)))
        return step.effects

    # -- joining

    def _has_room(self, step: Step, member_id: str) -> bool:
        """In a round those count who are back, so that a lowered limit puts the last ones out."""
        if self.is_empty:
            return True
        inside = self._waiting if self.state is State.PREPARING else self.members
        return member_id in inside or len(inside) < step.config.group_max_size

    def _join_unknown(self, step: Step, waiter: Waiter, request: Join) -> None:
        member_id = request.new_member_id
        if request.instance_id is not None:
            replaced = self.members.member_of(request.instance_id)
            if replaced is not None:
                self._replace(step, waiter, request, replaced)
                return
        elif request.requires_member_id:
            if len(self._pending) >= PENDING_MAX:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"too many members are joining ({PENDING_MAX})")
            self._pending[member_id] = step.now_ms + request.session_timeout_ms
            self._wake_at(step, self._pending[member_id])
            step.effects.reply(waiter, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        self._add(step, waiter, request, member_id)

    def _add(self, step: Step, waiter: Waiter, request: Join, member_id: str) -> None:
        member = new_member(request, member_id)
        self._pending.pop(member_id, None)
        self._has_newcomer = self.state is State.PREPARING
        self.protocol_type = request.protocol_type
        self.members.add(member)
        self._start_session(step, member, NEW_MEMBER_TIMEOUT_MS)
        self._wait_for_others(step, waiter, member)

    def _replace(self, step: Step, waiter: Waiter, request: Join, replaced: str) -> None:
        """A static member is back under a new member id: the old one is fenced from now on."""
        self._answer(step, replaced, ErrorCode.FENCED_INSTANCE_ID, replaced)
        self._unsynced.discard(replaced)
        leader_before = self.leader
        member = new_member(request, request.new_member_id)
        member.assignment = self.members[replaced].assignment
        member.is_new = False
        self.members.remove(replaced)
        self.members.add(member)
        if replaced == self.leader:
            self.leader = member.member_id
        self._start_session(step, member)
        keeps_generation = self.state is State.STABLE and self.members.elect_protocol() == self.protocol_name
        if not keeps_generation or not self.fits_a_record(step.config.message_max_bytes):
            self._wait_for_others(step, waiter, member)
            return
        self.find_topics()
        self._record(step)
        reply = self.joined(member)
        if request.can_skip_assignment:
            reply = reply._replace(skip_assignment=self.leader == member.member_id)
        else:  # a leader that took itself for one would assign, and this generation has its assignment
            reply = reply._replace(leader=leader_before or "", members=())
        step.effects.reply(waiter, reply)

    def _wait_for_others(self, step: Step, waiter: Waiter, member: Member) -> None:
        if self.state is not State.PREPARING:
            self._prepare(step)
        self._wait(step, waiter, member)
        self._next_if_all_joined(step)

    def _update(self, step: Step, waiter: Waiter, request: Join, member: Member) -> None:
        self.members.update(member, request)
        self._wait_for_others(step, waiter, member)

    def _update_if_changed(self, step: Step, waiter: Waiter, request: Join, member: Member) -> None:
        # The leader of a stable group joins again to have a new round, for reasons of its own: more partitions, say.
        wants_round = self.state is State.STABLE and member.member_id == self.leader
        if wants_round or member.protocols != request.protocols:
            self._update(step, waiter, request, member)
        else:  # the answer to its join was lost
            step.effects.reply(waiter, self.joined(member))

    # -- rounds

    def _prepare(self, step: Step) -> None:
        for member_id in tuple(self._waiting):
            self._start_session(step, self.members[member_id])
            self._answer(step, member_id, ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        self._unsynced.clear()
        self._is_first_round = self.is_empty
        self._enter(step, State.PREPARING)
        timeout_ms = self.members.rebalance_timeout_ms
        if self._is_first_round:
            delay_ms = step.config.group_initial_rebalance_delay_ms
            self._extension_ms = max(timeout_ms - delay_ms, 0)
            timeout_ms = delay_ms
        self._set_deadline(step, timeout_ms)

    def _prepare_without(self, step: Step) -> None:
        self._prepare(step)
        self._next_if_all_joined(step)

    def _next_if_all_joined(self, step: Step) -> None:
        if self._is_first_round and step.now_ms < self._time_up_ms:
            return
        if len(self._waiting) == len(self.members) and not self._pending:
            self._next_generation(step)

    def _on_join_timeout(self, step: Step) -> None:
        if self._is_first_round and self._has_newcomer and self._extension_ms:
            delay_ms = min(step.config.group_initial_rebalance_delay_ms, self._extension_ms)
            self._extension_ms -= delay_ms
            self._has_newcomer = False
            self._set_deadline(step, delay_ms)
        else:
            self._next_generation(step)

    def _next_generation(self, step: Step) -> None:
        for member in tuple(self.members):
            if member.member_id not in self._waiting and member.instance_id is None:
                self._remove(step, member.member_id)
        if self.members and not self._waiting:
            # Static members stay until their sessions end, but no member is here to lead them.
            self._set_deadline(step, max(self.members.rebalance_timeout_ms, NOBODY_JOINED_RETRY_MIN_MS))
            return
        self.generation += 1
        if self.leader not in self._waiting:
            self.leader = next(iter(self._waiting), None)
        if self.members:
            self._complete(step)
        else:
            self.protocol_name = None
            self._time_up_ms = NEVER_MS
            self._enter(step, State.EMPTY)
            self._record(step)

    def _complete(self, step: Step) -> None:
        self.protocol_name = self.members.elect_protocol()
        self.find_topics()
        for member in self.members:
            waiter = self._waiting.get(member.member_id)
            if waiter is not None:
                step.effects.reply(waiter, self.joined(member))
            member.is_new = False
            member.assignment = b""
            self._start_session(step, member)
        self._waiting.clear()
        self._unsynced.update(self.members.ids)
        self._enter(step, State.COMPLETING)
        self._set_deadline(step, self.members.rebalance_timeout_ms)

    def _sync(self, step: Step, waiter: Waiter, request: Sync, member: Member) -> None:
        if member.member_id == self.leader:
            self._assign(step, dict(request.assignments))
        self._unsynced.discard(member.member_id)
        self._wait(step, waiter, member)
        if member.member_id != self.leader:
            return
        self._enter(step, State.STABLE)
        self._record(step)
        for member_id, waiting in self._waiting.items():
            synced = self.members[member_id]
            self._start_session(step, synced)
            step.effects.reply(waiting, self.assignment(synced))
        self._waiting.clear()

    def _assign(self, step: Step, assignments: dict[str, bytes]) -> None:
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
        if not self.fits_a_record(step.config.message_max_bytes):
            for member in self.members:
                member.assignment = b""
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the assignment is too large")

    def _tell_assignment(self, step: Step, waiter: Waiter, request: Sync, member: Member) -> None:
        self._unsynced.discard(member.member_id)
        member.extend_session(step.now_ms)
        step.effects.reply(waiter, self.assignment(member))

    def _sync_time_up(self, step: Step) -> None:
        self._remove_members(step, self._unsynced)

    # -- going

    def _leaving(self, leaver: Leaver) -> str:
        """The member id that is to go."""
        member_id = leaver.member_id
        if not member_id:
            found = self.members.member_of(leaver.instance_id) if leaver.instance_id is not None else None
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown static member {leaver.instance_id!r}")
            return found
        return member_id if member_id in self._pending else self.members.validated(*leaver).member_id

    def _expired(self, now_ms: int) -> list[str]:
        expired = [member_id for member_id, deadline_ms in self._pending.items() if deadline_ms <= now_ms]
        for member in self.members:
            if member.deadline_ms > now_ms:
                continue
            if member.member_id in self._waiting and not member.is_new:
                member.deadline_ms = NEVER_MS  # until it has its answer
            else:
                expired.append(member.member_id)
        return expired

    def _remove_members(self, step: Step, member_ids: Iterable[str]) -> None:
        """Members, or ids that were never used: those matter only to a round that waits for them."""
        members, pending = len(self.members), len(self._pending)
        for member_id in tuple(member_ids):
            if self._pending.pop(member_id, None) is None and member_id in self.members:
                self._remove(step, member_id)
        was_awaited = len(self._pending) < pending and self.state is State.PREPARING
        if len(self.members) < members or was_awaited:
            TABLE[self.state].members_gone(self, step)

    def _remove(self, step: Step, member_id: str) -> None:
        self._answer(step, member_id, ErrorCode.UNKNOWN_MEMBER_ID, "")
        self.members.remove(member_id)
        self._unsynced.discard(member_id)
        if member_id == self.leader:
            self.leader = None

    # -- the parts of a step

    def _enter(self, step: Step, state: State) -> None:
        self.state = state
        self.state_since_ms = step.timestamp_ms

    def _wait(self, step: Step, waiter: Waiter, member: Member) -> None:
        """A member that asks twice has lost hope of its first answer: it gets the second."""
        self._answer(step, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        self._waiting[member.member_id] = waiter

    def _answer(self, step: Step, member_id: str, error: ErrorCode, told_member_id: str) -> None:
        """An error, if the member waits."""
        waiter = self._waiting.pop(member_id, None)
        if waiter is not None:
            is_join = self.state is State.PREPARING
            step.effects.reply(waiter, JoinReply(error, told_member_id) if is_join else SyncReply(error))

    def _start_session(self, step: Step, member: Member, timeout_ms: int | None = None) -> None:
        """Until its session timeout, unless another is given."""
        member.deadline_ms = step.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self._wake_at(step, member.deadline_ms)

    def _set_deadline(self, step: Step, timeout_ms: int) -> None:
        """For this half of the round."""
        self._time_up_ms = step.now_ms + timeout_ms
        self._wake_at(step, self._time_up_ms)

    def _wake_at(self, step: Step, at_ms: int) -> None:
        if at_ms < self._alarm_ms:
            self._alarm_ms = at_ms
            step.effects.wake(at_ms, (self.group_id, "alarm"))

    def _record(self, step: Step) -> None:
        step.effects.record(GroupMetadataKey(self.group_id), self.record())


class Row(NamedTuple):
    """What a state makes of each event that is not the same in all of them."""

    joins_again: Callable[[ClassicGroup, Step, Waiter, Join, Member], None]
    syncs: Callable[[ClassicGroup, Step, Waiter, Sync, Member], None]
    heartbeats: ErrorCode
    members_gone: Callable[[ClassicGroup, Step], None]
    time_is_up: Callable[[ClassicGroup, Step], None]


def _unknown(group: ClassicGroup, step: Step, waiter: Waiter, request: Join | Sync, member: Member) -> None:
    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "unknown member: the group is empty")


def _rebalancing(group: ClassicGroup, step: Step, waiter: Waiter, request: Sync, member: Member) -> None:
    raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing: the member must rejoin")


def _nothing(group: ClassicGroup, step: Step) -> None:
    pass


TABLE = {
    State.EMPTY: Row(
        joins_again=_unknown,
        syncs=_unknown,
        heartbeats=ErrorCode.UNKNOWN_MEMBER_ID,
        members_gone=_nothing,
        time_is_up=_nothing,
    ),
    State.PREPARING: Row(
        joins_again=ClassicGroup._update,
        syncs=_rebalancing,
        heartbeats=ErrorCode.REBALANCE_IN_PROGRESS,
        members_gone=ClassicGroup._next_if_all_joined,
        time_is_up=ClassicGroup._on_join_timeout,
    ),
    State.COMPLETING: Row(
        joins_again=ClassicGroup._update_if_changed,
        syncs=ClassicGroup._sync,
        heartbeats=ErrorCode.NONE,
        members_gone=ClassicGroup._prepare_without,
        time_is_up=ClassicGroup._sync_time_up,
    ),
    State.STABLE: Row(
        joins_again=ClassicGroup._update_if_changed,
        syncs=ClassicGroup._tell_assignment,
        heartbeats=ErrorCode.NONE,
        members_gone=ClassicGroup._prepare_without,
        time_is_up=ClassicGroup._sync_time_up,
    ),
}
