"""Share groups: who is in, who fetches what, and that a shard that is loaded again is the one it was."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.share.assignor import assign
from moldau.coordinators.share.group import ShareGroup, share_group
from moldau.coordinators.share.heartbeat import Heartbeat, HeartbeatReply, add_states, heartbeat, remove_states
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import encode_key, encode_value
from tests.examples import examples
from tests.unit.coordinators.consumer_lab import LabTopics

GROUP = "queue"
SESSION_MS = 45_000


class ShareLab:
    """A shard, its log, and a clock that stands until it is moved."""

    def __init__(self, topics: LabTopics, **config: Any) -> None:
        self.topics = topics
        self._config, _ = BrokerConfig.from_properties({key: str(value) for key, value in config.items()})
        self.shard = GroupShard(lambda: self._config, topics, wall_clock=lambda: self.now_ms)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.wakes: list[tuple[int, Any]] = []
        self.now_ms = 0

    def perform(self, effects: Effects) -> Any:
        for key, value in effects.records:
            self.log.append((encode_key(key), None if value is None else encode_value(value)))
        self.wakes += effects.wakes
        return effects.replies[0][1] if effects.replies else None

    def beat(self, member: str, epoch: int, *topics: str, **fields: Any) -> HeartbeatReply:
        subscribed = topics or None
        request = Heartbeat(GROUP, member, epoch, fields.get("rack"), "client", "host", subscribed)
        reply: HeartbeatReply = self.perform(heartbeat(self.shard, object(), request, self.now_ms))
        return reply

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        while due := [wake for wake in self.wakes if wake[0] <= self.now_ms]:
            self.wakes = [wake for wake in self.wakes if wake[0] > self.now_ms]
            for _, key in due:
                self.perform(self.shard.wake(key, self.now_ms))

    def change_topics(self) -> None:
        self.perform(self.shard.topics_changed(self.now_ms))

    def reloaded(self, *, compacted: bool = False) -> GroupShard:
        shard = GroupShard(lambda: self._config, self.topics, wall_clock=lambda: self.now_ms)
        last = {record[0]: number for number, record in enumerate(self.log)}
        for number, record in enumerate(self.log):
            if compacted and last[record[0]] != number:
                continue
            pair = GROUP_RECORDS.decode(*record)
            assert pair is not None
            shard.replay(*pair, offset=number, timestamp_ms=0)
        return shard

    @property
    def group(self) -> ShareGroup:
        return share_group(self.shard, GROUP)

    def refused(self, *args: Any, **fields: Any) -> ErrorCode:
        before = copy.deepcopy(self.shard.groups)
        with pytest.raises(KafkaError) as refusal:
            self.beat(*args, **fields)
        assert self.shard.groups == before
        return refusal.value.code


@pytest.fixture
def lab() -> ShareLab:
    return ShareLab(LabTopics(orders=3, bills=1))


def test_the_first_member_gets_every_partition_at_once(lab: ShareLab) -> None:
    reply = lab.beat("a", 0, "orders")
    assert reply.assigned == lab.topics.partitions("orders")
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (1, 5_000)
    assert lab.beat("a", 1).assigned is None


def test_members_share_a_partition_when_there_are_more_of_them(lab: ShareLab) -> None:
    lab.beat("a", 0, "bills")
    assert lab.beat("b", 0, "bills").assigned == lab.topics.partitions("bills")
    assert lab.beat("a", 1).member_epoch == 2
    assert lab.group.members["a"].assigned == lab.topics.partitions("bills")


def test_the_epoch_before_is_accepted_and_others_are_fenced(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    lab.beat("b", 0, "orders")
    assert lab.beat("a", 1).member_epoch == 2
    assert lab.beat("a", 1).member_epoch == 2
    assert lab.refused("a", 7) is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.refused("c", 2) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("", 0, "orders"), ErrorCode.INVALID_REQUEST),
        (("x" * 37, 0, "orders"), ErrorCode.INVALID_REQUEST),
        (("a", 0), ErrorCode.INVALID_REQUEST),
        (("a", -2, "orders"), ErrorCode.INVALID_REQUEST),
        (("a", 0, *(f"topic-{number:05}" for number in range(30_000))), ErrorCode.INVALID_REQUEST),
        (("a", 1), ErrorCode.GROUP_ID_NOT_FOUND),
        (("a", -1), ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_senseless_heartbeats_are_refused(lab: ShareLab, args: tuple[Any, ...], code: ErrorCode) -> None:
    assert lab.refused(*args) is code
    assert lab.shard.groups == {}


def test_a_full_group_takes_nobody_else() -> None:
    lab = ShareLab(LabTopics(orders=1), **{"group.share.max.size": 1})
    lab.beat("a", 0, "orders")
    assert lab.refused("b", 0, "orders") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.beat("a", 0, "orders").member_epoch == 1


def test_who_is_silent_is_out_and_who_is_not_stays(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    lab.beat("b", 0, "orders")
    lab.pass_time(SESSION_MS - 1)
    lab.beat("a", 1)
    lab.pass_time(1)
    assert set(lab.group.members) == {"a"}
    assert lab.beat("a", 2).assigned == lab.topics.partitions("orders")
    lab.pass_time(SESSION_MS)
    assert lab.group.is_empty
    assert lab.group.state_name == "Empty"


def test_a_member_that_comes_and_goes_leaves_no_wakes_behind(lab: ShareLab) -> None:
    for _ in range(50):
        lab.beat("a", 0, "orders")
        lab.beat("a", -1)
    lab.beat("a", 0, "orders")
    lab.pass_time(SESSION_MS - 1)
    lab.beat("a", lab.group.epoch)
    assert len(lab.wakes) == 1
    lab.pass_time(SESSION_MS)
    assert lab.group.is_empty


def test_a_heartbeat_without_news_costs_the_same_in_any_group(lab: ShareLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.beat("a", 0, "orders")
    monkeypatch.setattr(lab.topics, "topic_id", None)  # nobody asks for it
    monkeypatch.setattr(lab.topics, "topic_name", None)
    lab.log.clear()
    assert lab.beat("a", 1).member_epoch == 1
    assert lab.log == []


def test_states_of_topics_that_went_while_nobody_looked_are_forgotten(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    lab.topics.delete("orders")
    shard = lab.reloaded()
    shard.loaded(lab.now_ms)
    assert share_group(shard, GROUP).state_keys() == []


def test_wakes_that_a_group_of_another_type_asked_for_do_no_harm(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    assert lab.perform(lab.shard.wake((GROUP, "round"), lab.now_ms)) is None
    assert set(lab.group.members) == {"a"}


def test_sessions_begin_anew_when_a_shard_is_loaded(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    lab.shard = lab.reloaded()
    lab.wakes = []
    lab.now_ms = 10 * SESSION_MS
    lab.perform(lab.shard.loaded(lab.now_ms))
    lab.pass_time(SESSION_MS - 1)
    assert set(lab.group.members) == {"a"}
    lab.pass_time(1)
    assert lab.group.is_empty


def test_a_topic_that_grows_is_assigned_with_the_next_heartbeat(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders", "later")
    lab.topics.put("orders", 5)
    lab.topics.put("later", 1)
    lab.change_topics()
    assert lab.beat("a", 1).assigned == lab.topics.partitions("orders", "later")


def test_a_group_knows_its_states_until_they_are_deleted(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    orders, bills = lab.topics.topic_id("orders"), lab.topics.topic_id("bills")
    assert orders is not None
    assert bills is not None
    with pytest.raises(KafkaError, match="not empty"):
        add_states(lab.shard, object(), GROUP, {bills: [0]})
    lab.beat("a", -1)
    assert lab.perform(add_states(lab.shard, object(), GROUP, {bills: [0]})) == 2
    assert set(lab.group.state_keys()) == lab.topics.partitions("orders", "bills")
    assert lab.perform(remove_states(lab.shard, object(), GROUP, {orders, uuid.uuid4()})) == {orders}
    lab.topics.delete("bills")
    lab.change_topics()
    assert lab.group.state_keys() == []
    assert lab.reloaded().groups == lab.shard.groups


def test_a_deleted_group_leaves_nothing_behind(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    lab.beat("a", -1)
    lab.log += [(encode_key(key), None) for key in lab.group.tombstones()]
    assert lab.reloaded().groups == {}


def test_a_share_group_has_no_offsets_to_commit(lab: ShareLab) -> None:
    lab.beat("a", 0, "orders")
    with pytest.raises(KafkaError, match="not a consumer group"):
        lab.group.validate_offset_commit("a", None, 1, is_transactional=False)


NAMES = ("orders", "bills", "mails")


class Schedules(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.lab = ShareLab(LabTopics(orders=3, bills=1))
        self.epochs: dict[str, int] = {}

    @rule(member=st.sampled_from("abcd"), topics=st.sets(st.sampled_from(NAMES), min_size=1))
    def joins(self, member: str, topics: set[str]) -> None:
        self.epochs[member] = self.lab.beat(member, 0, *topics).member_epoch
        self.check_assignment()

    def check_assignment(self) -> None:
        """After a heartbeat, every partition that somebody subscribes to is fetched by somebody."""
        group = self.lab.group
        wanted = {name for member in group.members.values() for name in member.metadata.subscribed_topic_names}
        assigned = {partition for target in group.targets.values() for partition in target}
        assert assigned == self.lab.topics.partitions(*wanted)

    @rule(member=st.sampled_from("abcd"))
    def goes_on(self, member: str) -> None:
        if member not in self.epochs:
            return
        if member in self.lab.group.members:
            self.epochs[member] = self.lab.beat(member, self.epochs[member]).member_epoch
            self.check_assignment()
        else:  # it was silent for too long
            assert self.lab.refused(member, self.epochs.pop(member)) is ErrorCode.UNKNOWN_MEMBER_ID

    @rule(member=st.sampled_from("abcd"), rack=st.sampled_from("xy"))
    def moves(self, member: str, rack: str) -> None:
        if member in self.epochs and member in self.lab.group.members:
            self.epochs[member] = self.lab.beat(member, self.epochs[member], rack=rack).member_epoch

    @rule(member=st.sampled_from("abcd"))
    def leaves(self, member: str) -> None:
        if self.epochs.pop(member, None) is not None and member in self.lab.group.members:
            self.lab.beat(member, -1)

    @rule(ms=st.integers(1, SESSION_MS))
    def time_passes(self, ms: int) -> None:
        self.lab.pass_time(ms)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 6))
    def topic_grows(self, name: str, count: int) -> None:
        self.lab.topics.put(name, max(count, self.lab.topics.partition_count(name) or 0))
        self.lab.change_topics()

    @rule(name=st.sampled_from(NAMES))
    def topic_is_deleted(self, name: str) -> None:
        if self.lab.topics.topic_id(name) is not None:
            self.lab.topics.delete(name)
            self.lab.change_topics()

    @invariant()
    def what_the_records_say_is_what_is_known(self) -> None:
        live = self.lab.shard.groups
        assert self.lab.reloaded().groups == live
        assert self.lab.reloaded(compacted=True).groups == live


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@given(
    members=st.dictionaries(st.text("mno", min_size=1, max_size=3), st.sets(st.integers(1, 4), min_size=1), max_size=7),
    counts=st.dictionaries(st.integers(1, 4), st.integers(1, 9)),
    changed=st.sets(st.text("mno", min_size=1, max_size=3)),
)
def test_assignments_are_complete_even_and_sticky(
    members: dict[str, set[int]], counts: dict[int, int], changed: set[str]
) -> None:
    topics = {number: uuid.UUID(int=number) for number in range(1, 5)}
    subscriptions = {member: [topics[number] for number in wanted] for member, wanted in members.items()}
    partition_counts = {topics[number]: count for number, count in counts.items()}
    assigned = assign(subscriptions, partition_counts, {})
    assert assigned == assign(subscriptions, partition_counts, assigned), "nothing changed, nothing moves"
    subscribed = {topic for wanted in subscriptions.values() for topic in wanted}
    everything = {(topic, index) for topic in subscribed for index in range(partition_counts.get(topic, 0))}
    assert {partition for target in assigned.values() for partition in target} == everything
    for member, target in assigned.items():
        assert {topic for topic, _ in target} <= set(subscriptions[member])
    if len({frozenset(wanted) for wanted in subscriptions.values()}) == 1 and everything:
        loads = [len(target) for target in assigned.values()]
        assert max(loads) - min(loads) <= 1
        assert min(loads) >= 1 or len(everything) >= len(loads) > 0
    rest = {member: wanted for member, wanted in subscriptions.items() if member not in changed}
    again = assign(rest, partition_counts, assigned)
    assert set(again) == set(rest)
