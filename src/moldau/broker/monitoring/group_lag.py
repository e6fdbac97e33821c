"""The lag of groups, measured periodically by the broker that coordinates them.

The end of a partition is read from a local replica; if there is none, its leader is asked, in one request per broker.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from moldau.broker import needs
from moldau.coordinators.offsets.records import OffsetCommitValue
from moldau.errors import KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import LATEST
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
"""As often as Prometheus asks, usually."""
SERIES_MAX = 1_000
"""Groups times topics that are reported, the largest lags first: group names come from clients, and each one is a time
series that Prometheus keeps. `moldau_group_lag_left_off` counts the others."""
ASK_TIMEOUT_S = 5.0
ASK_MAX = 100
"""Partitions in one request to another broker: a request is built, and its answer read, without a pause."""


class GroupTopicLag(NamedTuple):
    lag: int
    group: str
    topic: str


class Broker(needs.HasTurns, needs.HasMetadata, needs.HasPeers, needs.HasLogs, needs.HasGroups, Protocol):
    """What it is measured with."""


class GroupLag:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.series: list[GroupTopicLag] = []
        self.left_off = 0

    async def measure_forever(self) -> None:
        while True:
            try:
                await self.measure()
            except Exception:
                logger.exception("internal error while measuring group lag (please report it)")
            await asyncio.sleep(INTERVAL_S)

    async def measure(self) -> None:
        """Nothing as long as all offsets is built: to free it would hold the loop, even if it was built in turns."""
        partitions: set[TopicPartition] = set()
        async for _, offsets in self._committed():
            partitions.update(partition for partition, _ in offsets)
        ends = await self._ends(partitions)
        largest: list[GroupTopicLag] = []
        count = 0
        async for group_id, offsets in self._committed():
            lags: defaultdict[str, int] = defaultdict(int)
            for partition, value in offsets:
                end = ends.get(partition)
                if end is not None and value.offset >= 0:
                    lags[partition[0]] += max(0, end - value.offset)
            count += len(lags)
            for topic, lag in lags.items():
                heapq.heappush(largest, GroupTopicLag(lag, group_id, topic))
                if len(largest) > SERIES_MAX:
                    heapq.heappop(largest)
        self.series, self.left_off = sorted(largest, reverse=True), count - len(largest)

    async def _committed(self) -> AsyncIterator[tuple[str, Iterator[tuple[TopicPartition, OffsetCommitValue]]]]:
        """Each group with its offsets, in turns."""
        for _, shard in self._broker.groups.shards():
            async for group_id in self._broker.turns.each(shard.offsets.groups()):
                yield group_id, shard.offsets.of_group(group_id)

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        remote: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        image = self._broker.metadata.image
        async for name, index in self._broker.turns.each(partitions):
            found = self._broker.logs.get(name, index)
            topic = image.topics.get(name)
            partition = topic.partition(index) if topic is not None else None
            if found is not None:
                ends[TopicPartition(name, index)] = found.high_watermark
            elif partition is not None and partition.leader >= 0:
                remote[partition.leader].append(TopicPartition(name, index))
        for leader, wanted in remote.items():
            try:
                for first in range(0, len(wanted), ASK_MAX):
                    ends |= await self._ask(leader, wanted[first : first + ASK_MAX])
            except KafkaError as error:
                logger.debug(
                    "cannot get the end offsets of some partitions", extra={"broker": leader, "why": error.message}
                )
        return ends

    async def _ask(self, leader: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for name, index in partitions:
            by_topic[name].append(index)

        def build(schema: Schema) -> Any:
            return schema.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=tuple(
                    schema.ListOffsetsTopic(
                        name=name,
                        partitions=tuple(
                            schema.ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes
                        ),
                    )
                    for name, indexes in by_topic.items()
                ),
                timeout=ms(int(ASK_TIMEOUT_S * 1000)),
            )

        answer = await self._broker.peers.ask(leader, ApiKey.LIST_OFFSETS, build, timeout_s=ASK_TIMEOUT_S)
        return {
            TopicPartition(topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code
        }
