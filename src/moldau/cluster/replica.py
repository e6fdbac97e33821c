"""What the leader of a partition knows of its followers, and what follows from it: high watermark and in-sync set.

    committed ISR   as the newest metadata has it
    maximal ISR     the same, with those whom a pending AlterPartition would add: the controller may have done it

The high watermark is the lowest log end over the maximal ISR, so whoever the controller makes leader next has every
record below it. Where `flush.messages` asks for the disk, each replica counts with what is on its disk: a follower
fetches from there, and the leader has its durable end offset. A replica that keeps up but is not in the ISR yet is
waited for, too, or it could never catch up with a busy leader. Below `min.insync.replicas` the high watermark does not
move. It never falls.

A change of the ISR is proposed, sent to the controller by the caller, and holds when the controller says so. As long as
the answer is not known, nothing else is proposed and no replica is dropped: a leader without contact to the controller
can commit no more than its committed ISR has. A dropped replica counts until the metadata drops it: the answer may
overtake a record of another `min.insync.replicas`, under which the controller keeps the dropped one eligible, and a
leader that still goes by the lower value would commit without it.

No I/O and no clock. What a follower decides is in `follower.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from moldau.errors import ErrorCode
from moldau.metadata.image import PartitionImage

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER_MS = -(2**62)
"""Before anything that can have happened: a monotonic clock may start at any value."""

_NOT_APPLIED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller changed nothing, and has no newer metadata than this broker."""
_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The controller has newer metadata; it will arrive with the next fetch."""


class ReplicaContext(Protocol):
    """What a leader has to know beside its partition."""

    @property
    def lag_time_max_ms(self) -> int: ...

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker may join an ISR: alive, not shutting down, and registered with that epoch."""
        ...


class IsrChange(NamedTuple):
    """A proposal to the controller; broker epochs of the leader itself are for the sender to fill in."""

    isr: tuple[tuple[int, int], ...]  # broker id, broker epoch
    leader_epoch: int
    partition_epoch: int

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id, _ in self.isr)


class Follower:
    """One of the other replicas, as its fetches show it."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end = UNKNOWN_OFFSET

    def fetched(
        self, offset: int, *, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """A fetch from `offset` says that the follower has everything below it.

        It was caught up when it last had all that the leader had when it fetched before.
        """
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end = leader_end_offset
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def was_caught_up_at(self, fetch_ms: int) -> None:
        """It had everything when it fetched at `fetch_ms`, in a session that does not name what stayed the same."""
        self.last_caught_up_ms = max(self.last_caught_up_ms, fetch_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms


class LeaderState:
    """From the moment a replica becomes leader until it is not any more."""

    __slots__ = (
        "_cluster",
        "broker_id",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "maximal_isr",
        "partition_epoch",
        "pending",
    )

    def __init__(
        self, broker_id: int, image: PartitionImage, cluster: ReplicaContext, *, log_end_offset: int, now_ms: int
    ) -> None:
        self.broker_id = broker_id
        self._cluster = cluster
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.epoch_start_offset = log_end_offset
        self.isr = self.maximal_isr = frozenset(image.isr)
        self.pending: IsrChange | None = None
        self.followers: dict[int, Follower] = {}
        self._match_followers(image, now_ms)

    def follow_image(self, image: PartitionImage, *, log_end_offset: int, now_ms: int) -> None:
        """Newer metadata of a partition that this replica goes on leading."""
        if image.partition_epoch < self.partition_epoch:
            return  # the controller's answer was faster than its records
        if image.partition_epoch > self.partition_epoch:
            self.partition_epoch = image.partition_epoch
            self._commit(image.isr)
        if image.leader_epoch > self.leader_epoch:
            self.leader_epoch = image.leader_epoch
            self.epoch_start_offset = log_end_offset
            self.followers = {}  # with another leader in between, they may have truncated what they reported
        self._match_followers(image, now_ms)

    def _match_followers(self, image: PartitionImage, now_ms: int) -> None:
        followers = self.followers
        self.followers = {
            broker_id: followers.get(broker_id) or Follower(broker_id, now_ms if broker_id in self.isr else NEVER_MS)
            for broker_id in image.replicas
            if broker_id != self.broker_id
        }

    # -- the high watermark

    def high_watermark(
        self, known: int, *, log_end_offset: int, durable_end_offset: int, min_isr: int, now_ms: int
    ) -> int:
        """Where it may stand, given that it was `known` before. The leader itself has what is durable on its disk."""
        if len(self.isr) < min_isr:
            return known
        lowest = durable_end_offset
        for follower in self.followers.values():
            if follower.log_end_offset < lowest and (
                follower.broker_id in self.maximal_isr or self._is_about_to_join(follower, log_end_offset, now_ms)
            ):
                lowest = follower.log_end_offset
        return max(known, lowest)

    def _is_about_to_join(self, follower: Follower, log_end_offset: int, now_ms: int) -> bool:
        if follower.log_end_offset == UNKNOWN_OFFSET:
            return False  # it does not follow any more, or not yet
        lag_ms = self._cluster.lag_time_max_ms
        return follower.is_caught_up(log_end_offset, now_ms, lag_ms) and self._is_eligible(follower)

    def _is_eligible(self, follower: Follower) -> bool:
        # A fetch of a process that is not registered yet may be its last: it says nothing about a later process.
        known = follower.broker_epoch != UNKNOWN_EPOCH
        return known and self._cluster.is_eligible(follower.broker_id, follower.broker_epoch)

    # -- the in-sync set

    def grow(self, high_watermark: int) -> IsrChange | None:
        """Proposes those who came back: they have all that is committed, and this epoch's beginning."""
        if self.pending is not None or len(self.isr) > len(self.followers):
            return None
        needed = max(high_watermark, self.epoch_start_offset)
        joining = [
            follower.broker_id
            for follower in self.followers.values()
            if follower.broker_id not in self.isr and follower.log_end_offset >= needed and self._is_eligible(follower)
        ]
        if not joining:
            return None
        self.maximal_isr = self.isr.union(joining)
        return self._propose(self.maximal_isr)

    def shrink(self, log_end_offset: int, now_ms: int) -> IsrChange | None:
        """Proposes to go on without those who are behind for too long. They count until the controller agrees."""
        if self.pending is not None:
            return None
        lag_ms = self._cluster.lag_time_max_ms
        lagging = [
            follower.broker_id
            for follower in self.followers.values()
            if follower.broker_id in self.isr and not follower.is_caught_up(log_end_offset, now_ms, lag_ms)
        ]
        return self._propose(self.isr.difference(lagging)) if lagging else None

    def _propose(self, isr: Iterable[int]) -> IsrChange:
        epochs = {broker_id: follower.broker_epoch for broker_id, follower in self.followers.items()}
        members = tuple((broker_id, epochs.get(broker_id, UNKNOWN_EPOCH)) for broker_id in sorted(isr))
        self.pending = IsrChange(members, self.leader_epoch, self.partition_epoch)
        return self.pending

    def accepted(self, change: IsrChange, isr: Iterable[int], leader_epoch: int, partition_epoch: int) -> bool:
        """The controller accepted; False if the state has changed since, or if metadata has to confirm it first."""
        if change is not self.pending or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        if not self.isr.issubset(isr):
            return False
        self.partition_epoch = partition_epoch
        self._commit(isr)
        return True

    def refused(self, change: IsrChange, code: ErrorCode) -> bool:
        """The controller refused or did not answer; True if the same change has to be sent again."""
        if change is not self.pending:
            return False
        if code in _NOT_APPLIED:
            self._commit(self.isr)
            return False
        return code not in _STALE_METADATA

    def _commit(self, isr: Iterable[int]) -> None:
        self.isr = self.maximal_isr = frozenset(isr)
        self.pending = None
