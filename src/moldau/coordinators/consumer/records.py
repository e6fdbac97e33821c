"""Records of consumer groups in `__consumer_offsets`: kinds 3 to 8 and 16 of Kafka's tables.

kind  one per          holds
3     group            group epoch, hash of the subscribed topics' metadata
4     group            the metadata itself; no longer written, its hash replaced it
5     member           what the member sent: subscription, timeouts, client
6     group            the epoch of the target assignment
7     member           its share of the target assignment
8     member           its epoch, its state and the partitions it owns now
16    group and regex  the topics that a regular expression was resolved to
"""

from __future__ import annotations

import uuid

from moldau.wire.state_records import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID_TYPE,
    array_of,
    state_key,
    state_struct,
    state_value,
    struct_of,
    wire,
)


@state_key(kind=3)
class ConsumerGroupMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupMetadataValue:
    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64, tag=0, default=0)


@state_key(kind=4)
class ConsumerGroupPartitionMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), written=0)
class ConsumerGroupPartitionMetadataValue:
    """That it is there is all that matters: it is taken away, and what it holds is not read."""


@state_key(kind=5)
class ConsumerGroupMemberMetadataKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_struct
class ClassicProtocol:
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@state_struct
class ClassicMemberMetadata:
    session_timeout_ms: int = wire(INT32)
    supported_protocols: tuple[ClassicProtocol, ...] = wire(array_of(ClassicProtocol))


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = wire(NULLABLE_STRING)
    rack_id: str | None = wire(NULLABLE_STRING)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: tuple[str, ...] = wire(array_of(STRING))
    subscribed_topic_regex: str | None = wire(NULLABLE_STRING)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    server_assignor: str | None = wire(NULLABLE_STRING, default=None)
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        struct_of(ClassicMemberMetadata, nullable=True), tag=0, default=None
    )


@state_key(kind=6)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(INT32)


@state_key(kind=7)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_struct
class TopicPartitions:
    topic_id: uuid.UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(array_of(INT32))


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...] = wire(array_of(TopicPartitions))


@state_key(kind=8)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: tuple[TopicPartitions, ...] = wire(array_of(TopicPartitions))
    partitions_pending_revocation: tuple[TopicPartitions, ...] = wire(array_of(TopicPartitions))


@state_key(kind=16)
class ConsumerGroupRegularExpressionKey:
    group_id: str = wire(STRING)
    regular_expression: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...] = wire(array_of(STRING))
    version: int = wire(INT64)
    timestamp: int = wire(INT64)


KINDS: dict[type, type] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
