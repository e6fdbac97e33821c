"""InitProducerId (key 22): an id for an idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode


async def handle_init_producer_id(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    producer_id, epoch, code = -1, -1, ErrorCode.NONE
    try:
        if request.transactional_id is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no transaction coordinator yet")
        producer_id, epoch = await node.producer_ids.take(), 0
    except KafkaError as failure:
        code = failure.code
    return context.schema.InitProducerIdResponse(
        throttle_time=ms(0), error_code=error(code), producer_id=producer_id, producer_epoch=epoch
    )
