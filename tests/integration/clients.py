"""The three Python clients behind one small interface, so that each promise is checked with each.

Nothing here uses a consumer group: readers are assigned their partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import aiokafka.structs
import confluent_kafka
import kafka
import kafka.codec

T = TypeVar("T")
DEADLINE_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Message(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class Received(NamedTuple):
    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


Place = tuple[int, int]
"""Partition and offset."""


class Client(Protocol):
    name: str

    def codecs(self) -> Sequence[str]:
        """What this client can compress with, as it is installed here."""

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        linger_ms: int = 5,
        idempotent: bool = False,
        max_bytes: int = 1_000_000,
    ) -> list[Place]:
        """Sends all, waits for all; where each landed. With acks=0 a client does not know the offset."""

    def read(self, bootstrap: str, topic: str, partition: int = 0, *, start: int = 0, count: int) -> list[Received]:
        """`count` records from `start` on; raises when they do not come in time."""

    def offset_for_time(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        """Partition 0's first offset at or after the time."""

    def first_and_end_offset(self, bootstrap: str, topic: str) -> Place:
        """Partition 0's log start offset and next offset."""


def present(value: T | None) -> T:
    """A field of a message of confluent-kafka, where None would be a message without it."""
    assert value is not None
    return value


def _too_late(got: int, wanted: int) -> AssertionError:
    return AssertionError(f"{got} of {wanted} records after {DEADLINE_S:.0f} s")


def _received(record: Any) -> Received:
    """Of kafka-python or aiokafka, whose records look alike."""
    return Received(record.offset, record.value, record.key, tuple(record.headers), record.timestamp)


class Confluent:
    name = "confluent-kafka"

    def codecs(self) -> Sequence[str]:
        return CODECS

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        linger_ms: int = 5,
        idempotent: bool = False,
        max_bytes: int = 1_000_000,
    ) -> list[Place]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.codec": codec,
                "acks": acks,
                "linger.ms": linger_ms,
                "enable.idempotence": idempotent,
                "max.in.flight": 5,
                "message.max.bytes": max_bytes,
                "partitioner": "murmur2_random",
            }
        )
        places: list[Place] = [(-1, -1)] * len(messages)
        failures: list[Any] = []

        def delivered(number: int, error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                places[number] = (message.partition(), message.offset())

        for number, message in enumerate(messages):
            optional: dict[str, Any] = {}
            if message.timestamp_ms is not None:
                optional["timestamp"] = message.timestamp_ms
            if message.partition is not None:
                optional["partition"] = message.partition
            producer.produce(
                topic, message.value, message.key, headers=list(message.headers),
                on_delivery=partial(delivered, number), **optional,
            )  # fmt: skip
            producer.poll(0)
        left = producer.flush(DEADLINE_S)
        assert left == 0, f"{left} messages not delivered"
        assert not failures, failures
        return places

    def read(self, bootstrap: str, topic: str, partition: int = 0, *, start: int = 0, count: int) -> list[Received]:
        consumer = self._consumer(bootstrap)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            found: list[Received] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count:
                if time.monotonic() > deadline:
                    raise _too_late(len(found), count)
                for message in consumer.consume(count - len(found), 0.2):
                    assert message.error() is None, message.error()
                    found.append(
                        Received(
                            message.offset(), message.value(), message.key(), tuple(message.headers() or ()),
                            message.timestamp()[1],
                        )
                    )  # fmt: skip
            return found
        finally:
            consumer.close()

    def offset_for_time(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        consumer = self._consumer(bootstrap)
        try:
            (found,) = consumer.offsets_for_times(
                [confluent_kafka.TopicPartition(topic, 0, timestamp_ms)], timeout=DEADLINE_S
            )
            return None if found.offset < 0 else int(found.offset)
        finally:
            consumer.close()

    def first_and_end_offset(self, bootstrap: str, topic: str) -> Place:
        consumer = self._consumer(bootstrap)
        try:
            first, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=DEADLINE_S)
            return first, end
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",  # the library wants one even where it is not used
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )


class KafkaPython:
    name = "kafka-python"

    def codecs(self) -> Sequence[str]:
        return [codec for codec in CODECS if codec == "none" or getattr(kafka.codec, f"has_{codec}")()]

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        linger_ms: int = 5,
        idempotent: bool = False,
        max_bytes: int = 1_000_000,
    ) -> list[Place]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            linger_ms=linger_ms,
            enable_idempotence=idempotent,
            max_in_flight_requests_per_connection=5,
            max_request_size=max_bytes + 1000,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    message.partition,
                    message.timestamp_ms,
                )
                for message in messages
            ]
            sent = [future.get(timeout=DEADLINE_S) for future in futures]
            return [(one.partition, one.offset) for one in sent]
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, partition: int = 0, *, start: int = 0, count: int) -> list[Received]:
        consumer = self._consumer(bootstrap)
        try:
            where = kafka.TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, start)
            found: list[Received] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count:
                if time.monotonic() > deadline:
                    raise _too_late(len(found), count)
                batch = consumer.poll(200, max_records=count - len(found))
                found += [_received(record) for record in batch.get(where, ())]
            return found
        finally:
            consumer.close()

    def offset_for_time(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        consumer = self._consumer(bootstrap)
        try:
            where = kafka.TopicPartition(topic, 0)
            found = consumer.offsets_for_times({where: timestamp_ms})[where]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def first_and_end_offset(self, bootstrap: str, topic: str) -> Place:
        consumer = self._consumer(bootstrap)
        try:
            where = kafka.TopicPartition(topic, 0)
            return consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none", check_crcs=True
        )


class AioKafka:
    name = "aiokafka"

    def codecs(self) -> Sequence[str]:
        return CODECS

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        linger_ms: int = 5,
        idempotent: bool = False,
        max_bytes: int = 1_000_000,
    ) -> list[Place]:
        async def work() -> list[Place]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                linger_ms=linger_ms,
                enable_idempotence=idempotent,
                max_request_size=max_bytes + 1000,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic, message.value, message.key, message.partition, message.timestamp_ms,
                        list(message.headers),
                    )
                    for message in messages
                ]  # fmt: skip
                sent = await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_S)
                return [(-1, -1) if one is None else (one.partition, one.offset) for one in sent]
            finally:
                await producer.stop()

        return asyncio.run(work())

    def read(self, bootstrap: str, topic: str, partition: int = 0, *, start: int = 0, count: int) -> list[Received]:
        async def work() -> list[Received]:
            consumer = self._consumer(bootstrap)
            await consumer.start()
            try:
                where = aiokafka.TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, start)
                found: list[Received] = []
                deadline = time.monotonic() + DEADLINE_S
                while len(found) < count:
                    if time.monotonic() > deadline:
                        raise _too_late(len(found), count)
                    batch = await consumer.getmany(where, timeout_ms=200, max_records=count - len(found))
                    found += [_received(record) for record in batch.get(where, ())]
                return found
            finally:
                await consumer.stop()

        return asyncio.run(work())

    def offset_for_time(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        async def work() -> int | None:
            consumer = self._consumer(bootstrap)
            await consumer.start()
            try:
                where = aiokafka.TopicPartition(topic, 0)
                found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
                return None if found is None else int(found.offset)
            finally:
                await consumer.stop()

        return asyncio.run(work())

    def first_and_end_offset(self, bootstrap: str, topic: str) -> Place:
        async def work() -> Place:
            consumer = self._consumer(bootstrap)
            await consumer.start()
            try:
                where = aiokafka.TopicPartition(topic, 0)
                first = await consumer.beginning_offsets([where])
                end = await consumer.end_offsets([where])
                return first[where], end[where]
            finally:
                await consumer.stop()

        return asyncio.run(work())

    def _consumer(self, bootstrap: str) -> Any:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=32 << 20,
        )


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
