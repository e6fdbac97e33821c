"""Committed offsets with real clients: who commits, in which way, and what is still known after the worst."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.structs import OffsetAndMetadata as AioOffset
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms, request_schema
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.raw import RawClient
from tests.integration.waiting import eventually

TIMEOUT_S = 20.0


class Committer(Protocol):
    name: str

    def commit(self, bootstrap: str, group: str, topic: str, offset: int) -> None: ...
    def committed(self, bootstrap: str, group: str, topic: str) -> int | None: ...
    def read(self, bootstrap: str, group: str, topic: str, count: int) -> list[bytes]:
        """As a member of the group, which commits by itself when it leaves."""


class Confluent:
    name = "confluent-kafka"

    def _consumer(self, bootstrap: str, group: str, **options: Any) -> Any:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **options}
        )

    def commit(self, bootstrap: str, group: str, topic: str, offset: int) -> None:
        consumer = self._consumer(bootstrap, group)
        place = confluent_kafka.TopicPartition(topic, 0, offset)
        (answer,) = consumer.commit(offsets=[place], asynchronous=False)
        assert answer.error is None
        consumer.close()

    def committed(self, bootstrap: str, group: str, topic: str) -> int | None:
        consumer = self._consumer(bootstrap, group)
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=TIMEOUT_S)
        consumer.close()
        return None if found.offset < 0 else int(found.offset)

    def read(self, bootstrap: str, group: str, topic: str, count: int) -> list[bytes]:
        consumer = self._consumer(bootstrap, group)
        consumer.subscribe([topic])
        values: list[bytes] = []
        while len(values) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            values.append(message.value())
        consumer.close()
        return values


class KafkaPython:
    name = "kafka-python"

    def _consumer(self, bootstrap: str, group: str, **options: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", max_poll_records=1, **options
        )

    def commit(self, bootstrap: str, group: str, topic: str, offset: int) -> None:
        consumer = self._consumer(bootstrap, group, enable_auto_commit=False)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.commit({partition: OffsetAndMetadata(offset, f"by {self.name}", -1)})
        consumer.close()

    def committed(self, bootstrap: str, group: str, topic: str) -> int | None:
        consumer = self._consumer(bootstrap, group, enable_auto_commit=False)
        found: int | None = consumer.committed(TopicPartition(topic, 0))
        consumer.close()
        return found

    def read(self, bootstrap: str, group: str, topic: str, count: int) -> list[bytes]:
        consumer = self._consumer(bootstrap, group)
        consumer.subscribe([topic])
        values = [next(consumer).value for _ in range(count)]
        consumer.close()
        return values


class AioKafka:
    name = "aiokafka"

    def _consumer(self, bootstrap: str, group: str, *topics: str, **options: Any) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", **options
        )

    def commit(self, bootstrap: str, group: str, topic: str, offset: int) -> None:
        async def work() -> None:
            async with self._consumer(bootstrap, group, enable_auto_commit=False) as consumer:
                consumer.assign([AioPartition(topic, 0)])
                await consumer.commit({AioPartition(topic, 0): AioOffset(offset, f"by {self.name}")})

        asyncio.run(work())

    def committed(self, bootstrap: str, group: str, topic: str) -> int | None:
        async def work() -> int | None:
            async with self._consumer(bootstrap, group, enable_auto_commit=False) as consumer:
                consumer.assign([AioPartition(topic, 0)])
                offset: int | None = await consumer.committed(AioPartition(topic, 0))
                return offset

        return asyncio.run(work())

    def read(self, bootstrap: str, group: str, topic: str, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            async with self._consumer(bootstrap, group, topic) as consumer:
                return [(await consumer.getone()).value for _ in range(count)]

        return asyncio.run(asyncio.wait_for(work(), TIMEOUT_S))


COMMITTERS: list[Committer] = [Confluent(), KafkaPython(), AioKafka()]
CONFLUENT, KAFKA_PYTHON, AIOKAFKA = COMMITTERS
by_name = pytest.mark.parametrize("client", COMMITTERS, ids=[client.name for client in COMMITTERS])


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def fill(bootstrap: str, topic: str, count: int = 10) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    CLIENTS[0].produce(bootstrap, topic, [Message(value, partition=0) for value in values])
    return values


def fetch_group(client: RawClient, group: str, topic: str, *, require_stable: bool = False) -> Any:
    schema = request_schema(ApiKey.OFFSET_FETCH, 8)
    wanted = schema.OffsetFetchRequestTopics(name=topic, partition_indexes=(0,))
    asked = schema.OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
    return client.ask(schema.OffsetFetchRequest(groups=(asked,), require_stable=require_stable)).groups[0]


def fetch_offsets(client: RawClient, group: str, topic: str, *, require_stable: bool = False) -> Any:
    """The answer for partition 0, once the group is loaded."""
    while (answer := fetch_group(client, group, topic, require_stable=require_stable)).error_code:
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return answer.topics[0].partitions[0]


@by_name
def test_every_client_finds_what_another_committed(client: Committer, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_group()
    assert client.committed(bootstrap, group, topic) is None
    client.commit(bootstrap, group, topic, 41)
    client.commit(bootstrap, group, topic, 42)
    assert {other.name: other.committed(bootstrap, group, topic) for other in COMMITTERS} == {
        other.name: 42 for other in COMMITTERS
    }
    with RawClient(bootstrap) as raw:
        # confluent-kafka has texts beside offsets, too, but sends them with the zero that ends them in C.
        assert fetch_offsets(raw, group, topic).metadata == ("" if client is CONFLUENT else f"by {client.name}")


@by_name
def test_a_group_goes_on_where_its_last_member_left(client: Committer, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_group()
    values = fill(bootstrap, topic)
    assert client.read(bootstrap, group, topic, 4) == values[:4]
    assert client.committed(bootstrap, group, topic) == 4
    assert client.read(bootstrap, group, topic, 6) == values[4:]


def test_commits_that_nobody_waits_for_arrive(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_group()
    answered: list[Any] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "on_commit": lambda error, places: answered.append((error, [place.offset for place in places])),
        }
    )
    for offset in range(1, 6):
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=True)
    eventually(lambda: consumer.poll(0) or len(answered) == 5, "five answers", TIMEOUT_S)
    assert answered == [(None, [offset]) for offset in range(1, 6)]
    consumer.close()
    assert CONFLUENT.committed(bootstrap, group, topic) == 5


def test_a_reader_that_keeps_its_own_offsets_needs_no_commits(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_group()
    values = fill(bootstrap, topic)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 7)
    assert [next(consumer).value for _ in range(3)] == values[7:]
    consumer.close()
    assert KAFKA_PYTHON.committed(bootstrap, group, topic) is None


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill], ids=["stop", "kill"])
def test_committed_offsets_outlive_the_broker(tmp_path: Path, end: Callable[[BrokerProcess], object]) -> None:
    with BrokerProcess(tmp_path) as broker:
        topic = make_topic(broker.bootstrap, 1, name="t")
        values = fill(broker.bootstrap, topic)
        for client in COMMITTERS:
            client.commit(broker.bootstrap, client.name, topic, 5)
        assert CONFLUENT.read(broker.bootstrap, "members", topic, 3) == values[:3]
        end(broker)
        broker.start()
        for client in COMMITTERS:
            assert client.committed(broker.bootstrap, client.name, topic) == 5
        assert AIOKAFKA.read(broker.bootstrap, "members", topic, 7) == values[3:]
        assert (broker.data_dir / "__consumer_offsets-49").is_dir()
        assert "Traceback" not in broker.output()


def test_every_acked_commit_is_there_after_kill_minus_nine(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topic = make_topic(broker.bootstrap, 1, name="t")
        acked = dict.fromkeys(("a", "b"), -1)
        is_over = threading.Event()

        def commit_on(group: str) -> None:
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0}
            )
            offset = 0
            while not is_over.is_set():
                with contextlib.suppress(confluent_kafka.KafkaException):  # the broker is away
                    place = confluent_kafka.TopicPartition(topic, 0, offset)
                    consumer.commit(offsets=[place], asynchronous=False)
                    acked[group] = offset
                    offset += 1
            consumer.close()

        threads = [threading.Thread(target=commit_on, args=(group,), daemon=True) for group in acked]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                before = dict(acked)
                eventually(lambda known=before: all(acked[group] > known[group] + 100 for group in acked), "commits")
                broker.kill()
                told = dict(acked)
                broker.start()
                with RawClient(broker.bootstrap) as client:
                    for group, offset in told.items():
                        assert fetch_offsets(client, group, topic).committed_offset >= offset
        finally:
            is_over.set()
            for thread in threads:
                thread.join(TIMEOUT_S)


def test_an_offset_that_says_when_it_expires_does(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"offsets.retention.check.interval.ms": 100}) as broker:
        topic = make_topic(broker.bootstrap, 1, name="t")
        CONFLUENT.commit(broker.bootstrap, "forever", topic, 1)
        schema = request_schema(ApiKey.OFFSET_COMMIT, 2)
        partition = schema.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata=None)
        request = schema.OffsetCommitRequest(
            group_id="brief",
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time=ms(1_500),
            topics=(schema.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
        )
        with RawClient(broker.bootstrap) as client:
            answer = client.ask(request)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            assert fetch_offsets(client, "brief", topic).committed_offset == 5
            eventually(lambda: fetch_offsets(client, "brief", topic).committed_offset == -1, "the offset expires")
            assert fetch_offsets(client, "forever", topic).committed_offset == 1
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        groups = admin.list_consumer_groups().result(TIMEOUT_S).valid
        assert [group.group_id for group in groups] == ["forever"]


def test_offsets_of_topics_that_nobody_is_subscribed_to_can_be_deleted(bootstrap: str, new_topic: NewTopic) -> None:
    read, left, group = new_topic(), new_topic(), new_group()
    CONFLUENT.commit(bootstrap, group, left, 3)
    fill(bootstrap, read)
    consumer = KafkaConsumer(read, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    next(consumer)
    consumer.commit()
    schema = request_schema(ApiKey.OFFSET_DELETE, 0)
    request = schema.OffsetDeleteRequest(
        group_id=group,
        topics=tuple(
            schema.OffsetDeleteRequestTopic(
                name=name,
                partitions=tuple(schema.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)),
            )
            for name in (read, left, "no-such-topic")
        ),
    )
    with RawClient(bootstrap) as client:
        answer = client.ask(request)
        assert answer.error_code == ErrorCode.NONE
        codes = {topic.name: [one.error_code for one in topic.partitions] for topic in answer.topics}
        assert codes == {
            read: [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            left: [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "no-such-topic": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2,
        }
        assert fetch_offsets(client, group, left).committed_offset == -1
        assert fetch_offsets(client, group, read).committed_offset > 0
    consumer.close()


def test_a_new_topic_does_not_inherit_the_offsets_of_its_namesake(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_group()
    CONFLUENT.commit(bootstrap, group, topic, 9)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    new_topic(name=topic)
    assert CONFLUENT.committed(bootstrap, group, topic) is None


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_offsets_of_a_transaction_count_when_it_is_committed(
    committed: bool, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(), new_group()
    CONFLUENT.commit(bootstrap, group, topic, 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"txn-{group}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    place = confluent_kafka.TopicPartition(topic, 0, 5)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), TIMEOUT_S)
    with RawClient(bootstrap) as client:
        assert fetch_offsets(client, group, topic).committed_offset == 1
        unstable = fetch_offsets(client, group, topic, require_stable=True)
        assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        (producer.commit_transaction if committed else producer.abort_transaction)(TIMEOUT_S)
        eventually(
            lambda: fetch_offsets(client, group, topic, require_stable=True).error_code == ErrorCode.NONE,
            "the transaction's end reaches the group",
        )
        assert fetch_offsets(client, group, topic).committed_offset == (5 if committed else 1)
    consumer.close()


def test_a_transaction_that_a_crash_cut_short_keeps_its_offsets_to_itself(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topic, group = make_topic(broker.bootstrap, 1, name="t"), "g"
        CONFLUENT.commit(broker.bootstrap, group, topic, 1)
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "txn"}
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        place = confluent_kafka.TopicPartition(topic, 0, 5)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), TIMEOUT_S)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert fetch_offsets(client, group, topic).committed_offset == 1
            unstable = fetch_offsets(client, group, topic, require_stable=True)
            assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
            confluent_kafka.Producer(settings).init_transactions(TIMEOUT_S)  # ends what its predecessor left
            eventually(
                lambda: fetch_offsets(client, group, topic, require_stable=True).error_code == ErrorCode.NONE,
                "the abandoned transaction ends",
            )
            assert fetch_offsets(client, group, topic).committed_offset == 1
        consumer.close()


def test_offsets_survive_the_compaction_of_their_topic(tmp_path: Path) -> None:
    eager = {"log.cleaner.backoff.ms": 50, "log.segment.delete.delay.ms": 100, "offsets.topic.segment.bytes": 1 << 20}
    with BrokerProcess(tmp_path, {**eager, "offsets.topic.num.partitions": 1}) as broker:
        topic = make_topic(broker.bootstrap, 1, name="t")
        CONFLUENT.commit(broker.bootstrap, "plain", topic, 7)
        commit_in_transaction(broker.bootstrap, "transactional", topic, 8)
        schema = request_schema(ApiKey.OFFSET_COMMIT, 9)
        with RawClient(broker.bootstrap) as client:
            for offset in range(800):
                partition = schema.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=offset, committed_metadata="x" * 4_000
                )
                wanted = schema.OffsetCommitRequestTopic(name=topic, partitions=(partition,))
                client.ask(
                    schema.OffsetCommitRequest(
                        group_id="busy", generation_id_or_member_epoch=-1, member_id="", topics=(wanted,)
                    )
                )
        folder = broker.data_dir / "__consumer_offsets-0"

        def stored_bytes() -> int:
            return sum(path.stat().st_size for path in folder.glob("*.log"))

        eventually(lambda: stored_bytes() < 2_000_000, "the topic is compacted")
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            found = {
                group: fetch_offsets(client, group, topic, require_stable=True).committed_offset
                for group in ("plain", "transactional", "busy")
            }
        assert found == {"plain": 7, "transactional": 8, "busy": 799}


def commit_in_transaction(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"txn-{group}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    consumer.close()


@pytest.mark.parametrize("version", range(2, 11))
def test_topics_that_do_not_exist_are_refused_one_by_one(version: int, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=2), new_group()
    by_id = version >= 10
    with RawClient(bootstrap) as client:
        CONFLUENT.commit(bootstrap, new_group(), topic, 1)  # so that there is a coordinator
        schema = request_schema(ApiKey.OFFSET_COMMIT, version)
        known = {"topic_id": client.topic_id(topic)} if by_id else {"name": topic}
        unknown = {"topic_id": uuid.uuid4()} if by_id else {"name": "no-such-topic"}
        request = schema.OffsetCommitRequest(
            group_id=group,
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=tuple(
                schema.OffsetCommitRequestTopic(
                    **named,
                    partitions=tuple(
                        schema.OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=3, committed_metadata=text
                        )
                        for index, text in ((0, "x" * 5000), (1, "fits"), (2, None))
                    ),
                )
                for named in (unknown, known)
            ),
        )
        answer = client.ask(request)
        codes = [[one.error_code for one in found.partitions] for found in answer.topics]
        no_topic = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [
            [no_topic] * 3,
            [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        ]
        assert fetch_offsets(client, group, topic).committed_offset == -1


@pytest.mark.parametrize("version", range(1, 11))
def test_all_offsets_of_a_group_can_be_asked_for(version: int, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group, nobody = new_topic(), new_group(), new_group()
    AIOKAFKA.commit(bootstrap, group, topic, 7)
    schema = request_schema(ApiKey.OFFSET_FETCH, version)
    with RawClient(bootstrap) as client:
        topic_id = client.topic_id(topic)
        if version >= 8:
            asked = tuple(schema.OffsetFetchRequestGroup(group_id=one, topics=None) for one in (group, nobody))
            of_group, of_nobody = client.ask(schema.OffsetFetchRequest(groups=asked)).groups
            assert of_nobody.error_code == ErrorCode.NONE
            assert not of_nobody.topics
        else:
            # All topics can be asked for since version 2.
            one = schema.OffsetFetchRequestTopic(name=topic, partition_indexes=(0,))
            of_group = client.ask(schema.OffsetFetchRequest(group_id=group, topics=None if version >= 2 else (one,)))
    (found,) = of_group.topics
    assert (found.topic_id == topic_id) if version >= 10 else (found.name == topic)
    (partition,) = found.partitions
    assert (partition.committed_offset, partition.metadata) == (7, "by aiokafka")
    assert partition.error_code == ErrorCode.NONE
