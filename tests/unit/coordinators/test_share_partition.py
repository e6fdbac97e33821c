"""The queue of one partition: what a share group may do with each record, and what survives a restart."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.coordinators.share.partition import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    Ack,
    AckType,
    Acquired,
    ShareLimits,
    SharePartition,
    Span,
    StateBatch,
    StateWrite,
    Wanted,
)
from moldau.coordinators.share.state_shard import merge_batches
from moldau.errors import ErrorCode, KafkaError
from tests.examples import examples

LIMITS = ShareLimits(delivery_count=5, record_locks=200, lock_duration_ms=30_000)
MANY = Wanted(max_records=500, batch_size=500)


def acquire(queue: SharePartition, member: str, *spans: tuple[int, int], wanted: Wanted = MANY) -> list[Acquired]:
    found = [Span(*span) for span in spans]
    return queue.acquire(member, found, found[-1].last + 1, wanted, 0)


def states(queue: SharePartition) -> list[tuple[int, int, int, int]]:
    return [(run.first, run.last, run.state, run.delivery_count) for run in queue.runs]


def refusal(queue: SharePartition, member: str, *acks: Ack) -> ErrorCode:
    before = states(queue)
    with pytest.raises(KafkaError) as refused:
        queue.acknowledge(member, acks, 0)
    assert states(queue) == before
    return refused.value.code


def test_two_members_share_what_the_log_has() -> None:
    queue = SharePartition(0, LIMITS)
    assert acquire(queue, "a", (0, 9)) == [(0, 9, 1)]
    assert queue.next_fetch_offset == 10
    assert acquire(queue, "b", (10, 19)) == [(10, 19, 1)]


def test_what_is_accepted_is_over_and_the_start_moves_over_it() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    assert queue.acknowledge("a", [Ack(0, 4, [AckType.ACCEPT])], 0) == StateWrite(5, 0, [])
    assert queue.start_offset == 5
    written = queue.acknowledge("a", [Ack(7, 8, [AckType.REJECT, AckType.ACCEPT])], 0)
    assert written == StateWrite(5, 2, [StateBatch(7, 7, ARCHIVED, 1), StateBatch(8, 8, ACKNOWLEDGED, 1)])


def test_released_records_come_again_with_a_higher_count() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    queue.acknowledge("a", [Ack(0, 9, [1, 1, 2, 2, 1, 1, 1, 1, 1, 1])], 0)
    assert queue.next_fetch_offset == 2
    assert acquire(queue, "b", (0, 9)) == [(2, 3, 2)]


def test_a_session_that_ends_does_not_count_as_a_delivery() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    assert queue.release("a") == StateWrite(0, 0, [StateBatch(0, 9, AVAILABLE, 0)])
    assert acquire(queue, "b", (0, 9)) == [(0, 9, 1)]


def test_a_lock_that_runs_out_gives_the_record_to_others() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    assert queue.expire(29_999) is None
    assert queue.expire(30_000) is not None
    assert refusal(queue, "a", Ack(0, 9, [AckType.ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert acquire(queue, "b", (0, 9)) == [(0, 9, 2)]


def test_a_renewed_lock_lasts_longer() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    assert queue.acknowledge("a", [Ack(0, 4, [AckType.RENEW])], 20_000) is None
    assert queue.expire(30_000) == StateWrite(0, 0, [StateBatch(5, 9, AVAILABLE, 1)])
    assert queue.next_lock_ms == 50_000


def test_after_the_last_delivery_a_record_is_archived() -> None:
    queue = SharePartition(0, LIMITS._replace(delivery_count=2))
    for count in (1, 2):
        assert acquire(queue, "a", (0, 0)) == [(0, 0, count)]
        queue.acknowledge("a", [Ack(0, 0, [AckType.RELEASE])], 0)
    assert queue.start_offset == queue.end_offset == 1


def test_a_record_that_fails_often_is_delivered_apart_from_others() -> None:
    queue = SharePartition.restore(0, [StateBatch(0, 15, AVAILABLE, 3), StateBatch(16, 19, AVAILABLE, 0)], LIMITS)
    assert acquire(queue, "a", (0, 19)) == [(0, 7, 4)]
    queue = SharePartition.restore(0, [StateBatch(0, 15, AVAILABLE, 4)], LIMITS)
    assert acquire(queue, "a", (0, 15)) == [(0, 0, 5)]
    assert acquire(queue, "a", (0, 15)) == [(1, 1, 5)]
    queue = SharePartition.restore(0, [StateBatch(0, 3, AVAILABLE, 0), StateBatch(4, 9, AVAILABLE, 4)], LIMITS)
    assert acquire(queue, "a", (0, 9)) == [(0, 3, 1)]


@pytest.mark.parametrize(
    ("member", "ack", "code"),
    [
        ("b", Ack(0, 9, [1]), ErrorCode.INVALID_RECORD_STATE),
        ("a", Ack(0, 10, [1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(5, 4, [1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(0, 9, [1, 1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(0, 9, []), ErrorCode.INVALID_REQUEST),
        ("a", Ack(0, 2**62, [1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(-1, 9, [1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(-(2**62), -1, [1]), ErrorCode.INVALID_REQUEST),
        ("a", Ack(0, 10**9 - 1, range(10**9)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_acknowledgement_that_does_not_fit_changes_nothing(member: str, ack: Ack, code: ErrorCode) -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    assert refusal(queue, member, ack) is code


def test_who_accepts_too_late_is_told_also_when_the_queue_has_moved_on() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "slow", (0, 9))
    queue.expire(LIMITS.lock_duration_ms)
    acquire(queue, "b", (0, 9))
    queue.acknowledge("b", [Ack(0, 9, [AckType.ACCEPT])], 0)
    assert queue.start_offset == 10
    assert refusal(queue, "slow", Ack(0, 9, [AckType.ACCEPT])) is ErrorCode.INVALID_RECORD_STATE


def test_records_of_a_batch_can_be_treated_each_apart() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 4))
    kinds = [AckType.RELEASE, AckType.ACCEPT, AckType.RENEW, AckType.RELEASE, AckType.RELEASE]
    write = queue.acknowledge("a", [Ack(0, 4, kinds)], 7)
    assert write == StateWrite(
        0, 1, [StateBatch(0, 0, AVAILABLE, 1), StateBatch(1, 1, ACKNOWLEDGED, 1), StateBatch(3, 4, AVAILABLE, 1)]
    )
    assert states(queue) == [(0, 0, AVAILABLE, 1), (1, 1, ACKNOWLEDGED, 1), (2, 2, ACQUIRED, 1), (3, 4, AVAILABLE, 1)]
    assert queue.next_lock_ms == LIMITS.lock_duration_ms + 7


def test_of_several_acknowledgements_all_or_none_happen() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    acquire(queue, "b", (10, 19))
    assert refusal(queue, "a", Ack(0, 9, [1]), Ack(10, 12, [1])) is ErrorCode.INVALID_RECORD_STATE
    assert refusal(queue, "a", Ack(0, 5, [1]), Ack(5, 9, [1])) is ErrorCode.INVALID_REQUEST


def test_offsets_without_records_are_archived_at_once() -> None:
    queue = SharePartition(0, LIMITS)
    assert queue.acquire("a", [Span(2, 4), Span(6, 7)], 10, MANY, 0) == [(2, 4, 1), (6, 7, 1)]
    assert states(queue) == [(2, 4, ACQUIRED, 1), (5, 5, ARCHIVED, 0), (6, 7, ACQUIRED, 1), (8, 9, ARCHIVED, 0)]
    queue.acknowledge("a", [Ack(2, 4, [1]), Ack(6, 7, [1])], 0)
    assert queue.start_offset == 10


def test_whole_batches_are_acquired_unless_the_number_is_exact() -> None:
    few = Wanted(max_records=3, batch_size=500)
    queue = SharePartition(0, LIMITS)
    assert acquire(queue, "a", (0, 9), (10, 19), wanted=few) == [(0, 9, 1)]
    queue = SharePartition(0, LIMITS)
    exact = few._replace(exact=True)
    assert acquire(queue, "a", (0, 9), (10, 19), wanted=exact) == [(0, 2, 1)]
    assert queue.next_fetch_offset == 3
    assert acquire(queue, "b", (0, 9), wanted=exact) == [(3, 5, 1)]


def test_acquired_ranges_are_about_as_long_as_was_asked() -> None:
    queue = SharePartition(0, LIMITS)
    spans = [(first, first + 9) for first in range(0, 50, 10)]
    assert acquire(queue, "a", *spans, wanted=Wanted(500, 20)) == [(0, 19, 1), (20, 39, 1), (40, 49, 1)]


def test_no_more_records_are_in_flight_than_allowed() -> None:
    queue = SharePartition(0, LIMITS._replace(record_locks=10))
    acquire(queue, "a", (0, 9))
    assert not queue.has_room
    assert acquire(queue, "a", (10, 19)) == []
    queue.acknowledge("a", [Ack(3, 3, [AckType.RELEASE])], 0)
    assert queue.has_room
    assert acquire(queue, "a", (0, 9), (10, 19)) == [(3, 3, 2)]


def test_records_below_the_log_start_are_nobodys() -> None:
    queue = SharePartition(0, LIMITS)
    acquire(queue, "a", (0, 9))
    queue.move_start(6)
    assert states(queue) == [(6, 9, ACQUIRED, 1)]
    assert queue.acknowledge("a", [Ack(0, 9, [AckType.ACCEPT])], 0) == StateWrite(10, 0, [])
    queue.move_start(50)
    assert (queue.start_offset, queue.end_offset, queue.next_fetch_offset) == (50, 50, 50)


def test_what_a_log_lost_is_delivered_when_it_is_written_again() -> None:
    batches = [StateBatch(2, 3, AVAILABLE, 1), StateBatch(4, 9, ACKNOWLEDGED, 1)]
    queue = SharePartition.restore(2, batches, LIMITS)
    assert queue.truncate(10) is None
    write = queue.truncate(6)
    assert write == StateWrite(2, 2, [StateBatch(6, 9, AVAILABLE, 0)])
    assert states(queue) == [(2, 3, AVAILABLE, 1), (4, 5, ACKNOWLEDGED, 1)]
    assert acquire(queue, "a", (2, 9)) == [(2, 3, 2), (6, 9, 1)]
    restored = SharePartition.restore(2, merge_batches(batches, write.batches, 2), LIMITS)
    assert acquire(restored, "a", (2, 9)) == [(2, 3, 2), (6, 9, 1)]
    queue = SharePartition(8, LIMITS)
    queue.truncate(5)
    assert (queue.start_offset, queue.next_fetch_offset) == (5, 5)


RECORDS = 60
MEMBERS = ("a", "b", "c")


class QueueSchedules(RuleBasedStateMachine):
    """Random schedules over one partition of `RECORDS` records in batches of random sizes, some of them aborted."""

    @initialize(
        sizes=st.lists(st.integers(1, 9), min_size=RECORDS, max_size=RECORDS),
        aborted=st.sets(st.integers(0, 20), max_size=4),
        delivery_count=st.integers(2, 5),
        record_locks=st.integers(5, 40),
    )
    def begin(self, sizes: list[int], aborted: set[int], delivery_count: int, record_locks: int) -> None:
        self.limits = ShareLimits(delivery_count, record_locks, 100)
        self.queue = SharePartition(0, self.limits)
        self.batches: list[tuple[int, int, bool]] = []
        first = 0
        for number, size in enumerate(sizes):
            if first >= RECORDS:
                break
            self.batches.append((first, min(first + size, RECORDS) - 1, number in aborted))
            first += size
        self.now_ms = 0
        self.log_start = 0
        self.persisted_start = 0
        self.persisted: tuple[StateBatch, ...] = ()
        self.seen_start = 0
        self.holder: dict[int, str] = {}
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.lowest_limit = delivery_count

    def persist(self, write: StateWrite | None) -> None:
        if write is not None:
            self.persisted = merge_batches(self.persisted, write.batches, write.start_offset)
            self.persisted_start = write.start_offset

    @rule(member=st.sampled_from(MEMBERS), read=st.integers(1, 30), count=st.integers(1, 20), exact=st.booleans())
    def acquires(self, member: str, read: int, count: int, exact: bool) -> None:
        at = self.queue.next_fetch_offset
        read_batches = [batch for batch in self.batches if batch[1] >= at and batch[0] < at + read]
        if not read_batches:
            return
        found = [Span(first, last) for first, last, is_aborted in read_batches if not is_aborted]
        upto = read_batches[-1][1] + 1
        for first, last, delivery_count in self.queue.acquire(
            member, found, upto, Wanted(count, 10, exact), self.now_ms
        ):
            assert delivery_count <= self.limits.delivery_count
            for offset in range(first, last + 1):
                assert offset not in self.holder, "held by two"
                assert offset not in self.accepted | self.rejected, "delivered after it was done with"
                assert offset >= self.log_start
                assert not any(b[0] <= offset <= b[1] and b[2] for b in self.batches), "aborted"
                self.holder[offset] = member
                self.deliveries[offset] = max(delivery_count, self.deliveries.get(offset, 0))

    @rule(data=st.data(), kind=st.sampled_from(AckType))
    def acknowledges(self, data: st.DataObject, kind: AckType) -> None:
        if not self.holder:
            return
        offset = data.draw(st.sampled_from(sorted(self.holder)))
        member = self.holder[offset]
        last = offset
        while self.holder.get(last + 1) == member and data.draw(st.booleans()):
            last += 1
        if data.draw(st.booleans()):
            types = [int(kind)]
        else:
            types = data.draw(
                st.lists(st.sampled_from(AckType), min_size=last - offset + 1, max_size=last - offset + 1)
            )
        self.persist(self.queue.acknowledge(member, [Ack(offset, last, types)], self.now_ms))
        for number, one in enumerate(range(offset, last + 1)):
            kind = AckType(types[number % len(types)])
            if kind is AckType.RENEW:
                continue
            del self.holder[one]
            if kind is AckType.ACCEPT:
                self.accepted.add(one)
            elif kind is not AckType.RELEASE:
                self.rejected.add(one)

    @rule(member=st.sampled_from(MEMBERS), first=st.integers(0, RECORDS), size=st.integers(0, 9))
    def acknowledges_what_is_not_its_own(self, member: str, first: int, size: int) -> None:
        span = range(max(first, self.queue.start_offset), first + size + 1)
        if span and all(self.holder.get(offset) == member for offset in span):
            return
        with pytest.raises(KafkaError):
            self.queue.acknowledge(member, [Ack(first, first + size, [1])], self.now_ms)

    @rule(ms=st.integers(1, 150))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.persist(self.queue.expire(self.now_ms))
        self.holder = {
            offset: run.member
            for run in self.queue.runs
            if run.state is ACQUIRED
            for offset in range(run.first, run.last + 1)
        }
        assert all(run.lock_until_ms > self.now_ms for run in self.queue.runs if run.state is ACQUIRED)

    @rule(member=st.sampled_from(MEMBERS))
    def session_ends(self, member: str) -> None:
        self.persist(self.queue.release(member))
        self.holder = {offset: holder for offset, holder in self.holder.items() if holder != member}

    @rule(by=st.integers(1, 8))
    def log_start_moves(self, by: int) -> None:
        self.log_start = min(self.log_start + by, RECORDS)
        self.queue.move_start(self.log_start)
        self.holder = {offset: holder for offset, holder in self.holder.items() if offset >= self.log_start}

    @rule(delivery_count=st.integers(2, 5), record_locks=st.integers(5, 40))
    def configuration_changes(self, delivery_count: int, record_locks: int) -> None:
        self.limits = ShareLimits(delivery_count, record_locks, 100)
        self.lowest_limit = min(self.lowest_limit, delivery_count)
        self.queue.configure(self.limits)

    @rule()
    def restarts(self) -> None:
        self.queue = SharePartition.restore(self.persisted_start, self.persisted, self.limits)
        self.queue.move_start(self.log_start)
        self.seen_start = self.queue.start_offset
        self.holder = {}

    @invariant()
    def runs_cover_what_is_in_flight(self) -> None:
        position = self.queue.start_offset
        for number, run in enumerate(self.queue.runs):
            assert run.first == position
            assert run.last >= run.first
            assert 0 <= run.delivery_count <= 5
            assert run.state is not AVAILABLE or run.delivery_count < self.limits.delivery_count
            assert (run.member != "") == (run.state is ACQUIRED)
            assert not number or run[2:] != self.queue.runs[number - 1][2:], "neighbours that should be one"
            position = run.last + 1
        assert position == self.queue.end_offset

    @invariant()
    def the_start_never_goes_back(self) -> None:
        assert self.queue.start_offset >= self.seen_start
        self.seen_start = self.queue.start_offset

    @invariant()
    def nothing_is_lost(self) -> None:
        """What is over was accepted, rejected, aborted, deleted, or delivered too often."""
        over = {
            offset
            for run in self.queue.runs
            if run.state in (ACKNOWLEDGED, ARCHIVED)
            for offset in range(run.first, run.last + 1)
        }
        over |= set(range(self.queue.start_offset))
        for offset in over:
            if offset in self.accepted or offset in self.rejected or offset < self.log_start:
                continue
            if any(first <= offset <= last and is_aborted for first, last, is_aborted in self.batches):
                continue
            assert self.deliveries.get(offset, 0) >= self.lowest_limit, f"{offset} is over without a reason"


TestQueueSchedules = QueueSchedules.TestCase
TestQueueSchedules.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
