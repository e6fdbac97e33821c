"""Groups that change between the classic and the consumer protocol, member by member, and lose no partition."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from moldau.coordinators.classic import steps
from moldau.coordinators.classic.events import Heartbeat, Join, JoinReply, Leave, Leaver, Sync, SyncReply
from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.consumer.assignors import Subscriber, assign_uniform
from moldau.coordinators.consumer.embedded import (
    NamedPartitions,
    Subscription,
    by_topic_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.heartbeat import heartbeat
from moldau.coordinators.consumer.member import LEAVE_STATIC
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import encode_value
from tests.unit.coordinators.consumer_lab import GROUP, SESSION_MS, Lab, LabMember, LabTopics, durable, pairs, settle

Owned = set[tuple[uuid.UUID, int]]


class LabClassicMember:
    """A client of the classic protocol that gives partitions up one by one (a cooperative one)."""

    def __init__(self, lab: Lab, name: str, *topics: str, instance_id: str | None = None) -> None:
        self.lab = lab
        self.name = name
        self.topics = topics
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = set()
        self.waiting: tuple[int, str] | None = None
        self.has_to_join = True

    def turn(self) -> None:
        """Does what a client would do next."""
        if self.waiting is not None:
            waiter, what = self.waiting
            if waiter not in self.lab.replies:
                return
            self.waiting = None
            (self._joined if what == "join" else self._synced)(self.lab.replies[waiter])
        elif self.has_to_join:
            self._join()
        else:
            self._heartbeat()

    def leave(self) -> tuple[ErrorCode, ...]:
        leaver = Leaver(self.member_id, self.instance_id)
        self.owned = set()
        codes: tuple[ErrorCode, ...] = self.lab.ask(steps.leave, Leave(GROUP, (leaver,)))
        return codes

    def _join(self) -> None:
        owned = [NamedPartitions(topic=self._name(topic), partitions=(number,)) for topic, number in sorted(self.owned)]
        metadata = encode_value(Subscription(topics=self.topics, owned_partitions=tuple(owned)))
        protocols = (("cooperative-sticky", metadata),)
        new_id = f"{self.name}-{self.lab.new_waiter()}"
        self._ask(
            steps.join,
            Join(
                GROUP, self.member_id, new_id, self.instance_id, self.name, "/h", "consumer", protocols, 10_000, 60_000
            ),
            "join",
        )

    def _name(self, topic: uuid.UUID) -> str:
        return self.lab.topics.topic_name(topic) or "gone"

    def _joined(self, reply: JoinReply | KafkaError) -> None:
        if not isinstance(reply, JoinReply):
            self._refused(reply.code)
        elif reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        elif reply.error is not ErrorCode.NONE:
            self._refused(reply.error)
        else:
            self.member_id, self.generation, self.has_to_join = reply.member_id, reply.generation, False
            assignments = self._assign(reply) if reply.leader == self.member_id else ()
            request = Sync(
                GROUP,
                self.member_id,
                self.instance_id,
                self.generation,
                reply.protocol_type,
                reply.protocol_name,
                assignments,
            )
            self._ask(steps.sync, request, "sync")

    def _assign(self, reply: JoinReply) -> tuple[tuple[str, bytes], ...]:
        """As a leader does: nobody gets what another still has."""
        topics = self.lab.topics
        subscriptions = {member.member_id: read_subscription(member.metadata) for member in reply.members}
        owned = {name: by_topic_id(one.owned_partitions, topics) for name, one in subscriptions.items()}
        counts: dict[Any, int] = {topics.topic_id(name): topics.partition_count(name) or 0 for name in topics.names()}
        members = [
            Subscriber(name, None, frozenset(filter(None, map(topics.topic_id, one.topics))), owned[name])
            for name, one in subscriptions.items()
        ]
        result = []
        for name, partitions in assign_uniform(counts, members).items():
            taken = set().union(*(pairs(held) for other, held in owned.items() if other != name))
            mine = {
                topic: frozenset(number for number in numbers if (topic, number) not in taken)
                for topic, numbers in partitions.items()
            }
            metadata = next(member.metadata for member in reply.members if member.member_id == name)
            result.append((name, write_assignment(mine, topics, metadata)))
        return tuple(result)

    def _synced(self, reply: SyncReply | KafkaError) -> None:
        code = reply.code if isinstance(reply, KafkaError) else reply.error
        if code is not ErrorCode.NONE:
            self._refused(code)
            return
        assert isinstance(reply, SyncReply)
        assigned = pairs(by_topic_id(read_assignment(reply.assignment).assigned_partitions, self.lab.topics))
        # A cooperative member that gave something up joins again, so that others may have it.
        self.has_to_join = not self.owned <= assigned
        self.owned = assigned

    def _heartbeat(self) -> None:
        try:
            request = Heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
            code = self.lab.ask(steps.heartbeat, request)
        except KafkaError as error:
            code = error.code
        if code is not ErrorCode.NONE:
            self._refused(code)

    def _refused(self, code: ErrorCode) -> None:
        self.has_to_join = True
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
            self.owned = set()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.owned = set()
        else:
            assert code is ErrorCode.REBALANCE_IN_PROGRESS

    def _ask(self, step: Any, request: Any, what: str) -> None:
        waiter = self.lab.new_waiter()
        self.waiting = waiter, what
        try:
            self.lab.perform(step(self.lab.shard, waiter, request, self.lab.now_ms))
        except KafkaError as error:
            self.lab.replies[waiter] = error


def turns(classic: Iterable[LabClassicMember], consumers: Iterable[LabMember] = (), rounds: int = 25) -> None:
    classic, consumers = list(classic), list(consumers)
    for _ in range(rounds):
        for one in classic:
            one.turn()
        for two in consumers:
            two.beat()
            two.revoke()
        members: list[LabClassicMember | LabMember] = [*classic, *consumers]
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        members[0].lab.pass_ms(100)


def everything(*members: LabClassicMember | LabMember) -> Owned:
    return set().union(*(member.owned for member in members))


def classic_group(lab: Lab, size: int) -> list[LabClassicMember]:
    members = [LabClassicMember(lab, f"c{number}", "t") for number in range(size)]
    turns(members)
    assert everything(*members) == lab.topics.partitions("t")
    return members


def test_a_group_is_upgraded_and_downgraded_member_by_member() -> None:
    lab = Lab(LabTopics(t=6))
    old = classic_group(lab, 3)
    new: list[LabMember] = []
    for number in range(3):  # a rolling restart to the new protocol
        new.append(LabMember(lab, f"n{number}", "t"))
        turns(old, new)
        assert isinstance(lab.shard.groups[GROUP], ConsumerGroup)
        assert everything(*old, *new) == lab.topics.partitions("t")
        old.pop().leave()
        turns(old, new)
        assert everything(*old, *new) == lab.topics.partitions("t")
        assert durable(lab.replayed()) == durable(lab.shard)
    assert [len(member.owned) for member in new] == [2, 2, 2]
    for number in range(3):  # and back
        old.append(LabClassicMember(lab, f"b{number}", "t"))
        turns(old, new)
        assert everything(*old, *new) == lab.topics.partitions("t")
        new.pop().leave()
        turns(old, new)
        assert everything(*old, *new) == lab.topics.partitions("t")
    assert isinstance(lab.shard.groups[GROUP], ClassicGroup)
    assert isinstance(lab.replayed().groups[GROUP], ClassicGroup)
    assert [len(member.owned) for member in old] == [2, 2, 2]


def test_a_group_is_upgraded_however_much_its_members_tell_together() -> None:
    lab = Lab(LabTopics(t=3))
    names = tuple(f"{'x' * 240}{number}" for number in range(400))
    old = [LabClassicMember(lab, f"c{number}", "t", *names) for number in range(3)]
    turns(old)
    new = LabMember(lab, "n", "t")
    new.beat()
    assert len(lab.group.members) == 4


def test_a_crash_in_the_middle_of_the_migration_loses_nothing() -> None:
    lab = Lab(LabTopics(t=6))
    old = classic_group(lab, 2)
    new = LabMember(lab, "n", "t")
    new.beat()
    lab.restart()
    turns(old, [new])
    assert isinstance(lab.shard.groups[GROUP], ConsumerGroup)
    assert everything(*old, new) == lab.topics.partitions("t")
    new.leave()
    lab.restart()
    turns(old)
    assert isinstance(lab.shard.groups[GROUP], ClassicGroup)
    assert everything(*old) == lab.topics.partitions("t")


def test_whoever_waits_in_a_round_is_told_to_join_the_new_group() -> None:
    lab = Lab(LabTopics(t=6))
    old = classic_group(lab, 2)
    third = LabClassicMember(lab, "c2", "t")
    for _ in range(3):
        third.turn()
    assert third.waiting is not None
    new = LabMember(lab, "n", "t")
    new.beat()
    assert third.waiting[0] in lab.replies
    turns([*old, third], [new])
    assert everything(*old, third, new) == lab.topics.partitions("t")


def test_a_classic_member_that_goes_silent_is_out_and_its_partitions_are_taken_over() -> None:
    lab = Lab(LabTopics(t=4))
    old = classic_group(lab, 2)
    new = LabMember(lab, "n", "t")
    turns(old, [new])
    silent = old.pop()
    for _ in range(5):
        lab.pass_ms(SESSION_MS // 9)
        turns(old, [new], rounds=3)
    assert silent.member_id not in lab.group.members
    turns(old, [new])
    assert everything(*old, new) == lab.topics.partitions("t")


def test_commits_of_classic_members_carry_their_epoch_as_generation() -> None:
    lab = Lab(LabTopics(t=4))
    (old,) = classic_group(lab, 1)
    new = LabMember(lab, "n", "t")
    turns([old], [new])
    lab.group.validate_offset_commit(old.member_id, None, old.generation, is_transactional=False)
    with pytest.raises(KafkaError) as refused:
        lab.group.validate_offset_commit(old.member_id, None, old.generation - 1, is_transactional=False)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_static_members_change_protocol_in_place() -> None:
    lab = Lab(LabTopics(t=4))
    old = [LabClassicMember(lab, f"c{number}", "t", instance_id=f"i{number}") for number in range(2)]
    turns(old)
    had = set(old[0].owned)
    new = LabMember(lab, "n0", "t", instance_id="i0")  # the process restarted with the new protocol
    new.beat()
    assert new.owned == had
    turns(old[1:], [new])
    assert everything(old[1], new) == lab.topics.partitions("t")
    new.leave(LEAVE_STATIC)
    back = LabClassicMember(lab, "c0-again", "t", instance_id="i0")
    turns([old[1], back])
    assert isinstance(lab.shard.groups[GROUP], ClassicGroup)
    assert everything(old[1], back) == lab.topics.partitions("t")


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_can_forbid_the_upgrade(policy: str) -> None:
    lab = Lab(LabTopics(t=4), group_consumer_migration_policy=policy)
    classic_group(lab, 1)
    with pytest.raises(KafkaError) as refused:
        lab.ask(heartbeat, LabMember(lab, "n", "t").request())
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(lab.shard.groups[GROUP], ClassicGroup)


def test_the_policy_can_forbid_the_downgrade() -> None:
    lab = Lab(LabTopics(t=4), group_consumer_migration_policy="UPGRADE")
    old = classic_group(lab, 2)
    new = LabMember(lab, "n", "t")
    turns(old, [new])
    new.leave()
    turns(old)
    assert isinstance(lab.shard.groups[GROUP], ConsumerGroup)
    assert everything(*old) == lab.topics.partitions("t")


def test_an_empty_group_changes_its_type_freely() -> None:
    lab = Lab(LabTopics(t=4), group_consumer_migration_policy="disabled")
    (old,) = classic_group(lab, 1)
    old.leave()
    new = LabMember(lab, "n", "t")
    settle([new])
    assert new.owned == lab.topics.partitions("t")
    new.leave()
    (old,) = classic_group(lab, 1)
    assert isinstance(lab.replayed().groups[GROUP], ClassicGroup)


def test_a_group_of_another_protocol_type_is_not_upgraded() -> None:
    lab = Lab(LabTopics(t=4))
    request = Join(GROUP, "", "w", "i", "", "/h", "connect", (("default", b"x"),), 10_000, 60_000)
    lab.ask(steps.join, request)
    assert lab.refused(LabMember(lab, "n", "t").request()) is ErrorCode.GROUP_ID_NOT_FOUND


def test_members_whose_protocol_the_group_does_not_know_are_refused() -> None:
    lab = Lab(LabTopics(t=4))
    old = classic_group(lab, 1)
    turns(old, [LabMember(lab, "n", "t")])
    subscription = encode_value(Subscription(topics=("t",)))
    for protocol_type, protocols in (
        ("consumer", (("range", subscription),)),
        ("connect", (("cooperative-sticky", subscription),)),
        ("consumer", (("cooperative-sticky", b"\0"),)),
        ("consumer", ()),
    ):
        with pytest.raises(KafkaError) as refused:
            lab.ask(steps.join, Join(GROUP, "", "w", None, "", "/h", protocol_type, protocols, 10_000, 60_000))
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("seed", range(25))
def test_any_mix_of_protocols_settles(seed: int) -> None:
    chance = random.Random(seed)
    lab = Lab(LabTopics(t=7))
    classic: list[LabClassicMember] = []
    consumers: list[LabMember] = []
    for number in range(25):
        event = chance.randrange(6)
        if event == 0:
            classic.append(LabClassicMember(lab, f"c{number}", "t"))
        elif event == 1:
            consumers.append(LabMember(lab, f"n{number}", "t"))
        elif event == 2 and classic:
            member = classic.pop(chance.randrange(len(classic)))
            if member.member_id and member.waiting is None:
                member.leave()
        elif event == 3 and consumers:
            member_ = consumers.pop(chance.randrange(len(consumers)))
            if member_.epoch > 0:
                member_.leave()
        elif event == 4:
            lab.restart()
            for one in classic:  # who waited has lost its connection
                one.has_to_join = one.has_to_join or one.waiting is not None
                one.waiting = None
        turns(classic, consumers, rounds=chance.randrange(1, 4)) if classic or consumers else None
        assert durable(lab.replayed()) == durable(lab.shard)
    if not classic:
        classic.append(LabClassicMember(lab, "last", "t"))
    for _ in range(14):  # members that were given up are out after their sessions
        lab.pass_ms(5_000)
        turns(classic, consumers, rounds=3)
    turns(classic, consumers)
    assert everything(*classic, *consumers) == lab.topics.partitions("t")
