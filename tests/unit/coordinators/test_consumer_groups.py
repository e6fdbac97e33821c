"""Consumer groups, event by event: what each heartbeat is told, and what is refused."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from moldau.coordinators.consumer.heartbeat import Heartbeat, HeartbeatReply, heartbeat
from moldau.coordinators.consumer.member import LEAVE_STATIC, MemberState
from moldau.coordinators.consumer.records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from moldau.coordinators.consumer.step import NAMES_PER_STEP_MAX
from moldau.coordinators.group_shard import GroupShard
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import encode_key, encode_value
from tests.unit.coordinators.consumer_lab import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Lab,
    LabMember,
    LabTopics,
    durable,
    pairs,
    settle,
)

JOIN = Heartbeat(GROUP, "m", 0, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=frozenset(["t"]), owned={})


def test_the_first_member_gets_everything_at_once() -> None:
    lab = Lab()
    reply = lab.ask(heartbeat, JOIN)
    assert isinstance(reply, HeartbeatReply)
    assert (reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms) == ("m", 1, 5_000)
    assert pairs(reply.assignment or {}) == lab.topics.partitions("t")
    assert lab.group.state_name == "Stable"


def test_an_assignment_is_told_once() -> None:
    lab = Lab()
    member = LabMember(lab, "m", "t")
    member.beat()
    reply = member.beat()
    assert reply is not None
    assert reply.assignment is None
    written = len(lab.records)
    member.beat()
    assert len(lab.records) == written, "a heartbeat without news writes nothing"


def test_partitions_move_only_once_given_up() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t"), LabMember(lab, "two", "t")
    one.beat()
    two.beat()
    assert two.owned == set()
    assert lab.group.members["two"].state is MemberState.UNRELEASED_PARTITIONS
    one.beat()  # is told to revoke two of four
    assert lab.group.members["one"].state is MemberState.UNREVOKED_PARTITIONS
    assert len(one.assigned) == 2
    assert len(one.owned) == 4
    two.beat()
    assert two.owned == set(), "the other has not said yet that it gave them up"
    one.revoke()
    one.beat()
    two.beat()
    assert len(one.owned) == len(two.owned) == 2
    assert one.owned | two.owned == lab.topics.partitions("t")
    assert lab.group.state_name == "Stable"


def test_a_member_that_leaves_frees_its_partitions() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t"), LabMember(lab, "two", "t")
    settle([one, two])
    two.leave()
    settle([one])
    assert one.owned == lab.topics.partitions("t")
    one.leave()
    assert lab.group.state_name == "Empty"
    assert lab.group.owners == {}


def test_a_silent_member_is_out_after_its_session() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t"), LabMember(lab, "two", "t")
    settle([one, two])
    for _ in range(3):
        lab.pass_ms(SESSION_MS // 2)
        one.beat()
    assert list(lab.group.members) == ["one"]
    assert two.beat() is None, "it has to join again"
    settle([one, two])
    assert len(two.owned) == 2


def test_a_member_that_does_not_revoke_in_time_is_out() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t"), LabMember(lab, "two", "t")
    one.beat()
    two.beat()
    one.beat()
    for _ in range(7):
        lab.pass_ms(REBALANCE_MS // 6)
        one.beat()
        two.beat()
    assert "one" not in lab.group.members or lab.group.members["one"].epoch != 1
    assert lab.group.members["two"].assigned


def test_a_retry_in_the_previous_epoch_is_answered_again() -> None:
    lab = Lab()
    member = LabMember(lab, "m", "t")
    member.beat(is_lost=True)
    assert member.epoch == 0
    reply = member.beat()
    assert reply is not None
    assert pairs(reply.assignment or {}) == lab.topics.partitions("t")
    assert reply.member_epoch == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": frozenset(["x" * 300_000])}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_changes_nothing(change: dict[str, object], code: ErrorCode) -> None:
    lab = Lab()
    assert lab.refused(JOIN._replace(**change)) is code  # type: ignore[arg-type]
    assert lab.shard.groups == {}


def test_epochs_the_coordinator_does_not_know_are_fenced() -> None:
    lab = Lab()
    lab.ask(heartbeat, JOIN)
    topic_id = lab.topics.topic_id("t")
    assert topic_id is not None
    owned = {topic_id: frozenset([0])}
    assert lab.refused(Heartbeat(GROUP, "m", 2)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.refused(Heartbeat(GROUP, "other", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.refused(Heartbeat(GROUP, "m", 0)) is ErrorCode.INVALID_REQUEST
    lab.change_topic("t", 6)
    lab.ask(heartbeat, Heartbeat(GROUP, "m", 1))
    lab.ask(heartbeat, Heartbeat(GROUP, "m", 2))
    assert lab.refused(JOIN) is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.refused(Heartbeat(GROUP, "m", 1)) is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it owns"
    assert lab.ask(heartbeat, Heartbeat(GROUP, "m", 1, owned=owned)).member_epoch == 2


def test_a_group_has_a_greatest_size() -> None:
    lab = Lab(group_consumer_max_size=1)
    lab.ask(heartbeat, JOIN)
    assert lab.refused(JOIN._replace(member_id="other")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_comes_back_to_its_partitions() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t", instance_id="i1"), LabMember(lab, "two", "t", instance_id="i2")
    settle([one, two])
    had, epoch = set(one.owned), lab.group.epoch
    again = LabMember(lab, "again", "t", instance_id="i1")
    assert lab.refused(again.request()) is ErrorCode.UNRELEASED_INSTANCE_ID
    one.leave(LEAVE_STATIC)
    settle([two])
    assert len(two.owned) == 2, "its partitions are kept for it"
    again.beat()
    assert again.owned == had
    assert lab.group.epoch == epoch, "nobody else has to move"
    assert lab.refused(Heartbeat(GROUP, "one", epoch, "i1")) is ErrorCode.FENCED_INSTANCE_ID
    assert lab.refused(Heartbeat(GROUP, "x", epoch, "i9")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    lab = Lab()
    one = LabMember(lab, "one", "t", instance_id="i1")
    settle([one])
    one.leave(LEAVE_STATIC)
    lab.pass_ms(SESSION_MS + 1)
    assert lab.group.members == {}
    assert lab.group.static_members == {}


def test_a_static_members_lost_answer_to_its_joining_is_given_again() -> None:
    lab = Lab()
    one = LabMember(lab, "one", "t", instance_id="i1")
    one.beat(is_lost=True)
    one.beat()
    assert one.owned == lab.topics.partitions("t")


def test_more_partitions_and_new_topics_are_taken_up() -> None:
    lab = Lab(LabTopics(t=2))
    member = LabMember(lab, "m", "t", "later")
    member.beat()
    lab.change_topic("t", 5)
    lab.change_topic("later", 1)
    member.beat()
    assert member.owned == lab.topics.partitions("t", "later")
    lab.change_topic("t", None)
    settle([member])
    assert member.owned == lab.topics.partitions("later")


def test_topics_nobody_subscribed_to_bump_nothing() -> None:
    lab = Lab()
    member = LabMember(lab, "m", "t")
    member.beat()
    lab.change_topic("other", 3)
    member.beat()
    assert lab.group.epoch == 1


def test_a_regular_expression_finds_topics_that_come_later() -> None:
    lab = Lab(LabTopics(**{"orders-1": 2, "payments": 2}))
    one, two = LabMember(lab, "one", regex="orders-.*"), LabMember(lab, "two", "payments", regex="orders-.*")
    settle([one, two])
    assert one.owned | two.owned == lab.topics.partitions("orders-1", "payments")
    assert lab.topics.partitions("payments") <= two.owned
    lab.change_topic("orders-2", 4)
    settle([one, two])
    assert one.owned | two.owned == lab.topics.partitions("orders-1", "orders-2", "payments")
    assert lab.group.is_subscribed_to("orders-2")
    two.leave()
    settle([one])
    assert one.owned == lab.topics.partitions("orders-1", "orders-2")
    one.leave()
    assert lab.group.resolved == {}


def test_a_subscription_can_change_from_names_to_a_regular_expression_and_back() -> None:
    lab = Lab(LabTopics(a=2, b=2))
    member = LabMember(lab, "m", "a")
    settle([member])
    member.topics, member.regex, member.must_be_full = frozenset(), "b.*", True
    settle([member])
    assert member.owned == lab.topics.partitions("b")
    member.topics, member.regex, member.must_be_full = frozenset("a"), "", True
    settle([member])
    assert member.owned == lab.topics.partitions("a")
    assert lab.group.resolved == {}


def test_most_members_choose_the_assignor() -> None:
    lab = Lab(LabTopics(a=2, b=2))
    one = LabMember(lab, "one", "a", "b", server_assignor="range")
    two = LabMember(lab, "two", "a", "b", server_assignor="range")
    settle([one, two])
    assert {number for _, number in one.owned} == {0}
    assert {number for _, number in two.owned} == {1}


def test_commits_carry_the_members_epoch() -> None:
    lab = Lab()
    lab.ask(heartbeat, JOIN)
    group = lab.group
    group.validate_offset_commit("m", None, 1, is_transactional=False)
    group.validate_offset_commit("", None, -1, is_transactional=True)
    group.validate_offset_fetch("m", 1)
    group.validate_offset_fetch(None, -1)
    for member_id, epoch, code in (
        ("m", 0, ErrorCode.STALE_MEMBER_EPOCH),
        ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("other", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as refused:
            group.validate_offset_commit(member_id, None, epoch, is_transactional=False)
        assert refused.value.code is code
    with pytest.raises(KafkaError) as too_old:
        group.validate_offset_commit("m", None, 1, is_transactional=False, knows_epochs=False)
    assert too_old.value.code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(KafkaError):
        group.validate_delete()
    lab.ask(heartbeat, Heartbeat(GROUP, "m", -1))
    group.validate_offset_commit("", None, -1, is_transactional=False)
    group.validate_delete()


def test_the_tombstones_of_a_group_leave_nothing_of_it() -> None:
    lab = Lab()
    settle([LabMember(lab, "one", "t", instance_id="i"), LabMember(lab, "two", regex="t.*")])
    lab.records += [(encode_key(key), None) for key in lab.group.tombstones()]
    lab.restart()
    assert lab.shard.groups == {}


def test_topic_metadata_that_older_brokers_wrote_is_taken_away() -> None:
    lab = Lab()
    old = ConsumerGroupPartitionMetadataKey(GROUP)
    lab.records.append((encode_key(old), encode_value(ConsumerGroupPartitionMetadataValue()) + b"whatever it holds"))
    lab.restart()
    lab.ask(heartbeat, JOIN)
    assert (encode_key(old), None) in lab.records
    assert durable(lab.replayed()) == durable(lab.shard)


def test_patterns_that_take_too_long_find_nothing_and_stop_nobody() -> None:
    chance = random.Random(1)
    names = {"".join(chance.choices("ab", k=200)): 1 for _ in range(3_000)}
    lab = Lab(LabTopics(t=1, **names))
    slow = [LabMember(lab, f"s{number}", regex=".*a[ab]{150}c" + "x" * number) for number in range(10)]
    good = LabMember(lab, "m", "t")
    began = time.process_time()  # not the clock: the machine may be busy
    for member in (*slow, good):
        member.beat()
    assert time.process_time() - began < 10
    assert good.owned == lab.topics.partitions("t")
    assert not any(resolved.topics for resolved in lab.group.resolved.values())


def test_many_patterns_over_many_topics_are_matched_in_turns() -> None:
    lab = Lab(LabTopics(**{f"t{number}": 1 for number in range(NAMES_PER_STEP_MAX // 3)}))
    members = [LabMember(lab, f"m{number}", regex=f"new-{number}|{'x' * number}") for number in range(7)]
    settle(members)
    for number in range(7):
        lab.change_topic(f"new-{number}", 1)
    members[0].beat()
    assert len(lab.group.stale_regexes) == 7 - 2
    settle(members)
    assert [member.owned for member in members] == [lab.topics.partitions(f"new-{number}") for number in range(7)]


def test_a_pattern_that_another_broker_took_keeps_its_topics() -> None:
    lab = Lab()
    member = LabMember(lab, "m", regex="t")
    member.beat()
    key = ConsumerGroupMemberMetadataKey(GROUP, "m")
    written = replace(lab.group.members["m"], subscribed_topic_regex=r"\bt").metadata()
    resolved = ConsumerGroupRegularExpressionValue(topics=("t",), version=1, timestamp=1)
    lab.records += [
        (encode_key(key), encode_value(written)),
        (encode_key(ConsumerGroupRegularExpressionKey(GROUP, r"\bt")), encode_value(resolved)),
    ]
    lab.restart()
    lab.change_topic("t", 6)
    settle([member])
    assert member.owned == lab.topics.partitions("t")


def test_a_group_can_have_timeouts_of_its_own() -> None:
    lab = Lab()
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    lab.shard = GroupShard(lambda: lab.config, lab.topics, lambda _: own, wall_clock=lab.wall_clock)
    assert lab.ask(heartbeat, JOIN).heartbeat_interval_ms == 7_000
    lab.pass_ms(SESSION_MS + 1)
    assert "m" in lab.group.members
    lab.pass_ms(5_000)
    assert lab.group.members == {}


def test_after_a_restart_everyone_has_its_full_time_again() -> None:
    lab = Lab()
    one, two = LabMember(lab, "one", "t"), LabMember(lab, "two", "t")
    settle([one, two])
    lab.pass_ms(SESSION_MS - 1)
    lab.restart()
    lab.pass_ms(SESSION_MS - 1)
    one.beat()
    lab.pass_ms(2)
    assert list(lab.group.members) == ["one"]
