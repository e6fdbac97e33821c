"""DescribeProducers (61), DescribeTransactions (65) and ListTransactions (66): for operators."""

from __future__ import annotations

import datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.broker.turns import Work
from moldau.coordinators.transactions.transaction import State, Transaction
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.re2 import compile_regex

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasClock, needs.HasTurns, needs.HasThreads, needs.HasPartitions, needs.HasTransactions, Protocol):
    """What these handlers use."""


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_STATES = {state.label: state for state in State}


# -- DescribeProducers


async def handle_describe_producers(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    places = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    described = iter([_producers(broker, schema, *place) async for place in broker.turns.each(places)])
    return await answer_in_thread(
        broker,
        context,
        lambda: schema.DescribeProducersResponse(
            throttle_time=ms(0),
            topics=tuple(
                schema.TopicResponse(name=topic.name, partitions=tuple(islice(described, len(topic.partition_indexes))))
                for topic in request.topics
            ),
        ),
    )


def _producers(broker: Broker, schema: Schema, topic: str, index: int) -> Any:
    try:
        partition = broker.find_partition(topic, None, index)
        partition.check_leads()
        entries = partition.log.producers.producers.values()
    except KafkaError as failure:
        return schema.PartitionResponse(
            partition_index=index, error_code=error(failure.code), error_message=failure.message, active_producers=()
        )
    return schema.PartitionResponse(
        partition_index=index,
        error_code=error(ErrorCode.NONE),
        error_message=None,
        active_producers=tuple(
            schema.ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp_ms,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.txn_first_offset,
            )
            for entry in entries
        ),
    )


# -- DescribeTransactions


async def handle_describe_transactions(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    states = [_describe(broker, schema, one) async for one in broker.turns.each(request.transactional_ids)]
    return await answer_in_thread(
        broker,
        context,
        lambda: schema.DescribeTransactionsResponse(throttle_time=ms(0), transaction_states=tuple(states)),
    )


def _describe(broker: Broker, schema: Schema, transactional_id: str) -> Any:
    try:
        transaction = _find(broker, transactional_id)
    except KafkaError as failure:
        return schema.TransactionState(
            error_code=error(failure.code),
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=ms(0),
            transaction_start_time=_EPOCH,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )
    by_topic = groupby(sorted(transaction.partitions), key=itemgetter(0))
    return schema.TransactionState(
        error_code=error(ErrorCode.NONE),
        transactional_id=transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout=ms(transaction.timeout_ms),
        transaction_start_time=_EPOCH + ms(transaction.start_ms),
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=tuple(
            schema.TopicData(topic=topic, partitions=tuple(index for _, index in partitions))
            for topic, partitions in by_topic
        ),
    )


def _find(broker: Broker, transactional_id: str) -> Transaction:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    transaction = broker.transactions.shard(transactional_id).transactions.get(transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}")
    return transaction


# -- ListTransactions


async def handle_list_transactions(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    code = ErrorCode.NONE
    found: list[tuple[str, int, str]] = []
    try:
        if broker.transactions.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        listed = await broker.turns.finish(_list(broker, request))
        found = [(one.transactional_id, one.producer_id, one.state.label) for one in listed]
    except KafkaError as failure:
        code = failure.code
    return await answer_in_thread(
        broker,
        context,
        lambda: schema.ListTransactionsResponse(
            throttle_time=ms(0),
            error_code=error(code),
            unknown_state_filters=tuple(one for one in request.state_filters if one not in _STATES),
            transaction_states=tuple(
                schema.TransactionState(transactional_id=name, producer_id=producer_id, transaction_state=state)
                for name, producer_id, state in found
            ),
        ),
    )


def _list(broker: Broker, request: Any) -> Work[list[Transaction]]:
    states = frozenset(request.state_filters)
    producer_ids = frozenset(request.producer_id_filters)
    duration_ms = getattr(request, "duration_filter", -1)
    pattern = getattr(request, "transactional_id_pattern", None)
    now_ms = broker.clock()

    def is_wanted(one: Transaction) -> bool:
        return (
            (not states or one.state.label in states)
            and (not producer_ids or one.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - one.start_ms > duration_ms)
        )

    found = []
    for _, shard in broker.transactions.shards():
        for one in tuple(shard.transactions.values()):
            if is_wanted(one):
                found.append(one)
            yield
    if not pattern:
        return found
    matching = compile_regex(pattern).filter(one.transactional_id for one in found)
    return [one for one in found if one.transactional_id in matching]
