"""Where a follower's log and its leader's diverge: what the leader answers, and where the follower truncates. No I/O.

Two logs agree up to the end of the last leader epoch that both know. The follower says with each fetch which epoch its
last record has; a leader whose own log ends that epoch earlier, or does not have it, answers with the newest epoch
it knows up to that one and where it ended. That may take some rounds: each ends at an epoch of the follower
that the leader has not compared yet.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moldau.errors import OffsetOutOfRangeError

UNDEFINED = -1


class LeaderLog(Protocol):
    """The parts of a log that are needed to check a reader's position."""

    @property
    def name(self) -> str: ...

    log_start_offset: int
    log_end_offset: int

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]: ...


def last_common_epoch(log: LeaderLog, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
    """The epoch, and its end, up to which `log` agrees with a reader whose last record is none of it; None where it is.

    OffsetOutOfRangeError for a position that the log does not have.
    """
    if fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(f"{log.name} starts at offset {log.log_start_offset}")
    if last_fetched_epoch >= 0:
        epoch, end_offset = log.offset_for_leader_epoch(last_fetched_epoch)
        if epoch < 0 or end_offset < 0:
            raise OffsetOutOfRangeError(f"{log.name} has no records of epoch {last_fetched_epoch}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
    if fetch_offset > log.log_end_offset:
        raise OffsetOutOfRangeError(f"{log.name} ends at offset {log.log_end_offset}")
    return None


def truncation_offset(
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
