"""Fetch (key 1): an index lookup and one read per partition; the bytes go to the socket as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.broker.connection import Answer, Buffers
from moldau.broker.delayed_fetch import DelayedFetch
from moldau.broker.fetch_sessions import FetchPlan, Wanted
from moldau.broker.metadata_feed import METADATA_TOPIC_ID
from moldau.broker.partition import Partition
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_response,
    parse_fetch_request,
)

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode

_READ_COMMITTED = 1
_TOPIC_IDS_SINCE = 13
_ZSTD_SINCE = 10

WAIT_MAX_MS = 600_000
"""A fetch may ask to wait for 24 days; a client that is gone must not be remembered that long."""


def handle_fetch(node: BrokerNode, context: RequestContext, body: memoryview) -> Answer:
    request = parse_fetch_request(context.version, body)
    if request.topics and request.topics[0].topic_id == METADATA_TOPIC_ID:
        return node.controller.feed.handle(context, request)
    try:
        if request.replica_id >= 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")
        plan = node.fetch_sessions.plan(request, context.version >= _TOPIC_IDS_SINCE)
    except KafkaError as error:
        return encode_fetch_response(context.version, context.correlation_id, [], error_code=int(error.code))
    zstd = context.version >= _ZSTD_SINCE
    results, size, failed = _read(node, request, plan.wanted, zstd)
    if failed or size >= request.min_bytes or request.max_wait_ms <= 0 or not plan.wanted:
        return _encode(node, context, plan, results, size)

    def read_again() -> Buffers:
        late, late_size, _ = _read(node, request, plan.wanted, zstd)
        return _encode(node, context, plan, late, late_size)

    partitions = [node.find_partition(one.name, one.topic_id, one.partition.index) for one in plan.wanted]
    return DelayedFetch(
        node.loop,
        partitions,
        missing_bytes=request.min_bytes - size,
        wait_ms=min(request.max_wait_ms, WAIT_MAX_MS),
        committed=request.isolation_level == _READ_COMMITTED,
        read=read_again,
    ).future


def _encode(
    node: BrokerNode,
    context: RequestContext,
    plan: FetchPlan,
    results: Sequence[FetchPartitionResult],
    size: int,
) -> list[bytes | memoryview]:
    node.metrics.bytes_fetched += size
    session_id, topics = plan.answer(results)
    return encode_fetch_response(context.version, context.correlation_id, topics, session_id=session_id)


def _read(
    node: BrokerNode, request: FetchRequest, wanted: Sequence[Wanted], zstd: bool
) -> tuple[list[FetchPartitionResult], int, bool]:
    """The results in the order of `wanted`, their bytes, and whether one of them is an error."""
    left = min(request.max_bytes, node.config.fetch_max_bytes, node.connections.send_budget.left)
    committed = request.isolation_level == _READ_COMMITTED
    results: list[FetchPartitionResult] = []
    size = 0
    failed = False
    for name, topic_id, asked in wanted:
        try:
            partition = node.find_partition(name, topic_id, asked.index)
            if not zstd and partition.log.config.compression_type == "zstd":
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch or a later one"
                )
            result, count = _read_partition(partition, asked, left, committed=committed, min_one=size == 0)
            size += count
            left -= count
        except KafkaError as error:
            failed = True
            result = FetchPartitionResult(asked.index, int(error.code))
        results.append(result)
    return results, size, failed


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
