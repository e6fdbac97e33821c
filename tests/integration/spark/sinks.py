"""What a sink has written, and a sink whose tasks and driver are called without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
import pyarrow as pa
import pytest

from moldau.client.connection import Connection
from moldau.spark.sink.exactly_once import Job, TaskMessage, commit_tasks, write_task
from moldau.spark.sink.row_sink import send_in_transaction
from moldau.spark.sink.write_options import WriteOptions
from moldau.wire.apis import ApiKey
from tests.integration.clients import present
from tests.integration.conftest import cluster_at

READ_S = 30.0
CHANGES = (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
FIRST_ENDED = 3  # of these requests of a driver, when the transaction of task 0 is ended and no other


class Read(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Read]:
    """All there is, partition by partition, with confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation, "enable.partition.eof": True}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions]
        )
        found: list[Read] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(READ_S)
            assert message is not None, "the broker sends nothing"
            if message.error():
                ended.add(present(message.partition()))
                continue
            partition, timestamp_ms = present(message.partition()), message.timestamp()[1]
            headers: Any = message.headers() or ()
            found.append(Read(partition, message.key(), message.value(), tuple(headers), timestamp_ms))
        return sorted(found, key=lambda record: record.partition)
    finally:
        consumer.close()


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[int]:
    return sorted(int(record.value or b"-1") for record in read(bootstrap, topic, isolation))


def options(bootstrap: str, topic: str | None, given: dict[str, object]) -> dict[str, str]:
    named = {name.replace("__", "."): str(value) for name, value in given.items()}
    return {"kafka.bootstrap.servers": bootstrap} | ({} if topic is None else {"topic": topic}) | named


class Sink:
    """A query whose tasks and driver do what they are told, and die when they are told."""

    def __init__(self, bootstrap: str, topic: str, **given: object) -> None:
        self._bootstrap = bootstrap
        self.options = WriteOptions.parse(options(bootstrap, topic, given))
        self.app = f"app-{topic}"

    def write(
        self, batch_id: int | None, task: int, numbers: range, before: Callable[[int], None] = lambda number: None
    ) -> TaskMessage:
        """`before` is called with the first number of each Arrow batch."""

        def rows() -> Iterator[pa.RecordBatch]:
            for start in range(numbers.start, numbers.stop, 500):
                before(start)
                part = range(start, min(start + 500, numbers.stop))
                yield pa.record_batch([pa.array([b"%d" % number for number in part], pa.binary())], ["value"])

        job = Job(self.app, batch_id)
        return write_task(job, task, self.options, rows(), partial(send_in_transaction, self.options))

    def commit(self, batch_id: int | None, messages: list[TaskMessage]) -> None:
        with cluster_at(self._bootstrap) as cluster:
            commit_tasks(cluster, batch_id, self.options, messages)

    def commit_and_die(
        self, batch_id: int | None, messages: list[TaskMessage], after_requests: int = FIRST_ENDED
    ) -> None:
        """After so many requests that change something. All a broker sees of it is a connection that ends."""
        sent = 0

        def die_in_time(
            method: Callable[..., Any], connection: Connection, api_key: ApiKey, *rest: Any, **kw: Any
        ) -> Any:
            nonlocal sent
            if api_key in CHANGES:
                if sent == after_requests:
                    raise Died
                sent += 1
            return method(connection, api_key, *rest, **kw)

        with cluster_at(self._bootstrap) as cluster, pytest.MonkeyPatch.context() as patch:
            for name in ("send", "send_async"):
                patch.setattr(Connection, name, _calling(die_in_time, getattr(Connection, name)))
            with pytest.raises(Died):
                commit_tasks(cluster, batch_id, self.options, messages)


def _calling(wrapper: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda connection, *rest, **kw: wrapper(method, connection, *rest, **kw)


class Died(Exception):
    pass
