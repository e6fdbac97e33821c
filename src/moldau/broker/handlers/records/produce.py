"""Produce (key 0): the records of a partition go from the request's bytes to its log unchanged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from moldau.broker import needs
from moldau.broker.handlers.records.transactional_produce import ProduceVerification
from moldau.broker.network.client_connection import Answer, Buffers, Pipelined
from moldau.broker.replicas.delayed_produce import DelayedProduce, Uncommitted
from moldau.broker.replicas.leader_hints import hinted_endpoints, leader_hint
from moldau.broker.replicas.partition import Partition
from moldau.broker.turns import Work
from moldau.errors import DuplicateSequenceError, ErrorCode, KafkaError, ProtocolError, RefusedRecordsError
from moldau.wire.batch import is_transactional, read_header
from moldau.wire.batch_layout import HEADER_SIZE
from moldau.wire.compression import Codec
from moldau.wire.primitives import NodeEndpoint
from moldau.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceTopic,
    encode_produce_response,
    parse_produce_request,
)

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasLoop,
    needs.HasClock,
    needs.HasTurns,
    needs.HasTasks,
    needs.HasMetrics,
    needs.HasMetadata,
    needs.HasPartitions,
    needs.HasGroupCommit,
    needs.HasTransactions,
    Protocol,
):
    """What these handlers use."""


logger = logging.getLogger(__name__)

_ZSTD_VERSION_MIN = 7
_ADMIN_CLIENT = "__admin_client"
"""The client id with which Kafka's own tools may write to internal topics."""

_WrittenAnswer: TypeAlias = "Buffers | Pipelined | None"
_TopicResults = tuple[str | None, bytes | None, list[ProducePartitionResult]]
_Place = tuple[str | None, bytes | None, int]
_Unflushed = tuple[Partition, list[ProducePartitionResult], int]
"""A partition to flush, and where its result stands: a failed fsync turns it into an error."""


class _Written(NamedTuple):
    topics: list[_TopicResults]
    unflushed: list[_Unflushed]


def handle_produce(broker: Broker, context: RequestContext, body: memoryview) -> Answer:
    request = parse_produce_request(context.version, body)
    if not -1 <= request.acks <= 1:
        return _refuse(context, request, ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is None:
        work = _write(broker, context, request, None)
    else:
        work = _write_in_transaction(broker, context, request, request.transactional_id)
    answer = broker.turns.run(work)
    if isinstance(answer, CoroutineType):
        context.connection.keep_frame()  # its records are still to be written
    return answer


def _write_in_transaction(
    broker: Broker, context: RequestContext, request: ProduceRequest, transactional_id: str
) -> Work[_WrittenAnswer]:
    verification = ProduceVerification(broker, context.version, request, transactional_id)
    adding = verification.add()
    if adding is not None:
        yield adding
    return (yield from _write(broker, context, request, verification))


def _write(
    broker: Broker, context: RequestContext, request: ProduceRequest, verification: ProduceVerification | None
) -> Work[_WrittenAnswer]:
    now_ms = broker.clock()
    acks = request.acks
    failed = False
    written = _Written([], [])
    delayed: DelayedProduce | None = None
    repeated = _repeated(request)
    for topic in request.topics:
        results: list[ProducePartitionResult] = []
        for part in topic.partitions:
            if results or written.topics:
                yield  # not for the first: most requests name one partition, and a turn has its price
            try:
                if repeated:
                    _check_named_once(topic, part.index, repeated)
                partition = broker.find_partition(topic.name, topic.topic_id, part.index)
                if partition.is_internal or context.version < _ZSTD_VERSION_MIN:
                    _check_allowed(partition, part, context)
                is_prepared = False
                if partition.log.rules.has_to_look_into(part.records):
                    part = part._replace(records=(yield partial(partition.log.rules.prepare, part.records, now_ms)))  # noqa: PLW2901
                    is_prepared = True
                result, end_offset = _append(
                    broker, partition, part, verification, now_ms=now_ms, acks=acks, is_prepared=is_prepared
                )
                results.append(result)
                log = partition.log
                if acks == -1 and log.high_watermark < end_offset:
                    delayed = delayed or DelayedProduce(broker.loop, request.timeout_ms)
                    delayed.add(Uncommitted(partition, end_offset, results, len(results) - 1))
                elif acks == 1 and log.is_flush_due:  # what is committed is on the disk
                    written.unflushed.append((partition, results, len(results) - 1))
            except KafkaError as error:
                failed = True
                _count_failure(broker, error)
                hint = leader_hint(broker.metadata, error.code, topic.name, topic.topic_id, part.index)
                results.append(_failure(part.index, error, hint))
        written.topics.append((topic.name, topic.topic_id, results))
    if delayed is not None:
        return delayed.answer_with(lambda: _encode(broker, context, written.topics))
    return _answer(broker, context, written, acks, failed)


def _answer(broker: Broker, context: RequestContext, written: _Written, acks: int, failed: bool) -> _WrittenAnswer:
    if acks == 0:
        if failed:  # there is no response: closing the connection is the only signal
            raise ProtocolError("cannot append records that were sent with acks=0")
        return None
    if written.unflushed:
        return Pipelined(broker.spawn(_flush_then_answer(broker, context, written)))
    return _encode(broker, context, written.topics, failed)


def _append(
    broker: Broker,
    partition: Partition,
    part: ProducePartition,
    verification: ProduceVerification | None,
    *,
    now_ms: int,
    acks: int,
    is_prepared: bool,
) -> tuple[ProducePartitionResult, int]:
    """The result, and the offset behind the batch, be it a new one or a known one."""
    index, records = part
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request has no record batch for this partition")
    if is_transactional(records):
        if verification is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "the request has a transactional batch, but no transactional id",
            )
        verification.check(partition, records)
    try:
        info = partition.append(records, now_ms, required_acks=acks, is_prepared=is_prepared)
    except DuplicateSequenceError as known:
        start_offset = partition.log.log_start_offset
        known_result = ProducePartitionResult(index, 0, known.base_offset, known.timestamp_ms, start_offset)
        return known_result, known.last_offset + 1
    broker.metrics.records_in += info.count
    result = ProducePartitionResult(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)
    return result, info.last_offset + 1


def _encode(broker: Broker, context: RequestContext, topics: list[_TopicResults], failed: bool = True) -> bytes:
    """If a partition may have `failed`, the response has the addresses of the leaders that clients should use."""
    where: list[NodeEndpoint] = []
    if failed:
        hints = [result.current_leader for _, _, results in topics for result in results if result.current_leader]
        where = hinted_endpoints(broker.metadata, context, hints)
    return encode_produce_response(context.version, context.correlation_id, topics, node_endpoints=where)


def _failure(index: int, error: KafkaError, hint: tuple[int, int] | None) -> ProducePartitionResult:
    # Without messages of their own the refused records cannot outgrow the batch that they came in.
    refused = tuple((place, None) for place in error.indexes) if isinstance(error, RefusedRecordsError) else ()
    return ProducePartitionResult(
        index, int(error.code), record_errors=refused, error_message=error.message, current_leader=hint
    )


def _repeated(request: ProduceRequest) -> set[_Place]:
    """Partitions that the request names more than once. Kafka writes the last batch and drops the others unsaid."""
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
        return set()
    seen: set[_Place] = set()
    repeated: set[_Place] = set()
    for topic in request.topics:
        for part in topic.partitions:
            place = (topic.name, topic.topic_id, part.index)
            (repeated if place in seen else seen).add(place)
    return repeated


def _check_named_once(topic: ProduceTopic, index: int, repeated: Container[_Place]) -> None:
    if (topic.name, topic.topic_id, index) in repeated:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "the request names this partition more than once; send one batch for it"
        )


def _check_allowed(partition: Partition, part: ProducePartition, context: RequestContext) -> None:
    """Only coordinators may write to their state topics."""
    if partition.is_internal and context.client_id != _ADMIN_CLIENT:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
    if context.version < _ZSTD_VERSION_MIN:
        _refuse_zstd(part)


def _refuse_zstd(part: ProducePartition) -> None:
    """A client that speaks so old a version cannot read zstd either, and may not know that it sent some."""
    records = part.records
    if records and len(records) >= HEADER_SIZE and read_header(records).codec is Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce or a later one")


def _count_failure(broker: Broker, error: KafkaError) -> None:
    count = broker.metrics.produce_failed(error.code)
    # A full disk rejects thousands of batches a second: only the 1st, 2nd, 4th, 8th, … are logged.
    if error.code is ErrorCode.KAFKA_STORAGE_ERROR and count & (count - 1) == 0:
        logger.error("cannot append to a log: the disk refuses writes", extra={"count": count, "why": error.message})


async def _flush_then_answer(broker: Broker, context: RequestContext, written: _Written) -> Buffers:
    """acks=1 where the topic asks for the disk."""
    done = await asyncio.gather(
        *(broker.group_commit.flushed(partition.log) for partition, _, _ in written.unflushed), return_exceptions=True
    )
    for (partition, results, place), error in zip(written.unflushed, done, strict=True):
        if error is not None:
            logger.error(
                "cannot flush a log", extra={"partition": f"{partition.topic}-{partition.index}", "why": str(error)}
            )
            results[place] = ProducePartitionResult(
                partition.index, int(ErrorCode.KAFKA_STORAGE_ERROR), error_message=str(error)
            )
    return _encode(broker, context, written.topics)


def _refuse(context: RequestContext, request: ProduceRequest, code: ErrorCode) -> Answer:
    if request.acks == 0:
        raise ProtocolError(f"a Produce request with acks=0 was refused: {code.name}")
    return encode_produce_response(
        context.version,
        context.correlation_id,
        [
            (topic.name, topic.topic_id, [ProducePartitionResult(part.index, int(code)) for part in topic.partitions])
            for topic in request.topics
        ],
    )
