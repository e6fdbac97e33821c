"""Whether this broker may still answer reads of the partitions it leads.

A leader that was suspended for a while, or cut off, may have a successor without knowing: its readers would not see
what others have acknowledged since. So it answers them only while it holds a lease, renewed by contact with others:

- A process that was suspended for most of a session answers no reads until the controller answers a heartbeat sent
  after it resumed. If it is the controller itself, it waits until the store had time to depose it; once it is
  deposed, its own heartbeats to itself count for nothing.
- The controller's heartbeats to itself count only as long as so many brokers get its answers that the others cannot
  replace it (`takeover`). A broker's heartbeat proves that the answer to the one before arrived; it says nothing of the
  time at which it was sent itself, because it may have waited while this process was suspended. So a proof is up to two
  intervals old, half of a session at most.
- A leader that has not heard from the controller for so long goes on as long as an in-sync follower fetches from it:
  then it is the controller that is lost, and no other leader can have been elected.

Writes need no lease: they are acknowledged by the in-sync replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.errors import ErrorCode, KafkaError

LEASE_FRACTION_OF_SESSION = 0.75
"""A lease ends before the controller, or the store, counts this broker as lost."""
TICKS_PER_LEASE = 8
DEPOSED_GRACE_S = 1.0
"""How soon a controller that was suspended learns from the store that it has a successor."""


class LeasedPartition(Protocol):
    """As much of a `Partition` as a reader has to have checked."""

    @property
    def name(self) -> str: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    def has_follower_contact(self, within_ms: int) -> bool: ...


class Controller(Protocol):
    """As much of the `ControllerShell` as tells whether this broker may still be the controller."""

    @property
    def is_active(self) -> bool: ...

    @property
    def deposed_s(self) -> float: ...

    @property
    def majority_contact_s(self) -> float: ...


class ReadLease(Protocol):
    def may_be_expired(self) -> bool:
        """Whether the partitions of a read have to be checked one by one; asked once for each request."""
        ...

    def check(self, partition: LeasedPartition) -> None:
        """When it may be expired: NOT_LEADER_OR_FOLLOWER where this broker perhaps no longer leads."""
        ...


class NoLease:
    """For a standalone broker: no other broker can lead its partitions."""

    def may_be_expired(self) -> bool:
        return False

    def check(self, partition: LeasedPartition) -> None:
        return


class LeaderLease:
    def __init__(self, me: LocalBroker, controller: Controller, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._me = me
        self._controller = controller
        self._now_s = now_s
        self._ticked_s = self._answered_s = now_s()
        self._resumed_s = 0.0
        self._answered_itself_s = 0.0
        """When it sent the newest heartbeat that it answered itself, as the controller."""

    @property
    def _lease_s(self) -> float:
        return LEASE_FRACTION_OF_SESSION * self._me.config.broker_session_timeout_ms / 1000

    async def run(self) -> None:
        """Ticks now and then: a long gap between two ticks is a time in which this process was suspended."""
        while True:
            self._tick(self._now_s())
            await asyncio.sleep(self._lease_s / TICKS_PER_LEASE)

    def on_heartbeat_answered(self, sent_s: float) -> None:
        """The controller answered what this broker sent at that time."""
        if self._controller.is_active:
            if sent_s < self._valid_from_s + DEPOSED_GRACE_S:
                return
            self._answered_itself_s = sent_s
            self._count_majority()
        else:
            self._answered_s = max(self._answered_s, sent_s)

    def _count_majority(self) -> None:
        self._answered_s = max(self._answered_s, min(self._answered_itself_s, self._controller.majority_contact_s))

    def may_be_expired(self) -> bool:
        now_s, lease_s = self._now_s(), self._lease_s
        if now_s - self._ticked_s > lease_s:
            self._tick(now_s)  # what waited in the sockets comes before any timer
        if now_s - self._answered_s > lease_s and self._controller.is_active:
            self._count_majority()  # by what other brokers proved since its last heartbeat to itself
        return self._was_suspended or now_s - self._answered_s > lease_s

    @property
    def _was_suspended(self) -> bool:
        return self._answered_s < self._valid_from_s

    @property
    def _valid_from_s(self) -> float:
        """What was answered before proves nothing: this process was suspended, or was the controller that answered."""
        return max(self._resumed_s, self._controller.deposed_s)

    def check(self, partition: LeasedPartition) -> None:
        if not partition.is_leader or len(partition.replicas) == 1:
            return
        # A controller without a lease may have been replaced, and its followers with it: they prove nothing.
        is_replaced = self._was_suspended or self._controller.is_active
        if is_replaced or not partition.has_follower_contact(int(self._lease_s * 1000)):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{partition.name} may have a new leader: this broker has lost contact with the controller",
            )

    def _tick(self, now_s: float) -> None:
        if now_s - self._ticked_s > self._lease_s:
            self._resumed_s = now_s
        self._ticked_s = now_s
