"""Coordinators on several brokers: groups, transactions and queues go on when the broker that keeps them dies."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, Producer, ShareConsumer, TopicPartition

import moldau
from moldau.errors import ErrorCode
from moldau.local_cluster import BrokerProcess
from moldau.wire.apis import ApiKey
from moldau.wire.messages import request_schema
from tests.integration.conftest import make_topic
from tests.integration.coordination.test_share_groups import new_group, queue_left, take, values_of, write
from tests.integration.raw import RawClient
from tests.integration.raw_txn import RawProducer, committed_values, last_stable_offset, persist
from tests.integration.waiting import eventually

GROUP, TRANSACTION, SHARE = 0, 1, 2
QUICK = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
    "group.initial.rebalance.delay.ms": 0,
    "leader.imbalance.check.interval.seconds": 1,  # each broker coordinates something, also after a kill
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}

Connect = Callable[[BrokerProcess], RawClient]


@pytest.fixture(scope="module")
def running() -> Iterator[moldau.Cluster]:
    with moldau.Cluster(3, QUICK) as three:
        yield three


@pytest.fixture
def cluster(running: moldau.Cluster) -> moldau.Cluster:
    """Every broker is a member, whatever the test before did to them."""
    for broker in running.brokers:
        if not broker.is_alive:
            broker.start()
    running.wait_until_ready()
    return running


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as opened:
        yield lambda broker: opened.enter_context(RawClient(broker.address))


def coordinator_of(cluster: moldau.Cluster, key: str, key_type: int, via: BrokerProcess | None = None) -> BrokerProcess:
    schema = request_schema(ApiKey.FIND_COORDINATOR, 4)
    request = schema.FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
    found: list[int] = []

    def ask() -> ErrorCode:
        with RawClient((via or next(one for one in cluster.brokers if one.is_alive)).address) as client:
            answer = client.ask(request).coordinators[0]
        found.append(answer.node_id)
        return ErrorCode(answer.error_code)

    assert persist(ask) is ErrorCode.NONE
    return cluster.broker(found[-1])


def name_elsewhere(cluster: moldau.Cluster, key_type: int, *others: BrokerProcess) -> str:
    """A new name whose coordinator is none of the others."""
    while True:
        name = f"name-{uuid.uuid4().hex[:12]}"
        if coordinator_of(cluster, name, key_type) not in others:
            return name


def produce(cluster: moldau.Cluster, topic: str, values: range) -> None:
    write(cluster.bootstrap_servers, topic, *map(str, values))


def is_all_decided(cluster: moldau.Cluster, topic: str) -> bool:
    """No transaction is open in the topic's one partition."""
    with RawClient(cluster.leader_of(topic).address) as client:
        part = client.fetch(topic, 0, isolation_level=1)
        return bool(part.error_code == 0 and part.last_stable_offset == part.high_watermark)


# -- finding


def test_every_broker_names_the_same_coordinator_and_the_others_refuse(
    cluster: moldau.Cluster, connect: Connect
) -> None:
    for key_type in (GROUP, TRANSACTION, SHARE):
        key = f"group:{uuid.uuid4()}:0"
        assert len({coordinator_of(cluster, key, key_type, via) for via in cluster.brokers}) == 1
    coordinator = coordinator_of(cluster, "somebody", GROUP)
    schema = request_schema(ApiKey.OFFSET_FETCH, 7)
    request = schema.OffsetFetchRequest(group_id="somebody", topics=None, require_stable=False)
    codes = {broker: ErrorCode(connect(broker).ask(request).error_code) for broker in cluster.brokers}
    assert persist(lambda: ErrorCode(connect(coordinator).ask(request).error_code)) is ErrorCode.NONE
    assert {code for broker, code in codes.items() if broker is not coordinator} == {ErrorCode.NOT_COORDINATOR}


def test_producer_ids_of_different_brokers_are_different(cluster: moldau.Cluster, connect: Connect) -> None:
    clients = [connect(broker) for broker in cluster.brokers]
    ids = [client.init_producer_id()[0] for _ in range(400) for client in clients]
    assert len(set(ids)) == len(ids)


# -- groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_go_on_when_their_coordinator_dies_and_their_offsets_are_kept(
    cluster: moldau.Cluster, protocol: str
) -> None:
    topic = make_topic(cluster.bootstrap_servers)
    group = name_elsewhere(cluster, GROUP, cluster.leader_of(topic))
    config: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    produce(cluster, topic, range(100))
    consumer = Consumer(config)
    try:
        consumer.subscribe([topic])
        got = read(consumer, 100)
        consumer.commit(asynchronous=False)
        coordinator_of(cluster, group, GROUP).kill()
        assert consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == 100
        produce(cluster, topic, range(100, 200))
        got += read(consumer, 100)
        assert got == [str(number).encode() for number in range(200)]
        eventually(lambda: is_committed(consumer), "the member commits at the new coordinator")
    finally:
        consumer.close()
    successor = Consumer(config)
    try:
        assert successor.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == 200
    finally:
        successor.close()


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    got: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            got.append(message.value())
    return got


def is_committed(consumer: Consumer) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return False  # while the client looks for it
    return True


# -- transactions


class Apart(RawProducer):
    """A producer whose partition is led by another broker than its coordinator."""

    def __init__(self, coordinator: RawClient, leader: RawClient, transactional_id: str, version: int) -> None:
        super().__init__(coordinator, transactional_id, version=version)
        self._coordinator, self._leader = coordinator, leader

    def send(self, topic: str, *values: bytes, **options: Any) -> Any:
        self.client = self._leader
        try:
            return super().send(topic, *values, **options)
        finally:
            self.client = self._coordinator


@pytest.fixture(params=[1, 2])
def apart(request: pytest.FixtureRequest, cluster: moldau.Cluster, connect: Connect) -> tuple[Apart, str, RawClient]:
    topic = make_topic(cluster.bootstrap_servers)
    leader = cluster.leader_of(topic)
    name = name_elsewhere(cluster, TRANSACTION, leader)
    at_leader = connect(leader)
    producer = Apart(connect(coordinator_of(cluster, name, TRANSACTION)), at_leader, name, request.param)
    producer.init()
    return producer, topic, at_leader


def test_transactions_span_the_brokers_of_coordinator_and_partition(apart: tuple[Apart, str, RawClient]) -> None:
    producer, topic, at_leader = apart
    producer.write(topic, b"a")
    producer.write(topic, b"b")
    assert last_stable_offset(at_leader, topic) == 0
    producer.commit()
    producer.write(topic, b"lost")
    producer.abort()
    producer.write(topic, b"c")
    producer.commit()
    assert committed_values(at_leader, topic) == [b"a", b"b", b"c"]


def test_what_comes_too_late_for_its_transaction_is_refused_by_the_other_broker(
    apart: tuple[Apart, str, RawClient],
) -> None:
    producer, topic, at_leader = apart
    producer.write(topic, b"a")
    late = (producer.producer_id, producer.epoch)
    producer.commit()
    codes = [ErrorCode(producer.send(topic, b"late", producer=late, sequence=1).error_code) for _ in range(3)]
    assert ErrorCode.NONE not in codes
    assert committed_values(at_leader, topic) == [b"a"]
    assert last_stable_offset(at_leader, topic) == 2


def test_transactions_are_decided_while_their_coordinator_dies_and_comes_back(cluster: moldau.Cluster) -> None:
    topic = make_topic(cluster.bootstrap_servers)
    name = name_elsewhere(cluster, TRANSACTION, cluster.leader_of(topic))
    producer = transactional(cluster, name)
    committed: list[bytes] = []
    for number in range(30):
        value = str(number).encode()
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(20)
        if number == 10:
            coordinator_of(cluster, name, TRANSACTION).kill()
        try:
            producer.commit_transaction(30)
            committed.append(value)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
        if number == 20:
            for broker in cluster.brokers:
                if not broker.is_alive:
                    broker.start()
    eventually(lambda: is_all_decided(cluster, topic), "no transaction hangs")
    with RawClient(cluster.leader_of(topic).address) as client:
        assert committed_values(client, topic) == committed
    assert len(committed) >= 29


def test_a_transaction_is_aborted_in_time_though_producer_and_coordinator_died(cluster: moldau.Cluster) -> None:
    topic = make_topic(cluster.bootstrap_servers)
    name = name_elsewhere(cluster, TRANSACTION, cluster.leader_of(topic))
    producer = transactional(cluster, name, **{"transaction.timeout.ms": 1_500})
    producer.begin_transaction()
    producer.produce(topic, b"orphan", partition=0)
    producer.flush(20)
    assert not is_all_decided(cluster, topic)
    coordinator_of(cluster, name, TRANSACTION).kill()
    eventually(lambda: is_all_decided(cluster, topic), "the next coordinator aborts it")
    with RawClient(cluster.leader_of(topic).address) as client:
        assert committed_values(client, topic) == []


def test_offsets_of_a_transaction_are_committed_through_three_brokers(cluster: moldau.Cluster) -> None:
    topic = make_topic(cluster.bootstrap_servers)
    leader = cluster.leader_of(topic)
    group = name_elsewhere(cluster, GROUP, leader)
    producer = transactional(
        cluster, name_elsewhere(cluster, TRANSACTION, leader, coordinator_of(cluster, group, GROUP))
    )
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0}
    consumer = Consumer(config)
    try:
        for number, is_kept in enumerate((True, False, True), start=1):
            producer.begin_transaction()
            producer.produce(topic, b"x", partition=0)
            offsets = [TopicPartition(topic, 0, number)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
            producer.commit_transaction(20) if is_kept else producer.abort_transaction(20)
            kept = number if is_kept else number - 1
            assert consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == kept
    finally:
        consumer.close()


def transactional(cluster: moldau.Cluster, name: str, **config: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name, "log_level": 0, **config}
    )
    producer.init_transactions(30)
    return producer


# -- queues


def test_a_queue_is_kept_on_another_broker_than_its_records_and_outlives_both(cluster: moldau.Cluster) -> None:
    bootstrap = cluster.bootstrap_servers
    topic, group = make_topic(bootstrap), new_group(bootstrap)
    produce(cluster, topic, range(10))
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 5,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        taken = take(consumer, 5, AcknowledgeType.ACCEPT)
        cluster.leader_of(topic).kill()
        produce(cluster, topic, range(10, 20))
        everything = {str(number).encode() for number in range(20)}
        deadline = time.monotonic() + 40
        while set(values_of(taken)) != everything:
            assert time.monotonic() < deadline, sorted(everything - set(values_of(taken)))
            taken += take(consumer, 1, AcknowledgeType.ACCEPT, within_s=0.5)
        at = coordinator_of(cluster, group, GROUP)
        eventually(lambda: queue_left(at.address, group, topic) == (20, 0), "all of it is acknowledged")
    finally:
        consumer.close()
    assert len(taken) == 20, "what was acknowledged is not delivered again"


def test_a_copier_goes_on_when_the_coordinator_of_its_group_dies(cluster: moldau.Cluster) -> None:
    """librdkafka drops a broker that it is not told of any more, and then waits for it (its issue 5511)."""
    source, target = (make_topic(cluster.bootstrap_servers) for _ in range(2))
    group = f"group-{uuid.uuid4()}"
    coordinator = coordinator_of(cluster, group, GROUP)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name_elsewhere(cluster, TRANSACTION, coordinator),
            "log_level": 0,
        }
    )
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(source, 0, 0)])
    producer.init_transactions(30)

    def copy(value: str) -> None:
        write(cluster.bootstrap_servers, source, value)
        eventually(lambda: consumer.poll(0.1) is not None, "it reads")
        producer.begin_transaction()
        producer.produce(target, value)
        sending = threading.Thread(
            target=producer.send_offsets_to_transaction,
            args=(consumer.position(consumer.assignment()), consumer.consumer_group_metadata()),
            daemon=True,
        )
        sending.start()
        eventually(lambda: not sending.is_alive(), "the offsets are in the transaction")
        producer.commit_transaction(30)

    copy("before")
    coordinator.kill()
    eventually(lambda: coordinator_of(cluster, group, GROUP) is not coordinator, "another broker coordinates")
    producer.list_topics(timeout=30)  # the brokers as they are told of now
    copy("after")
    with RawClient(cluster.leader_of(target).address) as client:
        eventually(lambda: committed_values(client, target) == [b"before", b"after"], "both are there")
    consumer.close()
