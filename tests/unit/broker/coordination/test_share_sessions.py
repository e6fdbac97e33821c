"""Share sessions: one per member, in order, and gone with their connection."""

from __future__ import annotations

import uuid

import pytest

from moldau.broker.coordination.share_sessions import FINAL_EPOCH, PARTITIONS_MAX, REMEMBERED_MAX, ShareSessions
from moldau.coordinators.share.state_shard import ShareKey
from moldau.errors import ErrorCode, KafkaError

TOPIC = uuid.UUID(int=1)
ONE, TWO = ("group", "one"), ("group", "two")


def keys(*indexes: int) -> list[ShareKey]:
    return [ShareKey("group", TOPIC, index) for index in indexes]


def test_each_request_has_the_next_epoch() -> None:
    sessions = ShareSessions()
    sessions.open(ONE, "connection", keys(0), 10)
    assert sessions.find(ONE, 1) is sessions.find(ONE, 2)
    with pytest.raises(KafkaError) as refused:
        sessions.find(ONE, 2)
    assert refused.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.find(ONE, FINAL_EPOCH).epoch == 3


def test_after_the_last_epoch_comes_the_first() -> None:
    sessions = ShareSessions()
    session = sessions.open(ONE, "connection", keys(0), 10)
    session.epoch = 2**31 - 1
    sessions.find(ONE, 2**31 - 1)
    assert session.epoch == 1


def test_a_new_session_takes_the_place_of_the_old_one() -> None:
    sessions = ShareSessions()
    sessions.open(ONE, "first", keys(0), 1)
    session = sessions.open(ONE, "second", keys(1), 1)
    assert len(sessions) == 1
    assert sessions.of_connection("first") == []
    assert sessions.of_connection("second") == [session]


def test_there_are_only_so_many_sessions_and_partitions() -> None:
    sessions = ShareSessions()
    session = sessions.open(ONE, "connection", keys(0), 1)
    with pytest.raises(KafkaError) as refused:
        sessions.open(TWO, "connection", keys(0), 1)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    for attempt in range(3):
        with pytest.raises(KafkaError) as refused:
            sessions.change(session, keys(*range(attempt + 1, PARTITIONS_MAX + attempt + 2)), keys(0))
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert not session.partitions


def test_all_sessions_together_remember_only_so_many_partitions() -> None:
    sessions = ShareSessions()
    many = keys(*range(PARTITIONS_MAX))
    for number in range(REMEMBERED_MAX // PARTITIONS_MAX):
        sessions.open(("group", str(number)), "connection", many, 1_000)
    with pytest.raises(KafkaError) as refused:
        sessions.open(ONE, "connection", keys(0), 1_000)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.close(("group", "0"))
    assert sessions.open(ONE, "connection", keys(0), 1_000)


def test_a_closed_session_is_forgotten_everywhere() -> None:
    sessions = ShareSessions()
    for owner in (ONE, TWO):
        sessions.open(owner, "connection", keys(0), 10)
    sessions.close(ONE)
    assert [session.owner for session in sessions.of_connection("connection")] == [TWO]
    assert sessions.has_group("group")
    sessions.close(TWO)
    sessions.close(TWO)
    assert not sessions.has_group("group")
    with pytest.raises(KafkaError) as refused:
        sessions.find(TWO, 1)
    assert refused.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_every_partition_comes_first_now_and_then() -> None:
    sessions = ShareSessions()
    session = sessions.open(ONE, "connection", keys(0, 1, 2), 10)
    sessions.change(session, keys(3), keys(1))
    firsts = set()
    for epoch in range(1, 4):
        sessions.find(ONE, epoch)
        rotated = session.rotated()
        assert sorted(rotated) == keys(0, 2, 3)
        firsts.add(rotated[0])
    assert firsts == set(keys(0, 2, 3))
