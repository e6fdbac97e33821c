"""What a follower decides: where to cut its log when it and the leader disagree. No I/O.

Two logs agree up to the end of the last leader epoch that both know. The follower says with each fetch which epoch its
last record has; a leader whose own log ends that epoch earlier, or has never heard of it, answers with the newest epoch
it knows up to that one and where it ended. That may take some rounds: each ends at an epoch of the follower
that the leader has yet to judge.
"""

from __future__ import annotations

from typing import NamedTuple

UNDEFINED = -1


def truncation(
    leader_epoch: int,
    leader_end_offset: int,
    *,
    own_epoch: int,
    own_end_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> int:
    """The offset to cut at, when the leader's `leader_epoch` ended at `leader_end_offset`.

    `own_epoch` is the newest epoch here up to `leader_epoch`, and `own_end_offset` its end, both -1 if there is none.
    """
    if leader_end_offset == UNDEFINED:
        return min(high_watermark, log_end_offset)
    if UNDEFINED in (leader_epoch, own_epoch):
        return min(leader_end_offset, log_end_offset)
    if own_epoch != leader_epoch:
        return min(own_end_offset, log_end_offset)  # the next fetch asks about the epoch that is the last one then
    return min(own_end_offset, leader_end_offset, log_end_offset)


class OutOfRange(NamedTuple):
    """What to do where the leader does not have the offset that was asked for."""

    offset: int
    starts_over: bool
    """Everything goes; the log begins again at `offset`."""


def out_of_range(leader_start_offset: int, leader_end_offset: int, log_end_offset: int) -> OutOfRange:
    if leader_end_offset < log_end_offset:
        return OutOfRange(leader_end_offset, False)
    if leader_start_offset > log_end_offset:
        return OutOfRange(leader_start_offset, True)
    return OutOfRange(log_end_offset, False)
