"""Classic consumer groups with real clients: sharing, spares, deaths, static members, more partitions, restarts."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from moldau import Broker
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms, request_schema
from tests.integration.clients import present
from tests.integration.conftest import make_topic
from tests.integration.raw import RawClient
from tests.integration.waiting import eventually

SESSION_MS = 1_000
HEARTBEAT_MS = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Sessions may be shorter than Kafka's six seconds, so that a death shows soon."""
    with Broker({"group.min.session.timeout.ms": 500}) as one:
        yield one


class Reader(Protocol):
    """A consumer that polls in the background, as a program would."""

    def partitions(self) -> frozenset[int]: ...
    def close(self) -> None: ...
    def die(self) -> None:
        """Stops without leaving the group."""


class Confluent:
    def __init__(self, broker: Broker, topic: str, group: str, **config: Any) -> None:
        self.rounds = 0
        self.values: list[bytes] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": 200,
                **config,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._held: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _assigned(self, *_: object) -> None:
        self.rounds += 1

    def _poll(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.values.append(present(message.value()))
            self._held = frozenset(one.partition for one in self._consumer.assignment())

    def partitions(self) -> frozenset[int]:
        return self._held

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._consumer.close()

    def die(self) -> None:
        """A static member does not say good-bye, so closing one is what a crash looks like from the broker."""
        self.close()


class KafkaPython:
    def __init__(self, broker: Broker, topic: str, group: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
        )
        self._held: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            # A poll that ends between the answer to a sync and its use makes this client forget its assignment.
            self._consumer.poll(1_000)
            self._held = frozenset(one.partition for one in self._consumer.assignment())

    def partitions(self) -> frozenset[int]:
        return self._held

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._consumer.close()

    def die(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer._coordinator.maybe_leave_group = lambda **_: None
        self._consumer.close()


class AioKafka:
    def __init__(self, broker: Broker, topic: str, group: str) -> None:
        self._held: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._leaves = True
        self._thread = threading.Thread(target=asyncio.run, args=(self._poll(broker, topic, group),), daemon=True)
        self._thread.start()

    async def _poll(self, broker: Broker, topic: str, group: str) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        while not self._stop.is_set():
            await consumer.getmany(timeout_ms=20)
            self._held = frozenset(one.partition for one in consumer.assignment())
        if self._leaves:
            await consumer.stop()

    def partitions(self) -> frozenset[int]:
        return self._held

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def die(self) -> None:
        self._leaves = False
        self.close()


def shared(readers: list[Any], count: int, *, spares: int = 0) -> Callable[[], bool]:
    """Each partition is with one reader, and everybody but the spares has some."""

    def is_so() -> bool:
        held = [reader.partitions() for reader in readers]
        everything = [partition for one in held for partition in one]
        return sorted(everything) == list(range(count)) and sum(not one for one in held) == spares

    return is_so


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def state_of(broker: Broker, group: str) -> str:
    client = admin(broker)  # it has to outlive its futures
    return str(client.describe_consumer_groups([group])[group].result(10).state.name)


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def write(broker: Broker, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(10) == 0


@pytest.mark.parametrize("client", [Confluent, KafkaPython, AioKafka])
def test_members_share_a_spare_idles_and_takes_over_when_one_dies(broker: Broker, client: Any) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), new_group()
    # A static member of librdkafka goes without a word; the others can be made to.
    static = [{"group.instance.id": f"i{number}"} if client is Confluent else {} for number in range(3)]
    with ExitStack() as opened:
        readers = [opened.enter_context(closing(client(broker, topic, group, **static[0])))]
        eventually(shared(readers, 2), "the first reader has everything")
        readers.append(opened.enter_context(closing(client(broker, topic, group, **static[1]))))
        eventually(shared(readers, 2), "two readers share")
        readers.append(opened.enter_context(closing(client(broker, topic, group, **static[2]))))
        eventually(lambda: state_of(broker, group) == "STABLE" and shared(readers, 2, spares=1)(), "the third idles")
        dead = next(reader for reader in readers if reader.partitions())
        dead.die()
        readers.remove(dead)
        eventually(shared(readers, 2), "the spare has taken over")


def test_clients_of_all_kinds_are_in_one_group(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 6), new_group()
    with ExitStack() as opened:
        readers = [
            opened.enter_context(closing(client(broker, topic, group))) for client in (Confluent, KafkaPython, AioKafka)
        ]
        eventually(shared(readers, 6), "all three share")
        readers.pop(0).close()
        eventually(shared(readers, 6), "who closes gives its partitions back")


def test_cooperative_members_keep_what_they_have_while_others_come(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), new_group()
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    with ExitStack() as opened:
        readers = [opened.enter_context(closing(Confluent(broker, topic, group, **cooperative)))]
        eventually(shared(readers, 4), "the first reader has everything")
        first = readers[0].partitions()
        readers.append(opened.enter_context(closing(Confluent(broker, topic, group, **cooperative))))
        eventually(shared(readers, 4), "two readers share")
        assert readers[0].partitions() < first
        assert len(readers[0].partitions()) == 2


def test_a_static_member_restarts_without_a_round_for_the_others(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), new_group()
    with ExitStack() as opened:

        def start(name: str) -> Confluent:
            config = {"session.timeout.ms": 30_000, "group.instance.id": name}
            return opened.enter_context(closing(Confluent(broker, topic, group, **config)))

        readers = [start("a"), start("b")]
        eventually(shared(readers, 2), "two readers share")
        held, rounds = readers[1].partitions(), readers[0].rounds
        readers[1].close()
        readers[1] = start("b")
        eventually(lambda: readers[1].partitions() == held, "the one that restarted has its partitions again")
        assert readers[0].rounds == rounds
        assert state_of(broker, group) == "STABLE"


def test_new_partitions_are_read_without_a_restart(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 1), new_group()
    with ExitStack() as opened:
        readers = [opened.enter_context(closing(Confluent(broker, topic, group))) for _ in range(2)]
        eventually(shared(readers, 1, spares=1), "one reads, one idles")
        client = admin(broker)
        client.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
        eventually(shared(readers, 4), "both read the four partitions")


def test_every_group_gets_every_record(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers, 2)
    values = [b"%d" % number for number in range(20)]
    write(broker, topic, *values[:10])
    write(broker, topic, *values[10:], partition=1)
    with ExitStack() as opened:
        readers = [opened.enter_context(closing(Confluent(broker, topic, new_group()))) for _ in range(5)]
        eventually(lambda: all(sorted(reader.values) == sorted(values) for reader in readers), "all have all")


def test_a_group_goes_on_where_it_was_after_the_broker_restarts(tmp_path: Any) -> None:
    group = new_group()
    config = {"group.min.session.timeout.ms": 500}
    with ExitStack() as opened:
        with Broker(config, data_dir=tmp_path) as first:
            port = first.port
            topic = make_topic(first.bootstrap_servers, 2)
            write(first, topic, b"before")
            readers = [
                opened.enter_context(closing(Confluent(first, topic, group, **{"session.timeout.ms": 20_000})))
                for _ in range(2)
            ]
            eventually(shared(readers, 2), "two readers share")
            eventually(lambda: b"before" in readers[0].values + readers[1].values, "the first record")
            held = [reader.partitions() for reader in readers]
        with Broker(config, data_dir=tmp_path, port=port) as second:
            assert state_of(second, group) == "STABLE"
            write(second, topic, b"after", partition=1)
            eventually(lambda: b"after" in readers[0].values + readers[1].values, "the record after")
            assert [reader.partitions() for reader in readers] == held, "nobody had to join again"
            for reader in readers:
                reader.close()


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_the_first_record_comes_soon_after_subscribe(
    broker: Broker, client: str, record_property: Callable[[str, object], None]
) -> None:
    topic, group = make_topic(broker.bootstrap_servers), new_group()
    write(broker, topic, b"here")
    begin = time.monotonic()
    assert _first_value(client, broker.bootstrap_servers, topic, group) == b"here"
    took_ms = (time.monotonic() - begin) * 1000
    print(f"{client}: {took_ms:.0f} ms from subscribe() to the first record")
    record_property("first_record_ms", round(took_ms))


def _first_value(client: str, bootstrap: str, topic: str, group: str) -> bytes | None:
    if client == "aiokafka":
        return asyncio.run(_first_value_of_aiokafka(bootstrap, topic, group))
    if client == "kafka-python":
        with closing(
            kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
        ) as reader:
            return next(reader).value  # type: ignore[no-any-return]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    with closing(consumer):
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        return message.value()


async def _first_value_of_aiokafka(bootstrap: str, topic: str, group: str) -> bytes | None:
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        value: bytes | None = (await asyncio.wait_for(consumer.getone(), 30)).value
        return value
    finally:
        await consumer.stop()


def test_a_broker_stops_at_once_though_a_member_waits_for_others() -> None:
    find, join = request_schema(ApiKey.FIND_COORDINATOR, 2), request_schema(ApiKey.JOIN_GROUP, 3)
    member = join.JoinGroupRequest(
        group_id="g",
        session_timeout=ms(10_000),
        rebalance_timeout=ms(10_000),
        member_id="",
        protocol_type="consumer",
        protocols=(join.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    with Broker({"group.initial.rebalance.delay.ms": 60_000}) as broker, RawClient(broker.bootstrap_servers) as client:
        client.ask(find.FindCoordinatorRequest(key="g", key_type=0))
        client.send(member)
        eventually(lambda: state_of(broker, "g") == "PREPARING_REBALANCING", "a member that waits")
        begin_s = time.monotonic()
        broker.stop()
        took_s = time.monotonic() - begin_s
        _, answer = client.receive(member)
    assert took_s < 8, "answers may take ten seconds, but none is on its way here"
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
