"""The hand-packed Metadata and DescribeTopicPartitions responses equal the protocol package's."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.wire.apis import ApiKey
from moldau.wire.messages import encode_response, error, ms, response_schema
from moldau.wire.metadata import (
    VERSION_MAX,
    VERSION_MIN,
    MetadataPartition,
    MetadataTopic,
    framed,
    pack_described_topic,
    pack_described_topics,
    pack_metadata_response,
    pack_metadata_topic,
)
from tests.examples import examples

int32 = st.integers(-(2**31), 2**31 - 1)
node_ids = st.integers(0, 2**31 - 1)
ids = st.lists(node_ids, max_size=4).map(tuple)
codes = st.sampled_from((0, 3, 5, 9, 17, 72, 100))
text = st.text(max_size=40)

partitions = st.builds(
    MetadataPartition,
    index=node_ids,
    leader=st.integers(-1, 5),
    leader_epoch=st.integers(-1, 2**31 - 1),
    replicas=ids,
    isr=ids,
    offline=ids,
    error_code=codes,
    elr=ids,
    last_known_elr=ids,
)
topics = st.builds(
    MetadataTopic,
    name=text,
    topic_id=st.uuids().map(lambda value: value.bytes),
    partitions=st.lists(partitions, max_size=4).map(tuple),
    is_internal=st.booleans(),
    error_code=codes,
    authorized_operations=int32,
)
brokers = st.lists(st.tuples(node_ids, text, st.integers(0, 65535), st.none() | text), max_size=3)


def expected_topics(schema: Any, prefix: str, packed: list[MetadataTopic]) -> tuple[Any, ...]:
    build_partition = getattr(schema, prefix + "ResponsePartition")
    build_topic = getattr(schema, prefix + "ResponseTopic")
    return tuple(
        build_topic(
            error_code=error(topic.error_code),
            name=topic.name,
            topic_id=uuid.UUID(bytes=topic.topic_id),
            is_internal=topic.is_internal,
            topic_authorized_operations=topic.authorized_operations,
            partitions=tuple(
                build_partition(
                    error_code=error(part.error_code if prefix == "Metadata" else 0),
                    partition_index=part.index,
                    leader_id=part.leader,
                    leader_epoch=part.leader_epoch,
                    replica_nodes=tuple(part.replicas),
                    isr_nodes=tuple(part.isr),
                    offline_replicas=tuple(part.offline),
                    **_only_described(part, prefix),
                )
                for part in topic.partitions
            ),
        )
        for topic in packed
    )


def _only_described(part: MetadataPartition, prefix: str) -> dict[str, tuple[int, ...]]:
    if prefix == "Metadata":
        return {}
    return {"eligible_leader_replicas": tuple(part.elr), "last_known_elr": tuple(part.last_known_elr)}


@pytest.mark.parametrize("version", range(VERSION_MIN, VERSION_MAX + 1))
@settings(max_examples=examples(20), deadline=None)  # of each version
@given(data=st.data())
def test_metadata_of_every_version_equals_the_protocol_package(version: int, data: st.DataObject) -> None:
    described = data.draw(st.lists(topics, max_size=3))
    if version >= 12:
        described.append(MetadataTopic(None, uuid.uuid4().bytes, error_code=100))
    nodes = data.draw(brokers)
    cluster_id, controller_id = data.draw(st.none() | text), data.draw(st.integers(-1, 9))
    cluster_operations, code = data.draw(int32), data.draw(codes)
    throttle_ms = data.draw(st.integers(0, 9999))
    schema = response_schema(ApiKey.METADATA, version)
    expected = schema.MetadataResponse(
        throttle_time=ms(throttle_ms),
        brokers=tuple(
            schema.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in nodes
        ),
        cluster_id=cluster_id,
        controller_id=controller_id,
        topics=expected_topics(schema, "Metadata", described),
        cluster_authorized_operations=cluster_operations,
        error_code=error(code),
    )
    packed = pack_metadata_response(
        version,
        brokers=nodes,
        cluster_id=cluster_id,
        controller_id=controller_id,
        topics=[pack_metadata_topic(version, topic) for topic in described],
        cluster_operations=cluster_operations,
        error_code=code,
        throttle_ms=throttle_ms,
    )
    assert b"".join(framed(7, packed)) == encode_response(7, expected)


@settings(max_examples=examples(20), deadline=None)  # of each version
@given(
    described=st.lists(topics, max_size=3),
    cursor=st.none() | st.tuples(text, node_ids),
    throttle_ms=st.integers(0, 9999),
)
def test_described_partitions_equal_the_protocol_package(
    described: list[MetadataTopic], cursor: tuple[str, int] | None, throttle_ms: int
) -> None:
    schema = response_schema(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    next_cursor = cursor and schema.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    expected = schema.DescribeTopicPartitionsResponse(
        throttle_time=ms(throttle_ms),
        topics=expected_topics(schema, "DescribeTopicPartitions", described),
        next_cursor=next_cursor,
    )
    packed_topics = [pack_described_topic(topic) for topic in described]
    packed = pack_described_topics(packed_topics, cursor, throttle_ms=throttle_ms)
    assert b"".join(framed(9, packed)) == encode_response(9, expected)


@pytest.mark.parametrize("version", [0, 5, 8, 9, 13])
def test_more_than_126_replicas_still_pack(version: int) -> None:
    """The length of a compact array then takes two bytes."""
    part = MetadataPartition(0, 1, 2, tuple(range(200)), tuple(range(150)), tuple(range(127)))
    topic = MetadataTopic("wide", uuid.uuid4().bytes, [part])
    schema = response_schema(ApiKey.METADATA, version)
    expected = schema.MetadataResponse(
        throttle_time=ms(0),
        brokers=(),
        cluster_id=None,
        controller_id=-1,
        topics=expected_topics(schema, "Metadata", [topic]),
        error_code=error(0),
    )
    packed = pack_metadata_response(
        version, brokers=(), cluster_id=None, controller_id=-1, topics=[pack_metadata_topic(version, topic)]
    )
    assert b"".join(framed(1, packed)) == encode_response(1, expected)
