"""Fetch (key 1): an index lookup and one read per partition; the bytes go to the socket unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker import needs
from moldau.broker.cluster.metadata_feed import METADATA_TOPIC_ID
from moldau.broker.handlers.records.replica_fetch import handle_replica_fetch
from moldau.broker.network.client_connection import Answer, Buffers, Pipelined
from moldau.broker.replicas.delayed_fetch import DelayedFetch
from moldau.broker.replicas.fetch_sessions import FetchPlan, Wanted
from moldau.broker.replicas.follower_sessions import diverging_epoch
from moldau.broker.replicas.leader_hints import hinted_endpoints, leader_hint
from moldau.broker.replicas.partition import Partition
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_response,
    parse_fetch_request,
)
from moldau.wire.primitives import NodeEndpoint

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasLoop,
    needs.HasTurns,
    needs.HasThreads,
    needs.HasMetrics,
    needs.HasConnections,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasController,
    needs.HasReadLease,
    needs.HasPartitions,
    needs.HasFetchSessions,
    needs.HasReplicaManager,
    needs.HasFollowerSessions,
    Protocol,
):
    """What these handlers use."""


_READ_COMMITTED = 1
_TOPIC_IDS_VERSION_MIN = 13
_ZSTD_VERSION_MIN = 10
_FOLLOWERS_VERSION_MIN = 11

PARSED_INLINE_MAX_BYTES = 16 * 1024
"""Some 500 partitions, which are read in a millisecond. A thread reads a longer request."""
READ_AT_ONCE_MAX = 300
"""Partitions read on the loop in one go: 5 ms. More take turns."""
READ_PER_STEP = 20
WAIT_MAX_MS = 600_000
"""A fetch may ask to wait for 24 days; a client that is gone must not be remembered that long."""


def handle_fetch(broker: Broker, context: RequestContext, body: memoryview) -> Answer:
    if len(body) > PARSED_INLINE_MAX_BYTES:
        return _fetch_many(broker, context, bytes(body))
    return _fetch(broker, context, parse_fetch_request(context.version, body))


async def _fetch_many(broker: Broker, context: RequestContext, body: bytes) -> Buffers | Pipelined | None:
    request = await broker.threads.compute(parse_fetch_request, context.version, memoryview(body))
    answer = _fetch(broker, context, request)
    return await answer if isinstance(answer, Awaitable) and not isinstance(answer, Pipelined) else answer


def _fetch(broker: Broker, context: RequestContext, request: FetchRequest) -> Answer:
    if request.topics and request.topics[0].topic_id == METADATA_TOPIC_ID:
        return broker.controller.feed.handle(context, request)
    if request.replica_id >= 0:
        return handle_replica_fetch(broker, context, request)
    try:
        plan = broker.fetch_sessions.plan(request, context.version >= _TOPIC_IDS_VERSION_MIN)
    except KafkaError as error:
        return encode_fetch_response(context.version, context.correlation_id, [], error_code=int(error.code))
    if len(plan.wanted) > READ_AT_ONCE_MAX:
        return _fetch_in_turns(broker, context, request, plan)
    results, size, failed = _read(broker, context, request, plan.wanted)
    if failed or size >= request.min_bytes or request.max_wait_ms <= 0 or not plan.wanted:
        return _encode(broker, context, plan, results, size)

    def read_again() -> Buffers:
        late, late_size, _ = _read(broker, context, request, plan.wanted)
        return _encode(broker, context, plan, late, late_size)

    return _when_there_is_more(broker, request, plan, request.min_bytes - size, read_again)


def _when_there_is_more(
    broker: Broker, request: FetchRequest, plan: FetchPlan, missing_bytes: int, read: Callable[[], Buffers]
) -> asyncio.Future[Buffers]:
    partitions = [broker.find_partition(one.name, one.topic_id, one.partition.index) for one in plan.wanted]
    return DelayedFetch(
        broker.loop,
        partitions,
        missing_bytes=missing_bytes,
        wait_ms=min(request.max_wait_ms, WAIT_MAX_MS),
        committed=request.isolation_level == _READ_COMMITTED,
        read=read,
    ).future


async def _fetch_in_turns(broker: Broker, context: RequestContext, request: FetchRequest, plan: FetchPlan) -> Buffers:
    """For thousands of partitions: reads them in turns and encodes the response in a thread."""
    results, size, failed = await _read_in_turns(broker, context, request, plan.wanted)
    if not (failed or size >= request.min_bytes or request.max_wait_ms <= 0):
        with suppress(KafkaError):  # a partition was removed since: the next read reports it
            await _when_there_is_more(broker, request, plan, request.min_bytes - size, bytes)
        results, size, _ = await _read_in_turns(broker, context, request, plan.wanted)
    return await broker.threads.compute(_encoded(broker, context, plan, results, size))


async def _read_in_turns(
    broker: Broker, context: RequestContext, request: FetchRequest, wanted: Sequence[Wanted]
) -> tuple[list[FetchPartitionResult], int, bool]:
    results: list[FetchPartitionResult] = []
    size = 0
    is_urgent = False
    async for start in broker.turns.each(range(0, len(wanted), READ_PER_STEP)):
        some, count, urgent = _read(broker, context, request, wanted[start : start + READ_PER_STEP], size)
        results += some
        size += count
        is_urgent |= urgent
    return results, size, is_urgent


def _encode(
    broker: Broker,
    context: RequestContext,
    plan: FetchPlan,
    results: Sequence[FetchPartitionResult],
    size: int,
) -> list[bytes | memoryview]:
    return _encoded(broker, context, plan, results, size)()


def _encoded(
    broker: Broker,
    context: RequestContext,
    plan: FetchPlan,
    results: Sequence[FetchPartitionResult],
    size: int,
) -> Callable[[], list[bytes | memoryview]]:
    """What makes the answer; any thread may call it."""
    broker.metrics.bytes_fetched += size
    session_id, topics = plan.answer(results)
    where: Sequence[NodeEndpoint] = ()
    hints = [result.current_leader for result in results if result.current_leader is not None]
    if hints:
        where = hinted_endpoints(broker.metadata, context, hints)
    return partial(
        encode_fetch_response,
        context.version,
        context.correlation_id,
        topics,
        session_id=session_id,
        node_endpoints=where,
    )


def _read(
    broker: Broker, context: RequestContext, request: FetchRequest, wanted: Sequence[Wanted], read_bytes: int = 0
) -> tuple[list[FetchPartitionResult], int, bool]:
    """The results in the order of `wanted`, their bytes, and whether one of them must be returned at once.

    The answer has `read_bytes` already.
    """
    left = min(request.max_bytes, broker.local.config.fetch_max_bytes, broker.connections.send_budget.left) - read_bytes
    committed = request.isolation_level == _READ_COMMITTED
    version = context.version
    lease = broker.lease if broker.lease.may_be_expired() else None
    results: list[FetchPartitionResult] = []
    size = 0
    urgent = False
    for name, topic_id, asked in wanted:
        try:
            partition = broker.find_partition(name, topic_id, asked.index)
            if lease is not None:
                lease.check(partition)
            if not partition.is_leader and version < _FOLLOWERS_VERSION_MIN:
                partition.check_leads()
            if version < _ZSTD_VERSION_MIN:
                _refuse_zstd(partition)
            if request.rack_id or asked.last_fetched_epoch >= 0:
                elsewhere = _elsewhere(broker, partition, request.rack_id, asked)
                if elsewhere is not None:
                    urgent = True
                    results.append(elsewhere)
                    continue
            result, count = _read_partition(
                partition, asked, left, committed=committed, min_one=size == read_bytes == 0
            )
            size += count
            left -= count
        except KafkaError as error:
            urgent = True
            hint = leader_hint(broker.metadata, error.code, name, topic_id, asked.index)
            result = FetchPartitionResult(asked.index, int(error.code), current_leader=hint)
        results.append(result)
    return results, size, urgent


def _refuse_zstd(partition: Partition) -> None:
    if partition.log.config.compression_type == "zstd":
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch or a later one")


def _elsewhere(
    broker: Broker, partition: Partition, rack_id: str, asked: FetchPartition
) -> FetchPartitionResult | None:
    """For a client that shall read from another replica, or has read what is not in the log any more."""
    log = partition.log
    if asked.last_fetched_epoch >= 0:
        diverging = diverging_epoch(partition, asked)
        if diverging is not None:
            return diverging
    if not rack_id or partition.leadership is None:
        return None
    replica = broker.replication.preferred_read_replica(partition, rack_id, asked.fetch_offset)
    if replica is None:
        return None
    partition.check_leader_epoch(asked.current_leader_epoch)
    return FetchPartitionResult(
        asked.index, 0, log.high_watermark, log.last_stable_offset, log.log_start_offset, preferred_read_replica=replica
    )


def _read_partition(
    partition: Partition, asked: FetchPartition, left: int, *, committed: bool, min_one: bool
) -> tuple[FetchPartitionResult, int]:
    partition.check_leader_epoch(asked.current_leader_epoch)
    log = partition.log
    offset, max_bytes = asked.fetch_offset, min(left, asked.max_bytes)
    records: bytes | memoryview = b""
    aborted: Sequence[tuple[int, int]] | None = () if committed else None
    if left <= 0 and not min_one:
        pass  # the answer is full
    elif committed:
        records, aborted = log.read_committed(offset, max_bytes, min_one=min_one)
    else:
        records = log.read(offset, max_bytes, upto_offset=log.high_watermark, min_one=min_one)
    result = FetchPartitionResult(
        asked.index, 0, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, -1, records
    )
    return result, len(records)
