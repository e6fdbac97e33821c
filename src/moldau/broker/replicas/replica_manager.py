"""Replication on this broker: which partitions it follows, from which leaders, and ISR changes of those it leads.

A partition proposes a change of its ISR. Only one AlterPartition request is pending at a time; the next has all changes
proposed in the meantime. So when a broker dies, its thousand partitions need two requests.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from moldau.broker.background import Spawn
from moldau.broker.cluster.controller_channel import ControllerChannel
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.replicas.partition import Partition
from moldau.broker.replicas.replica_fetcher import ReplicaFetcher
from moldau.clocks import Clock
from moldau.cluster.replica import UNKNOWN_EPOCH, IsrChange
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.records import BrokerRecord
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema

logger = logging.getLogger(__name__)

RETRY_S = 0.05
"""Between two attempts to send ISR changes to the controller."""
GROW_INTERVAL_S = 1.0
"""A follower may become eligible without a fetch that says anything new."""

RACK_AWARE = frozenset({"org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector"})

_Proposals = dict[Partition, IsrChange]


PROPOSALS_MAX = 1000
"""Changes of in-sync sets in one request: the controller decides all of them in one go."""


class ReplicaManager:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        controller: ControllerChannel,
        group_commit: GroupCommit,
        *,
        new_fetcher: Callable[[int], ReplicaFetcher],
        spawn: Spawn,
        loop: asyncio.AbstractEventLoop,
        monotonic_ms: Clock,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._controller = controller
        self._group_commit = group_commit
        self._new_fetcher = new_fetcher
        self._spawn = spawn
        self.loop = loop
        self.monotonic_ms = monotonic_ms
        self.broker_id = me.node_id
        self._led: dict[Partition, None] = {}
        """Led partitions that have followers."""
        self._sources: dict[Partition, ReplicaFetcher] = {}
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._proposals: _Proposals = {}
        self._proposing: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._brokers: Mapping[int, BrokerRecord] = {}
        self._is_stopped = False

    @property
    def lag_time_max_ms(self) -> int:
        return self._me.config.replica_lag_time_max_ms

    @property
    def is_registered(self) -> bool:
        """Whether the image knows this process of the broker."""
        me = self._me
        return not me.config.is_clustered or 0 <= me.broker_epoch <= self._metadata.image.version

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that process of the broker may join an ISR: alive, staying, and the one that is registered."""
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return broker_epoch in (UNKNOWN_EPOCH, broker.broker_epoch)

    # -- following the metadata

    def follow(self, changed: Sequence[Partition]) -> None:
        """Called after each change of the image with the partitions whose leader or role changed."""
        if self._is_stopped:
            return
        for partition in changed:
            if partition.leadership is not None:
                self._led[partition] = None
            else:
                self._led.pop(partition, None)
            if partition.is_leader or partition.leader_id < 0 or not partition.log.log_dir.is_writable:
                self._unfollow(partition)
            else:
                self._follow(partition)
        if self._metadata.image.brokers is not self._brokers:
            self._brokers = self._metadata.image.brokers
            self._grow()
        if self._led and self._checking is None:
            self._checking = self._spawn(self._check_followers())

    def _follow(self, partition: Partition) -> None:
        leader = partition.leader_id
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = self._new_fetcher(leader)
        if self._sources.get(partition) is not fetcher:
            self._unfollow(partition)
            self._sources[partition] = fetcher
        fetcher.add(partition)

    def _unfollow(self, partition: Partition) -> None:
        fetcher = self._sources.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def forget(self, partition: Partition) -> None:
        self._led.pop(partition, None)
        self._proposals.pop(partition, None)
        self._unfollow(partition)

    def flush(self, partition: Partition) -> None:
        """Forces its log to disk, soon."""
        self._group_commit.flush_soon(partition.log, partition.flush_ended)

    def stop(self) -> None:
        """Follows nothing any more, and asks for nothing."""
        self._is_stopped = True
        for fetcher in self._fetchers.values():
            fetcher.stop()
        for task in (self._proposing, self._checking):
            if task is not None:
                task.cancel()

    # -- readers

    def preferred_read_replica(self, partition: Partition, rack_id: str, offset: int) -> int | None:
        """An in-sync follower in the client's rack that has what it asks for (KIP-392); None: read here."""
        config = self._me.config
        leadership = partition.leadership
        if leadership is None or config.replica_selector_class not in RACK_AWARE or config.broker_rack == rack_id:
            return None
        brokers = self._metadata.image.brokers
        near = [
            follower
            for follower in leadership.followers.values()
            if follower.broker_id in leadership.isr
            and follower.log_start_offset <= offset <= follower.log_end_offset
            and (broker := brokers.get(follower.broker_id)) is not None
            and broker.rack == rack_id
            and not broker.fenced
        ]
        return max(near, key=lambda follower: follower.log_end_offset).broker_id if near else None

    # -- in-sync sets

    async def _check_followers(self) -> None:
        shrink_s = max(self.lag_time_max_ms / 2000, RETRY_S)
        next_shrink_s = self.loop.time() + shrink_s
        while True:
            await asyncio.sleep(min(GROW_INTERVAL_S, shrink_s))
            try:
                self._grow()
                if self.loop.time() >= next_shrink_s:
                    next_shrink_s = self.loop.time() + shrink_s
                    self._shrink()
            except Exception:  # or a follower that is gone would be waited for ever after
                logger.exception("internal error while tracking followers (please report it)")

    def _shrink(self) -> None:
        now_ms = self.monotonic_ms()
        for partition in tuple(self._led):
            partition.shrink_isr(now_ms)

    def _grow(self) -> None:
        now_ms = self.monotonic_ms()
        for partition in self._led:
            leadership = partition.leadership
            if leadership is not None and len(leadership.isr) <= len(leadership.followers):
                partition.grow_isr()
                partition.advance(now_ms)  # one that was about to join may be gone

    def propose(self, partition: Partition, change: IsrChange) -> None:
        """Asks the controller for another ISR."""
        self._proposals[partition] = change
        if self._proposing is None and not self._is_stopped:
            self._proposing = self._spawn(self._propose())

    async def _propose(self) -> None:
        try:
            while self._proposals:
                sent = dict(islice(self._proposals.items(), PROPOSALS_MAX))
                for partition in sent:
                    del self._proposals[partition]
                again = await self._send(sent)
                if again:
                    self._proposals = again | self._proposals
                    await asyncio.sleep(RETRY_S)
        finally:
            self._proposing = None

    async def _send(self, proposals: _Proposals) -> _Proposals:
        """Returns what has to be asked again."""
        code, why = ErrorCode.UNKNOWN_SERVER_ERROR, "an internal error"
        try:
            answer = await self._controller.ask(ApiKey.ALTER_PARTITION, partial(self._alter, proposals))
            if not answer.error_code:
                return self._answered(proposals, answer)
            code = ErrorCode(answer.error_code)
            why = code.name
        except KafkaError as error:
            code, why = error.code, str(error)
        except Exception:  # or the partitions would wait for an answer for ever
            logger.exception("internal error while changing in-sync replicas (please report it)")
        logger.info("cannot change in-sync replicas, will retry", extra={"why": why, "partitions": len(proposals)})
        return {one: change for one, change in proposals.items() if one.isr_refused(change, code)}

    def _alter(self, proposals: _Proposals, schema: Schema) -> Any:
        topics: dict[bytes, list[Any]] = {}
        for partition, change in proposals.items():
            asked = schema.PartitionData(
                partition_index=partition.index,
                leader_epoch=change.leader_epoch,
                new_isr_with_epochs=tuple(self._member(schema, *member) for member in change.isr),
                partition_epoch=change.partition_epoch,
            )
            topics.setdefault(partition.topic_id, []).append(asked)
        return schema.AlterPartitionRequest(
            broker_id=self.broker_id,
            broker_epoch=self._me.broker_epoch,
            topics=tuple(
                schema.TopicData(topic_id=uuid.UUID(bytes=topic_id), partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )

    def _member(self, schema: Schema, broker_id: int, broker_epoch: int) -> Any:
        if broker_id == self.broker_id:
            broker_epoch = self._me.broker_epoch
        return schema.BrokerState(broker_id=broker_id, broker_epoch=broker_epoch)

    @staticmethod
    def _answered(sent: _Proposals, answer: Any) -> _Proposals:
        """What has to be asked again."""
        found = {
            (topic.topic_id.bytes, one.partition_index): one for topic in answer.topics for one in topic.partitions
        }
        again: _Proposals = {}
        for partition, change in sent.items():
            one = found.get((partition.topic_id, partition.index))
            code = ErrorCode.UNKNOWN_SERVER_ERROR if one is None else ErrorCode(one.error_code)
            if one is not None and code is ErrorCode.NONE:
                partition.isr_accepted(change, one.isr, one.leader_epoch, one.partition_epoch)
            elif partition.isr_refused(change, code):
                again[partition] = change
            else:
                logger.info(
                    "the controller rejected a change of in-sync replicas",
                    extra={"partition": partition.name, "why": code.name},
                )
        return again
