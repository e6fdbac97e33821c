"""Transactional batches in a Produce request: each has to belong to an open transaction of its producer."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Protocol

from moldau.broker import needs
from moldau.broker.coordination.transaction_coordinator import Admission, Verification
from moldau.broker.replicas.partition import Partition
from moldau.coordinators.transactions.transaction import Identity
from moldau.errors import COORDINATOR_UNAVAILABLE, UNREACHABLE, ErrorCode, KafkaError
from moldau.log.producer_state import NO_EPOCH
from moldau.wire.batch import BatchHeader, is_transactional, read_header
from moldau.wire.produce import ProduceRequest


class Broker(needs.HasPartitions, needs.HasTransactions, Protocol):
    """What these handlers use."""


_ABORTABLE_VERSION_MIN = 11
_ADDS_VERSION_MIN = 12

_RETRIED = COORDINATOR_UNAVAILABLE | UNREACHABLE


class ProduceVerification:
    """Verifies one request: first `add`, which may take time, then `check` for each batch."""

    def __init__(self, broker: Broker, version: int, request: ProduceRequest, transactional_id: str) -> None:
        self._broker = broker
        self._admission = Admission.ADD if version >= _ADDS_VERSION_MIN else Admission.VERIFY
        if version < _ABORTABLE_VERSION_MIN:
            self._admission = Admission.VERIFY_OLD
        self._refusal: KafkaError | None = None
        batches = list(self._batches(request))
        producers = {producer for _, producer in batches}
        self._verification: Verification | None = None
        if len(producers) > 1:
            self._refusal = _several_producers()
        elif producers:
            self._verification = broker.transactions.verification(
                transactional_id, producers.pop(), (one for one, _ in batches), self._admission
            )

    def _batches(self, request: ProduceRequest) -> Iterator[tuple[Partition, Identity]]:
        for topic in request.topics:
            for part in topic.partitions:
                if not part.records or not is_transactional(part.records):
                    continue
                try:
                    partition = self._broker.find_partition(topic.name, topic.topic_id, part.index)
                    partition.check_leads()
                except KafkaError:
                    continue  # the append will say so
                header = read_header(part.records)
                yield partition, Identity(header.producer_id, header.producer_epoch)

    def add(self) -> Awaitable[None] | None:
        """Makes the partitions part of the transaction, or finds out that they are; an awaitable if that takes time."""
        if self._verification is None:
            return None
        try:
            adding = self._verification.start()
        except KafkaError as error:
            self._refusal = error
            return None
        return None if adding is None else self._finish_adding(adding)

    async def _finish_adding(self, adding: Awaitable[None]) -> None:
        try:
            await adding
        except KafkaError as error:
            self._refusal = error

    def check(self, partition: Partition, records: memoryview) -> None:
        """KafkaError unless the transactional batch may be appended, now."""
        try:
            if self._refusal is not None:
                raise self._refusal
            partition.check_leads()
            if self._verification is None:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, "this broker has just become the leader of the partition")
            header = read_header(records)
            if Identity(header.producer_id, header.producer_epoch) != self._verification.producer:
                raise _several_producers()
            if self._admission is Admission.ADD and header.base_sequence > 0:
                _refuse_gap(partition, header)
            self._verification.check(partition)
        except KafkaError as error:
            raise self._client_error(error) from error

    def _client_error(self, error: KafkaError) -> KafkaError:
        """Clients that do not add partitions know no coordinator here: they try again after this code, and no other."""
        waits = error.code is ErrorCode.CONCURRENT_TRANSACTIONS and self._admission is not Admission.ADD
        if waits or error.code in _RETRIED:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction cannot be verified yet: {error.message}")
        return error


def _several_producers() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the request holds transactional records of more than one producer"
    )


def _refuse_gap(partition: Partition, header: BatchHeader) -> None:
    """Sequences begin at 0 with each epoch, hence with each transaction: the batches before this one are on their way.

    A log that does not remember a producer takes any sequence, since its records may have been deleted.
    """
    if partition.log.producers.epoch_of(header.producer_id) == NO_EPOCH:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"the first batch of producer {header.producer_id} in {partition.log.name} has sequence "
            f"{header.base_sequence}",
        )
