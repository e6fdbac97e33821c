"""The requests of a transaction, each repeated until its coordinator responds.

Whoever knows the transactional id, producer id and epoch can use a transaction: a task begins it, the driver ends it.
The versions are those of classic transactions, which every Kafka since 2.5 supports: partitions are added before they
are written to, and EndTxn may be sent twice. `exactly_once` explains when and why.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient, CoordinatorType, Node, by_topic
from moldau.client.connection import Connection, to_error
from moldau.errors import RETRIABLE, UNREACHABLE, ErrorCode, KafkaError
from moldau.spark.connections import REACH_HINT
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, ms
from moldau.wire.primitives import write_string
from moldau.wire.topic_partition import TopicPartition

_VERSIONS = {  # the last before KIP-890 gave clients another way
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.END_TXN: 3,
    ApiKey.OFFSET_FETCH: 7,
}
_RETRIED = RETRIABLE | UNREACHABLE
_FIRST_PAUSE_S = 0.005  # the end of a transaction takes a few ms; later pauses double up to retry.backoff.ms

# Records are text beside an offset. The topic they are kept under has one partition and stays empty, so this offset is
# its end: to every tool the group has read all there is.
_RECORD_PARTITION = 0
_RECORD_OFFSET = 0

_END_TXN_PLAIN_VERSION = 1
_END_TXN_END = struct.Struct(">qh?")
_END_TXN_WINDOW = 256  # that many small requests and responses fit into socket buffers

_ADVICE = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "kafka.transaction.timeout.ms is more than the broker's "
    "transaction.max.timeout.ms allows: lower it",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "give the user WRITE on transactional ids that begin with "
    "the option transactionalIdPrefix",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "give the user READ on groups that begin with the option "
    "transactionalIdPrefix",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "give the user WRITE on the topic, and READ on the topic where "
    "the sink keeps its records: the option transactionalIdPrefix and '-sink-records'",
}


class Transaction(NamedTuple):
    """What is needed to write in it and to end it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Offset(NamedTuple):
    """As committed in a group: a position and the text beside it."""

    offset: int
    metadata: str


class Transactions:
    """On one cluster, which nobody else uses meanwhile."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._coordinators: dict[tuple[CoordinatorType, str], Node] = {}

    def begin(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """Fence the previous user of the id. Its open transaction is aborted when this returns."""
        answer = self._ask(
            (CoordinatorType.TRANSACTION, transactional_id),
            ApiKey.INIT_PRODUCER_ID,
            lambda schema: schema.InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout=ms(timeout_ms), producer_id=-1, producer_epoch=-1
            ),
        )
        return Transaction(transactional_id, answer.producer_id, answer.producer_epoch)

    def idempotent_id(self) -> tuple[int, int]:
        """A producer id of one's own and its epoch, for writing without transactions: any broker gives them."""
        answer = self._ask(
            None,
            ApiKey.INIT_PRODUCER_ID,
            lambda schema: schema.InitProducerIdRequest(
                transactional_id=None, transaction_timeout=ms(1), producer_id=-1, producer_epoch=-1
            ),
        )
        return answer.producer_id, answer.producer_epoch

    def enlist(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> None:
        topics = by_topic(dict.fromkeys(partitions))
        self._ask(
            (CoordinatorType.TRANSACTION, transaction.transactional_id),
            ApiKey.ADD_PARTITIONS_TO_TXN,
            lambda schema: schema.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transaction.transactional_id,
                v3_and_below_producer_id=transaction.producer_id,
                v3_and_below_producer_epoch=transaction.producer_epoch,
                v3_and_below_topics=tuple(
                    schema.AddPartitionsToTxnTopic(name=topic, partitions=tuple(index for index, _ in indexes))
                    for topic, indexes in topics
                ),
            ),
            lambda answer: (
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ),
        )

    def write_record(self, transaction: Transaction, topic: str, text: str) -> None:
        """Keep it under this topic in the group of the transactional id's name, as part of the transaction."""
        group = transaction.transactional_id
        self._add_offsets(transaction, group)
        offsets = {TopicPartition(topic, _RECORD_PARTITION): Offset(_RECORD_OFFSET, text)}
        build = partial(_offset_commit, transaction=transaction, group=group, offsets=offsets)
        commit = partial(
            self._ask,
            (CoordinatorType.GROUP, group),
            ApiKey.TXN_OFFSET_COMMIT,
            build,
            lambda answer: (result.error_code for found in answer.topics for result in found.partitions),
        )
        try:
            commit(retried=_RETRIED - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            self._create(topic)
            commit()

    def write_offsets(self, transaction: Transaction, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit positions of a group as part of the transaction."""
        self._add_offsets(transaction, group)
        self._ask(
            (CoordinatorType.GROUP, group),
            ApiKey.TXN_OFFSET_COMMIT,
            partial(_offset_commit, transaction=transaction, group=group, offsets=offsets),
            lambda answer: (result.error_code for found in answer.topics for result in found.partitions),
        )

    def _add_offsets(self, transaction: Transaction, group: str) -> None:
        self._ask(
            (CoordinatorType.TRANSACTION, transaction.transactional_id),
            ApiKey.ADD_OFFSETS_TO_TXN,
            lambda schema: schema.AddOffsetsToTxnRequest(group_id=group, **transaction._asdict()),
        )

    def _create(self, topic: str) -> None:
        try:
            create_topic(self._cluster, topic, partitions=_RECORD_PARTITION + 1)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another task was faster
                raise KafkaError(
                    error.code,
                    f"cannot create the topic '{topic}' for the sink's records ({error.message}): create it with one "
                    "partition, or allow the user to",
                ) from error

    def read_records(self, group: str) -> dict[str, Offset]:
        """What is committed, by topic; waits for a transaction that is being ended."""
        offsets = self.read_offsets(group)
        return {topic: offset for (topic, index), offset in offsets.items() if index == _RECORD_PARTITION}

    def read_offsets(self, group: str) -> dict[TopicPartition, Offset]:
        """The same, by partition."""
        answer = self._ask(
            (CoordinatorType.GROUP, group),
            ApiKey.OFFSET_FETCH,
            lambda schema: schema.OffsetFetchRequest(group_id=group, topics=None, require_stable=True),
            lambda answer: (
                answer.error_code,
                *(result.error_code for topic in answer.topics for result in topic.partitions),
            ),
        )
        return {
            TopicPartition(topic.name, result.partition_index): Offset(result.committed_offset, result.metadata or "")
            for topic in answer.topics
            for result in topic.partitions
            if result.committed_offset >= 0
        }

    def end(self, transactions: Sequence[Transaction], *, commit: bool) -> dict[Transaction, KafkaError]:
        """End them all within the time limit of one; return those that were refused, with the reason."""
        refused: dict[Transaction, KafkaError] = {}
        deadline = self._deadline()
        left = self._end_at_once(transactions, commit=commit)
        for place, transaction in enumerate(left):
            try:
                self._ask(
                    (CoordinatorType.TRANSACTION, transaction.transactional_id),
                    ApiKey.END_TXN,
                    partial(_end_txn, transaction=transaction, commit=commit),
                    deadline=deadline,
                )
            except KafkaError as error:
                if time.monotonic() >= deadline:
                    return refused | dict.fromkeys(left[place:], error)
                refused[transaction] = error
        return refused

    def _end_at_once(self, transactions: Sequence[Transaction], *, commit: bool) -> list[Transaction]:
        """With many requests in flight to each coordinator; return the transactions that have not ended yet."""
        try:
            brokers = self._find(CoordinatorType.TRANSACTION, [one.transactional_id for one in transactions])
        except KafkaError:
            return list(transactions)
        by_broker: dict[int, list[Transaction]] = {}
        for one in transactions:
            by_broker.setdefault(brokers[one.transactional_id].id, []).append(one)
        left: list[Transaction] = []
        for broker, part in by_broker.items():
            for start in range(0, len(part), _END_TXN_WINDOW):
                window = part[start : start + _END_TXN_WINDOW]
                codes = self._end_window(broker, window, commit=commit)
                left += [one for one, code in zip(window, codes, strict=True) if code]
        return left

    def _end_window(self, broker: int, window: Sequence[Transaction], *, commit: bool) -> list[int]:
        try:
            connection = self._cluster.broker(broker)
            numbers = [
                connection.send_async(ApiKey.END_TXN, _END_TXN_PLAIN_VERSION, [_end_txn_body(one, commit)])
                for one in window
            ]
            answers = [connection.receive(ApiKey.END_TXN, _END_TXN_PLAIN_VERSION, number) for number in numbers]
        except KafkaError as error:
            self._cluster.forget(broker)
            return [error.code] * len(window)
        return [answer.error_code for answer in answers]

    def _ask(
        self,
        coordinator: tuple[CoordinatorType, str] | None,
        api_key: ApiKey,
        build: Callable[[Schema], Any],
        codes: Callable[[Any], Iterable[int]] = lambda answer: (answer.error_code,),
        *,
        deadline: float | None = None,
        retried: Collection[ErrorCode] = _RETRIED,
    ) -> Any:
        """The coordinator's answer, once it has no error; all these requests may be sent twice."""
        deadline = self._deadline() if deadline is None else deadline
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = self._connection(coordinator).send(api_key, build, max_version=_VERSIONS[api_key])
                code = next(filter(None, codes(answer)), ErrorCode.NONE)
                if not code:
                    return answer
                error = to_error(code)
            except KafkaError as unreachable:
                if unreachable.code not in UNREACHABLE:
                    raise
                error = unreachable
                self._cluster.close()
            if error.code not in retried or time.monotonic() >= deadline:
                raise _explained(error, coordinator) from error
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.clear()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._cluster.config.retry_backoff_ms / 1000)

    def _connection(self, coordinator: tuple[CoordinatorType, str] | None) -> Connection:
        if coordinator is None:
            return self._cluster.any_broker()
        kind, key = coordinator
        return self._cluster.broker(self._find(kind, [key])[key].id)

    def _deadline(self) -> float:
        return time.monotonic() + self._cluster.config.api_timeout_ms / 1000

    def _find(self, kind: CoordinatorType, keys: Sequence[str]) -> dict[str, Node]:
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        if unknown:
            found = self._cluster.at_coordinators(kind, unknown, lambda broker, keys: dict.fromkeys(keys, broker))
            for key, broker in found.items():
                if isinstance(broker, KafkaError):
                    raise broker
                self._coordinators[kind, key] = broker
        return {key: self._coordinators[kind, key] for key in keys}


def _explained(error: KafkaError, coordinator: tuple[CoordinatorType, str] | None) -> KafkaError:
    if error.code in UNREACHABLE:
        return KafkaError(error.code, f"{error.message}; {REACH_HINT}")
    what = f"{coordinator[1]}: " if coordinator else ""
    return KafkaError(error.code, what + _ADVICE.get(error.code, error.message))


def _offset_commit(
    schema: Schema, *, transaction: Transaction, group: str, offsets: Mapping[TopicPartition, Offset]
) -> Any:
    topics = tuple(
        schema.TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=tuple(
                schema.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=-1,
                    committed_metadata=found.metadata,
                )
                for index, found in parts
            ),
        )
        for topic, parts in by_topic(offsets)
    )
    return schema.TxnOffsetCommitRequest(
        group_id=group,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=topics,
        **transaction._asdict(),
    )


def _end_txn(schema: Schema, *, transaction: Transaction, commit: bool) -> Any:
    return schema.EndTxnRequest(committed=commit, **transaction._asdict())


def _end_txn_body(transaction: Transaction, commit: bool) -> bytes:
    start = write_string(transaction.transactional_id)
    return start + _END_TXN_END.pack(transaction.producer_id, transaction.producer_epoch, commit)
