"""The transaction coordinator as the rest of the broker sees it.

A transactional append is admitted by `admit`: only what belongs to an open transaction of its own producer may go into
a log, or else nobody would ever end it, and readers of committed records would wait there for good. Old clients have
told the coordinator of the partition before (`AddPartitionsToTxn`), and it is verified that they have; newer ones rely
on the broker to do it with the first append (KIP-890). Either way the coordinator knows the partition, durably, before
the first record is in it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator import Coordinator, Reply
from moldau.broker.txn_markers import MarkerWriter
from moldau.coordinators.effects import Effects
from moldau.coordinators.transactions.records import KINDS
from moldau.coordinators.transactions.shard import AddPartitions, EndTxn, InitProducerId, TransactionShard
from moldau.coordinators.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    Identity,
    ProducerIdNeeded,
    TopicPartition,
)
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import TRANSACTIONS_TOPIC
from moldau.wire.state_records import StateRecords

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode


RETRY_BACKOFF_S = 0.02
RETRY_TIMES = 5
"""An append that meets the end of the transaction before is tried again, as `add.partitions.to.txn.retry.backoff.ms`
and its maximum of 100 ms say in Kafka: for the client it would be a whole request more."""


class Admission(IntEnum):
    """What a client expects of an append whose partition is not part of its transaction."""

    VERIFY_OLD = 0  # it does not know TRANSACTION_ABORTABLE
    VERIFY = 1
    ADD = 2


def make_transactions(node: BrokerNode) -> Coordinator[TransactionShard]:
    return Coordinator(
        node,
        TRANSACTIONS_TOPIC,
        StateRecords(KINDS),
        lambda partition: TransactionShard(lambda: node.config, MarkerWriter(node, partition)),
        partitions=lambda: node.config.transaction_state_log_num_partitions,
        topic_configs=lambda: {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(node.config.transaction_state_log_min_isr),
            "segment.bytes": str(node.config.transaction_state_log_segment_bytes),
        },
    )


async def ask_with_id(
    node: BrokerNode,
    request: InitProducerId | EndTxn,
    step: Callable[[TransactionShard, Reply, Any, int], Effects],
) -> Any:
    """Asks the shard of the request's transactional id; again with a new producer id, if it wants one."""
    transactional_id = request.transactional_id
    try:
        answer = node.transactions.ask(transactional_id, lambda shard, reply, now: step(shard, reply, request, now))
    except ProducerIdNeeded:
        fresh = request._replace(fresh_id=await node.producer_ids.take())
        answer = node.transactions.ask(transactional_id, lambda shard, reply, now: step(shard, reply, fresh, now))
    return await answer if inspect.isawaitable(answer) else answer


def admit(
    node: BrokerNode,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    admission: Admission,
) -> Awaitable[None] | None:
    """KafkaError, now or from the awaitable, unless the producer may append to the partitions at once.

    After an awaitable, other things have happened: the append must follow without another pause.
    """
    try:
        if admission is not Admission.ADD:
            if node.config.transaction_partition_verification_enable:
                node.transactions.shard(transactional_id).verify(transactional_id, producer, partitions)
            return None
        adding = _add(node, transactional_id, producer, partitions)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or admission is not Admission.ADD:
            raise _as_told(error, admission) from error
        adding = None
    else:
        if adding is None:
            return None
    return _admit_later(node, transactional_id, producer, partitions, adding)


def _add(
    node: BrokerNode, transactional_id: str, producer: Identity, partitions: Sequence[TopicPartition]
) -> Awaitable[None] | None:
    request = AddPartitions(transactional_id, producer, partitions, EPOCH_BUMP_SINCE)
    answer: Awaitable[None] | None = node.transactions.ask(
        transactional_id, lambda shard, reply, now_ms: shard.add_partitions(reply, request, now_ms)
    )
    return answer


async def _admit_later(
    node: BrokerNode,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    adding: Awaitable[None] | None,
) -> None:
    try:
        if adding is None:
            adding = await _add_again(partial(_add, node, transactional_id, producer, partitions))
        if adding is not None:
            await adding
            # While the disk worked, the transaction may have ended: then this append comes too late.
            node.transactions.shard(transactional_id).verify(transactional_id, producer, partitions)
    except KafkaError as error:
        raise _as_told(error, Admission.ADD) from error


async def _add_again(add: Callable[[], Awaitable[None] | None]) -> Awaitable[None] | None:
    for left in reversed(range(RETRY_TIMES)):
        await asyncio.sleep(RETRY_BACKOFF_S)
        try:
            return add()
        except KafkaError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not left:
                raise
    return None


def _as_told(error: KafkaError, admission: Admission) -> KafkaError:
    """In the codes that a producer understands in the answer to an append."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    if error.code is ErrorCode.TRANSACTION_ABORTABLE and admission is Admission.VERIFY_OLD:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, error.message)
    return error
