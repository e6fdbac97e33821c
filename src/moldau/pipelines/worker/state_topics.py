"""The three compacted topics of a worker, read from the start and then followed, and written by the active worker.

Every worker reads. Only the active one writes: all of its writes are transactions of one transactional id per group,
so that the next active worker, by asking for the same id, ends what the last one had open and shuts it out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from moldau.clocks import monotonic_ms
from moldau.errors import ErrorCode, KafkaError, MoldauError
from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.records import Record, State, Topic

logger = logging.getLogger(__name__)

_CALL_S = 30.0  # longest wait for brokers
_POLL_S = 0.5
_TRANSACTION_TIMEOUT_MS = 30_000
_TOPIC_CONFIG = {"cleanup.policy": "compact"}


class FencedError(MoldauError):
    """Another worker of the group has become the active one."""


class StateTopics:
    """`changed` is called, without arguments, after records have been read."""

    def __init__(self, config: WorkerConfig, changed: Callable[[], None] = lambda: None) -> None:
        self.state = State()
        self.lock = threading.Lock()  # of `state`
        self._config = config
        self._names = {config.topic(which).name: which for which in Topic}
        self._changed = changed
        self._has_read = threading.Condition(self.lock)
        self._positions: dict[tuple[str, int], int] = {}
        self._producer: Any = None
        self._writing = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="moldau-worker-state", daemon=True)

    def open(self) -> str:
        """Make the topics that are missing, and read all of them to their end. Returns the id of the cluster."""
        cluster_id = _create_missing(self._config)
        self._thread.start()
        self.read_to_end()
        return cluster_id

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join(_CALL_S)

    def read_to_end(self) -> None:
        """Until all is read that is committed now."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec

        admin = AdminClient(self._config.client())
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(*partition): latest for partition in _partitions(admin, self._names)}
        ends = {
            (one.topic, one.partition): future.result(_CALL_S).offset
            for one, future in admin.list_offsets(asked, request_timeout=_CALL_S).items()
        }
        self._await(ends)

    def take_over(self) -> None:
        """Become the one that writes. Whoever was it before is shut out when this returns."""
        from confluent_kafka import Producer

        producer = Producer(
            self._config.client()
            | {
                "transactional.id": self._config.transactional_id,
                "transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
                "partitioner": "murmur2_random",
                "linger.ms": "0",
            }
        )
        with _errors():
            producer.init_transactions(_CALL_S)
        self._producer = producer
        self.read_to_end()

    def hand_over(self) -> None:
        """Write no more."""
        self._producer = None

    def write(self, records: Sequence[Record], *, is_read: bool = True) -> None:
        """All of them or none. By default returns when `state` has them. Raises FencedError if others are active."""
        producer = self._producer
        if producer is None:
            raise FencedError("this worker is not the active one")
        if not records:
            return
        written: dict[tuple[str, int], int] = {}

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                written[message.topic(), message.partition()] = message.offset() + 1

        with self._writing, _errors():
            producer.begin_transaction()
            try:
                for record in records:
                    name = self._config.topic(record.topic).name
                    producer.produce(name, record.data, record.key.encode(), on_delivery=delivered)
                producer.commit_transaction(_CALL_S)
            except Exception:
                with suppress(Exception):  # the first error says why
                    producer.abort_transaction(_CALL_S)
                raise
        if is_read:
            self._await(written)

    def _await(self, ends: dict[tuple[str, int], int]) -> None:
        deadline_ms = monotonic_ms() + int(_CALL_S * 1000)
        with self._has_read:
            while any(self._positions.get(partition, 0) < end for partition, end in ends.items()):
                left_ms = deadline_ms - monotonic_ms()
                if left_ms <= 0 or not self._has_read.wait(left_ms / 1000):
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the worker's topics could not be read in time")

    # What follows runs in the reader's thread.

    def _follow(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._read()
            except Exception:
                logger.exception("cannot read the worker's topics; trying again")
                self._is_closing.wait(1)

    def _read(self) -> None:
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka.admin import AdminClient

        client = self._config.client()
        partitions = _partitions(AdminClient(client), self._names)
        consumer = Consumer(
            client
            | {
                "group.id": f"{self._config.group_id}-reader",  # librdkafka wants one; nothing is committed
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": "100",
            }
        )
        try:
            with self.lock:
                starts = [TopicPartition(*one, self._positions.get(one, 0)) for one in partitions]
            consumer.assign(starts)
            while not self._is_closing.is_set():
                first = consumer.poll(_POLL_S)
                if first is not None:
                    self._take([first, *consumer.consume(1000, 0)])
        finally:
            consumer.close()

    def _take(self, messages: Iterable[Any]) -> None:
        from confluent_kafka import KafkaError as Error

        is_changed = False
        with self._has_read:
            for message in messages:
                error, end = message.error(), message.offset()
                if error is None:
                    self.state.apply(self._names[message.topic()], message.key(), message.value())
                    end, is_changed = end + 1, True
                elif error.code() != Error._PARTITION_EOF:
                    raise MoldauError(str(error))
                self._positions[message.topic(), message.partition()] = end
            self._has_read.notify_all()
        if is_changed:
            self._changed()


def _partitions(admin: Any, names: Iterable[str]) -> list[tuple[str, int]]:
    """Of these topics, when all are known to the brokers."""
    deadline = time.monotonic() + _CALL_S
    while True:
        found = admin.list_topics(timeout=_CALL_S).topics
        known = {name: found[name].partitions for name in names if name in found and not found[name].error}
        if all(known.get(name) for name in names):
            return [(name, partition) for name, partitions in known.items() for partition in partitions]
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if not known.get(name))
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the brokers have no leader for {missing}")
        time.sleep(0.05)


def _create_missing(config: WorkerConfig) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(config.client())
    try:
        with _errors():
            metadata = admin.list_topics(timeout=_CALL_S)
    except KafkaError as error:
        servers = config.properties.get("bootstrap.servers", "localhost:9092")
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"cannot reach the brokers at {servers}") from error
    wanted = [config.topic(which) for which in Topic]
    existing = metadata.topics.get(config.topic(Topic.CONFIG).name)
    if existing is not None and len(existing.partitions) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {config.topic(Topic.CONFIG).name} has {len(existing.partitions)} partitions: "
            "config.storage.topic must have exactly one",
        )
    new = [
        NewTopic(topic.name, topic.partitions, topic.replication_factor, config=_TOPIC_CONFIG)
        for topic in wanted
        if topic.name not in metadata.topics
    ]
    for name, future in (admin.create_topics(new, operation_timeout=_CALL_S) if new else {}).items():
        try:
            with _errors():
                future.result(_CALL_S)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another worker was faster
                raise KafkaError(error.code, f"cannot create topic {name}: {error.message}") from error
    return str(metadata.cluster_id or "")


@contextmanager
def _errors() -> Iterator[None]:
    """librdkafka's errors as ours."""
    from confluent_kafka import KafkaError as Error
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        found = error.args[0]
        if found.fatal() or found.code() in (Error._FENCED, Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH):
            raise FencedError(f"another worker of the group may be the active one now ({found.str()})") from error
        known = ErrorCode(found.code()) if found.code() in set(ErrorCode) else ErrorCode.NETWORK_EXCEPTION
        raise KafkaError(known, found.str()) from error
