"""What the controller does for a cluster of real brokers: moves, elections, shutdowns, and who may ask it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import moldau
from moldau.client.admin import Resource, alter_configs, create_topic, describe_topics
from moldau.client.cluster import ClusterClient, PartitionMetadata
from moldau.client.cluster_admin import (
    alter_reassignments,
    describe_cluster,
    describe_quorum,
    elect_leaders,
    list_reassignments,
    unregister_broker,
)
from moldau.errors import ErrorCode
from moldau.errors import KafkaError as BrokerError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import ElectionType, ResourceType
from moldau.wire.messages import request_schema
from moldau.wire.topic_partition import TopicPartition
from tests.integration.clients import present
from tests.integration.conftest import NewTopic, cluster_at
from tests.integration.raw import RawClient
from tests.integration.waiting import eventually


@pytest.fixture(scope="module")
def brokers() -> Iterator[moldau.Cluster]:
    with moldau.Cluster(4, config={"auto.leader.rebalance.enable": "false"}) as four:
        yield four


@pytest.fixture
def admin(brokers: moldau.Cluster) -> Iterator[ClusterClient]:
    with cluster_at(brokers.bootstrap_servers) as client:
        yield client


@pytest.fixture
def whole(brokers: moldau.Cluster) -> Iterator[moldau.Cluster]:
    """Every broker is a member, before the test and after it."""
    yield brokers
    for broker in brokers.brokers:
        if not broker.is_alive:
            broker.start()
    brokers.wait_until_ready()


def placed(admin: ClusterClient, *replicas: int, **configs: str) -> str:
    """A topic of one partition on those brokers."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(
        admin, name, assignments={0: replicas}, configs={key.replace("_", "."): configs[key] for key in configs}
    )
    return name


def part(admin: ClusterClient, topic: str) -> PartitionMetadata:
    ((partition,),) = (described.partitions for described in describe_topics(admin, [topic]))
    return partition


def becomes(admin: ClusterClient, topic: str, what: Callable[[PartitionMetadata], bool], why: str) -> PartitionMetadata:
    eventually(lambda: what(part(admin, topic)), f"{why}: {part(admin, topic)}")
    return part(admin, topic)


def values_of(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []

    def take() -> int:
        values.extend(present(each.value()) for each in consumer.consume(500, 0.2) if not each.error())
        return len(values)

    try:
        eventually(lambda: take() >= count, f"{count} records of {topic}")
    finally:
        consumer.close()
    return values


def test_a_partition_moves_to_other_brokers_while_it_is_written_to(
    brokers: moldau.Cluster, admin: ClusterClient
) -> None:
    topic = placed(admin, 1, 2)
    producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    def write(first: int) -> None:
        for number in range(first, first + 500):
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
        producer.flush(20)

    write(0)
    assert alter_reassignments(admin, {TopicPartition(topic, 0): [3, 4]}) == {}
    write(500)
    moved = becomes(admin, topic, lambda now: now.replicas == (3, 4), "moved")
    write(1000)
    assert moved.leader in (3, 4)
    assert set(moved.isr) == {3, 4}
    assert list_reassignments(admin) == {}
    assert not failures
    assert values_of(brokers.bootstrap_servers, topic, 1500) == [b"%d" % number for number in range(1500)]


def test_a_move_to_a_broker_that_is_away_is_listed_and_can_be_cancelled(
    whole: moldau.Cluster, admin: ClusterClient
) -> None:
    topic = placed(admin, 1, 2)
    whole.broker(4).stop()
    assert alter_reassignments(admin, {TopicPartition(topic, 0): [4, 2]}) == {}
    ((partition, moving),) = list_reassignments(admin).items()
    assert partition == (topic, 0)
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 1), (4,), (1,))
    assert alter_reassignments(admin, {TopicPartition(topic, 0): None}) == {}
    assert set(part(admin, topic).replicas) == {1, 2}
    (refused,) = alter_reassignments(admin, {TopicPartition(topic, 0): None}).values()
    assert refused.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_broker_that_stops_hands_over_and_is_elected_again(whole: moldau.Cluster, admin: ClusterClient) -> None:
    topic = placed(admin, 1, 2, 3)
    whole.broker(1).stop()
    left = part(admin, topic)
    assert (left.leader, left.isr) == (2, (2, 3)), "before it stopped, not after"
    whole.broker(1).start()
    becomes(admin, topic, lambda now: set(now.isr) == {1, 2, 3}, "in sync again")
    assert elect_leaders(admin, ElectionType.PREFERRED, [TopicPartition(topic, 0)]) == {(topic, 0): None}
    assert part(admin, topic).leader == 1
    (again,) = elect_leaders(admin, ElectionType.PREFERRED, [TopicPartition(topic, 0)]).values()
    assert again is not None
    assert again.code is ErrorCode.ELECTION_NOT_NEEDED


def test_the_last_in_sync_is_waited_for_unless_somebody_asks_for_an_unclean_leader(
    whole: moldau.Cluster, admin: ClusterClient
) -> None:
    topic = placed(admin, 1, 2, min_insync_replicas="1")
    whole.broker(2).kill()
    becomes(admin, topic, lambda now: now.isr == (1,), "one is left")
    whole.broker(1).kill()
    whole.broker(2).start()
    becomes(admin, topic, lambda now: now.leader == -1 and now.offline == (1,), "the other one is back")
    assert part(admin, topic).isr == (1,)
    assert elect_leaders(admin, ElectionType.UNCLEAN, [TopicPartition(topic, 0)]) == {(topic, 0): None}
    assert (part(admin, topic).leader, part(admin, topic).isr) == (2, (2,))


def test_who_left_below_the_minimum_is_eligible_to_lead(whole: moldau.Cluster, admin: ClusterClient) -> None:
    topic = placed(admin, 1, 2, min_insync_replicas="2")
    whole.broker(2).kill()
    assert becomes(admin, topic, lambda now: now.isr == (1,), "one is left").elr == (2,)
    whole.broker(1).kill()
    becomes(admin, topic, lambda now: now.leader == -1, "nobody is left")
    whole.broker(2).start()
    led = becomes(admin, topic, lambda now: now.leader == 2, "who is eligible leads")
    assert (led.isr, led.elr) == ((2,), (1,))


def test_a_leader_whose_file_asks_for_fewer_in_sync_replicas_goes_by_the_clusters_value(
    whole: moldau.Cluster, admin: ClusterClient
) -> None:
    other = whole.broker(4)
    other.stop()
    other.properties["min.insync.replicas"] = "1"
    other.start()
    warning = "min.insync.replicas=1 in this broker's configuration is ignored: the cluster uses 2."
    assert other.log_path is not None
    log_path = other.log_path
    eventually(lambda: warning in log_path.read_text(), "it warns of the difference")
    topic = placed(admin, 4, 3)
    whole.broker(3).kill()
    assert becomes(admin, topic, lambda now: now.isr == (4,), "one is left").elr == (3,)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": other.address, "acks": "all", "message.timeout.ms": 1000, "retries": 0})
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    (error,) = errors
    assert error is not None, "broker 3 may be elected, so broker 4 must not commit without it"
    with pytest.raises(BrokerError, match=r"Broker-level min\.insync\.replicas cannot be altered"):
        alter_configs(admin, Resource(ResourceType.BROKER, "4"), set_values={"min.insync.replicas": "1"})


def test_a_broker_that_is_gone_for_good_can_be_forgotten(whole: moldau.Cluster, admin: ClusterClient) -> None:
    whole.broker(4).stop()
    assert {one.id: one.is_fenced for one in describe_cluster(admin, include_fenced=True).members} == {
        1: False,
        2: False,
        3: False,
        4: True,
    }
    unregister_broker(admin, 4)
    assert [one.id for one in describe_cluster(admin, include_fenced=True).members] == [1, 2, 3]
    quorum = describe_quorum(admin)
    assert [one.id for one in quorum.voters] == [1, 2, 3]
    assert {one.log_end_offset for one in quorum.voters} == {quorum.high_watermark}


def test_clients_are_neither_told_of_the_brokers_own_questions_nor_answered(brokers: moldau.Cluster) -> None:
    with RawClient(brokers.controller().address) as client:
        told = client.ask(request_schema(ApiKey.API_VERSIONS, 0).ApiVersionsRequest())
        keys = {one.api_key for one in told.api_keys}
        assert ApiKey.ELECT_LEADERS in keys
        assert not keys & {ApiKey.ALTER_PARTITION, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT}
        schema = request_schema(ApiKey.ALLOCATE_PRODUCER_IDS, 0)
        answer = client.ask(schema.AllocateProducerIdsRequest(broker_id=1, broker_epoch=1))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class TestABrokerOnItsOwn:
    """It is its own controller, and answers as one."""

    def test_there_is_nowhere_to_move_to(self, bootstrap: str, new_topic: NewTopic) -> None:
        topic = new_topic(2)
        with cluster_at(bootstrap) as alone:
            me = part_leader(alone, topic)
            assert list_reassignments(alone) == {}
            assert alter_reassignments(alone, {TopicPartition(topic, 0): [me]}) == {}
            (refused,) = alter_reassignments(alone, {TopicPartition(topic, 1): [me + 1]}).values()
            assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_it_leads_what_it_has(self, bootstrap: str, new_topic: NewTopic) -> None:
        topic = new_topic()
        with cluster_at(bootstrap) as alone:
            outcomes = elect_leaders(
                alone, ElectionType.PREFERRED, [TopicPartition(topic, 0), TopicPartition("no-such", 0)]
            )
        assert {which: outcome and outcome.code for which, outcome in outcomes.items()} == {
            (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("no-such", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    def test_it_is_a_quorum_of_one(self, bootstrap: str) -> None:
        with cluster_at(bootstrap) as alone:
            quorum = describe_quorum(alone)
        assert [one.id for one in quorum.voters] == [quorum.leader_id]


def part_leader(admin: ClusterClient, topic: str) -> int:
    (described,) = describe_topics(admin, [topic])
    return described.partitions[0].leader
