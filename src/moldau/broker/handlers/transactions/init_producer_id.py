"""InitProducerId (key 22): an id for an idempotent producer; an id and an epoch for a transactional one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.coordinators.transactions.shard import NO_PRODUCER, Initialized, InitProducerId, TransactionShard
from moldau.coordinators.transactions.transaction import Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasTransactions, needs.HasProducerIds, Protocol):
    """What these handlers use."""


_FENCED_VERSION_MIN = 4


async def handle_init_producer_id(broker: Broker, context: RequestContext, request: Any) -> Any:
    try:
        code, producer = await _init(broker, request)
    except KafkaError as failure:
        code, producer = failure.code, NO_PRODUCER
    if code is ErrorCode.PRODUCER_FENCED and context.version < _FENCED_VERSION_MIN:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return context.schema.InitProducerIdResponse(
        throttle_time=ms(0), error_code=error(code), producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


async def _init(broker: Broker, request: Any) -> Initialized:
    expected = Identity(getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if (expected.producer_id == -1) != (expected.epoch == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and an epoch must be sent together")
    transactional_id = request.transactional_id
    if transactional_id is None:
        return Initialized(ErrorCode.NONE, Identity(await broker.producer_ids.take(), 0))
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    wanted = InitProducerId(
        transactional_id, request.transaction_timeout // ms(1), None if expected == NO_PRODUCER else expected
    )
    answer: Initialized = await broker.transactions.ask_with_id(wanted, TransactionShard.init_producer_id)
    return answer
