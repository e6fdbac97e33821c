"""Fetch sessions as a client sees them, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from moldau.broker.replicas.fetch_sessions import BYTES_MAX, PARTITIONS_MAX, UNUSED_MIN_S, FetchSessions, wanted_of
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchTopic, ForgottenTopic


def fetch_sessions(
    slots_max: int, now_s: Callable[[], float] = lambda: 0.0, *, bytes_max: int = BYTES_MAX
) -> FetchSessions:
    return FetchSessions(slots_max, now_s, count(101).__next__, bytes_max=bytes_max)


def request(
    session_id: int = 0,
    epoch: int = -1,
    partitions: dict[str, list[int]] | None = None,
    forgotten: dict[str, list[int]] | None = None,
) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        replica_epoch=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(name, None, [FetchPartition(i, -1, 0, -1, -1, 1 << 20) for i in indexes])
            for name, indexes in (partitions or {}).items()
        ],
        forgotten=[ForgottenTopic(name, None, indexes) for name, indexes in (forgotten or {}).items()],
        rack_id="",
        cluster_id=None,
    )


def result(index: int, high_watermark: int = 0, records: bytes = b"", error_code: int = 0) -> FetchPartitionResult:
    return FetchPartitionResult(index, error_code, high_watermark, high_watermark, 0, None, -1, records)


def answered(topics: list[tuple[str | None, bytes | None, list[FetchPartitionResult]]]) -> list[tuple[str | None, int]]:
    return [(name, one.index) for name, _, results in topics for one in results]


def test_a_fetch_without_a_session_gets_every_partition_and_leaves_nothing_behind() -> None:
    sessions = fetch_sessions(10)
    plan = sessions.plan(request(partitions={"t": [0, 1]}), uses_topic_ids=False)
    session_id, topics = plan.answer([result(0), result(1)])
    assert (session_id, answered(topics), len(sessions)) == (0, [("t", 0), ("t", 1)], 0)


def test_an_incremental_fetch_gets_only_partitions_with_news() -> None:
    sessions = fetch_sessions(10)
    first = sessions.plan(request(epoch=0, partitions={"t": [0, 1]}), uses_topic_ids=False)
    session_id, topics = first.answer([result(0), result(1)])
    assert session_id > 0
    assert answered(topics) == [("t", 0), ("t", 1)]

    second = sessions.plan(request(session_id, 1), uses_topic_ids=False)
    assert [one.partition.index for one in second.wanted] == [0, 1]
    same_id, topics = second.answer([result(0), result(1, high_watermark=3, records=b"batch")])
    assert same_id == session_id
    assert answered(topics) == [("t", 1)]

    third = sessions.plan(request(session_id, 2), uses_topic_ids=False)
    assert third.answer([result(i.partition.index, 3 if i.partition.index else 0) for i in third.wanted])[1] == []


def test_a_partition_that_got_records_is_read_last_the_next_time() -> None:
    sessions = fetch_sessions(10)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0, 1, 2]}), False).answer(
        [result(i) for i in range(3)]
    )
    sessions.plan(request(session_id, 1), False).answer([result(0, 9, b"much"), result(1), result(2)])
    assert [one.partition.index for one in sessions.plan(request(session_id, 2), False).wanted] == [1, 2, 0]


def test_partitions_come_and_go_within_a_session() -> None:
    sessions = fetch_sessions(10)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0, 1]}), False).answer([result(0), result(1)])
    plan = sessions.plan(request(session_id, 1, {"u": [5]}, {"t": [0]}), False)
    assert [(one.name, one.partition.index) for one in plan.wanted] == [("t", 1), ("u", 5)]


def test_an_error_is_told_until_it_is_over_and_its_end_is_told_too() -> None:
    sessions = fetch_sessions(10)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0]}), False).answer([result(0, 7)])
    for epoch, code, expected in ((1, 6, 1), (2, 6, 1), (3, 0, 1), (4, 0, 0)):
        _, topics = sessions.plan(request(session_id, epoch), False).answer([result(0, 7, error_code=code)])
        assert len(answered(topics)) == expected, epoch


@pytest.mark.parametrize(
    ("session_id_shift", "epoch", "uses_topic_ids", "code"),
    [
        (1, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 7, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (0, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_a_wrong_session_is_answered_with_kafkas_code(
    session_id_shift: int, epoch: int, uses_topic_ids: bool, code: ErrorCode
) -> None:
    sessions = fetch_sessions(10)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0]}), False).answer([result(0)])
    with pytest.raises(KafkaError) as caught:
        sessions.plan(request(session_id ^ session_id_shift, epoch), uses_topic_ids)
    assert caught.value.code is code


def test_a_session_unused_for_long_makes_room_and_one_in_use_does_not() -> None:
    now_s = 0.0
    sessions = fetch_sessions(2, lambda: now_s)

    def new_session() -> int:
        return sessions.plan(request(epoch=0, partitions={"t": [0]}), False).answer([result(0)])[0]

    first, second = new_session(), new_session()
    assert (new_session(), len(sessions)) == (0, 2)
    now_s = UNUSED_MIN_S
    sessions.plan(request(first, 1), False)
    assert new_session() > 0
    assert len(sessions) == 2
    sessions.plan(request(first, 2), False)
    with pytest.raises(KafkaError):
        sessions.plan(request(second, 1), False)


def test_closing_a_session_forgets_it() -> None:
    sessions = fetch_sessions(2)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0]}), False).answer([result(0)])
    plan = sessions.plan(request(session_id, -1, {"t": [0]}), False)
    assert (plan.answer([result(0)])[0], len(sessions)) == (0, 0)


def test_wanted_keeps_the_order_of_the_request() -> None:
    asked = request(partitions={"b": [2, 1], "a": [0]})
    assert [(one.name, one.partition.index) for one in wanted_of(asked)] == [("b", 2), ("b", 1), ("a", 0)]


def test_all_sessions_together_are_bounded_in_bytes() -> None:
    now_s = 0.0
    sessions = fetch_sessions(1000, lambda: now_s, bytes_max=10_000)
    many = {"no such topic": list(range(10))}
    ids = [
        sessions.plan(request(epoch=0, partitions=many), False).answer([result(i) for i in range(10)])[0]
        for _ in "1234"
    ]
    assert all(ids[:2])
    assert ids[2:] == [0, 0], "there is no room for more: such a client goes on with full fetches"
    assert len(sessions) == 2
    assert sessions.size_bytes <= 10_000
    now_s = UNUSED_MIN_S
    sessions.plan(request(ids[1], 1), False)
    assert sessions.plan(request(epoch=0, partitions=many), False).answer([result(i) for i in range(10)])[0]
    with pytest.raises(KafkaError) as gone:
        sessions.plan(request(ids[0], 1), False)
    assert gone.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "nobody had used it for two minutes"
    assert sessions.size_bytes <= 10_000


def test_a_session_that_grows_too_large_ends_and_one_that_shrinks_gives_back() -> None:
    sessions = fetch_sessions(10, bytes_max=10_000)
    session_id, _ = sessions.plan(request(epoch=0, partitions={"t": [0]}), False).answer([result(0)])
    few = sessions.size_bytes
    sessions.plan(request(session_id, 1, {"t": list(range(20))}), False)
    sessions.plan(request(session_id, 2, forgotten={"t": list(range(1, 20)), "u": [7]}), False)
    assert sessions.size_bytes == few
    with pytest.raises(KafkaError) as gone:
        sessions.plan(request(session_id, 3, {"t": list(range(30))}), False)
    assert gone.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.size_bytes) == (0, 0)


def test_a_client_of_very_many_partitions_fetches_without_a_session() -> None:
    sessions = fetch_sessions(10)
    many = list(range(PARTITIONS_MAX + 1))
    assert sessions.plan(request(epoch=0, partitions={"t": many}), False).answer([result(i) for i in many])[0] == 0
    assert (len(sessions), sessions.size_bytes) == (0, 0)
