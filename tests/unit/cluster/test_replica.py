"""The leader's side of replication: high watermark and in-sync set, as promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.cluster.replica import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Follower, IsrChange, LeaderState
from moldau.errors import ErrorCode
from moldau.metadata.image import PartitionImage
from tests.examples import examples

LEADER = 1
LAG_MS = 1000


@dataclass
class World:
    lag_time_max_ms: int = LAG_MS
    epochs: dict[int, int] = field(default_factory=lambda: {2: 7, 3: 7})

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return self.epochs.get(broker_id) == broker_epoch


def image(isr: tuple[int, ...] = (1, 2, 3), *, leader_epoch: int = 5, partition_epoch: int = 9) -> PartitionImage:
    return PartitionImage(0, LEADER, leader_epoch, (1, 2, 3), isr, partition_epoch)


def leadership(isr: tuple[int, ...] = (1, 2, 3), *, log_end_offset: int = 0, world: World | None = None) -> LeaderState:
    return LeaderState(LEADER, image(isr), world or World(), log_end_offset=log_end_offset, now_ms=0)


def fetch(
    lead: LeaderState, broker_id: int, offset: int, log_end_offset: int, now_ms: int = 0, *, epoch: int = 7
) -> None:
    lead.followers[broker_id].fetched(
        offset, log_start_offset=0, leader_end_offset=log_end_offset, broker_epoch=epoch, now_ms=now_ms
    )


def high_watermark(
    lead: LeaderState,
    log_end_offset: int,
    known: int = 0,
    *,
    durable_end_offset: int | None = None,
    min_isr: int = 1,
    now_ms: int = 0,
) -> int:
    return lead.high_watermark(
        known,
        log_end_offset=log_end_offset,
        durable_end_offset=log_end_offset if durable_end_offset is None else durable_end_offset,
        min_isr=min_isr,
        now_ms=now_ms,
    )


def test_the_high_watermark_is_where_the_slowest_in_sync_replica_is() -> None:
    lead = leadership()
    fetch(lead, 2, 10, 12)
    assert high_watermark(lead, 12) == 0, "broker 3 has not said anything yet"
    fetch(lead, 3, 7, 12)
    assert high_watermark(lead, 12) == 7
    fetch(lead, 3, 12, 12)
    assert high_watermark(lead, 12) == 10


def test_the_leader_counts_with_what_is_on_its_disk() -> None:
    lead = leadership()
    fetch(lead, 2, 12, 12)
    fetch(lead, 3, 12, 12)
    assert high_watermark(lead, 12, durable_end_offset=9) == 9
    assert high_watermark(lead, 12, known=10, durable_end_offset=9) == 10, "it never falls"
    assert high_watermark(leadership((1,)), 12, durable_end_offset=9, now_ms=LAG_MS + 1) == 9


def test_a_leader_that_is_alone_in_sync_commits_what_it_has() -> None:
    assert high_watermark(leadership((1,)), 12, now_ms=LAG_MS + 1) == 12


def test_the_high_watermark_never_falls() -> None:
    lead = leadership()
    fetch(lead, 2, 3, 12)
    fetch(lead, 3, 3, 12)
    assert high_watermark(lead, 12, known=8) == 8


def test_below_min_insync_replicas_nothing_is_committed() -> None:
    lead = leadership((1, 2))
    fetch(lead, 2, 12, 12)
    assert high_watermark(lead, 12, min_isr=3, now_ms=LAG_MS + 1) == 0
    assert high_watermark(lead, 12, min_isr=2, now_ms=LAG_MS + 1) == 12


def test_a_replica_that_keeps_up_is_waited_for_before_it_is_in_sync() -> None:
    lead = leadership((1, 2))
    fetch(lead, 2, 12, 12)
    fetch(lead, 3, 10, 10, now_ms=500)  # it had everything, half a second ago
    assert high_watermark(lead, 12, now_ms=600) == 10
    assert high_watermark(lead, 12, now_ms=500 + LAG_MS + 1) == 12


def test_a_replica_that_does_not_follow_any_more_is_neither_waited_for_nor_taken_back() -> None:
    lead = leadership((1, 2))
    fetch(lead, 2, 12, 12)
    fetch(lead, 3, 10, 10, now_ms=500)
    lead.followers[3].log_end_offset = UNKNOWN_OFFSET
    assert high_watermark(lead, 12, now_ms=600) == 12
    assert lead.grow(0) is None


def test_a_follower_joins_with_all_that_is_committed_and_the_beginning_of_the_epoch() -> None:
    lead = leadership((1,), log_end_offset=10)
    fetch(lead, 2, 9, 12)
    assert lead.grow(8) is None, "the epoch began at 10"
    fetch(lead, 2, 10, 12)
    assert lead.grow(11) is None, "11 are committed"
    assert lead.grow(10) == IsrChange(((1, -1), (2, 7)), 5, 9)
    assert lead.maximal_isr == {1, 2}
    assert lead.isr == {1}, "the controller has yet to agree"


def test_a_pending_member_counts_for_the_high_watermark_but_not_for_min_insync_replicas() -> None:
    lead = leadership((1,))
    fetch(lead, 2, 5, 5)
    assert lead.grow(5) is not None
    assert high_watermark(lead, 9, now_ms=2 * LAG_MS) == 5
    assert high_watermark(lead, 5, min_isr=2, now_ms=2 * LAG_MS) == 0


def test_an_earlier_life_of_a_broker_cannot_join() -> None:
    lead = leadership((1,))
    fetch(lead, 2, 5, 5, epoch=6)
    assert lead.grow(5) is None


def test_a_life_of_a_broker_that_is_not_registered_cannot_join_nor_vouch_for_the_next() -> None:
    world = World(epochs={2: UNKNOWN_EPOCH, 3: 7})
    lead = leadership((1,), world=world)
    fetch(lead, 2, 12, 12, epoch=UNKNOWN_EPOCH)
    assert lead.grow(12) is None


def test_a_follower_that_is_behind_for_too_long_is_dropped_when_the_metadata_says_so() -> None:
    """Not with the answer: that may overtake a record of a higher `min.insync.replicas`."""
    lead = leadership()
    fetch(lead, 2, 12, 12, now_ms=900)
    fetch(lead, 3, 4, 12, now_ms=900)
    assert lead.shrink(12, LAG_MS) is None, "it was in sync when the leader began"
    change = lead.shrink(12, LAG_MS + 1)
    assert change is not None
    assert change.broker_ids == (1, 2)
    assert lead.maximal_isr == {1, 2, 3}
    assert high_watermark(lead, 12, now_ms=LAG_MS + 1) == 4, "the controller may still make broker 3 leader"
    assert not lead.accepted(change, (1, 2), 5, 10)
    assert high_watermark(lead, 12, now_ms=LAG_MS + 1) == 4
    lead.follow_image(image((1, 2), partition_epoch=10), log_end_offset=12, now_ms=LAG_MS + 1)
    assert lead.pending is None
    assert high_watermark(lead, 12, now_ms=LAG_MS + 1) == 12


def test_a_silent_follower_stays_in_sync_while_there_is_nothing_to_fetch() -> None:
    lead = leadership()
    fetch(lead, 2, 12, 12)
    fetch(lead, 3, 12, 12)
    assert lead.shrink(12, 100 * LAG_MS) is None


def test_a_follower_that_always_fetches_what_the_leader_had_keeps_up() -> None:
    follower = Follower(2, last_caught_up_ms=0)
    for turn in range(1, 6):
        end = 10 * turn
        follower.fetched(end - 10, log_start_offset=0, leader_end_offset=end, broker_epoch=7, now_ms=400 * turn)
    assert follower.is_caught_up(60, 400 * 5 + LAG_MS - 400, LAG_MS)
    assert not follower.is_caught_up(60, 400 * 4 + LAG_MS + 1, LAG_MS)


def test_one_change_is_under_way_at_a_time() -> None:
    lead = leadership((1, 3))
    fetch(lead, 2, 5, 5)
    assert lead.grow(5) is not None
    assert lead.grow(5) is None
    assert lead.shrink(5, 10 * LAG_MS) is None


def test_a_change_that_the_controller_did_not_make_is_taken_back() -> None:
    lead = leadership((1,))
    fetch(lead, 2, 5, 5)
    change = lead.grow(5)
    assert change is not None
    assert not lead.refused(change, ErrorCode.INELIGIBLE_REPLICA)
    assert lead.maximal_isr == {1}
    assert lead.pending is None


def test_without_an_answer_the_change_is_sent_again_and_may_have_happened() -> None:
    lead = leadership((1,))
    fetch(lead, 2, 5, 5)
    change = lead.grow(5)
    assert change is not None
    assert lead.refused(change, ErrorCode.REQUEST_TIMED_OUT)
    assert lead.maximal_isr == {1, 2}
    assert not lead.refused(change, ErrorCode.INVALID_UPDATE_VERSION), "newer metadata is on its way"
    assert lead.maximal_isr == {1, 2}
    lead.follow_image(image((1, 2), partition_epoch=10), log_end_offset=5, now_ms=0)
    assert lead.isr == {1, 2}
    assert lead.pending is None


def test_metadata_that_is_older_than_the_controllers_answer_changes_nothing() -> None:
    lead = leadership((1,))
    fetch(lead, 2, 5, 5)
    change = lead.grow(5)
    assert change is not None
    lead.follow_image(image((1,)), log_end_offset=5, now_ms=0)
    assert lead.pending is change, "the same metadata once more is no answer"
    assert lead.accepted(change, (1, 2), 5, 11)
    lead.follow_image(image((1,), partition_epoch=10), log_end_offset=5, now_ms=0)
    assert lead.isr == {1, 2}


def test_a_new_epoch_of_the_same_leader_begins_at_its_log_end() -> None:
    lead = leadership()
    lead.follow_image(image(leader_epoch=6, partition_epoch=10), log_end_offset=42, now_ms=5)
    assert (lead.leader_epoch, lead.epoch_start_offset) == (6, 42)


def test_what_followers_had_in_an_earlier_epoch_commits_nothing_in_a_later_one() -> None:
    """Epoch 6 was another leader's, known here only together with 7: broker 2 followed it, and cut its log."""
    lead = leadership()
    fetch(lead, 2, 12, 12)
    fetch(lead, 3, 9, 12)
    lead.follow_image(image(leader_epoch=7, partition_epoch=11), log_end_offset=12, now_ms=5)
    fetch(lead, 3, 12, 12)
    assert high_watermark(lead, 12, known=9) == 9
    fetch(lead, 2, 12, 12)
    assert high_watermark(lead, 12, known=9) == 12
    assert lead.shrink(12, LAG_MS) is None, "whoever is in sync has a whole period from the beginning of the epoch"


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("fetch"), st.sampled_from((2, 3)), st.integers(0, 8)),
        st.tuples(st.just("tick"), st.integers(1, LAG_MS), st.just(0)),
        st.tuples(st.just("die"), st.sampled_from((2, 3)), st.just(0)),
        st.tuples(st.just("revive"), st.sampled_from((2, 3)), st.just(0)),
        st.tuples(st.just("answer"), st.booleans(), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(400), deadline=None)
@given(EVENTS, st.integers(1, 3))
def test_whoever_may_lead_next_has_every_committed_record(events: list[tuple[str, int, int]], min_isr: int) -> None:
    """With any mix of appends, fetches, silence, deaths and answers that come or get lost after the change was made."""
    world = World()
    lead = leadership(world=world)
    has = {1: 0, 2: 0, 3: 0}
    elected_from = frozenset((1, 2, 3))  # the ISR as the controller has it
    known = now_ms = 0
    partition_epoch = 9
    for kind, number, extra in events:
        if kind == "append":
            has[1] += number
        elif kind == "fetch":
            fetch(lead, number, has[number], has[1], now_ms, epoch=world.epochs.get(number, 7))
            has[number] = min(has[1], has[number] + extra)
            lead.grow(known)
        elif kind == "tick":
            now_ms += number
            lead.shrink(has[1], now_ms)
        elif kind == "die":
            world.epochs.pop(number, None)
        elif kind == "revive":
            world.epochs.setdefault(number, 7)
        elif lead.pending is not None:
            change = lead.pending
            if change.partition_epoch == partition_epoch:
                elected_from = frozenset(change.broker_ids)
                partition_epoch += 1
            if number:
                if not lead.accepted(change, tuple(elected_from), 5, partition_epoch):
                    lead.follow_image(
                        image(tuple(elected_from), partition_epoch=partition_epoch),
                        log_end_offset=has[1],
                        now_ms=now_ms,
                    )
                assert lead.pending is None
            else:
                assert lead.refused(change, ErrorCode.NETWORK_EXCEPTION)
        moved = high_watermark(lead, has[1], known, min_isr=min_isr, now_ms=now_ms)
        assert moved >= known
        known = moved
        assert all(known <= has[broker_id] for broker_id in elected_from)
        assert lead.isr <= lead.maximal_isr
