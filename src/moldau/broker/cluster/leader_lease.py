"""Whether this broker may still speak for the partitions it leads.

A leader that hung for a while, or was cut off, may have a successor without knowing: its readers would not see what
others have acknowledged since. So it answers them only while somebody hears it:

- A process that stood still for most of a session answers no reads until the controller answers a heartbeat sent
  after it woke up. If it is the controller itself, it waits until the store had time to depose it; once it is
  deposed, its own heartbeats to itself count for nothing.
- The controller's heartbeats to itself count only as long as so many brokers get its answers that the others cannot
  replace it (`takeover`). A broker's heartbeat proves that the answer to the one before arrived; it says nothing of the
  time at which it was sent itself, because it may have waited while this process stood still. So a proof is up to two
  intervals old, half of a session at most.
- A leader that has not heard of the controller for so long goes on as long as an in-sync follower fetches from it:
  then it is the controller that is away, and nobody else can have been elected.

Writes need no vigil: they are acknowledged by the in-sync replicas.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode
    from moldau.broker.replicas.partition import Partition

SHARE_OF_SESSION = 0.75
"""A leader doubts itself before the controller, or the store, counts it as gone."""
NOTES_PER_LIMIT = 8
DEPOSED_WITHIN_S = 1.0
"""How soon a controller that woke up learns from the store that it has a successor."""


class Vigil:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        now_s = node.loop.time()
        self._noted_s = now_s
        self._woke_s = 0.0
        self._heard_s = now_s
        self._heard_itself_s = 0.0
        """When it sent the newest heartbeat that it answered itself, as the controller."""

    @property
    def _limit_s(self) -> float:
        return SHARE_OF_SESSION * self._node.config.broker_session_timeout_ms / 1000

    async def keep(self) -> None:
        """Notes the time now and then: a gap between two notes is a time in which this process stood still."""
        while True:
            self._note(self._node.loop.time())
            await asyncio.sleep(self._limit_s / NOTES_PER_LIMIT)

    def heard(self, sent_s: float) -> None:
        """The controller answered what this broker sent at that time."""
        controller = self._node.controller
        if controller.is_active:
            if sent_s < self._woke_s + DEPOSED_WITHIN_S:
                return
            self._heard_itself_s = sent_s
            self._count_backing()
        else:
            self._heard_s = max(self._heard_s, sent_s)

    def _count_backing(self) -> None:
        self._heard_s = max(self._heard_s, min(self._heard_itself_s, self._node.controller.backed_s))

    def deposed(self) -> None:
        """This broker heard of itself, as the controller, and is it no more: that says nothing now."""
        self._woke_s = self._node.loop.time()

    def is_in_doubt(self) -> bool:
        """Whether readers' partitions have to be checked one by one; asked once for each request."""
        now_s, limit_s = self._node.loop.time(), self._limit_s
        if now_s - self._noted_s > limit_s:
            self._note(now_s)  # what waited in the sockets comes before any timer
        if now_s - self._heard_s > limit_s and self._node.controller.is_active:
            self._count_backing()  # by what other brokers proved since its last heartbeat to itself
        return self._slept or now_s - self._heard_s > limit_s

    @property
    def _slept(self) -> bool:
        return self._heard_s < self._woke_s

    def check(self, partition: Partition) -> None:
        """While in doubt: NOT_LEADER_OR_FOLLOWER for a reader, where this broker leads perhaps no more."""
        if not partition.is_leader or len(partition.replicas) == 1:
            return
        # A controller in doubt may have been replaced, and its followers with it: they prove nothing.
        is_replaced = self._slept or self._node.controller.is_active
        if is_replaced or not partition.hears_a_follower(int(self._limit_s * 1000)):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} may have another leader: this one heard of nobody"
            )

    def _note(self, now_s: float) -> None:
        if now_s - self._noted_s > self._limit_s:
            self._woke_s = now_s
        self._noted_s = now_s
