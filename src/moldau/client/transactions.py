"""Transactions from the outside: what coordinators know of them, what partitions know of producers, and ending one.

A transactional id has a coordinator, which keeps its state. A partition's leader keeps each producer's last
sequence and the offset its open transaction began at. A transaction hangs when the partition waits for an end
of which the coordinator knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moldau.client.cluster import ClusterClient, CoordinatorType, Node, by_topic
from moldau.client.connection import Connection, raise_error, to_error
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms
from moldau.wire.topic_partition import TopicPartition

# The longest the coordinator may take to end the transaction it fences, as in Kafka's admin client.
_FENCE_TIMEOUT_MS = 60_000


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None  # None: no transaction is open
    partitions: tuple[TopicPartition, ...]


class ProducerState(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # -1: no marker was ever written for it
    last_sequence: int
    last_timestamp_ms: int
    txn_start_offset: int | None  # None: no transaction is open


def list_transactions(
    cluster: ClusterClient,
    *,
    producer_ids: Iterable[int] = (),
    duration_ms: int = -1,
    id_pattern: str | None = None,
) -> list[TransactionListing]:
    """Asks all coordinators; `duration_ms` leaves out transactions that are younger (negative: none)."""
    version = cluster.any_broker().version_of(ApiKey.LIST_TRANSACTIONS)
    if version is not None and ((duration_ms >= 0 and version < 1) or (id_pattern is not None and version < 2)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it does not support this filter")
    wanted = tuple(producer_ids)
    answers = cluster.at_every_broker(
        ApiKey.LIST_TRANSACTIONS,
        lambda schema: schema.ListTransactionsRequest(
            state_filters=(),
            producer_id_filters=wanted,
            duration_filter=duration_ms,
            transactional_id_pattern=id_pattern,
        ),
    )
    return sorted(
        TransactionListing(state.transactional_id, node, state.producer_id, state.transaction_state)
        for node, answer in answers.items()
        for state in answer.transaction_states
    )


def describe_transactions(
    cluster: ClusterClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    def call(coordinator: Node, keys: Sequence[str]) -> dict[str, TransactionDescription | KafkaError]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.DESCRIBE_TRANSACTIONS,
            lambda schema: schema.DescribeTransactionsRequest(transactional_ids=tuple(keys)),
        )
        return {
            state.transactional_id: to_error(state.error_code)
            if state.error_code
            else _described(state, coordinator.id)
            for state in answer.transaction_states
        }

    return cluster.at_coordinators(CoordinatorType.TRANSACTION, transactional_ids, call)


def _described(state: Any, coordinator: int) -> TransactionDescription:
    started = state.transaction_start_time
    return TransactionDescription(
        transactional_id=state.transactional_id,
        coordinator=coordinator,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        state=state.transaction_state,
        timeout_ms=round(state.transaction_timeout.total_seconds() * 1000),
        start_time_ms=None if started is None else round(started.timestamp() * 1000),
        partitions=tuple(
            sorted(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions)
        ),
    )


def describe_producers(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
    """The producers each partition remembers: at its leader, or at the replica on one broker."""

    def call(
        connection: Connection, part: Mapping[TopicPartition, None]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        answer = connection.send(
            ApiKey.DESCRIBE_PRODUCERS,
            lambda schema: schema.DescribeProducersRequest(
                topics=tuple(
                    schema.TopicRequest(name=topic, partition_indexes=tuple(index for index, _ in indexes))
                    for topic, indexes in by_topic(part)
                )
            ),
        )
        return {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code, p.error_message)
            if p.error_code
            else tuple(sorted(_producer(producer) for producer in p.active_producers))
            for topic in answer.topics
            for p in topic.partitions
        }

    wanted = dict.fromkeys(partitions)
    if broker_id is not None:
        return call(cluster.broker(broker_id), wanted)
    return cluster.at_leaders(wanted, call)


def _producer(producer: Any) -> ProducerState:
    start = producer.current_txn_start_offset
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.coordinator_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp_ms=producer.last_timestamp,
        txn_start_offset=None if start < 0 else start,
    )


def abort_transaction(
    cluster: ClusterClient, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Write an abort marker into one partition past the coordinator: for a transaction of which it knows nothing."""

    def call(connection: Connection, part: Mapping[TopicPartition, None]) -> dict[TopicPartition, KafkaError | None]:
        answer = connection.send(
            ApiKey.WRITE_TXN_MARKERS,
            lambda schema: schema.WriteTxnMarkersRequest(
                markers=(
                    schema.WritableTxnMarker(
                        producer_id=producer_id,
                        producer_epoch=producer_epoch,
                        transaction_result=False,
                        topics=tuple(
                            schema.WritableTxnMarkerTopic(name=topic, partition_indexes=(index,))
                            for topic, index in part
                        ),
                        coordinator_epoch=coordinator_epoch,
                        transaction_version=0,
                    ),
                )
            ),
        )
        return {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code) if p.error_code else None
            for marker in answer.markers
            for topic in marker.topics
            for p in topic.partitions
        }

    result = cluster.at_leaders({partition: None}, call)[partition]
    if result is not None:
        raise result


def fence_producer(cluster: ClusterClient, transactional_id: str) -> None:
    """A new epoch for the transactional id: its open transaction is aborted, and its producer is fenced."""

    def call(coordinator: Node, keys: Sequence[str]) -> dict[str, KafkaError | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.INIT_PRODUCER_ID,
            lambda schema: schema.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout=ms(_FENCE_TIMEOUT_MS),
                producer_id=-1,
                producer_epoch=-1,
            ),
        )
        return dict.fromkeys(keys, to_error(answer.error_code) if answer.error_code else None)

    result = cluster.at_coordinators(CoordinatorType.TRANSACTION, [transactional_id], call)[transactional_id]
    if result is not None:
        raise_error(result.code, result.message)
