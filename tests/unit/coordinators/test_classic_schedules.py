"""Any order of joins, syncs, heartbeats, leaves, silence and crashes, sent by members with any memory of the past."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.events import JoinReply, SyncReply
from moldau.errors import ErrorCode
from tests.examples import examples
from tests.unit.coordinators.classic_lab import Lab, durable, protocols

LIKES = (("range",), ("range", "sticky"), ("sticky", "range"))
INSTANCES = (None, None, "i0", "i1")
LONG_MS = 10_000_000


class Process:
    """A consumer: it knows what it was told last, and acts on it, however old that is."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.joined: JoinReply | None = None
        self.synced = False
        self.asked: list[int] = []
        self.fenced = False


class Schedule(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab()
        self.processes: list[Process] = []
        self.of_waiter: dict[int, Process] = {}
        self.seen: set[int] = set()
        self.assignments: dict[tuple[str, int], bytes] = {}
        """By member and generation, what it was given."""
        self.syncs: dict[int, tuple[str, int]] = {}
        """By waiter, for which member and generation a sync was sent."""
        self.generation = 0
        self.lost: set[int] = set()
        """Those who waited when the broker crashed."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), size=st.sampled_from([2, 100]))
    def configure(self, delay_ms: int, size: int) -> None:
        self.lab = Lab(group_initial_rebalance_delay_ms=delay_ms, group_max_size=size)

    def process(self, data: st.DataObject) -> Process:
        return data.draw(st.sampled_from(self.processes))

    def note(self, process: Process, waiter: int) -> None:
        process.asked.append(waiter)
        self.of_waiter[waiter] = process

    @rule(instance_id=st.sampled_from(INSTANCES))
    def start(self, instance_id: str | None) -> None:
        if len(self.processes) < 6:
            self.processes.append(Process(instance_id))

    @precondition(lambda self: self.processes)
    @rule(
        data=st.data(),
        anew=st.booleans(),
        likes=st.sampled_from(LIKES),
        topic=st.sampled_from(["t", "u"]),
        has_to_know_id=st.booleans(),
        rebalance_ms=st.sampled_from([0, 5_000, 60_000]),
    )
    def join(
        self, *, data: st.DataObject, anew: bool, likes: Any, topic: str, has_to_know_id: bool, rebalance_ms: int
    ) -> None:
        process = self.process(data)
        member_id = "" if anew or process.joined is None else process.joined.member_id
        waiter = self.lab.join(
            member_id,
            instance_id=process.instance_id,
            protocols=protocols(*likes, topic=topic),
            requires_member_id=has_to_know_id,
            rebalance_timeout_ms=rebalance_ms,
        )
        self.note(process, waiter)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), share=st.binary(min_size=1, max_size=3))
    def sync(self, data: st.DataObject, share: bytes) -> None:
        process = self.process(data)
        joined = process.joined
        if joined is None:
            return
        self.send_sync(process, joined, share)

    def send_sync(self, process: Process, joined: JoinReply, share: bytes) -> None:
        assignments = [(member.member_id, member.member_id.encode() + share) for member in joined.members]
        waiter = self.lab.sync(joined, *assignments, instance_id=process.instance_id)
        self.syncs[waiter] = (joined.member_id, joined.generation)
        self.note(process, waiter)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        process = self.process(data)
        if process.joined is None:
            return
        told = self.lab.heartbeat(process.joined, instance_id=process.instance_id)
        if told is ErrorCode.NONE:
            assert process.joined.generation == self.lab.group.generation
            assert process.joined.member_id in self.lab.group.members
            assert not process.fenced

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        process = self.process(data)
        if process.joined is not None:
            process.synced = False
            self.lab.leave((process.joined.member_id, process.instance_id))

    @rule(rounds=st.integers(1, 4))
    def everybody_behaves(self, rounds: int) -> None:
        """For a while all do what a consumer does, so that generations with several members come about."""
        for _ in range(rounds):
            for process in self.processes:
                self.behave(process)
                self.replies_are_right()

    def behave(self, process: Process) -> None:
        last = process.asked[-1] if process.asked else None
        if last is not None and last not in self.lab.replies and last not in self.lost:
            return  # it waits
        joined = process.joined
        if joined is not None and joined.generation >= 0 and not process.synced:
            share = joined.member_id[-1:].encode()
            self.send_sync(process, joined, share)
            return
        if joined is not None and process.synced:
            told = self.lab.heartbeat(joined, instance_id=process.instance_id)
            if told is ErrorCode.NONE:
                return
            if told is not ErrorCode.REBALANCE_IN_PROGRESS:
                process.joined = joined = None
        member_id = "" if joined is None else joined.member_id
        self.note(process, self.lab.join(member_id, instance_id=process.instance_id, requires_member_id=True))

    @rule(ms=st.sampled_from([0, 1, 2_999, 3_000, 5_000, 9_999, 10_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.lab.pass_ms(ms)

    @rule()
    def crash(self) -> None:
        self.lost |= self.lab.asked.keys() - self.lab.replies.keys()
        live = durable(self.lab.shard)
        self.lab.restart()
        for group_id, value in live.items():
            assert durable(self.lab.shard).get(group_id, value) == value
        self.generation = self.lab.group.generation if self.lab.shard.groups else 0
        members = self.lab.group.members.ids if self.lab.shard.groups else []
        for process in self.processes:
            if process.joined is not None and process.joined.member_id in members:
                process.fenced = False  # by one whose round the crash cut short: as in Kafka, the place is its again

    # -- what holds after every step

    @invariant()
    def replies_are_right(self) -> None:
        for waiter in sorted(self.lab.replies.keys() - self.seen):
            self.seen.add(waiter)
            assert waiter not in self.lost, "a lost shard answers nobody"
            process = self.of_waiter.get(waiter)
            reply = self.lab.replies[waiter]
            if process is None:
                continue
            if isinstance(reply, JoinReply):
                self.check_join(process, waiter, reply)
            elif isinstance(reply, SyncReply) and reply.error is ErrorCode.NONE:
                self.check_sync(process, waiter, reply)
            elif waiter == process.asked[-1]:
                process.joined = None  # refused: it begins anew

    def check_join(self, process: Process, waiter: int, reply: JoinReply) -> None:
        if waiter != process.asked[-1]:
            return  # it has asked for something else since
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            process.joined = JoinReply(ErrorCode.NONE, reply.member_id)
        elif reply.error is ErrorCode.NONE:
            process.joined = reply
            process.synced = False
            process.fenced = False
            if process.instance_id is not None:
                for other in self.processes:
                    if other is not process and other.instance_id == process.instance_id:
                        other.fenced = True
        else:
            assert reply.generation == -1
            process.joined = None

    def check_sync(self, process: Process, waiter: int, reply: SyncReply) -> None:
        assert not process.fenced
        known = self.assignments.setdefault(self.syncs[waiter], reply.assignment)
        assert known == reply.assignment, "two assignments in one generation"
        process.synced = process.synced or waiter == process.asked[-1]

    @invariant()
    def generations_only_grow(self) -> None:
        if self.lab.shard.groups:
            assert self.lab.group.generation >= self.generation
            self.generation = self.lab.group.generation

    @invariant()
    def those_who_wait_are_members(self) -> None:
        if not self.lab.shard.groups:
            return
        group = self.lab.group
        waiting = set(group._waiting)
        assert waiting <= set(group.members.ids)
        assert not (waiting and group.state in (State.EMPTY, State.STABLE))
        assert (len(group.members) == 0) or group.state is not State.EMPTY
        assert group.leader is None or group.leader in group.members
        if group.state in (State.COMPLETING, State.STABLE):
            assert group.leader is not None
            assert group.protocol_name is not None
        open_waiters = self.lab.asked.keys() - self.lab.replies.keys() - self.lost
        assert open_waiters == set(group._waiting.values()), "somebody waits whom the group does not know"

    @invariant()
    def what_lasts_is_what_the_records_say(self) -> None:
        live = durable(self.lab.shard)
        replayed = durable(self.lab.replayed())
        assert {group_id: replayed[group_id] for group_id in live} == live

    def teardown(self) -> None:
        self.lab.pass_ms(LONG_MS)
        open_waiters = self.lab.asked.keys() - self.lab.replies.keys() - self.lost
        assert not open_waiters, "everybody who waits is answered at last"
        if self.lab.shard.groups:
            assert self.lab.state is State.EMPTY, "silent members are all out"


Schedule.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestSchedules = Schedule.TestCase
