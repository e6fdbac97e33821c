"""Classic groups: what members are told in each state, who is fenced, who is put out, and what lasts."""

from __future__ import annotations

import pytest

from moldau.coordinators.classic import group as machine
from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.events import JoinReply, SyncReply
from moldau.coordinators.classic.group import NEW_MEMBER_TIMEOUT_MS
from moldau.errors import ErrorCode
from tests.unit.coordinators.classic_lab import (
    REBALANCE_MS,
    SESSION_MS,
    Lab,
    in_state,
    protocols,
)

E = ErrorCode

# -- the table: events × states


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State.EMPTY, E.UNKNOWN_MEMBER_ID),
        (State.PREPARING, E.REBALANCE_IN_PROGRESS),
        (State.COMPLETING, E.NONE),
        (State.STABLE, E.NONE),
    ],
)
def test_a_heartbeat_tells_the_member_what_to_do(state: State, told: ErrorCode) -> None:
    lab, (leader, follower) = in_state(state)
    assert lab.heartbeat(leader) is told
    assert lab.heartbeat(follower) is told
    assert lab.state is state


@pytest.mark.parametrize(
    ("state", "told"),
    [(State.EMPTY, E.UNKNOWN_MEMBER_ID), (State.PREPARING, E.REBALANCE_IN_PROGRESS), (State.COMPLETING, None)],
)
def test_a_follower_syncs(state: State, told: ErrorCode | None) -> None:
    lab, (_, follower) = in_state(state)
    assert lab.replies.get(lab.sync(follower)) is told
    assert lab.state is state


def test_a_follower_of_a_stable_group_syncs_and_gets_its_assignment_again() -> None:
    lab, (_, follower) = in_state(State.STABLE)
    expected = f"{follower.member_id}@{follower.generation}".encode()
    assert lab.synced(lab.sync(follower)) == SyncReply(E.NONE, "consumer", "range", expected)


@pytest.mark.parametrize(
    ("state", "who", "changed", "after"),
    [
        (State.PREPARING, 0, False, State.PREPARING),
        (State.PREPARING, 1, True, State.PREPARING),
        (State.COMPLETING, 0, False, State.COMPLETING),
        (State.COMPLETING, 1, False, State.COMPLETING),
        (State.COMPLETING, 1, True, State.PREPARING),
        (State.STABLE, 0, False, State.PREPARING),
        (State.STABLE, 1, False, State.STABLE),
        (State.STABLE, 1, True, State.PREPARING),
    ],
)
def test_a_member_joins_again(state: State, who: int, changed: bool, after: State) -> None:
    lab, members = in_state(state)
    waiter = lab.join_again(members[who], protocols=protocols("range", topic="other" if changed else "t"))
    assert lab.state is after
    if after is State.PREPARING:
        assert waiter not in lab.replies
    else:
        told = lab.joined(waiter)
        assert told.generation == members[who].generation
        assert len(told.members) == (2 if who == 0 else 0)


@pytest.mark.parametrize("state", list(State))
def test_a_new_member_starts_a_round(state: State) -> None:
    lab, members = in_state(state)
    waiter = lab.join()
    if state is State.EMPTY:
        assert lab.joined(waiter).generation == members[0].generation + 2  # the empty one counts
        return
    assert lab.state is State.PREPARING
    assert waiter not in lab.replies


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (State.PREPARING, State.PREPARING),
        (State.COMPLETING, State.PREPARING),
        (State.STABLE, State.PREPARING),
    ],
)
def test_a_member_leaves(state: State, after: State) -> None:
    lab, (leader, follower) = in_state(state)
    assert lab.leave((follower.member_id, None)) == (E.NONE,)
    assert lab.state is after
    assert lab.heartbeat(follower) is E.UNKNOWN_MEMBER_ID
    assert lab.heartbeat(leader) is E.REBALANCE_IN_PROGRESS


def test_every_state_has_a_row() -> None:
    assert set(machine.TABLE) == set(State)


# -- rounds


def test_two_members_share_and_everyone_gets_what_the_leader_gave() -> None:
    lab = Lab()
    first = lab.joined(lab.join())
    assert first.leader == first.member_id
    assert [member.member_id for member in first.members] == [first.member_id]
    second = lab.join()
    assert second not in lab.replies
    again = lab.join_again(first)
    leader, follower = lab.joined(again), lab.joined(second)
    assert (leader.generation, follower.generation) == (2, 2)
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == ()
    early = lab.sync(follower)
    assert early not in lab.replies
    late = lab.sync(leader, (leader.member_id, b"L"), (follower.member_id, b"F"))
    assert lab.synced(late).assignment == b"L"
    assert lab.synced(early).assignment == b"F"
    assert lab.state is State.STABLE


def test_the_first_member_of_a_group_does_not_wait() -> None:
    lab = Lab()
    told = lab.joined(lab.join())
    assert (told.generation, told.protocol_name, told.protocol_type) == (1, "range", "consumer")


def test_the_first_round_waits_for_the_delay_and_longer_while_members_come() -> None:
    lab = Lab(group_initial_rebalance_delay_ms=3_000)
    first = lab.join(rebalance_timeout_ms=10_000)
    lab.pass_ms(2_999)
    second = lab.join(rebalance_timeout_ms=10_000)
    lab.pass_ms(3_000)
    assert not {first, second} & lab.replies.keys(), "somebody came, so it waits once more"
    lab.pass_ms(1)
    assert lab.joined(first).generation == lab.joined(second).generation == 1
    assert len(lab.group.members) == 2


def test_the_first_round_is_never_longer_than_the_rebalance_timeout() -> None:
    lab = Lab(group_initial_rebalance_delay_ms=3_000)
    begin_ms = lab.now_ms
    first = lab.join(rebalance_timeout_ms=7_000)
    while first not in lab.replies:
        lab.join(rebalance_timeout_ms=7_000)
        lab.pass_ms(500)
    assert lab.now_ms - begin_ms == 7_000


def test_who_does_not_join_in_time_is_out() -> None:
    lab = Lab()
    leader, follower = lab.stable(2)
    again = lab.join_again(leader)
    for _ in range(REBALANCE_MS // 5_000):
        lab.pass_ms(5_000)
        lab.heartbeat(follower)
    told = lab.joined(again)
    assert [member.member_id for member in told.members] == [leader.member_id]
    assert lab.heartbeat(follower) is E.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts() -> None:
    lab = Lab()
    leader, follower = lab.stable(2, session_timeout_ms=300_000)
    again = lab.join_again(leader, rebalance_timeout_ms=1, session_timeout_ms=300_000)
    lab.pass_ms(REBALANCE_MS - 1)
    assert again not in lab.replies
    assert follower.member_id in lab.group.members
    lab.pass_ms(1)
    assert follower.member_id not in lab.group.members


def test_a_leader_that_does_not_join_in_time_is_replaced() -> None:
    lab = Lab()
    leader, follower = lab.stable(2)
    changed = lab.join_again(follower, protocols=protocols("range", topic="other"))
    lab.pass_ms(REBALANCE_MS)
    told = lab.joined(changed)
    assert told.leader == follower.member_id != leader.member_id
    assert len(told.members) == 1


def test_who_does_not_sync_in_time_is_out() -> None:
    lab = Lab()
    members = lab.stable(2)
    leader, follower = (lab.joined(waiter) for waiter in [lab.join_again(member) for member in members])
    lab.synced(lab.sync(leader, (leader.member_id, b"L")))
    for _ in range(REBALANCE_MS // 5_000):
        lab.pass_ms(5_000)
        told = lab.heartbeat(leader)
        lab.heartbeat(follower)
    assert told is E.REBALANCE_IN_PROGRESS
    assert follower.member_id not in lab.group.members


def test_followers_do_not_wait_forever_for_a_leader_that_does_not_sync() -> None:
    lab = Lab()
    members = lab.stable(2)
    leader, follower = (lab.joined(waiter) for waiter in [lab.join_again(member) for member in members])
    waiting = lab.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        lab.pass_ms(5_000)
        lab.heartbeat(leader)
    assert lab.replies[waiting] == SyncReply(E.REBALANCE_IN_PROGRESS)
    again = lab.joined(lab.join_again(follower))
    assert again.leader == follower.member_id


def test_a_rebalance_interrupts_those_who_wait_for_their_assignment() -> None:
    lab, (_, follower) = in_state(State.COMPLETING)
    waiting = lab.sync(follower)
    lab.join()
    assert lab.replies[waiting] == SyncReply(E.REBALANCE_IN_PROGRESS)


def test_members_that_the_leader_forgot_get_an_empty_assignment() -> None:
    lab, (leader, follower) = in_state(State.COMPLETING)
    waiting = lab.sync(follower)
    lab.sync(leader, (leader.member_id, b"L"), ("nobody", b"x"))
    assert lab.synced(waiting).assignment == b""


def test_a_request_sent_twice_is_answered_on_its_second_way() -> None:
    lab, (leader, follower) = in_state(State.COMPLETING)
    lost, found = lab.sync(follower), lab.sync(follower)
    assert lab.replies[lost] == SyncReply(E.REBALANCE_IN_PROGRESS)
    lab.sync(leader, (follower.member_id, b"F"))
    assert lab.synced(found).assignment == b"F"
    lab.join()
    lost, found = lab.join_again(follower), lab.join_again(follower)
    assert lab.replies[lost].error is E.REBALANCE_IN_PROGRESS
    lab.join_again(leader)
    assert lab.joined(found).generation == leader.generation + 1


# -- member ids


def test_a_new_member_has_to_come_back_with_its_id() -> None:
    lab = Lab()
    told = lab.replies[lab.join(requires_member_id=True)]
    assert told.error is E.MEMBER_ID_REQUIRED
    assert lab.state is State.EMPTY
    assert lab.joined(lab.join(told.member_id)).member_id == told.member_id


def test_a_member_id_that_is_not_used_expires_with_the_session() -> None:
    lab = Lab()
    told = lab.replies[lab.join(requires_member_id=True)]
    lab.pass_ms(SESSION_MS - 1)
    other = lab.replies[lab.join(requires_member_id=True)]
    lab.pass_ms(1)
    assert lab.replies[lab.join(told.member_id)] is E.UNKNOWN_MEMBER_ID
    assert lab.joined(lab.join(other.member_id))


def test_a_round_waits_for_members_on_their_way_until_they_expire() -> None:
    lab = Lab()
    (leader,) = lab.stable(1, session_timeout_ms=300_000)
    lab.join(requires_member_id=True)
    again = lab.join_again(leader, session_timeout_ms=300_000)
    lab.pass_ms(SESSION_MS - 1)
    assert again not in lab.replies
    lab.pass_ms(1)
    assert lab.joined(again).generation == 2


def test_only_so_many_member_ids_are_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PENDING_MAX", 3)
    lab = Lab()
    told = [lab.replies[lab.join(requires_member_id=True)] for _ in range(4)]
    assert [getattr(one, "error", one) for one in told] == [E.MEMBER_ID_REQUIRED] * 3 + [E.GROUP_MAX_SIZE_REACHED]


def test_a_member_of_no_group_is_unknown() -> None:
    lab = Lab()
    assert lab.replies[lab.join("somebody")] is E.UNKNOWN_MEMBER_ID
    assert not lab.shard.groups
    assert not lab.records
    nobody = JoinReply(E.NONE, "somebody", 1)
    assert lab.heartbeat(nobody) is E.UNKNOWN_MEMBER_ID
    assert lab.replies[lab.sync(nobody)] is E.UNKNOWN_MEMBER_ID
    assert lab.leave(("a", None), ("b", None)) == (E.UNKNOWN_MEMBER_ID,) * 2


@pytest.mark.parametrize("off", [-1, 1])
def test_another_generation_is_illegal(off: int) -> None:
    lab, members = in_state(State.STABLE)
    for member in members:
        wrong = member._replace(generation=member.generation + off)
        assert lab.heartbeat(wrong) is E.ILLEGAL_GENERATION
        assert lab.replies[lab.sync(wrong)] is E.ILLEGAL_GENERATION


# -- sessions


def test_a_silent_member_is_out_and_the_others_are_told() -> None:
    lab = Lab()
    leader, follower = lab.stable(2)
    lab.pass_ms(SESSION_MS - 1)
    assert lab.heartbeat(leader) is E.NONE
    lab.pass_ms(1)
    assert follower.member_id not in lab.group.members
    assert lab.heartbeat(leader) is E.REBALANCE_IN_PROGRESS


def test_a_sync_of_a_stable_group_is_a_sign_of_life() -> None:
    lab = Lab()
    (member,) = lab.stable(1)
    lab.pass_ms(SESSION_MS - 1)
    assert lab.synced(lab.sync(member)).error is E.NONE
    lab.pass_ms(SESSION_MS - 1)
    assert lab.heartbeat(member) is E.NONE


def test_a_group_whose_members_all_went_silent_is_empty() -> None:
    lab = Lab()
    lab.stable(3)
    lab.pass_ms(2 * SESSION_MS)
    assert lab.state is State.EMPTY
    assert lab.group.empty_since_ms() == lab.wall_clock() - SESSION_MS
    assert lab.group.generation == 4


def test_heartbeats_keep_a_member_in_for_good() -> None:
    lab = Lab()
    (member,) = lab.stable()
    for _ in range(100):
        lab.pass_ms(SESSION_MS - 1)
        assert lab.heartbeat(member) is E.NONE


def test_commits_keep_a_member_in() -> None:
    lab = Lab()
    (member,) = lab.stable()
    for _ in range(3):
        lab.pass_ms(SESSION_MS - 1)
        lab.group.on_contact(member.member_id, lab.now_ms)
    lab.group.on_contact("nobody", lab.now_ms)
    assert lab.heartbeat(member) is E.NONE


def test_a_member_whose_join_waits_is_not_expired() -> None:
    lab = Lab()
    leader, follower = lab.stable(2)
    again = lab.join_again(leader)
    for _ in range(5):
        lab.pass_ms(SESSION_MS - 1)
        lab.heartbeat(follower)
    assert again not in lab.replies
    lab.join_again(follower)
    assert lab.joined(again)
    lab.pass_ms(SESSION_MS)
    assert leader.member_id not in lab.group.members, "its session began again with the answer"


def test_a_new_member_whose_join_waits_too_long_is_out() -> None:
    lab = Lab()
    (leader,) = lab.stable(rebalance_timeout_ms=2 * NEW_MEMBER_TIMEOUT_MS)
    newcomer = lab.join()
    while newcomer not in lab.replies:
        lab.pass_ms(SESSION_MS - 1)
        lab.heartbeat(leader)
    assert lab.replies[newcomer] == JoinReply(E.UNKNOWN_MEMBER_ID, "")
    assert len(lab.group.members) == 1


def test_one_timer_serves_a_group_however_often_its_members_are_heard() -> None:
    lab = Lab()
    members = lab.stable(5)
    before = len(lab._wakes)
    for _ in range(50):
        lab.pass_ms(100)
        for member in members:
            lab.heartbeat(member)
    assert len(lab._wakes) == before


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_ms: int) -> None:
    lab = Lab()
    assert lab.replies[lab.join(session_timeout_ms=session_ms)] is E.INVALID_SESSION_TIMEOUT
    assert not lab.shard.groups


# -- leaving


def test_when_the_last_member_leaves_the_group_is_empty_and_that_lasts() -> None:
    lab = Lab()
    (member,) = lab.stable()
    assert lab.leave((member.member_id, None)) == (E.NONE,)
    assert lab.state is State.EMPTY
    assert (lab.group.generation, lab.group.protocol_name, lab.group.leader) == (2, None, None)
    lab.restart()
    assert lab.state is State.EMPTY
    assert lab.group.generation == 2


def test_a_batch_of_leavers_starts_one_round() -> None:
    lab = Lab()
    one, two, three = lab.stable(3)
    told = lab.leave((two.member_id, None), ("nobody", None), (three.member_id, None))
    assert told == (E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE)
    assert lab.joined(lab.join_again(one)).generation == 4


def test_a_member_that_leaves_while_it_waits_is_told() -> None:
    lab, (leader, follower) = in_state(State.COMPLETING)
    waiting = lab.sync(follower)
    lab.leave((follower.member_id, None))
    assert lab.replies[waiting] == SyncReply(E.UNKNOWN_MEMBER_ID)
    waiting = lab.join_again(leader)
    assert lab.joined(waiting).leader == leader.member_id


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    lab = Lab()
    lab.stable(2, static=True)
    assert lab.leave(("", "i1"), ("", "i7"), ("", None)) == (E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID)
    assert len(lab.group.members) == 1


def test_a_pending_member_leaves_without_a_round() -> None:
    lab = Lab()
    lab.stable(2)
    told = lab.replies[lab.join(requires_member_id=True)]
    assert lab.leave((told.member_id, None)) == (E.NONE,)
    assert lab.state is State.STABLE
