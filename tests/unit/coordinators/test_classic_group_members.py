"""Classic groups: static members, the choice of a protocol, limits, what others may ask, and what a restart keeps."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.coordinators.classic import steps
from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.events import JoinReply, Leave, Leaver, SyncReply
from moldau.coordinators.classic.records import GroupMetadataKey
from moldau.errors import ErrorCode, KafkaError
from tests.unit.coordinators.classic_lab import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Lab,
    durable,
    in_state,
    protocols,
    subscription,
)

E = ErrorCode

# -- static members


@pytest.mark.parametrize("who", [0, 1])
def test_a_static_member_restarts_without_a_round(who: int) -> None:
    lab = Lab()
    before = lab.stable(2, static=True)
    told = lab.joined(lab.join(instance_id=f"i{who}"))
    assert lab.state is State.STABLE
    assert told.generation == before[who].generation
    assert told.member_id != before[who].member_id
    assert (told.skip_assignment, len(told.members)) == ((True, 2) if who == 0 else (False, 0))
    assert told.leader == (told.member_id if who == 0 else before[0].member_id)
    assignment = lab.synced(lab.sync(told, instance_id=f"i{who}")).assignment
    assert assignment == f"{before[who].member_id}@{told.generation}".encode()
    lab.restart()
    assert lab.heartbeat(told, instance_id=f"i{who}") is E.NONE


def test_an_older_static_leader_restarts_and_does_not_take_itself_for_the_leader() -> None:
    lab = Lab()
    leader, _ = lab.stable(2, static=True)
    told = lab.joined(lab.join(instance_id="i0", can_skip_assignment=False))
    assert (told.leader, told.members, told.skip_assignment) == (leader.member_id, (), False)
    assert lab.group.leader == told.member_id


def test_the_member_that_a_static_member_replaced_is_fenced() -> None:
    lab = Lab()
    old, _ = lab.stable(2, static=True)
    lab.joined(lab.join(instance_id="i0"))
    assert lab.heartbeat(old, instance_id="i0") is E.FENCED_INSTANCE_ID
    assert lab.replies[lab.sync(old, instance_id="i0")] is E.FENCED_INSTANCE_ID
    assert lab.replies[lab.join(old.member_id, instance_id="i0")] is E.FENCED_INSTANCE_ID
    assert lab.leave((old.member_id, "i0")) == (E.FENCED_INSTANCE_ID,)
    assert lab.heartbeat(old) is E.UNKNOWN_MEMBER_ID
    with pytest.raises(KafkaError) as refused:
        lab.group.validate_offset_commit(old.member_id, "i0", old.generation, is_transactional=False)
    assert refused.value.code is E.FENCED_INSTANCE_ID


def test_a_waiting_member_that_is_replaced_is_told_at_once() -> None:
    lab = Lab()
    members = lab.stable(2, static=True)
    waiting = lab.join_again(members[0])
    lab.join(instance_id="i0")
    assert lab.replies[waiting] == JoinReply(E.FENCED_INSTANCE_ID, members[0].member_id)
    lab = Lab()
    waiters = [lab.join_again(member) for member in lab.stable(2, static=True)]
    _, follower = (lab.joined(waiter) for waiter in waiters)
    waiting = lab.sync(follower, instance_id="i1")
    lab.join(instance_id="i1")
    assert lab.replies[waiting] == SyncReply(E.FENCED_INSTANCE_ID)
    assert lab.state is State.PREPARING


def test_a_static_member_that_wants_another_protocol_starts_a_round() -> None:
    lab = Lab()
    lab.stable(1, static=True, protocols=protocols("range", "roundrobin"))
    told = lab.joined(lab.join(instance_id="i0", protocols=protocols("roundrobin", "range")))
    assert (told.generation, told.protocol_name) == (2, "roundrobin")


def test_static_members_keep_their_place_in_a_round_until_their_session_ends() -> None:
    lab = Lab()
    leader, _ = lab.stable(2, static=True, session_timeout_ms=300_000)
    again = lab.join_again(leader, session_timeout_ms=300_000)
    lab.pass_ms(REBALANCE_MS)
    assert len(lab.joined(again).members) == 2
    lab.pass_ms(REBALANCE_MS)
    assert len(lab.group.members) == 0, "neither of them synced"


def test_a_round_in_which_no_static_member_joins_goes_on_until_their_sessions_end() -> None:
    lab = Lab()
    members = lab.stable(2, static=True, session_timeout_ms=200_000, rebalance_timeout_ms=0)
    dynamic = lab.join(session_timeout_ms=300_000, rebalance_timeout_ms=0)
    lab.leave((lab.group.members.ids[-1], None))
    assert lab.replies[dynamic].error is E.UNKNOWN_MEMBER_ID
    lab.pass_ms(100_000)
    assert (lab.state, len(lab.group.members)) == (State.PREPARING, len(members))
    lab.pass_ms(100_001)
    assert lab.state is State.EMPTY


def test_a_static_member_that_never_was_is_unknown() -> None:
    lab = Lab()
    (member,) = lab.stable()
    assert lab.heartbeat(member, instance_id="nobody") is E.UNKNOWN_MEMBER_ID


# -- protocols


def test_members_vote_for_the_protocol_that_most_like_best() -> None:
    lab = Lab()
    likes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range", "own")]
    (one,) = lab.stable(protocols=protocols(*likes[0]))
    two, three = (lab.join(protocols=protocols(*like)) for like in likes[1:])
    lab.join_again(one, protocols=protocols(*likes[0]))
    assert {lab.joined(waiter).protocol_name for waiter in (two, three)} == {"sticky"}


@pytest.mark.parametrize("state", [State.PREPARING, State.COMPLETING, State.STABLE])
@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": protocols("roundrobin")}, {"protocols": ()}, {"protocol_type": ""}],
)
def test_who_shares_no_protocol_is_not_let_in(state: State, changes: dict[str, Any]) -> None:
    lab, members = in_state(state)
    assert lab.replies[lab.join(**changes)] is E.INCONSISTENT_GROUP_PROTOCOL
    assert lab.replies[lab.join_again(members[0], **changes)] is E.INCONSISTENT_GROUP_PROTOCOL
    assert lab.state is state


def test_the_first_member_needs_a_protocol() -> None:
    lab = Lab()
    assert lab.replies[lab.join(protocols=())] is E.INCONSISTENT_GROUP_PROTOCOL
    assert lab.replies[lab.join(protocol_type="")] is E.INCONSISTENT_GROUP_PROTOCOL
    assert not lab.shard.groups


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}])
def test_a_sync_for_another_protocol_is_refused(changes: dict[str, str]) -> None:
    lab, (leader, _) = in_state(State.COMPLETING)
    assert lab.replies[lab.sync(leader, **changes)] is E.INCONSISTENT_GROUP_PROTOCOL
    assert lab.state is State.COMPLETING


def test_an_older_sync_does_not_name_the_protocol() -> None:
    lab, (leader, _) = in_state(State.COMPLETING)
    assert lab.synced(lab.sync(leader, protocol_type=None, protocol_name=None))


# -- limits


def test_a_full_group_takes_nobody_in() -> None:
    lab = Lab(group_max_size=2)
    lab.stable(2)
    assert lab.replies[lab.join()] == JoinReply(E.GROUP_MAX_SIZE_REACHED, "")
    assert lab.state is State.STABLE


def test_in_a_round_the_first_who_come_have_room() -> None:
    lab = Lab(group_max_size=2)
    one, two = lab.stable(2)
    back = [lab.join_again(one), lab.join(requires_member_id=True)]
    pending = lab.replies[back[1]]
    lab.join_again(two)
    assert lab.replies[lab.join(pending.member_id)].error is E.GROUP_MAX_SIZE_REACHED
    assert lab.joined(back[0]).generation == 3


def test_a_loaded_group_over_a_lowered_limit_loses_its_last_members() -> None:
    lab = Lab()
    members = lab.stable(3)
    lab.config = type(lab.config)(group_max_size=2)
    lab.restart()
    assert lab.state is State.PREPARING
    told = [lab.join_again(member) for member in members[:2]]
    last = lab.join_again(members[2])
    assert lab.replies[last].error is E.GROUP_MAX_SIZE_REACHED
    assert all(lab.joined(waiter).generation == 4 for waiter in told)


def test_an_assignment_too_large_for_a_record_is_refused_and_harms_nobody_else() -> None:
    lab, (leader, _) = in_state(State.COMPLETING, message_max_bytes=100_000)
    assert lab.replies[lab.sync(leader, (leader.member_id, bytes(99_900)))] is E.UNKNOWN_SERVER_ERROR
    assert lab.state is State.COMPLETING
    assert lab.synced(lab.sync(leader, (leader.member_id, bytes(99_000))))


def test_a_group_id_is_not_empty() -> None:
    lab = Lab()
    told = [lab.replies[lab.join(group_id="")], lab.told(steps.leave, Leave("", (Leaver("m", None),)))]
    assert told == [E.INVALID_GROUP_ID] * 2


# -- for others


def test_only_an_empty_group_can_be_deleted() -> None:
    lab = Lab()
    (member,) = lab.stable()
    with pytest.raises(KafkaError) as refused:
        lab.group.validate_delete()
    assert refused.value.code is E.NON_EMPTY_GROUP
    lab.leave((member.member_id, None))
    lab.group.validate_delete()
    assert lab.group.tombstones() == [GroupMetadataKey(GROUP)]
    lab.records.append((GroupMetadataKey(GROUP), None))
    lab.restart()
    assert not lab.shard.groups


@pytest.mark.parametrize(
    ("state", "member", "generation", "told"),
    [
        (State.EMPTY, "", -1, None),
        (State.EMPTY, "x", 5, E.UNKNOWN_MEMBER_ID),
        (State.STABLE, "m", 0, None),
        (State.STABLE, "m", -1, E.ILLEGAL_GENERATION),
        (State.STABLE, "x", 0, E.UNKNOWN_MEMBER_ID),
        (State.STABLE, "", -1, E.UNKNOWN_MEMBER_ID),
        (State.PREPARING, "m", 0, None),
        (State.COMPLETING, "m", 0, E.REBALANCE_IN_PROGRESS),
    ],
)
def test_who_may_commit(state: State, member: str, generation: int, told: ErrorCode | None) -> None:
    """`m` is a member, and its generation counts from the current one."""
    lab, members = in_state(state)
    member_id = members[1].member_id if member == "m" else member
    asked = lab.group.generation + generation if member == "m" else generation
    try:
        lab.group.validate_offset_commit(member_id, None, asked, is_transactional=False)
        code = None
    except KafkaError as error:
        code = error.code
    assert code is told


def test_transactional_commits_of_older_clients_name_no_member() -> None:
    lab, (member, _) = in_state(State.COMPLETING)
    lab.group.validate_offset_commit("", None, -1, is_transactional=True)
    lab.group.validate_offset_commit(member.member_id, None, member.generation, is_transactional=True)


def test_the_group_knows_what_its_members_read() -> None:
    lab = Lab()
    lab.stable(protocols=(("range", subscription("a", "b")),))
    assert [lab.group.is_subscribed_to(topic) for topic in ("a", "b", "c")] == [True, True, False]
    lab.restart()
    assert [lab.group.is_subscribed_to(topic) for topic in ("a", "b", "c")] == [True, True, False]
    lab.pass_ms(SESSION_MS)
    assert not lab.group.is_subscribed_to("a")


@pytest.mark.parametrize("changes", [{"protocols": (("range", b"\0"),)}, {"protocol_type": "connect"}])
def test_members_whose_topics_are_not_known_may_read_any(changes: dict[str, Any]) -> None:
    lab = Lab()
    lab.joined(lab.join(**changes))
    assert lab.group.is_subscribed_to("a")


# -- what lasts


def test_a_restart_keeps_generation_assignments_and_members() -> None:
    lab = Lab()
    members = lab.stable(3)
    before = durable(lab.shard)
    lab.pass_ms(SESSION_MS - 1)
    lab.restart()
    assert durable(lab.shard) == before
    lab.pass_ms(SESSION_MS - 1)
    for member in members:
        assert lab.heartbeat(member) is E.NONE, "sessions begin anew"
        assert lab.synced(lab.sync(member)).assignment == f"{member.member_id}@{member.generation}".encode()


def test_a_round_cut_short_by_a_restart_begins_anew() -> None:
    lab, members = in_state(State.COMPLETING)
    lab.restart()
    assert (lab.state, lab.heartbeat(members[0])) == (State.STABLE, E.ILLEGAL_GENERATION)
    lab.join_again(members[0])
    assert lab.state is State.PREPARING


def test_a_new_group_lasts_from_its_first_request() -> None:
    lab = Lab()
    lab.join(requires_member_id=True)
    lab.restart()
    assert lab.state is State.EMPTY
    assert (lab.group.generation, lab.group.protocol_type) == (0, "")


def test_needless_wakes_change_nothing() -> None:
    lab = Lab()
    lab.stable(2)
    lab.pass_ms(0)
    effects = lab.shard.wake((GROUP, "alarm"), lab.now_ms)
    assert (effects.records, effects.replies, effects.wakes) == ([], [], [])
