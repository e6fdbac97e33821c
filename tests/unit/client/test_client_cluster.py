"""Routing: the controller and the leaders are found, and found again when they move."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client import admin
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import LATEST, ResourceType
from moldau.wire.messages import error, ms
from moldau.wire.topic_partition import TopicPartition
from tests.unit.client.fake_broker import FakeBroker, metadata_answer

MakeBroker = Callable[..., FakeBroker]


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _broker(make: MakeBroker, answers: dict[int, Any], **metadata: Any) -> FakeBroker:
    broker = make(answers | {ApiKey.METADATA: None})
    broker.answers[ApiKey.METADATA] = metadata_answer(broker, **metadata)
    return broker


def _create_answer(codes: list[int]) -> Any:
    def answer(schema: Any, request: Any) -> Any:
        code = codes.pop(0)
        return schema.CreateTopicsResponse(
            throttle_time=ms(0),
            topics=tuple(
                schema.CreatableTopicResult(
                    name=topic.name, topic_id=None, error_code=error(code), error_message=None, configs=()
                )
                for topic in request.topics
            ),
        )

    return answer


def _offsets_answer(codes: list[int]) -> Any:
    def answer(schema: Any, request: Any) -> Any:
        code = codes.pop(0) if codes else 0
        return schema.ListOffsetsResponse(
            throttle_time=ms(0),
            topics=tuple(
                schema.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        schema.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index,
                            error_code=error(code),
                            timestamp=-1,
                            offset=-1 if code else 40 + p.partition_index,
                            leader_epoch=0,
                        )
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    return answer


def test_a_moved_controller_is_found_and_asked_again(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.CREATE_TOPICS: _create_answer([41, 41, 0])})
    time = Time()
    with ClusterClient(broker.config(), clock=time.clock, sleep=time.sleep) as cluster:
        admin.create_topic(cluster, "new", partitions=3, configs={"retention.ms": "1"})
    (request, *_) = broker.sent(ApiKey.CREATE_TOPICS)
    assert len(broker.sent(ApiKey.CREATE_TOPICS)) == 3
    assert (request.topics[0].num_partitions, request.topics[0].replication_factor) == (3, -1)
    assert len(broker.sent(ApiKey.METADATA)) == 3


def test_a_controller_that_never_settles_is_given_up_in_time(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.CREATE_TOPICS: _create_answer([41] * 1000)})
    time = Time()
    config = broker.config(default_api_timeout_ms="1000", retry_backoff_ms="100")
    with ClusterClient(config, clock=time.clock, sleep=time.sleep) as cluster, pytest.raises(KafkaError) as caught:
        admin.create_topic(cluster, "new")
    assert caught.value.code == ErrorCode.NOT_CONTROLLER
    assert time.now == pytest.approx(1.0, abs=0.11)


def test_where_no_controller_is_named_any_broker_will_do(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.CREATE_TOPICS: _create_answer([0])}, controller_id=-1)
    with ClusterClient(broker.config()) as cluster:
        admin.create_topic(cluster, "new")


def test_an_error_of_the_broker_is_raised_with_its_code(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.CREATE_TOPICS: _create_answer([36])})
    with ClusterClient(broker.config()) as cluster, pytest.raises(KafkaError) as caught:
        admin.create_topic(cluster, "t")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_partitions_whose_leader_moved_are_asked_for_again(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_OFFSETS: _offsets_answer([6, 78])})
    time = Time()
    with ClusterClient(broker.config(), clock=time.clock, sleep=time.sleep) as cluster:
        offsets = admin.list_offsets(cluster, {TopicPartition("t", 0): LATEST, TopicPartition("t", 1): LATEST})
    found = {tp: result.offset for tp, result in offsets.items() if not isinstance(result, KafkaError)}
    assert found == {("t", 0): 40, ("t", 1): 41}
    assert time.now == pytest.approx(0.2)


def test_unknown_partitions_are_answered_as_errors_beside_the_known_ones(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_OFFSETS: _offsets_answer([])})
    with ClusterClient(broker.config()) as cluster:
        offsets = admin.list_offsets(
            cluster, {TopicPartition("t", 0): -1, TopicPartition("t", 9): -1, TopicPartition("nope", 0): -1}
        )
    codes = {tp: getattr(result, "code", None) for tp, result in offsets.items()}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {("t", 0): None, ("t", 9): unknown, ("nope", 0): unknown}


def test_the_next_bootstrap_server_is_tried_when_the_first_is_dead(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    servers = f"127.0.0.1:{dead},127.0.0.1:{broker.port}"
    with ClusterClient(ClientConfig.from_properties(servers, {})) as cluster:
        assert cluster.metadata().cluster_id == "c"


def test_when_every_bootstrap_server_is_dead_all_of_them_are_named() -> None:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(listener.getsockname()[1])
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    with ClusterClient(ClientConfig.from_properties(servers, {})) as cluster, pytest.raises(KafkaError) as caught:
        cluster.metadata()
    assert all(str(port) in caught.value.message for port in ports)
    assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE


def test_a_bootstrap_connection_that_broke_is_made_anew(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {})
    whole = broker.answers[ApiKey.METADATA]
    with ClusterClient(broker.config()) as cluster:
        cluster.metadata()
        hang_up = [True]
        broker.answers[ApiKey.METADATA] = lambda schema, request: (
            None if hang_up and hang_up.pop() else whole(schema, request)
        )
        assert set(cluster.metadata().topics) == {"t"}


def _hanging_up(times: int, answer: Any) -> Any:
    """A broker that closes the connection instead of answering, that many times."""
    left = [times]

    def or_not(schema: Any, request: Any) -> Any:
        left[0] -= 1
        return None if left[0] >= 0 else answer(schema, request)

    return or_not


def test_a_controller_that_died_is_found_again_and_asked_again(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.CREATE_TOPICS: _hanging_up(2, _create_answer([0]))})
    time = Time()
    with ClusterClient(broker.config(), clock=time.clock, sleep=time.sleep) as cluster:
        admin.create_topic(cluster, "new")
    assert len(broker.sent(ApiKey.CREATE_TOPICS)) == 3
    assert len(broker.sent(ApiKey.METADATA)) == 3


def test_leaders_that_died_are_asked_for_again_until_the_time_is_up(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_OFFSETS: _hanging_up(2, _offsets_answer([]))})
    time = Time()
    with ClusterClient(broker.config(), clock=time.clock, sleep=time.sleep) as cluster:
        offsets = admin.list_offsets(cluster, {TopicPartition("t", 0): LATEST})
    assert [result.offset for result in offsets.values() if not isinstance(result, KafkaError)] == [40]

    broker.answers[ApiKey.LIST_OFFSETS] = _hanging_up(1000, None)
    time = Time()
    with ClusterClient(broker.config(default_api_timeout_ms="1000"), clock=time.clock, sleep=time.sleep) as cluster:
        (result,) = admin.list_offsets(cluster, {TopicPartition("t", 0): LATEST}).values()
    assert isinstance(result, KafkaError)
    assert result.code == ErrorCode.NETWORK_EXCEPTION
    assert time.now == pytest.approx(1.0, abs=0.11)


def test_brokers_it_heard_of_are_asked_when_those_it_was_told_of_are_gone(fake_broker: MakeBroker) -> None:
    known = _broker(fake_broker, {})
    told = fake_broker({ApiKey.METADATA: metadata_answer(known)})
    with ClusterClient(told.config()) as cluster:
        assert cluster.brokers()[1].port == known.port
        told.answers[ApiKey.METADATA] = lambda schema, request: None
        told.refuse()
        assert set(cluster.metadata().topics) == {"t"}
    assert len(known.sent(ApiKey.METADATA)) == 1


def test_where_no_broker_answers_nobody_waits(fake_broker: MakeBroker) -> None:
    time = Time()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    config = ClientConfig.from_properties(f"127.0.0.1:{dead}", {})
    with ClusterClient(config, clock=time.clock, sleep=time.sleep) as cluster, pytest.raises(KafkaError) as caught:
        admin.create_topic(cluster, "new")
    assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert time.now == 0


def test_metadata_never_creates_a_topic(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {})
    with ClusterClient(broker.config()) as cluster:
        assert cluster.metadata(["nope"]).topics["nope"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [request.allow_auto_topic_creation for request in broker.sent(ApiKey.METADATA)] == [False]


def test_long_descriptions_are_read_page_by_page(fake_broker: MakeBroker) -> None:
    pages = {None: (("a", (0, 1)), ("a", 2)), ("a", 2): (("a", (2,)), ("b", 0)), ("b", 0): (("b", (0,)), None)}

    def answer(schema: Any, request: Any) -> Any:
        at = request.cursor and (request.cursor.topic_name, request.cursor.partition_index)
        (name, indexes), following = pages[at]
        partitions = tuple(
            schema.DescribeTopicPartitionsResponsePartition(
                error_code=error(0), partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=(1,),
                isr_nodes=(1,), eligible_leader_replicas=(), last_known_elr=None, offline_replicas=(),
            )
            for index in indexes
        )  # fmt: skip
        topic = schema.DescribeTopicPartitionsResponseTopic(
            error_code=error(0), name=name, topic_id=None, is_internal=False, partitions=partitions
        )
        cursor = following and schema.Cursor(topic_name=following[0], partition_index=following[1])
        return schema.DescribeTopicPartitionsResponse(throttle_time=ms(0), topics=(topic,), next_cursor=cursor)

    broker = _broker(fake_broker, {ApiKey.DESCRIBE_TOPIC_PARTITIONS: answer})
    with ClusterClient(broker.config()) as cluster:
        topics = admin.describe_topics(cluster, ["b", "a"], partitions_per_answer=2)
    assert [(topic.name, [p.partition for p in topic.partitions]) for topic in topics] == [
        ("a", [0, 1, 2]),
        ("b", [0]),
    ]
    assert topics[0].partitions[0].elr == ()
    assert topics[0].partitions[0].last_known_elr is None


def test_brokers_without_that_api_describe_topics_by_metadata(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {})
    with ClusterClient(broker.config()) as cluster:
        (topic,) = admin.describe_topics(cluster, ["t"])
        assert topic.partitions[0].elr is None
        with pytest.raises(KafkaError) as caught:
            admin.describe_topics(cluster, ["nope"])
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_in_every_version(fake_broker: MakeBroker, version: int) -> None:
    def answer(schema: Any, request: Any) -> Any:
        return schema.DeleteTopicsResponse(throttle_time=ms(0), responses=())

    broker = fake_broker(
        {ApiKey.DELETE_TOPICS: answer, ApiKey.METADATA: None}, versions={ApiKey.DELETE_TOPICS: (1, version)}
    )
    broker.answers[ApiKey.METADATA] = metadata_answer(broker)
    with ClusterClient(broker.config()) as cluster:
        admin.delete_topics(cluster, ["a", "b"])
    (request,) = broker.sent(ApiKey.DELETE_TOPICS)
    names = [t.name for t in request.topics] if version >= 6 else list(request.topic_names)
    assert names == ["a", "b"]


def test_a_brokers_configuration_is_asked_of_that_broker(fake_broker: MakeBroker) -> None:
    def answer(schema: Any, request: Any) -> Any:
        return schema.DescribeConfigsResponse(
            throttle_time=ms(0),
            results=tuple(
                schema.DescribeConfigsResult(
                    error_code=error(0), error_message=None, resource_type=r.resource_type,
                    resource_name=r.resource_name, configs=(),
                )
                for r in request.resources
            ),
        )  # fmt: skip

    broker = _broker(fake_broker, {ApiKey.DESCRIBE_CONFIGS: answer})
    resources = [
        admin.Resource(ResourceType.BROKER, "1"),
        admin.Resource(ResourceType.TOPIC, "t"),
        admin.Resource(ResourceType.BROKER, ""),
    ]
    with ClusterClient(broker.config()) as cluster:
        assert set(admin.describe_configs(cluster, resources)) == set(resources)
        with pytest.raises(KafkaError, match="Broker 7 is not part of the cluster"):
            admin.describe_configs(cluster, [admin.Resource(ResourceType.BROKER, "7")])
    asked = [[r.resource_name for r in request.resources] for request in broker.sent(ApiKey.DESCRIBE_CONFIGS)]
    assert asked == [["1"], ["t", ""]]
