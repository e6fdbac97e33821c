"""Share groups (KIP-932): their members, and their position in each partition.

A share group commits no offsets: it has a start offset per partition, before which every record is done with.
Listing and deleting are the same as for any group (`groups`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moldau.client.cluster import ClusterClient, CoordinatorType, Node, by_topic
from moldau.client.connection import raise_error, to_error
from moldau.client.groups import SHARE, GroupDescription, at_coordinator, described_group
from moldau.errors import KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.topic_partition import TopicPartition


class ShareOffset(NamedTuple):
    start_offset: int
    leader_epoch: int
    lag: int | None  # None: not known


def describe_share_groups(cluster: ClusterClient, groups: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
    def call(coordinator: Node, keys: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.SHARE_GROUP_DESCRIBE,
            lambda schema: schema.ShareGroupDescribeRequest(group_ids=tuple(keys), include_authorized_operations=False),
        )
        return {group.group_id: described_group(group, SHARE, coordinator) for group in answer.groups}

    return cluster.at_coordinators(CoordinatorType.GROUP, groups, call)


def share_offsets(cluster: ClusterClient, group: str) -> dict[TopicPartition, ShareOffset | None]:
    """The offsets of every partition of the group; None for a partition that it has not begun to read."""

    def call(coordinator: Node) -> dict[TopicPartition, ShareOffset | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            lambda schema: schema.DescribeShareGroupOffsetsRequest(
                groups=(schema.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None),)
            ),
        )
        (described,) = answer.groups
        raise_error(described.error_code, described.error_message)
        offsets: dict[TopicPartition, ShareOffset | None] = {}
        for topic in described.topics:
            for p in topic.partitions:
                raise_error(p.error_code, p.error_message)
                lag = getattr(p, "lag", -1)
                offsets[TopicPartition(topic.topic_name, p.partition_index)] = (
                    None
                    if p.start_offset < 0
                    else ShareOffset(p.start_offset, p.leader_epoch, lag if lag >= 0 else None)
                )
        return offsets

    return at_coordinator(cluster, group, call)


def alter_share_offsets(
    cluster: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KafkaError | None]:
    """Set the start offsets of a group without members; what concerns the group as a whole is raised."""

    def call(coordinator: Node) -> dict[TopicPartition, KafkaError | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            lambda schema: schema.AlterShareGroupOffsetsRequest(
                group_id=group,
                topics=tuple(
                    schema.AlterShareGroupOffsetsRequestTopic(
                        topic_name=topic,
                        partitions=tuple(
                            schema.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                            for index, offset in partitions
                        ),
                    )
                    for topic, partitions in by_topic(offsets)
                ),
            ),
        )
        raise_error(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.topic_name, p.partition_index): to_error(p.error_code, p.error_message)
            if p.error_code
            else None
            for topic in answer.responses
            for p in topic.partitions
        }

    return at_coordinator(cluster, group, call)


def delete_share_offsets(cluster: ClusterClient, group: str, topics: Iterable[str]) -> dict[str, KafkaError | None]:
    """Forget where the group stood in these topics, each with its own result."""
    names = tuple(topics)

    def call(coordinator: Node) -> dict[str, KafkaError | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            lambda schema: schema.DeleteShareGroupOffsetsRequest(
                group_id=group,
                topics=tuple(schema.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names),
            ),
        )
        raise_error(answer.error_code, answer.error_message)
        return {
            topic.topic_name: to_error(topic.error_code, topic.error_message) if topic.error_code else None
            for topic in answer.responses
        }

    return at_coordinator(cluster, group, call)
