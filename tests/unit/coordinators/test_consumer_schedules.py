"""Consumer groups under random schedules: lost answers, crashes, silence, topics that come, grow and go.

After every event nothing is owned twice, epochs never go back, and a replay of the records gives the same group.
At the end, when all are heard again, the group settles on its target. A seed that fails replays.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.member import LEAVE_STATIC
from moldau.errors import ErrorCode, KafkaError
from tests.unit.coordinators.consumer_lab import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Lab,
    LabMember,
    LabTopics,
    durable,
    pairs,
)

TOPICS = ("a", "b", "c")
SEEDS = 100
EVENTS = 80
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = Lab(LabTopics(a=3, b=5))
        self.members: list[LabMember] = []
        self.epochs: dict[str, int] = {}
        self.group_epochs = (0, 0)
        self.joined = 0

    def run(self) -> None:
        events: dict[Callable[..., None], int] = {
            self.beat: 30,
            self.lose: 6,
            self.revoke: 12,
            self.come: 5,
            self.leave: 2,
            self.vanish: 1,
            self.resubscribe: 3,
            self.change_topics: 3,
            self.wait: 4,
            self.restart: 1,
        }
        for _ in range(EVENTS):
            (event,) = self.random.choices(list(events), weights=list(events.values()))
            if event in (self.come, self.change_topics, self.wait, self.restart):
                event()
            elif self.members:
                event(self.random.choice(self.members))
            self.check()
        self.check_settled()

    # -- events

    def beat(self, member: LabMember, *, is_lost: bool = False) -> None:
        fields = {"owned": None} if member.epoch > 0 and not member.must_be_full and self.random.random() < 0.5 else {}
        try:
            member.beat(is_lost=is_lost, **fields)
        except KafkaError as error:
            if error.code not in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
                raise
            self.members.remove(member)

    def lose(self, member: LabMember) -> None:
        self.beat(member, is_lost=True)

    def revoke(self, member: LabMember) -> None:
        member.revoke()

    def come(self) -> None:
        self.joined += 1
        fields = {"instance_id": f"i{self.random.randrange(4)}"} if self.random.random() < 0.3 else {}
        if self.random.random() < 0.2:
            fields["server_assignor"] = self.random.choice(("uniform", "range"))
        member = LabMember(self.lab, f"m{self.joined}", **fields)
        self.choose_topics(member)
        self.members.append(member)
        self.beat(member)

    def leave(self, member: LabMember) -> None:
        away = LEAVE_STATIC if "instance_id" in member.fields and self.random.random() < 0.7 else -1
        self.members.remove(member)
        try:
            member.leave(away)
        except KafkaError as error:
            if error.code not in GONE:
                raise

    def vanish(self, member: LabMember) -> None:
        self.members.remove(member)

    def resubscribe(self, member: LabMember) -> None:
        self.choose_topics(member)
        member.must_be_full = True
        member.owned = {one for one in member.owned if self.lab.topics.topic_name(one[0]) in member.topics}

    def choose_topics(self, member: LabMember) -> None:
        member.topics = frozenset(self.random.sample(TOPICS, self.random.randint(0, 3)))
        member.regex = self.random.choice(("", "", "[ab]", "c|d", ".*"))

    def change_topics(self) -> None:
        name = self.random.choice((*TOPICS, "d"))
        count = self.lab.topics.partition_count(name)
        self.lab.change_topic(name, None if count and self.random.random() < 0.3 else (count or 0) + 2)

    def wait(self) -> None:
        self.lab.pass_ms(self.random.choice((100, SESSION_MS // 3, REBALANCE_MS // 3)))

    def restart(self) -> None:
        self.lab.restart()

    # -- promises

    def check(self) -> None:
        group = self.lab.shard.groups.get(GROUP)
        if self.random.random() < 0.1:
            assert durable(self.lab.replayed()) == durable(self.lab.shard)
        if not isinstance(group, ConsumerGroup):
            return
        assert (group.epoch, group.target_epoch) >= self.group_epochs
        self.group_epochs = (group.epoch, group.target_epoch)
        assert group.target_epoch <= group.epoch
        assert group.targets.keys() <= group.members.keys()
        for member in group.members.values():
            assert member.epoch <= group.target_epoch
            assert member.epoch == LEAVE_STATIC or member.epoch >= self.epochs.get(member.member_id, 0)
            self.epochs[member.member_id] = member.epoch
        subscribed = {name for member in group.members.values() for name in group.topics_of(member)}
        assert group.subscribed_topic_names() == subscribed
        self.check_owners(group)

    def check_owners(self, group: ConsumerGroup) -> None:
        held: dict[tuple[uuid.UUID, int], str] = {}
        for member in group.members.values():
            for one in pairs(member.assigned) | pairs(member.revoking):
                assert one not in held, f"{one} is both {member.member_id}'s and {held[one]}'s"
                held[one] = member.member_id
        assert held == {
            (topic, number): owner for topic, owners in group.owners.items() for number, owner in owners.items()
        }
        for client in self.members:
            known = group.members.get(client.member_id)
            if known is not None and known.epoch == client.epoch:
                # Whoever may commit owns only what the coordinator has kept free of others.
                assert client.owned <= pairs(known.assigned) | pairs(known.revoking)

    def check_settled(self) -> None:
        self.settle()
        self.lab.pass_ms(SESSION_MS - 1_000)
        for member in list(self.members):
            self.beat(member)
        self.lab.pass_ms(2_000)  # those who vanished are out now
        self.settle()
        self.check()
        group = self.lab.group
        assert group.state_name == ("Stable" if self.members else "Empty")
        assert group.members.keys() == {member.member_id for member in self.members}
        subscribed = {name for member in group.members.values() for name in group.topics_of(member)}
        owned = [one for member in self.members for one in member.owned]
        assert sorted(owned) == sorted(self.lab.topics.partitions(*subscribed)), "each has one owner"
        for member in self.members:
            assert member.owned == pairs(group.targets.get(member.member_id, {}))

    def settle(self) -> None:
        for _ in range(12):
            for member in list(self.members):
                self.beat(member)
                member.revoke()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_survives_anything(seed: int) -> None:
    world = World(seed)
    world.come()
    world.run()


def test_the_schedules_reach_every_state() -> None:
    """Else the test above would prove little."""
    seen = set()
    for seed in range(20):
        world = World(seed)
        check = world.check

        def watch(world: World = world, check: Callable[[], None] = check) -> None:
            check()
            group = world.lab.shard.groups.get(GROUP)
            if isinstance(group, ConsumerGroup):
                seen.add(group.state_name)
                seen.update(member.state.name for member in group.members.values())

        world.check = watch  # type: ignore[method-assign]
        world.come()
        world.run()
    assert seen >= {
        "Stable",
        "Reconciling",
        "Empty",
        "Assigning",
        "STABLE",
        "UNREVOKED_PARTITIONS",
        "UNRELEASED_PARTITIONS",
    }
