"""Transactions as programs use them, with each of the three Python clients."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import NewTopic

TIMEOUT_S = 20
Plan = Sequence[tuple[Sequence[bytes], bool]]
"""Transactions: their values, and whether they commit."""


class TransactionalClient(Protocol):
    name: str

    def run(self, bootstrap: str, transactional_id: str, topic: str, plan: Plan) -> None: ...

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[bytes]: ...

    def is_fenced(self, bootstrap: str, transactional_id: str, topic: str, fence: Callable[[], None]) -> bool:
        """Whether a producer with an open transaction can no longer commit it after `fence()`."""

    def copy(self, bootstrap: str, group: str, source: str, target: str, *, count: int, commit: bool) -> None:
        """The first `count` records of `source`, and the group's offset, in one transaction."""


class Confluent:
    name = "confluent-kafka"

    def run(self, bootstrap: str, transactional_id: str, topic: str, plan: Plan) -> None:
        producer = self._producer(bootstrap, transactional_id)
        for values, commits in plan:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value)
            producer.flush(TIMEOUT_S)
            if commits:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[bytes]:
        consumer = self._consumer(bootstrap, None)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            found: list[bytes] = []
            while len(found) < count:
                messages = consumer.consume(count - len(found), TIMEOUT_S)
                assert messages, f"{len(found)} of {count}"
                found += [message.value() for message in messages]
            return found
        finally:
            consumer.close()

    def is_fenced(self, bootstrap: str, transactional_id: str, topic: str, fence: Callable[[], None]) -> bool:
        producer = self._producer(bootstrap, transactional_id)
        producer.begin_transaction()
        producer.produce(topic, b"zombie")
        producer.flush(TIMEOUT_S)
        fence()
        try:
            producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            return bool(error.args[0].code() == confluent_kafka.KafkaError._FENCED)
        return False

    def copy(self, bootstrap: str, group: str, source: str, target: str, *, count: int, commit: bool) -> None:
        consumer = self._consumer(bootstrap, group)
        producer = self._producer(bootstrap, f"{group}-copier")
        try:
            consumer.subscribe([source])
            messages: list[Any] = []
            while len(messages) < count:
                messages += consumer.consume(count - len(messages), 1)
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value())
            offsets = [confluent_kafka.TopicPartition(source, 0, messages[-1].offset() + 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
            if commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
        finally:
            consumer.close()

    def _producer(self, bootstrap: str, transactional_id: str) -> Any:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _consumer(self, bootstrap: str, group: str | None) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group or "nobody",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )


class KafkaPython:
    name = "kafka-python"

    def run(self, bootstrap: str, transactional_id: str, topic: str, plan: Plan) -> None:
        with self._producer(bootstrap, transactional_id) as producer:
            for values, commits in plan:
                producer.begin_transaction()
                sent = [producer.send(topic, value) for value in values]
                producer.flush(TIMEOUT_S)
                assert all(one.succeeded() for one in sent)
                if commits:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[bytes]:
        with contextlib.closing(self._consumer(bootstrap, None)) as consumer:
            consumer.assign([kafka.TopicPartition(topic, 0)])
            found: list[bytes] = []
            for record in consumer:
                found.append(record.value)
                if len(found) == count:
                    break
            assert len(found) == count
            return found

    def is_fenced(self, bootstrap: str, transactional_id: str, topic: str, fence: Callable[[], None]) -> bool:
        with self._producer(bootstrap, transactional_id) as producer:
            producer.begin_transaction()
            producer.send(topic, b"zombie")
            producer.flush(TIMEOUT_S)
            fence()
            try:
                producer.commit_transaction()
            except kafka.errors.KafkaError:
                return True
            return False

    def copy(self, bootstrap: str, group: str, source: str, target: str, *, count: int, commit: bool) -> None:
        with (
            contextlib.closing(self._consumer(bootstrap, group)) as consumer,
            self._producer(bootstrap, f"{group}-copier") as producer,
        ):
            consumer.subscribe([source])
            records = [next(consumer) for _ in range(count)]
            producer.begin_transaction()
            for record in records:
                producer.send(target, record.value)
            where = kafka.TopicPartition(source, 0)
            offset = kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
            producer.send_offsets_to_transaction({where: offset}, group)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()

    @contextlib.contextmanager
    def _producer(self, bootstrap: str, transactional_id: str) -> Iterator[Any]:
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        try:
            producer.init_transactions()
            yield producer
        finally:
            producer.close(timeout=1)

    def _consumer(self, bootstrap: str, group: str | None) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_S * 1000,
        )


class AioKafka:
    name = "aiokafka"

    def run(self, bootstrap: str, transactional_id: str, topic: str, plan: Plan) -> None:
        async def work() -> None:
            async with self._producer(bootstrap, transactional_id) as producer:
                for values, commits in plan:
                    await producer.begin_transaction()
                    for value in values:
                        await producer.send_and_wait(topic, value)
                    if commits:
                        await producer.commit_transaction()
                    else:
                        await producer.abort_transaction()

        asyncio.run(work())

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            async with self._consumer(bootstrap, None) as consumer:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
                return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]

        return asyncio.run(work())

    def is_fenced(self, bootstrap: str, transactional_id: str, topic: str, fence: Callable[[], None]) -> bool:
        async def work() -> bool:
            async with self._producer(bootstrap, transactional_id) as producer:
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"zombie")
                await asyncio.to_thread(fence)
                try:
                    await producer.commit_transaction()
                except aiokafka.errors.ProducerFenced:
                    return True
                return False

        return asyncio.run(work())

    def copy(self, bootstrap: str, group: str, source: str, target: str, *, count: int, commit: bool) -> None:
        async def work() -> None:
            async with (
                self._consumer(bootstrap, group) as consumer,
                self._producer(bootstrap, f"{group}-copier") as producer,
            ):
                consumer.subscribe([source])
                records = [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(count)]
                await producer.begin_transaction()
                for record in records:
                    await producer.send_and_wait(target, record.value)
                offsets = {aiokafka.TopicPartition(source, 0): records[-1].offset + 1}
                await producer.send_offsets_to_transaction(offsets, group)
                if commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

        asyncio.run(work())

    @contextlib.asynccontextmanager
    async def _producer(self, bootstrap: str, transactional_id: str) -> AsyncIterator[Any]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        try:
            yield producer
        finally:
            with contextlib.suppress(aiokafka.errors.KafkaError):
                await producer.stop()

    @contextlib.asynccontextmanager
    async def _consumer(self, bootstrap: str, group: str | None) -> AsyncIterator[Any]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


TRANSACTIONAL: tuple[TransactionalClient, ...] = (Confluent(), KafkaPython(), AioKafka())
each_client = pytest.mark.parametrize("client", TRANSACTIONAL, ids=lambda client: client.name)


@pytest.fixture
def unique() -> str:
    return uuid.uuid4().hex[:12]


@each_client
def test_only_committed_transactions_are_read_as_such(
    bootstrap: str, new_topic: NewTopic, unique: str, client: TransactionalClient
) -> None:
    topic = new_topic()
    client.run(bootstrap, unique, topic, [([b"1", b"2"], True), ([b"no"], False), ([b"3"], True), ([b"no"], False)])
    for reader in TRANSACTIONAL:
        assert reader.read_committed(bootstrap, topic, 3) == [b"1", b"2", b"3"]
    assert [one.value for one in CLIENTS[2].read(bootstrap, topic, count=5)] == [b"1", b"2", b"no", b"3", b"no"]


@each_client
def test_a_second_program_with_the_same_id_fences_the_first(
    bootstrap: str, new_topic: NewTopic, unique: str, client: TransactionalClient
) -> None:
    topic = new_topic()

    def fence() -> None:
        client.run(bootstrap, unique, topic, [([b"successor"], True)])

    assert client.is_fenced(bootstrap, unique, topic, fence)
    assert client.read_committed(bootstrap, topic, 1) == [b"successor"]


@each_client
def test_offsets_are_part_of_the_transaction(
    bootstrap: str, new_topic: NewTopic, unique: str, client: TransactionalClient
) -> None:
    source, target = new_topic(), new_topic()
    CLIENTS[0].produce(bootstrap, source, [Message(b"%d" % number) for number in range(4)])
    client.copy(bootstrap, unique, source, target, count=2, commit=False)
    client.copy(bootstrap, unique, source, target, count=3, commit=True)
    client.copy(bootstrap, unique, source, target, count=1, commit=True)
    assert client.read_committed(bootstrap, target, 4) == [b"0", b"1", b"2", b"3"]
