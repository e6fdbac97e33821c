"""The transaction coordinator, and the verification of transactional appends.

A batch may be appended only if it belongs to an open transaction of its producer. Otherwise nobody would end that
transaction, and readers of committed records would wait for it forever. Old clients add a partition themselves
(`AddPartitionsToTxn`), and the broker verifies that they did. Newer clients rely on the broker to add it with the first
append (KIP-890). Either way the coordinator has recorded the partition durably before the first record is in it. If the
coordinator is another broker, `remote_transactions` asks it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.coordinator_shell import CoordinatorShell, Reply
from moldau.broker.coordination.producer_ids import ProducerIds
from moldau.broker.coordination.remote_transactions import RemoteTransactions, VerificationGuard, is_open
from moldau.broker.coordination.state_topic import NewStateTopic, StateTopicSettings
from moldau.broker.coordination.txn_markers import Groups, LocalMarkers, MarkerWriter, RemoteMarkers
from moldau.broker.replicas.partition import Partition
from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.transactions.records import KINDS
from moldau.coordinators.transactions.shard import AddPartitions, EndTxn, InitProducerId, TransactionShard
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_VERSION_MIN, Identity, ProducerIdNeeded
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import TRANSACTIONS_TOPIC
from moldau.wire.state_records import StateRecords
from moldau.wire.topic_partition import TopicPartition

RETRY_BACKOFF_S = 0.02
RETRY_TIMES = 5
"""An append that meets the end of the transaction before is tried again, as `add.partitions.to.txn.retry.backoff.ms`
and its maximum of 100 ms say in Kafka: for the client it would be a whole request more."""


class Admission(IntEnum):
    """What a client expects of an append whose partition is not part of its transaction."""

    VERIFY_OLD = 0  # it does not know TRANSACTION_ABORTABLE
    VERIFY = 1
    ADD = 2


def _topic_settings(config: BrokerConfig) -> StateTopicSettings:
    return StateTopicSettings(
        config.transaction_state_log_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        },
        config.transaction_state_log_replication_factor,
    )


class TransactionCoordinator(CoordinatorShell[TransactionShard]):
    def __init__(
        self, context: CoordinatorContext, new_state_topic: NewStateTopic, producer_ids: ProducerIds, groups: Groups
    ) -> None:
        state_topic = new_state_topic(TRANSACTIONS_TOPIC, _topic_settings)
        super().__init__(context, state_topic, StateRecords(KINDS), self._new_shard)
        self._producer_ids = producer_ids
        self.remote = RemoteTransactions(context.peers, context.spawn, self.leader_for)
        self.markers = LocalMarkers(context.wall_clock, self.remote, groups)
        self._remote_markers = RemoteMarkers(context.peers, context.spawn)

    def _new_shard(self, partition: int) -> TransactionShard:
        context = self._context
        writer = MarkerWriter(context, partition, self, self.markers, self._remote_markers)
        return TransactionShard(lambda: context.local.config, writer, wall_clock=context.wall_clock)

    async def ask_with_id(
        self, request: InitProducerId | EndTxn, step: Callable[[TransactionShard, Reply, Any, int], Effects]
    ) -> Any:
        """Asks the shard of the request's transactional id; again with a new producer id, if it needs one."""
        transactional_id = request.transactional_id
        try:
            answer = self.ask(transactional_id, lambda shard, reply, now: step(shard, reply, request, now))
        except ProducerIdNeeded:
            fresh = request._replace(fresh_id=await self._producer_ids.take())
            answer = self.ask(transactional_id, lambda shard, reply, now: step(shard, reply, fresh, now))
        return await answer if inspect.isawaitable(answer) else answer

    @property
    def is_clustered(self) -> bool:
        return self._context.local.config.is_clustered

    @property
    def is_verification_enabled(self) -> bool:
        return self._context.local.config.transaction_partition_verification_enable

    def verification(
        self, transactional_id: str, producer: Identity, partitions: Iterable[Partition], admission: Admission
    ) -> Verification:
        return Verification(self, transactional_id, producer, frozenset(partitions), admission)


class Verification:
    """Verifies the appends of one producer to partitions of this broker: `start`, then `check` right before each."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        transactional_id: str,
        producer: Identity,
        partitions: frozenset[Partition],
        admission: Admission,
    ) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self.producer = producer
        self._partitions = partitions
        self._admission = admission
        self._is_local = not transactions.exists or transactions.leads(transactional_id)
        self._is_verified = admission is Admission.ADD or transactions.is_verification_enabled
        self._guard: VerificationGuard | None = None

    def start(self) -> Awaitable[None] | None:
        """KafkaError, now or from the awaitable, where the producer may not append."""
        new = [partition for partition in self._partitions if not is_open(partition, self.producer)]
        if not new or not self._is_verified:
            return None
        if not self._is_local:
            return self._admit_remotely(new)
        if self._admission is Admission.ADD:
            places = [TopicPartition(partition.topic, partition.index) for partition in new]
            return _admit(self._transactions, self._transactional_id, self.producer, places)
        # That the partitions were added must not be forgotten when this broker dies.
        return self._transactions.settled(self._transactional_id)

    def check(self, partition: Partition) -> None:
        """KafkaError unless the producer may append, now."""
        if not self._is_verified:
            return
        if partition not in self._partitions:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "this broker has just become the leader of the partition")
        if self._is_local:
            self._check_here(partition)
        elif not is_open(partition, self.producer):
            self._check_remote(partition)

    async def _admit_remotely(self, new: Sequence[Partition]) -> None:
        remote = self._transactions.remote
        places = [TopicPartition(partition.topic, partition.index) for partition in new]
        verify_only = self._admission is not Admission.ADD
        for left in reversed(range(1 if verify_only else RETRY_TIMES)):
            # Each question has its own guard: what happens between two of them says nothing about the second answer.
            self._guard = remote.guard(new, self.producer)
            try:
                await remote.ask(self._transactional_id, self.producer, places, verify_only=verify_only)
                return
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not left:
                    raise _client_error(error, self._admission) from error
            await asyncio.sleep(RETRY_BACKOFF_S)

    def _check_remote(self, partition: Partition) -> None:
        known_epoch = partition.log.producers.epoch_of(self.producer.producer_id)
        if known_epoch > self.producer.epoch:
            # Producers can recover from this error, unlike from INVALID_TXN_STATE.
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {self.producer.epoch} of producer {self.producer.producer_id} is older than {known_epoch}, "
                f"the last one in {partition.log.name}",
            )
        if self._guard is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"the transaction has ended in {partition.log.name}")
        self._guard.check(partition)

    def _check_here(self, partition: Partition) -> None:
        transactions, producer = self._transactions, self.producer
        try:
            shard = transactions.shard(self._transactional_id)
            if self._transactions.is_clustered:
                known_epoch = partition.log.producers.coordinator_epoch_of(producer.producer_id)
                if known_epoch > transactions.epoch_for(self._transactional_id):
                    # This broker is no longer the coordinator, and about to learn it.
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker coordinates the transaction now")
            shard.verify(self._transactional_id, producer, [TopicPartition(partition.topic, partition.index)])
        except KafkaError as error:
            raise _client_error(error, self._admission) from error


def _admit(
    transactions: TransactionCoordinator,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
) -> Awaitable[None] | None:
    """After an awaitable, other things have happened: the append must follow without another pause."""
    try:
        adding = _add(transactions, transactional_id, producer, partitions)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise _client_error(error, Admission.ADD) from error
        adding = None
    else:
        if adding is None:
            return None
    return _admit_later(transactions, transactional_id, producer, partitions, adding)


def _add(
    transactions: TransactionCoordinator,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
) -> Awaitable[None] | None:
    request = AddPartitions(transactional_id, producer, partitions, EPOCH_BUMP_VERSION_MIN)
    answer: Awaitable[None] | None = transactions.ask(
        transactional_id, lambda shard, reply, now_ms: shard.add_partitions(reply, request, now_ms)
    )
    return answer


async def _admit_later(
    transactions: TransactionCoordinator,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    adding: Awaitable[None] | None,
) -> None:
    try:
        if adding is None:
            adding = await _add_again(partial(_add, transactions, transactional_id, producer, partitions))
        if adding is not None:
            await adding  # and `check` finds out whether the transaction ended in the meantime
    except KafkaError as error:
        raise _client_error(error, Admission.ADD) from error


async def _add_again(add: Callable[[], Awaitable[None] | None]) -> Awaitable[None] | None:
    for left in reversed(range(RETRY_TIMES)):
        await asyncio.sleep(RETRY_BACKOFF_S)
        try:
            return add()
        except KafkaError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not left:
                raise
    return None


def _client_error(error: KafkaError, admission: Admission) -> KafkaError:
    """In the codes that a producer understands in the answer to an append."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    if error.code is ErrorCode.TRANSACTION_ABORTABLE and admission is Admission.VERIFY_OLD:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, error.message)
    return error
