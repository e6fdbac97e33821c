"""Where a partition's readable records begin and end, whoever leads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import TopicImage
from moldau.wire.apis import ApiKey
from moldau.wire.constants import EARLIEST, LATEST
from moldau.wire.messages import Schema, ms

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

ASK_TIMEOUT_S = 5.0


async def log_bounds(node: BrokerNode, topic: TopicImage, index: int) -> tuple[int, int]:
    """Log start offset and high watermark."""
    leader = topic.partitions[index].leader
    if leader == node.node_id:
        log = node.find_partition(topic.name, None, index).log
        return log.log_start_offset, log.high_watermark
    first, end = await asyncio.gather(
        *(_ask(node, leader, topic.name, index, timestamp) for timestamp in (EARLIEST, LATEST))
    )
    return first, end


async def _ask(node: BrokerNode, leader: int, topic: str, index: int, timestamp: int) -> int:
    def build(schema: Schema) -> Any:
        partition = schema.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        return schema.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(schema.ListOffsetsTopic(name=topic, partitions=(partition,)),),
            timeout=ms(int(ASK_TIMEOUT_S * 1000)),
        )

    answer = await node.peers.ask(leader, ApiKey.LIST_OFFSETS, build, timeout_s=ASK_TIMEOUT_S)
    told = answer.topics[0].partitions[0]
    if told.error_code:
        raise KafkaError(ErrorCode(told.error_code))
    offset: int = told.offset
    return offset
