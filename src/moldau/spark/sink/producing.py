"""The idempotent producer of a task: several requests in flight, in order, nothing lost, nothing duplicated.

The batches of a partition get sequence numbers when they are queued, and the broker accepts each number once, in order.
A request has one batch per partition, and each connection has up to five requests in flight, which is the number of
batches that a broker remembers. When a batch fails, everything after it in the same partition fails, too. The producer
then collects all responses, looks up the leaders again, and sends again what was not acknowledged, in the order of the
sequence numbers. The broker recognizes a batch that it already has by its number.

The first batch of a partition is sent alone, and so is one that is sent again. A broker that does not know a producer
accepts any first number: if it refused the first batch (for a new topic, for example), it would accept the second in
its place. And if a batch that is in the log were refused for a moment, later batches could make the broker forget it.

A producer is one thread: while it encodes, the broker works on what is in the socket buffers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from moldau.client.cluster import ClusterClient, TopicMetadata
from moldau.client.connection import to_error
from moldau.errors import RETRIABLE, ErrorCode, KafkaError
from moldau.spark.columns.encode import Batch, seal
from moldau.spark.sink.write_options import WriteOptions
from moldau.wire.apis import ApiKey
from moldau.wire.batch import decode_records, encode_batch, read_header
from moldau.wire.primitives import Buffer
from moldau.wire.produce import encode_produce_request
from moldau.wire.topic_partition import TopicPartition

IN_FLIGHT_MAX = 5
# Non-flexible, with messages for refused records, in every Kafka since 2.4; it takes part in classic transactions.
_VERSION = 8
_SEQUENCES = 0x7FFF_FFFF  # they count modulo 2^31

_RETRIED = (RETRIABLE - {ErrorCode.CORRUPT_MESSAGE}) | {  # brokers before 2.4 say that of a record without its key
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}

_ADVICE = {
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than the topic's max.message.bytes (or the broker's "
    "message.max.bytes) allows: raise it",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed to write to the topic: give the user WRITE on it",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed to write idempotently: give the user IDEMPOTENT_WRITE, or "
    "WRITE on the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not allowed to use the transactional id: give the user WRITE on "
    "ids that begin with the option transactionalIdPrefix",
    ErrorCode.PRODUCER_FENCED: "a later attempt of this task has taken over",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a later attempt of this task has taken over, or the transaction took longer "
    "than kafka.transaction.timeout.ms",
    ErrorCode.INVALID_TXN_STATE: "the transaction took longer than kafka.transaction.timeout.ms: raise it",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not know this kafka.compression.type",
    ErrorCode.INVALID_TIMESTAMP: "a timestamp is too far from the broker's clock (message.timestamp.before.max.ms, "
    "message.timestamp.after.max.ms)",
    ErrorCode.INVALID_RECORD: "the broker refuses a record; a compacted topic takes none without a key",
}


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None


class _Outgoing(NamedTuple):
    partition: TopicPartition
    sequence: int
    data: memoryview
    deadline: float


class _Request(NamedTuple):
    number: int
    batches: dict[TopicPartition, _Outgoing]


class _Failure(NamedTuple):
    batch: _Outgoing
    error: KafkaError


class Producer:
    """The producer of one task. It calls `enlist` with partitions before their first batch (for transactions)."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: WriteOptions,
        identity: ProducerIdentity,
        enlist: Callable[[Iterable[TopicPartition]], None] = lambda partitions: None,
    ) -> None:
        self.batch_bytes = options.batch_bytes  # smaller when the topic turns out to take less
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self._enlist = enlist
        self._topics: dict[str, TopicMetadata] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._queues: dict[TopicPartition, deque[_Outgoing]] = {}
        self._in_flight: dict[int, deque[_Request]] = {}
        self._alone: dict[TopicPartition, int] = {}  # how many of its next batches must be sent alone
        self._waiting: set[TopicPartition] = set()  # partitions with such a batch in flight

    def topic(self, name: str) -> TopicMetadata:
        """As it was when first asked for: a topic that grows meanwhile would split its keys within a batch of rows."""
        if name not in self._topics:
            self._topics[name] = self._find(name)
        return self._topics[name]

    def send(self, topic: str, batches: Sequence[Batch]) -> None:
        """Queue and send; returns with the last requests in flight."""
        partitions = {TopicPartition(topic, batch.partition) for batch in batches}
        new = sorted(partitions - self._sequences.keys())
        if new:
            self._enlist(new)
            self._sequences.update(dict.fromkeys(new, 0))
            self._alone.update(dict.fromkeys(new, 1))
        deadline = time.monotonic() + self._options.delivery_timeout_ms / 1000
        for batch in batches:
            self._queue(TopicPartition(topic, batch.partition), batch, deadline)
        while self._queues:
            self._post_round()

    def flush(self) -> None:
        """Return when every batch is acknowledged."""
        while any(self._in_flight.values()):
            for leader in list(self._in_flight):
                self._settle(self._collect(leader))
            while self._queues:
                self._post_round()

    def drain(self) -> None:
        """After an error: wait until brokers are through with what was sent. An older one would take a batch that
        comes after the end of its transaction for the start of another, which nobody ends."""
        with suppress(KafkaError):
            self._collect_all()

    def _queue(self, partition: TopicPartition, batch: Batch, deadline: float) -> None:
        sequence = self._sequences[partition]
        data = seal(
            batch,
            codec=self._options.codec,
            level=self._options.level,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=self._identity.transactional_id is not None,
        )
        self._sequences[partition] = (sequence + batch.records) & _SEQUENCES
        self._queues.setdefault(partition, deque()).append(_Outgoing(partition, sequence, data, deadline))

    def _post_round(self) -> None:
        """One request to each leader that has batches waiting."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in self._queues:
            by_leader.setdefault(self._leader(partition), []).append(partition)
        for leader, partitions in by_leader.items():
            ready = [partition for partition in partitions if partition not in self._waiting]
            if not ready or len(self._in_flight.get(leader, ())) >= IN_FLIGHT_MAX:
                failures = self._collect(leader)
            else:
                failures = self._post(leader, ready)
            if failures:
                self._settle(failures)
                return  # with other leaders, perhaps

    def _post(self, leader: int, partitions: Iterable[TopicPartition]) -> list[_Failure]:
        batches: dict[TopicPartition, _Outgoing] = {}
        size = 0
        for partition in partitions:
            batch = self._queues[partition][0]
            if batches and size + len(batch.data) > self._options.request_bytes_max:
                break
            size += len(batch.data)
            batches[partition] = batch
        for partition in batches:
            queue = self._queues[partition]
            queue.popleft()
            if not queue:
                del self._queues[partition]
        try:
            if leader < 0:
                raise to_error(ErrorCode.LEADER_NOT_AVAILABLE)
            connection = self._cluster.broker(leader)
            if connection.session_is_over:
                failures = self._collect_all()
                if failures:
                    return failures + [_Failure(batch, failures[0].error) for batch in batches.values()]
            number = connection.send_async(ApiKey.PRODUCE, _VERSION, self._request(batches))
        except KafkaError as error:
            return self._lost(leader, error) + [_Failure(batch, error) for batch in batches.values()]
        self._in_flight.setdefault(leader, deque()).append(_Request(number, batches))
        self._waiting |= batches.keys() & self._alone.keys()
        return []

    def _request(self, batches: dict[TopicPartition, _Outgoing]) -> list[Buffer]:
        topics: dict[str, list[tuple[int, Buffer]]] = {}
        for (topic, index), batch in batches.items():
            topics.setdefault(topic, []).append((index, batch.data))
        options = self._options
        return encode_produce_request(
            self._identity.transactional_id, options.acks, options.client.request_timeout_ms, topics
        )

    def _collect(self, leader: int) -> list[_Failure]:
        """Wait for the oldest response of a leader; return the batches that failed."""
        requests = self._in_flight.get(leader)
        if not requests:
            return []
        try:
            answer = self._cluster.broker(leader).receive(ApiKey.PRODUCE, _VERSION, requests[0].number)
        except KafkaError as error:
            return self._lost(leader, error)
        batches = requests.popleft().batches
        failures = [
            _Failure(batches[TopicPartition(topic.name, result.index)], to_error(result.error_code, _words(result)))
            for topic in answer.responses
            for result in topic.partition_responses
            if result.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        ]
        self._waiting -= batches.keys()
        for partition in self._alone.keys() & batches.keys() - {failure.batch.partition for failure in failures}:
            self._alone[partition] -= 1
            if not self._alone[partition]:
                del self._alone[partition]
        return failures

    def _collect_all(self) -> list[_Failure]:
        failures: list[_Failure] = []
        for leader in list(self._in_flight):
            while self._in_flight.get(leader):
                failures += self._collect(leader)
        return failures

    def _lost(self, leader: int, error: KafkaError) -> list[_Failure]:
        """Drop the connection. Whether the broker has what was in flight is unknown."""
        if error.code not in _RETRIED:
            raise error
        requests = self._in_flight.pop(leader, deque())
        failures = [_Failure(batch, error) for request in requests for batch in request.batches.values()]
        # Responses of other brokers are still to come, so only this connection is closed.
        self._cluster.forget(leader)
        return failures

    def _settle(self, failures: list[_Failure]) -> None:
        """Put failed batches back at the head of their queues, in order; raise if a retry cannot help."""
        if not failures:
            return
        failures = failures + self._collect_all()
        self._waiting.clear()
        by_partition: dict[TopicPartition, list[_Failure]] = {}
        for failure in failures:
            by_partition.setdefault(failure.batch.partition, []).append(failure)
        moved = set()
        for partition, failed in by_partition.items():
            # Sequences wrap around; those in flight are close together.
            start = failed[0].batch.sequence
            failed.sort(key=lambda failure: (failure.batch.sequence - start + (1 << 30)) & _SEQUENCES)
            again = [failure.batch for failure in failed]
            self._alone[partition] = max(self._alone.get(partition, 0), len(again))
            if failed[0].error.code is ErrorCode.MESSAGE_TOO_LARGE:
                again[:1] = self._split(failed[0])
                self._alone[partition] += 1
            else:
                self._check(failed[0])
                moved.add(partition[0])
            self._queues.setdefault(partition, deque()).extendleft(reversed(again))
        if moved:
            self._wait_for_leaders(moved)

    def _check(self, failure: _Failure) -> None:
        """Raise unless trying again may help. The first batch of a partition that failed counts, the others follow."""
        (topic, partition), code = failure.batch.partition, failure.error.code
        where = f"writing to partition {partition} of topic '{topic}'"
        if code not in _RETRIED or code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            advice = _ADVICE.get(code, "")
            said = failure.error.message
            raise KafkaError(code, f"{where}: {said if said == advice or not advice else f'{advice} ({said})'}")
        if time.monotonic() >= failure.batch.deadline:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{where}: not acknowledged within kafka.delivery.timeout.ms={self._options.delivery_timeout_ms}; the "
                f"last error was {code.name}: {failure.error.message}",
            )

    def _split(self, failure: _Failure) -> list[_Outgoing]:
        """A batch that is too large for the topic, as two; from now on they are made smaller."""
        batch = failure.batch
        header = read_header(batch.data)
        if header.count == 1:
            self._check(failure)
        self.batch_bytes = max(min(self.batch_bytes, len(batch.data)) // 2, 1)
        records = decode_records(batch.data, 0, header)
        halves = []
        for part in (records[: len(records) // 2], records[len(records) // 2 :]):
            sequence = (batch.sequence + part[0].offset) & _SEQUENCES
            data = encode_batch(
                [(record.key, record.value, record.timestamp_ms, record.headers) for record in part],
                codec=self._options.codec,
                level=self._options.level,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=sequence,
                is_transactional=header.is_transactional,
            )
            halves.append(_Outgoing(batch.partition, sequence, memoryview(data), batch.deadline))
        return halves

    def _leader(self, partition: TopicPartition) -> int:
        topic, index = partition
        return self.topic(topic).partitions[index].leader

    def _wait_for_leaders(self, topics: Iterable[str]) -> None:
        time.sleep(self._options.client.retry_backoff_ms / 1000)
        for name in topics:
            try:
                now = self._look_up(name)
            except KafkaError as error:
                if error.code not in _RETRIED:
                    raise
                continue  # keep the known leaders until the deadline
            self._topics[name] = now._replace(partitions=now.partitions[: len(self._topics[name].partitions)])

    def _find(self, name: str) -> TopicMetadata:
        """Brokers may create a topic that is not there (auto.create.topics.enable), which takes them a moment."""
        deadline = time.monotonic() + self._options.max_block_ms / 1000
        while True:
            try:
                return self._look_up(name, may_create=True)
            except KafkaError as error:
                if error.code not in _RETRIED or time.monotonic() >= deadline:
                    raise
            time.sleep(self._options.client.retry_backoff_ms / 1000)

    def _look_up(self, name: str, *, may_create: bool = False) -> TopicMetadata:
        found = self._cluster.metadata([name], allow_auto_topic_creation=may_create).topics.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(
                code,
                f"topic '{name}' does not exist: create it first: kafka-topics --create --topic {name}"
                f" --bootstrap-server {self._options.client.bootstrap_server}",
            )
        if code or found is None:
            raise KafkaError(code, f"topic '{name}': {to_error(code).message}")
        return found


def _words(result: Any) -> str | None:
    """What the broker says of a refused batch: of its first record that is at fault, where it names one."""
    errors = [error.batch_index_error_message for error in result.record_errors if error.batch_index_error_message]
    return result.error_message or (errors[0] if errors else None)
