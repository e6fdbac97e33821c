"""Replacing a controller that most brokers no longer hear.

A port that refuses connections proves that a controller is dead. One whose machine vanished says nothing, and the
store notices only when its own session with it ends, which may be much later. So a broker that has heard nothing from
the controller for half of `broker.session.timeout.ms` asks the others whether they have (Vote with PreVote, as Kafka's
controllers do). Where a majority of the active brokers have not, it takes over the next epoch of the store.

- The majority keeps one bad link from moving the controller back and forth: who is cut off from the controller alone
  is outvoted, and fenced.
- Nothing is fenced earlier by this. The controller that was replaced has its session until all who voted have not
  heard it for the whole of it: that is when it no longer answers reads either (`vigil`).
- Two brokers cannot outvote each other: there the store decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.errors import KafkaError
from moldau.metadata.image import MetadataImage
from moldau.wire.apis import ApiKey
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.messages import Schema

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

logger = logging.getLogger(__name__)

SILENT_SHARE = 0.5
"""Of a session. Two heartbeats in a row got no answer by then."""
LOOKS_PER_SESSION = 36
VOTE_TIMEOUT_S = 1.0
VOTING = "voting"
"""The purpose of the connections on which brokers ask each other."""


class Won(NamedTuple):
    """A majority had not heard the controller of `epoch` since `silent_since_ms`, by this broker's monotonic clock."""

    epoch: int
    voters: frozenset[int]
    silent_since_ms: int

    def is_majority_in(self, image: MetadataImage) -> bool:
        """Asked again with what the store holds: the votes were counted with what this broker knew."""
        active = {id_ for id_, broker in image.brokers.items() if broker.is_active}
        return 2 * len(self.voters & active) > len(active)


class Takeover:
    def __init__(self, node: BrokerNode, take: Callable[[int], None]) -> None:
        """`take` begins the epoch after the one it is given; it blocks."""
        self._node = node
        self._take = take
        self._heard_s = node.loop.time()
        self._looked_s = self._heard_s
        self.won: Won | None = None

    @property
    def _silent_s(self) -> float:
        return SILENT_SHARE * self._node.config.broker_session_timeout_ms / 1000

    def heard(self, epoch: int) -> None:
        """The controller of `epoch` answered, just now; or the store tells of it."""
        if epoch == self._node.controller.epoch:
            self._heard_s = self._node.loop.time()

    def grants(self, epoch: int) -> bool:
        """Whether this broker, too, has not heard the controller of `epoch`."""
        leadership = self._node.controller.leadership
        return (
            leadership is not None
            and leadership.epoch == epoch
            and leadership.node_id != self._node.node_id
            and self._node.loop.time() - max(self._heard_s, self._awake_since_s) > self._silent_s
        )

    @property
    def _awake_since_s(self) -> float:
        """Now, where this process stood still: it may be only its own silence."""
        now_s = self._node.loop.time()
        return now_s if now_s - self._looked_s > self._silent_s / 2 else 0.0

    async def keep(self) -> None:
        node = self._node
        while True:
            self._heard_s = max(self._heard_s, self._awake_since_s)
            self._looked_s = node.loop.time()
            epoch = node.controller.epoch
            if self.grants(epoch):
                await self._ask_all(epoch)
            await asyncio.sleep(node.config.broker_session_timeout_ms / 1000 / LOOKS_PER_SESSION)

    async def _ask_all(self, epoch: int) -> None:
        node = self._node
        controller_id = node.controller.leadership.node_id if node.controller.leadership is not None else -1
        active = {id_ for id_, broker in node.newest_image.brokers.items() if broker.is_active}
        others = [id_ for id_ in active if id_ not in (node.node_id, controller_id)]
        granted = await asyncio.gather(*(self._ask(id_, epoch) for id_ in others))
        self._looked_s = node.loop.time()
        voters = frozenset(id_ for id_, grants in zip(others, granted, strict=True) if grants) | {node.node_id}
        if 2 * len(voters & active) <= len(active) or not self.grants(epoch):
            return
        if self.won is None or self.won.epoch != epoch:
            logger.warning(
                "no answer from the controller: this broker takes over",
                extra={"controller": controller_id, "epoch": epoch, "voters": sorted(voters)},
            )
        self.won = Won(epoch, voters, node.monotonic_ms() - int(self._silent_s * 1000))
        await node.threads.metadata(self._take, epoch)

    async def _ask(self, broker_id: int, epoch: int) -> bool:
        node = self._node

        def build(schema: Schema) -> Any:
            partition = schema.PartitionData(
                partition_index=0,
                replica_epoch=epoch,
                replica_id=node.node_id,
                replica_directory_id=None,
                voter_directory_id=None,
                last_offset_epoch=epoch,
                last_offset=node.newest_image.version,
                pre_vote=True,
            )
            topic = schema.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
            return schema.VoteRequest(cluster_id=node.cluster_id, voter_id=broker_id, topics=(topic,))

        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(VOTE_TIMEOUT_S):
                peer = node.peers.broker(broker_id, VOTING)
                answer = await peer.ask(ApiKey.VOTE, build, timeout_s=VOTE_TIMEOUT_S)
            return any(part.vote_granted for topic in answer.topics for part in topic.partitions)
        return False
