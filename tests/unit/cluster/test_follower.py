"""Where a follower cuts its log, so that it and the leader agree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.cluster.follower import OutOfRange, out_of_range, truncation_offset
from tests.examples import examples


def test_a_follower_that_wrote_more_in_an_epoch_cuts_where_the_leader_ended_it() -> None:
    assert _cut(leader=(3, 10), own=(3, 15), log_end=15) == 10


def test_a_follower_that_wrote_less_keeps_what_it_has() -> None:
    assert _cut(leader=(3, 20), own=(3, 15), log_end=18) == 15


def test_a_follower_without_the_leaders_epoch_cuts_to_the_newest_before_it() -> None:
    assert _cut(leader=(3, 20), own=(2, 12), log_end=18) == 12


def test_a_leader_that_knows_no_end_leaves_what_was_committed() -> None:
    assert _cut(leader=(-1, -1), own=(-1, -1), log_end=18, high_watermark=7) == 7


def _cut(leader: tuple[int, int], own: tuple[int, int], log_end: int, high_watermark: int = 0) -> int:
    return truncation_offset(
        *leader, own_epoch=own[0], own_end_offset=own[1], log_end_offset=log_end, high_watermark=high_watermark
    )


@pytest.mark.parametrize(
    ("start", "end", "own_end", "expected"),
    [
        (5, 10, 20, OutOfRange(10, False)),  # the leader lost its end: an unclean election
        (5, 10, 3, OutOfRange(5, True)),  # deleted here and not there: begin where the leader does
        (0, 10, 0, OutOfRange(0, False)),
        (5, 10, 7, OutOfRange(7, False)),
    ],
)
def test_a_log_that_the_leader_cannot_continue_is_cut_or_begun_anew(
    start: int, end: int, own_end: int, expected: OutOfRange
) -> None:
    assert out_of_range(start, end, own_end) == expected


Log = list[int]  # the epoch of each record


def _end_of(log: Log, epoch: int) -> tuple[int, int]:
    """As `EpochCache.end_offset_for`, on a log that begins at 0."""
    if not log or epoch > log[-1]:
        return -1, -1
    known = [one for one in log if one <= epoch]
    if not known:
        return epoch, 0
    return known[-1], len(known)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12), st.integers(0, 12))
def test_after_some_rounds_the_follower_has_a_prefix_of_the_leaders_log(
    ours: list[int], theirs: list[int], common: int
) -> None:
    """Two logs that share a beginning and then went their own ways, as leaders of different epochs left them."""
    shared = sorted(ours)[:common]
    newest = shared[-1] if shared else 0
    # An epoch has one leader: after the common part, no epoch was written by both.
    leader = shared + sorted(2 * one + newest + 1 for one in theirs) + [100]
    follower = shared + sorted(2 * one + newest + 2 for one in ours)
    for _ in range(len(follower) + 2):
        if not follower:
            break
        epoch, end = _end_of(leader, follower[-1])
        if epoch == follower[-1] and end >= len(follower):
            break
        own_epoch, own_end = _end_of(follower, epoch)
        cut = _cut(leader=(epoch, end), own=(own_epoch, own_end), log_end=len(follower))
        assert cut < len(follower), "each round cuts something"
        follower = follower[:cut]
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(shared)
