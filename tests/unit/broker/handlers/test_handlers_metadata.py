"""Metadata, DescribeCluster and DescribeTopicPartitions, as a client of any version sees them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from moldau.broker.cluster.packed_metadata import ANSWERS_MAX
from moldau.broker.handlers.admin.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, PartitionRecord, Record, TopicRecord
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, decode_response, encode_request, request_schema
from tests.unit.broker.offline import ADVERTISED, OfflineBroker, StartOffline

NOT_ASKED = -(2**31)


def metadata_request(
    schema: Schema,
    topics: tuple[str | uuid.UUID, ...] | None,
    *,
    create: bool = False,
    topic_operations: bool = False,
    cluster_operations: bool = False,
) -> Any:
    asked = None
    if topics is not None:
        asked = tuple(
            schema.MetadataRequestTopic(
                name=None if isinstance(topic, uuid.UUID) else topic,
                topic_id=topic if isinstance(topic, uuid.UUID) else None,
            )
            for topic in topics
        )
    return schema.MetadataRequest(
        topics=asked,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=topic_operations,
        include_cluster_authorized_operations=cluster_operations,
    )


async def ask(
    broker: OfflineBroker, topics: tuple[str | uuid.UUID, ...] | None, version: int = 13, **options: bool
) -> Any:
    return await broker.ask(ApiKey.METADATA, version, lambda schema: metadata_request(schema, topics, **options))


def told(answer: Any) -> list[tuple[str | None, ErrorCode, int]]:
    return [(topic.name, ErrorCode(topic.error_code), len(topic.partitions)) for topic in answer.topics]


# -- which topics


@pytest.mark.parametrize("version", range(14))
async def test_a_topic_is_told_in_every_version(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t", 3)
    node_id = offline_broker.node.node_id
    answer = await ask(offline_broker, ("t",), version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (node_id, *ADVERTISED)
    assert told(answer) == [("t", ErrorCode.NONE, 3)]
    for index, partition in enumerate(answer.topics[0].partitions):
        assert (partition.partition_index, partition.leader_id) == (index, node_id)
        assert (partition.replica_nodes, partition.isr_nodes) == ((node_id,), (node_id,))
        assert partition.error_code == 0
        if version >= 5:
            assert partition.offline_replicas == ()
        if version >= 7:
            assert partition.leader_epoch == 0
    if version >= 1:
        assert answer.controller_id == node_id
        assert answer.topics[0].is_internal is False
    if version >= 2:
        assert answer.cluster_id == offline_broker.node.logs.cluster_id
    if version >= 8:
        assert answer.topics[0].topic_authorized_operations == NOT_ASKED
    if version >= 10:
        assert answer.topics[0].topic_id == offline_broker.node.metadata.image.topics["t"].topic_id


async def test_all_topics_are_asked_for_with_null_and_in_version_0_with_nothing(
    offline_broker: OfflineBroker,
) -> None:
    await offline_broker.create("a")
    await offline_broker.create("b", 2)
    both = [("a", ErrorCode.NONE, 1), ("b", ErrorCode.NONE, 2)]
    assert told(await ask(offline_broker, (), 0)) == both
    for version in range(1, 14):
        assert told(await ask(offline_broker, None, version)) == both, version
        assert told(await ask(offline_broker, (), version)) == [], version


async def test_a_name_asked_for_twice_is_told_once(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    assert told(await ask(offline_broker, ("t", "t"))) == [("t", ErrorCode.NONE, 1)]


async def test_librdkafkas_request_for_all_topics_is_understood(offline_broker: OfflineBroker) -> None:
    """From version 9 on it leaves a four-byte placeholder where one byte belongs."""
    await offline_broker.create("t")
    request = metadata_request(request_schema(ApiKey.METADATA, 13), None)
    frame = encode_request(1, "rdkafka", request)[4:]
    body_at = len(frame) - 4
    answer = await offline_broker.send(frame[:body_at] + bytes.fromhex("00000000010000"))
    assert told(decode_response(ApiKey.METADATA, 13, answer[4:])[1]) == [("t", ErrorCode.NONE, 1)]


async def test_topics_are_found_by_id(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    known, unknown = offline_broker.node.metadata.image.topics["t"].topic_id, uuid.uuid4()
    for version in (12, 13):
        answer = await ask(offline_broker, (known, unknown), version)
        assert {(topic.name, topic.topic_id, ErrorCode(topic.error_code)) for topic in answer.topics} == {
            ("t", known, ErrorCode.NONE),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        }


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_in_versions_that_only_have_the_field_are_refused(
    offline_broker: OfflineBroker, version: int
) -> None:
    await offline_broker.create("t")
    answer = await ask(offline_broker, (offline_broker.node.metadata.image.topics["t"].topic_id,), version)
    assert told(answer) == [("", ErrorCode.INVALID_REQUEST, 0)]


async def test_a_topic_without_name_and_id_is_refused(offline_broker: OfflineBroker) -> None:
    answer = await offline_broker.ask(
        ApiKey.METADATA,
        13,
        lambda schema: schema.MetadataRequest(
            topics=(schema.MetadataRequestTopic(name=None, topic_id=None),),
            include_topic_authorized_operations=False,
        ),
    )
    assert (answer.error_code, answer.topics[0].error_code) == (ErrorCode.INVALID_REQUEST,) * 2


# -- creation on first use


@pytest.mark.parametrize("version", range(14))
async def test_a_topic_is_there_in_the_very_answer_that_asked_for_it(start_offline: StartOffline, version: int) -> None:
    broker = start_offline({"num.partitions": "2"})
    answer = await ask(broker, ("new", "not ok", "__consumer_offsets"), version, create=True)
    assert told(answer) == [
        ("new", ErrorCode.NONE, 2),
        ("not ok", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        ("__consumer_offsets", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    if version >= 1:
        assert [topic.is_internal for topic in answer.topics] == [False, False, True]
    broker.write("new", 1, partition=1)
    assert set(broker.node.metadata.image.topics) == {"new"}


async def test_no_topic_is_created_when_broker_or_client_say_no(start_offline: StartOffline) -> None:
    absent = [("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    broker = start_offline()
    assert told(await ask(broker, ("t",), create=False)) == absent
    strict = start_offline({"auto.create.topics.enable": "false"})
    assert told(await ask(strict, ("t",), create=True)) == absent
    assert not broker.node.metadata.image.topics
    assert not strict.node.metadata.image.topics


async def test_a_topic_that_cannot_be_created_is_unknown(start_offline: StartOffline) -> None:
    broker = start_offline({"default.replication.factor": "3"})
    answer = await ask(broker, ("t",), create=True)
    assert told(answer) == [("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]


async def test_one_request_cannot_create_topics_without_end(start_offline: StartOffline) -> None:
    broker = start_offline({"num.partitions": "100"})
    answer = await ask(broker, tuple(f"t{number}" for number in range(101)), create=True)
    assert {code for _, code, _ in told(answer)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not broker.node.metadata.image.topics


# -- what is told of them


async def test_operations_are_told_when_asked_for(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    for version in range(8, 14):
        for topics in (None, ("t",)):
            answer = await ask(offline_broker, topics, version, topic_operations=True, cluster_operations=True)
            assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
            if version <= 10:
                assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert (TOPIC_OPERATIONS, CLUSTER_OPERATIONS) == (3576, 8096), "as Apache Kafka without an authorizer"


def _only(record: Record, _: MetadataImage) -> list[Record]:
    return [record]


async def test_replicas_on_brokers_that_are_away_are_offline(offline_broker: OfflineBroker) -> None:
    me, topic_id = offline_broker.node.node_id, uuid.uuid4()
    records: list[Record] = [
        TopicRecord("t", topic_id),
        PartitionRecord(topic_id, 0, (me, 98), (me, 98), me),
        PartitionRecord(topic_id, 1, (98, me), (98,), 98, leader_epoch=4),
    ]
    await offline_broker.node.controller.change(lambda image: records)
    answer = await ask(offline_broker, ("t",))
    led, lost = answer.topics[0].partitions
    assert (led.error_code, led.leader_id, led.replica_nodes, led.offline_replicas) == (0, me, (me, 98), (98,))
    assert (lost.error_code, lost.leader_id, lost.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 4)
    led, lost = (await ask(offline_broker, ("t",), 0)).topics[0].partitions
    assert (led.error_code, led.replica_nodes, led.isr_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, (me,), (me,))
    assert (lost.error_code, lost.replica_nodes) == (ErrorCode.LEADER_NOT_AVAILABLE, (me,))


async def test_answers_are_kept_until_something_changes(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    packed, finish = offline_broker.node.packed_metadata, offline_broker.node.turns.finish
    first = await finish(packed.all_topics("PLAINTEXT", 12, NOT_ASKED, NOT_ASKED))
    assert await finish(packed.all_topics("PLAINTEXT", 12, NOT_ASKED, NOT_ASKED)) is first
    kept = await finish(packed.topic("t", 12, NOT_ASKED))
    assert await finish(packed.topic("t", 12, NOT_ASKED)) is kept
    await offline_broker.create("u")
    assert await finish(packed.topic("t", 12, NOT_ASKED)) is kept, "another topic changed, not this one"
    assert told(await ask(offline_broker, None, 12)) == [("t", ErrorCode.NONE, 1), ("u", ErrorCode.NONE, 1)]


async def test_few_answers_with_all_topics_are_kept(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    for version in range(1, 14):
        for operations in (False, True) if version >= 8 else (False,):
            await ask(offline_broker, None, version, topic_operations=operations)
    assert len(offline_broker.node.packed_metadata._answers) == ANSWERS_MAX


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_tells_of_its_brokers(start_offline: StartOffline, version: int) -> None:
    broker = start_offline({"broker.rack": "r1"})
    answer = await broker.ask(
        ApiKey.DESCRIBE_CLUSTER,
        version,
        lambda schema: schema.DescribeClusterRequest(
            include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=False
        ),
    )
    node = broker.node
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, node.logs.cluster_id, node.node_id)
    (told_broker,) = answer.brokers
    assert (told_broker.broker_id, told_broker.host, told_broker.port, told_broker.rack) == (
        node.node_id,
        *ADVERTISED,
        "r1",
    )
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_a_broker_is_no_controller_endpoint(
    offline_broker: OfflineBroker, endpoint_type: int, code: ErrorCode
) -> None:
    answer = await offline_broker.ask(
        ApiKey.DESCRIBE_CLUSTER,
        2,
        lambda schema: schema.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type, include_fenced_brokers=False
        ),
    )
    assert (answer.error_code, answer.brokers) == (code, ())
    assert answer.error_message


# -- DescribeTopicPartitions


async def describe(broker: OfflineBroker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    def build(schema: Schema) -> Any:
        return schema.DescribeTopicPartitionsRequest(
            topics=tuple(schema.TopicRequest(name=name) for name in names),
            response_partition_limit=limit,
            cursor=cursor and schema.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    return await broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, build)


def page(answer: Any) -> tuple[list[tuple[str, list[int]]], tuple[str, int] | None]:
    topics = [(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics]
    cursor = answer.next_cursor
    return topics, cursor and (cursor.topic_name, cursor.partition_index)


async def test_partitions_are_described_page_by_page(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("b", 3)
    await offline_broker.create("a", 2)
    assert page(await describe(offline_broker)) == ([("a", [0, 1]), ("b", [0, 1, 2])], None)
    assert page(await describe(offline_broker, limit=2)) == ([("a", [0, 1])], ("b", 0))
    assert page(await describe(offline_broker, limit=3)) == ([("a", [0, 1]), ("b", [0])], ("b", 1))
    assert page(await describe(offline_broker, limit=3, cursor=("b", 1))) == ([("b", [1, 2])], None)
    assert page(await describe(offline_broker, "b", "a", limit=1, cursor=("a", 1))) == ([("a", [1])], ("b", 0))
    assert page(await describe(offline_broker, limit=-5)) == ([("a", [0])], ("a", 1)), "at least one"


async def test_the_broker_caps_the_page(start_offline: StartOffline) -> None:
    broker = start_offline({"max.request.partition.size.limit": "2"})
    await broker.create("t", 3)
    assert page(await describe(broker, "t")) == ([("t", [0, 1])], ("t", 2))


async def test_described_topics_tell_their_errors(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    answer = await describe(offline_broker, "t", "missing", "?")
    assert [(topic.name, ErrorCode(topic.error_code)) for topic in answer.topics] == [
        ("?", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.NONE),
    ]
    (partition,) = answer.topics[2].partitions
    assert (partition.leader_id, partition.eligible_leader_replicas) == (offline_broker.node.node_id, ())
    assert answer.topics[2].topic_id == offline_broker.node.metadata.image.topics["t"].topic_id
    assert answer.topics[2].topic_authorized_operations == TOPIC_OPERATIONS


async def test_a_cursor_must_be_among_the_topics(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    for names, cursor in ((("t",), ("u", 0)), (("t",), ("t", -1))):
        answer = await describe(offline_broker, *names, cursor=cursor)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]


async def test_a_broker_that_knows_only_fenced_ones_tells_of_itself(offline_broker: OfflineBroker) -> None:
    node = offline_broker.node
    me = node.metadata.image.brokers[node.node_id]
    await node.controller.change(lambda _: [replace(me, fenced=True)])
    answer = await ask(offline_broker, ())
    assert [broker.node_id for broker in answer.brokers] == [node.node_id]


async def test_a_lost_broker_is_listed_for_one_session_more_and_one_that_was_shut_down_is_not(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    address = (("PLAINTEXT", "elsewhere", 9092, "PLAINTEXT"),)

    async def listed() -> list[int]:
        return sorted(each.node_id for each in (await ask(offline_broker, None)).brokers)

    async def brokers_are(**states: bool) -> None:
        for broker_id in (8, 9):
            record = BrokerRecord(broker_id, 1, address, None, incarnation_id="", **{"fenced": False, **states})
            await node.controller.change(partial(_only, record))

    me = node.node_id
    await brokers_are()
    assert await listed() == [me, 8, 9]
    await brokers_are(in_controlled_shutdown=True)
    await brokers_are(fenced=True)
    assert await listed() == [me]
    await brokers_are()
    await brokers_are(fenced=True)
    assert await listed() == [me, 8, 9], "as in Apache Kafka, where fencing takes that long"
    described = await offline_broker.ask(
        ApiKey.DESCRIBE_CLUSTER,
        0,
        lambda schema: schema.DescribeClusterRequest(include_cluster_authorized_operations=False),
    )
    assert [each.broker_id for each in described.brokers] == [me]
    session_s = node.local.config.broker_session_timeout_ms / 1000
    monkeypatch.setattr(node.lost_brokers, "_until_s", {8: node.loop.time(), 9: node.loop.time() + session_s})
    assert await listed() == [me, 9]
