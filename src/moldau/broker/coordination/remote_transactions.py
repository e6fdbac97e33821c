"""Transactions whose coordinator is another broker: the request that verifies an append, and its guard.

This broker does not have the transaction's state. It has a response that was true when the coordinator sent it. Since
then the transaction may have ended, and its marker may be in the log already: a record after that marker would open a
transaction that nobody ends. So a `VerificationGuard` is created before the request. The end of a transaction writes a
marker to each of its partitions, and that marker breaks the guard. While the guard holds, the response is still true.
Once a record is in the log, the transaction is open there until its marker, and later appends need no request.

The marker of the *previous* transaction may also arrive during the request, because a client starts its next
transaction as soon as the end of the last one is decided. In version 2 of transactions this marker does not break the
guard: every end raises the epoch, so a marker with the guard's own epoch belongs to an earlier transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakSet

from moldau.broker.background import Spawn
from moldau.broker.cluster.outbox import Outbox
from moldau.broker.cluster.peers import Peers
from moldau.broker.replicas.partition import Partition
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_VERSION_MIN, Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from moldau.wire.topic_partition import TopicPartition

ASK_TIMEOUT_S = 5.0
"""A producer waits behind this; afterwards it asks again, perhaps of another coordinator."""


def is_open(partition: Partition, producer: Identity) -> bool:
    """Whether the producer's transaction has records in the partition, and no marker behind them."""
    entry = partition.log.producers.producers.get(producer.producer_id)
    return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer.epoch


class VerificationGuard:
    """Holds for a partition until the marker of the producer's transaction is written there, or its leader changes."""

    __slots__ = ("__weakref__", "_leader_epochs", "_producer")

    def __init__(self, partitions: Iterable[Partition], producer: Identity) -> None:
        self._leader_epochs = {partition: partition.leader_epoch for partition in partitions}
        self._producer = producer

    def check(self, partition: Partition) -> None:
        if self._leader_epochs.get(partition) != partition.leader_epoch:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"the transaction ended while it was verified for {partition.log.name}"
            )

    def marker_written(self, partition: Partition, marker: Identity, version: int) -> None:
        is_of_earlier = version >= EPOCH_BUMP_VERSION_MIN and marker.epoch <= self._producer.epoch
        if marker.producer_id == self._producer.producer_id and not is_of_earlier:
            self._leader_epochs.pop(partition, None)


class _Verification(NamedTuple):
    transactional_id: str
    producer: Identity
    partitions: Sequence[TopicPartition]
    verify_only: bool


class RemoteTransactions:
    def __init__(self, peers: Peers, spawn: Spawn, coordinator_of: Callable[[str], int]) -> None:
        """`coordinator_of` gives the broker that coordinates a transactional id."""
        self._peers = peers
        self._coordinator_of = coordinator_of
        self._outbox: Outbox[_Verification, None] = Outbox(spawn, self._send)
        self._guards: WeakSet[VerificationGuard] = WeakSet()
        """The guards of pending requests: each is dropped with its request."""

    def guard(self, partitions: Iterable[Partition], producer: Identity) -> VerificationGuard:
        guard = VerificationGuard(partitions, producer)
        self._guards.add(guard)
        return guard

    def marker_written(self, partition: Partition, marker: Identity, version: int) -> None:
        for guard in self._guards:
            guard.marker_written(partition, marker, version)

    def ask(
        self, transactional_id: str, producer: Identity, partitions: Sequence[TopicPartition], *, verify_only: bool
    ) -> asyncio.Future[None]:
        """Done when the partitions are part of the producer's open transaction, as its coordinator says."""
        return self._outbox.put(
            self._coordinator_of(transactional_id), _Verification(transactional_id, producer, partitions, verify_only)
        )

    async def _send(self, broker_id: int, questions: Sequence[_Verification]) -> list[KafkaError | None]:
        def build(schema: Schema) -> Any:
            return schema.AddPartitionsToTxnRequest(transactions=tuple(_packed(schema, one) for one in questions))

        peer = self._peers.broker(broker_id, "transactions")
        answer = await peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, build, timeout_s=ASK_TIMEOUT_S)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), f"broker {broker_id} refused to verify transactions")
        return [_refusal(result) for result in answer.results_by_transaction]


def _packed(schema: Schema, question: _Verification) -> Any:
    return schema.AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=question.verify_only,
        topics=tuple(
            schema.AddPartitionsToTxnTopic(name=name, partitions=tuple(index for _, index in places))
            for name, places in groupby(sorted(question.partitions), key=itemgetter(0))
        ),
    )


def _refusal(result: Any) -> KafkaError | None:
    codes = {one.partition_error_code for topic in result.topic_results for one in topic.results_by_partition}
    codes -= {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}
    if not codes:
        return None
    code = ErrorCode(min(codes))
    return KafkaError(code, f"the coordinator of {result.transactional_id} refused the append: {code.name}")
