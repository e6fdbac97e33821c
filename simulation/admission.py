"""Stands for `broker.transactions.Entry`: the gate before an append that is part of a transaction.

The partition is made part of the transaction by its coordinator, here or on another broker; what is true when the
answer comes is looked at once more, right before the append. `VerificationGuard` is the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.coordination.remote_transactions import VerificationGuard, is_open
from moldau.broker.replicas.partition import Partition
from moldau.coordinators.transactions.shard import AddPartitions
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_SINCE, Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import TRANSACTIONS_TOPIC
from moldau.wire.topic_partition import TopicPartition
from simulation.network import Failure
from simulation.replication import log_of
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

RETRY_TIMES = 5
RETRY_US = 20 * MS


class Admission:
    def __init__(
        self,
        broker: Broker,
        transactional_id: str,
        producer: Identity,
        partition: Partition,
        admitted: Callable[[KafkaError | None], None],
    ) -> None:
        self._broker = broker
        self._producer = producer
        self._partition = partition
        self._admitted = admitted
        place = (partition.topic, partition.index)
        self._request = AddPartitions(transactional_id, producer, [TopicPartition(*place)], EPOCH_BUMP_SINCE)
        self._transactions = broker.services.transactions
        self._is_local = self._transactions.epoch >= 0
        self._guard: VerificationGuard | None = None
        self._left = RETRY_TIMES

    def begin(self) -> None:
        """`admitted` comes right before the append, with a refusal or None."""
        if is_open(self._partition, self._producer):
            self._answered(None)
            return
        if not self._is_local:
            self._guard = VerificationGuard([self._partition], self._producer)
            self._broker.services.guards[self._guard] = None
        self._ask()

    def _ask(self) -> None:
        broker = self._broker
        if self._is_local:
            broker.services.on_add_partitions(self._request, self._answered)
            return
        topic = broker.image.topics.get(TRANSACTIONS_TOPIC)
        leader = topic.partitions[0].leader if topic is not None else -1
        if leader < 0:
            self._answered(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            broker.ask(leader, "add_partitions", self._request, self._answered)

    def _answered(self, answer: KafkaError | Failure | None) -> None:
        refusal = KafkaError(ErrorCode.NETWORK_EXCEPTION) if isinstance(answer, Failure) else answer
        if refusal is not None and refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS and self._left:
            self._left -= 1
            self._broker.after(RETRY_US, self._ask)
            return
        try:
            if refusal is None:
                self._check()
        except KafkaError as error:
            refusal = error
        if self._guard is not None:
            self._broker.services.guards.pop(self._guard, None)
        self._admitted(refusal)

    def _check(self) -> None:
        partition, producer = self._partition, self._producer
        if self._is_local:
            shard = self._transactions.here()
            if log_of(partition).producers.coordinator_epoch_of(producer.producer_id) > self._transactions.epoch:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, "the coordinator moved")
            shard.verify(self._request.transactional_id, producer, self._request.partitions)
        elif not is_open(partition, producer):
            if self._guard is None:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction ended meanwhile")
            self._guard.check(partition)
