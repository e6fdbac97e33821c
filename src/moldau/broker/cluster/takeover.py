"""Replacing a controller with which most brokers lost contact.

A port that refuses connections proves that a controller is dead. One whose machine vanished refuses nothing, and the
store notices only when its own session with it ends, which may be much later. So a broker that has had no contact with
the controller for half of `broker.session.timeout.ms` asks the others whether they have (Vote with PreVote, as Kafka's
controllers do). Where a majority of the active brokers have not, it takes over the next epoch of the store.

- The majority keeps one bad link from moving the controller back and forth: who is cut off from the controller alone
  is outvoted, and fenced.
- Nothing is fenced earlier by this. The controller that was replaced has its session until all who voted have not
  heard it for the whole of it: that is when it no longer answers reads either (`leader_lease`).
- Two brokers cannot outvote each other: there the store decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.peers import Peers
from moldau.clocks import Clock
from moldau.errors import KafkaError
from moldau.metadata.image import MetadataImage
from moldau.wire.apis import ApiKey
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.messages import Schema

logger = logging.getLogger(__name__)

SILENT_FRACTION = 0.5
"""The part of a session after which the controller counts as silent: two heartbeats in a row had no answer by then."""
CHECKS_PER_SESSION = 36
VOTE_TIMEOUT_S = 1.0
VOTING = "voting"
"""The purpose of the connections on which brokers ask each other."""


class ElectionWon(NamedTuple):
    """A majority had no contact with the controller of `epoch` since `silent_since_ms`, by the monotonic clock."""

    epoch: int
    voters: frozenset[int]
    silent_since_ms: int

    def is_majority_in(self, image: MetadataImage) -> bool:
        """Checked again with what the store holds: the votes were counted with what this broker knew."""
        active = _active(image)
        return 2 * len(self.voters & active) > len(active)


def _active(image: MetadataImage) -> set[int]:
    return {id_ for id_, broker in image.brokers.items() if broker.is_active}


class Takeover:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        controller: ControllerShell,
        peers: Peers,
        *,
        take_over: Callable[[int], Awaitable[object]],
        cluster_id: Callable[[], str],
        now_s: Callable[[], float],
        monotonic_ms: Clock,
    ) -> None:
        """`take_over` begins the epoch after the one it is given; `now_s` is monotonic."""
        self._me = me
        self._metadata = metadata
        self._controller = controller
        self._peers = peers
        self._take_over = take_over
        self._cluster_id = cluster_id
        self._now_s = now_s
        self._monotonic_ms = monotonic_ms
        self._contact_s = self._checked_s = now_s()
        self.won: ElectionWon | None = None

    @property
    def _silent_s(self) -> float:
        return SILENT_FRACTION * self._me.config.broker_session_timeout_ms / 1000

    def on_contact(self, epoch: int) -> None:
        """The controller of `epoch` answered just now, or the store tells of it."""
        if epoch == self._controller.epoch:
            self._contact_s = self._now_s()

    def grants_vote(self, epoch: int) -> bool:
        """Whether this broker, too, has lost contact with the controller of `epoch`."""
        term = self._controller.term
        return (
            term is not None
            and term.epoch == epoch
            and term.node_id != self._me.node_id
            and self._now_s() - max(self._contact_s, self._resumed_s) > self._silent_s
        )

    @property
    def _resumed_s(self) -> float:
        """Now, where this process was suspended: the silence may be its own."""
        now_s = self._now_s()
        return now_s if now_s - self._checked_s > self._silent_s / 2 else 0.0

    async def run(self) -> None:
        while True:
            self._contact_s = max(self._contact_s, self._resumed_s)
            self._checked_s = self._now_s()
            epoch = self._controller.epoch
            if self.grants_vote(epoch):
                await self._request_votes(epoch)
            await asyncio.sleep(self._me.config.broker_session_timeout_ms / 1000 / CHECKS_PER_SESSION)

    async def _request_votes(self, epoch: int) -> None:
        node_id, controller_id = self._me.node_id, self._controller.leader_id
        image = self._metadata.newest
        others = [id_ for id_ in _active(image) if id_ not in (node_id, controller_id)]
        granted = await asyncio.gather(*(self._request_vote(id_, epoch) for id_ in others))
        self._checked_s = self._now_s()
        voters = frozenset(id_ for id_, grants in zip(others, granted, strict=True) if grants) | {node_id}
        won = ElectionWon(epoch, voters, self._monotonic_ms() - int(self._silent_s * 1000))
        if not won.is_majority_in(image) or not self.grants_vote(epoch):
            return
        if self.won is None or self.won.epoch != epoch:
            logger.warning(
                "most brokers lost contact with the controller: this broker takes over",
                extra={"controller": controller_id, "epoch": epoch, "voters": sorted(voters)},
            )
        self.won = won
        await self._take_over(epoch)

    async def _request_vote(self, broker_id: int, epoch: int) -> bool:
        def build(schema: Schema) -> Any:
            partition = schema.PartitionData(
                partition_index=0,
                replica_epoch=epoch,
                replica_id=self._me.node_id,
                replica_directory_id=None,
                voter_directory_id=None,
                last_offset_epoch=epoch,
                last_offset=self._metadata.newest.version,
                pre_vote=True,
            )
            topic = schema.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
            return schema.VoteRequest(cluster_id=self._cluster_id(), voter_id=broker_id, topics=(topic,))

        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(VOTE_TIMEOUT_S):
                peer = self._peers.broker(broker_id, VOTING)
                answer = await peer.ask(ApiKey.VOTE, build, timeout_s=VOTE_TIMEOUT_S)
            return any(part.vote_granted for topic in answer.topics for part in topic.partitions)
        return False
