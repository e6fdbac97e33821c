"""Records of share groups: who is in them, in `__consumer_offsets`; what was delivered, in `__share_group_state`."""

from __future__ import annotations

import uuid

from moldau.wire.state_records import (
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID_TYPE,
    StateRecords,
    array_of,
    state_key,
    state_struct,
    state_value,
    wire,
)

# -- __consumer_offsets


@state_struct
class TopicPartitions:
    topic_id: uuid.UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(array_of(INT32))


@state_struct
class NamedTopicPartitions:
    topic_id: uuid.UUID = wire(UUID_TYPE)
    topic_name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(array_of(INT32))


@state_struct
class NamedTopic:
    topic_id: uuid.UUID = wire(UUID_TYPE)
    topic_name: str = wire(STRING)


@state_key(kind=10)
class ShareGroupMemberMetadataKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupMemberMetadataValue:
    rack_id: str | None = wire(NULLABLE_STRING)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: tuple[str, ...] = wire(array_of(STRING))


@state_key(kind=11)
class ShareGroupMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupMetadataValue:
    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


@state_key(kind=12)
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(INT32)


@state_key(kind=13)
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...] = wire(array_of(TopicPartitions))


@state_key(kind=14)
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: tuple[TopicPartitions, ...] = wire(array_of(TopicPartitions))


@state_key(kind=15)
class ShareGroupStatePartitionMetadataKey:
    group_id: str = wire(STRING)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: tuple[NamedTopicPartitions, ...] = wire(array_of(NamedTopicPartitions))
    initialized_topics: tuple[NamedTopicPartitions, ...] = wire(array_of(NamedTopicPartitions))
    deleting_topics: tuple[NamedTopic, ...] = wire(array_of(NamedTopic))


KINDS: dict[type, type] = {
    ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey: ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
    ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
    ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
    ShareGroupStatePartitionMetadataKey: ShareGroupStatePartitionMetadataValue,
}

# -- __share_group_state


@state_struct
class StateBatchRecord:
    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_state: int = wire(INT8)
    delivery_count: int = wire(INT16)


@state_key(kind=0)
class ShareSnapshotKey:
    group_id: str = wire(STRING)
    topic_id: uuid.UUID = wire(UUID_TYPE)
    partition: int = wire(INT32)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareSnapshotValue:
    snapshot_epoch: int = wire(INT32)
    state_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    create_timestamp: int = wire(INT64)
    write_timestamp: int = wire(INT64)
    state_batches: tuple[StateBatchRecord, ...] = wire(array_of(StateBatchRecord))


@state_key(kind=1)
class ShareUpdateKey:
    group_id: str = wire(STRING)
    topic_id: uuid.UUID = wire(UUID_TYPE)
    partition: int = wire(INT32)


@state_value(versions=(0, 0), flexible_from=0, written=0)
class ShareUpdateValue:
    snapshot_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    state_batches: tuple[StateBatchRecord, ...] = wire(array_of(StateBatchRecord))


STATE_RECORDS = StateRecords({ShareSnapshotKey: ShareSnapshotValue, ShareUpdateKey: ShareUpdateValue})
