"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26) and WriteTxnMarkers (27).

Coordinators send WriteTxnMarkers to the leaders of partitions on other brokers, and `kafka-transactions --abort` sends
it to a partition with a hanging transaction.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.turns import Work
from moldau.coordinators.transactions.shard import NO_PRODUCER, AddPartitions, EndTxn, TransactionShard
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_VERSION_MIN, Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasTurns,
    needs.HasMetadata,
    needs.HasPartitions,
    needs.HasGroupCommit,
    needs.HasGroups,
    needs.HasTransactions,
    Protocol,
):
    """What these handlers use."""


TOGETHER_MAX = 100
"""Transactions of one request that are looked at, and waited for, at once."""
_FENCED_VERSION_MIN = 2
_MANY_TRANSACTIONS_VERSION_MIN = 4
_END_BUMPS_VERSION_MIN = 5


def _code_for(context: RequestContext, code: ErrorCode) -> Any:
    """Older clients know only one code for a zombie."""
    if code is ErrorCode.PRODUCER_FENCED and context.version < _FENCED_VERSION_MIN:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return error(code)


# -- AddPartitionsToTxn


async def handle_add_partitions_to_txn(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    if context.version < _MANY_TRANSACTIONS_VERSION_MIN:
        producer = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        codes = await _add_each(broker, request.v3_and_below_transactional_id, producer, topics, version=0)
        by_topic = await broker.turns.finish(_topic_results(context, topics, codes))
        return schema.AddPartitionsToTxnResponse(throttle_time=ms(0), results_by_topic_v3_and_below=by_topic)
    results = []
    transactions = iter(request.transactions)
    while together := tuple(islice(transactions, TOGETHER_MAX)):
        # Together, since each waits for its records to be committed.
        codes_of_all = await asyncio.gather(
            *(
                _add_each(
                    broker,
                    one.transactional_id,
                    Identity(one.producer_id, one.producer_epoch),
                    one.topics,
                    version=EPOCH_BUMP_VERSION_MIN,
                    verify_only=one.verify_only,
                )
                for one in together
            )
        )
        async for one, codes in broker.turns.each(zip(together, codes_of_all, strict=True)):
            by_topic = await broker.turns.finish(_topic_results(context, one.topics, codes))
            results.append(
                schema.AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=by_topic)
            )
    return schema.AddPartitionsToTxnResponse(
        throttle_time=ms(0), error_code=error(ErrorCode.NONE), results_by_transaction=tuple(results)
    )


async def _add_each(
    broker: Broker,
    transactional_id: str,
    producer: Identity,
    topics: Sequence[Any],
    *,
    version: int,
    verify_only: bool = False,
) -> dict[TopicPartition, ErrorCode]:
    """All the partitions or none: where one does not exist, the others are not attempted."""
    places = (TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)
    wanted = [one async for one in broker.turns.each(places)]
    missing = {one async for one in broker.turns.each(wanted) if not _exists(broker, one)}
    if missing:
        return {
            one: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if one in missing else ErrorCode.OPERATION_NOT_ATTEMPTED
            async for one in broker.turns.each(wanted)
        }
    if not verify_only:
        code = await _add(broker, AddPartitions(transactional_id, producer, wanted, version))
        return dict.fromkeys(wanted, code)
    codes = {one: _verify(broker, transactional_id, producer, one) async for one in broker.turns.each(wanted)}
    return codes if await _is_settled(broker, transactional_id) else dict.fromkeys(wanted, ErrorCode.NOT_COORDINATOR)


def _exists(broker: Broker, partition: TopicPartition) -> bool:
    topic = broker.metadata.image.topics.get(partition[0])
    return topic is not None and 0 <= partition[1] < len(topic.partitions)


async def _add(broker: Broker, request: AddPartitions) -> ErrorCode:
    try:
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        answer = broker.transactions.ask(
            request.transactional_id, lambda shard, reply, now_ms: shard.add_partitions(reply, request, now_ms)
        )
        if inspect.isawaitable(answer):
            await answer
    except KafkaError as failure:
        return failure.code
    return ErrorCode.NONE


def _verify(broker: Broker, transactional_id: str, producer: Identity, partition: TopicPartition) -> ErrorCode:
    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        broker.transactions.shard(transactional_id).verify(transactional_id, producer, [partition])
    except KafkaError as failure:
        return failure.code
    return ErrorCode.NONE


async def _is_settled(broker: Broker, transactional_id: str) -> bool:
    """Waits until the state of the transaction is durable; False if this broker is not the coordinator."""
    try:
        settled = broker.transactions.settled(transactional_id)
        if settled is not None:
            await settled
    except KafkaError:
        return False
    return True


def _topic_results(
    context: RequestContext, topics: Sequence[Any], codes: dict[TopicPartition, ErrorCode]
) -> Work[tuple[Any, ...]]:
    schema = context.schema
    by_topic = []
    for topic in topics:
        results = []
        for index in topic.partitions:
            code = _code_for(context, codes[TopicPartition(topic.name, index)])
            results.append(schema.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code))
            yield
        by_topic.append(schema.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=tuple(results)))
    return tuple(by_topic)


# -- AddOffsetsToTxn, EndTxn


async def handle_add_offsets_to_txn(broker: Broker, context: RequestContext, request: Any) -> Any:
    """The group's partition of `__consumer_offsets` becomes part of the transaction, as any other."""
    try:
        await broker.groups.ready()
        where = TopicPartition(broker.groups.topic, broker.groups.partition_for(request.group_id))
        producer = Identity(request.producer_id, request.producer_epoch)
        code = await _add(broker, AddPartitions(request.transactional_id, producer, [where], version=0))
    except KafkaError as failure:
        code = failure.code
    return context.schema.AddOffsetsToTxnResponse(throttle_time=ms(0), error_code=_code_for(context, code))


async def handle_end_txn(broker: Broker, context: RequestContext, request: Any) -> Any:
    code, producer = ErrorCode.NONE, NO_PRODUCER
    bumps = context.version >= _END_BUMPS_VERSION_MIN
    try:
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        wanted = EndTxn(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            request.committed,
            EPOCH_BUMP_VERSION_MIN if bumps else 0,
        )
        producer = await broker.transactions.ask_with_id(wanted, TransactionShard.end)
    except KafkaError as failure:
        code = failure.code
    return context.schema.EndTxnResponse(
        throttle_time=ms(0),
        error_code=_code_for(context, code),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


# -- WriteTxnMarkers


async def handle_write_txn_markers(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    places = (
        (marker, topic.name, index)
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    )
    written = [_write_marker(broker, *place) async for place in broker.turns.each(places)]
    outcomes = iter(await asyncio.gather(*(wait for _, wait in written if wait is not None), return_exceptions=True))
    codes = iter([code if wait is None else _code_after(code, next(outcomes)) for code, wait in written])
    markers = await broker.turns.finish(_marker_results(schema, request.markers, codes))
    return schema.WriteTxnMarkersResponse(markers=markers)


def _marker_results(schema: Schema, markers: Sequence[Any], codes: Iterator[ErrorCode]) -> Work[tuple[Any, ...]]:
    by_marker = []
    for marker in markers:
        topics = []
        for topic in marker.topics:
            partitions = []
            for index in topic.partition_indexes:
                partitions.append(
                    schema.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error(next(codes)))
                )
                yield
            topics.append(schema.WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(partitions)))
        by_marker.append(schema.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics)))
    return tuple(by_marker)


def _write_marker(broker: Broker, marker: Any, topic: str, index: int) -> tuple[ErrorCode, Awaitable[Any] | None]:
    """The code, and what has to happen until it is true."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None  # no producer has such an id
    code = ErrorCode.NONE
    try:
        partition = broker.find_partition(topic, None, index)
        broker.transactions.markers.write(
            partition,
            Identity(marker.producer_id, marker.producer_epoch),
            committed=marker.transaction_result,
            version=getattr(marker, "transaction_version", 0),
            coordinator_epoch=marker.coordinator_epoch,
        )
    except KafkaError as failure:
        code = failure.code
        if code is not ErrorCode.INVALID_PRODUCER_EPOCH:
            return code, None
    # The epoch is known already, perhaps from this very marker: as long as that is not safe, nor is the answer.
    return code, broker.group_commit.safe(partition, partition.log.config.flush_messages)


def _code_after(code: ErrorCode, outcome: object) -> ErrorCode:
    if isinstance(outcome, KafkaError):
        return outcome.code
    return ErrorCode.KAFKA_STORAGE_ERROR if isinstance(outcome, BaseException) else code
