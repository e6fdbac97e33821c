"""The log start offset and high watermark of a partition, from its leader."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from moldau.broker import needs
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import TopicImage
from moldau.wire.apis import ApiKey
from moldau.wire.constants import EARLIEST, LATEST
from moldau.wire.messages import Schema, ms

ASK_TIMEOUT_S = 5.0


class Broker(needs.HasLocalBroker, needs.HasPeers, needs.HasPartitions, Protocol):
    """The local partitions, and the other brokers."""


async def log_bounds(broker: Broker, topic: TopicImage, index: int) -> tuple[int, int]:
    """Log start offset and high watermark."""
    leader = topic.partitions[index].leader
    if leader == broker.local.node_id:
        log = broker.find_partition(topic.name, None, index).log
        return log.log_start_offset, log.high_watermark
    first, end = await asyncio.gather(
        *(_ask(broker, leader, topic.name, index, timestamp) for timestamp in (EARLIEST, LATEST))
    )
    return first, end


async def _ask(broker: Broker, leader: int, topic: str, index: int, timestamp: int) -> int:
    def build(schema: Schema) -> Any:
        partition = schema.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        return schema.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(schema.ListOffsetsTopic(name=topic, partitions=(partition,)),),
            timeout=ms(int(ASK_TIMEOUT_S * 1000)),
        )

    answer = await broker.peers.ask(leader, ApiKey.LIST_OFFSETS, build, timeout_s=ASK_TIMEOUT_S)
    partition = answer.topics[0].partitions[0]
    if partition.error_code:
        raise KafkaError(ErrorCode(partition.error_code))
    offset: int = partition.offset
    return offset
