"""Broker keys of the coordinators: groups, committed offsets, producer ids and transactions."""

from __future__ import annotations

from moldau.config.keys import (
    INT_MAX,
    AtLeast,
    Between,
    Configuration,
    Kind,
    ListOf,
    OneOf,
    configuration_part,
    key,
)

_MIB = 1024 * 1024


@configuration_part
class CoordinatorKeys(Configuration):
    __slots__ = ()

    group_coordinator_rebalance_protocols: tuple[str, ...] = key(
        "group.coordinator.rebalance.protocols",
        Kind.LIST,
        ("classic", "consumer", "streams"),
        "The group protocols that the broker supports; `classic` must be among them.",
        ListOf(("consumer", "classic", "share", "streams"), empty_ok=False),
    )
    group_initial_rebalance_delay_ms: int = key(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        0,
        "How long an empty group waits for more members before its first rebalance.",
        AtLeast(0),
        kafka_default="3000",
    )
    group_min_session_timeout_ms: int = key(
        "group.min.session.timeout.ms",
        Kind.INT,
        6_000,
        "The minimum session timeout of a classic member.",
    )
    group_max_session_timeout_ms: int = key(
        "group.max.session.timeout.ms",
        Kind.INT,
        1_800_000,
        "The maximum session timeout of a classic member.",
    )
    group_max_size: int = key(
        "group.max.size",
        Kind.INT,
        INT_MAX,
        "The maximum number of members of a classic group.",
        AtLeast(1),
    )
    group_consumer_session_timeout_ms: int = key(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        45_000,
        "Time without heartbeats after which a member is removed from a consumer group.",
        AtLeast(1),
    )
    group_consumer_min_session_timeout_ms: int = key(
        "group.consumer.min.session.timeout.ms",
        Kind.INT,
        45_000,
        "The minimum session timeout of a consumer group.",
        AtLeast(1),
    )
    group_consumer_max_session_timeout_ms: int = key(
        "group.consumer.max.session.timeout.ms",
        Kind.INT,
        60_000,
        "The maximum session timeout of a consumer group.",
        AtLeast(1),
    )
    group_consumer_heartbeat_interval_ms: int = key(
        "group.consumer.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The heartbeat interval of the members of consumer groups.",
        AtLeast(1),
    )
    group_consumer_min_heartbeat_interval_ms: int = key(
        "group.consumer.min.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The minimum heartbeat interval of a consumer group.",
        AtLeast(1),
    )
    group_consumer_max_heartbeat_interval_ms: int = key(
        "group.consumer.max.heartbeat.interval.ms",
        Kind.INT,
        15_000,
        "The maximum heartbeat interval of a consumer group.",
        AtLeast(1),
    )
    group_consumer_max_size: int = key(
        "group.consumer.max.size",
        Kind.INT,
        INT_MAX,
        "The maximum number of members of a consumer group.",
        AtLeast(1),
    )
    group_consumer_assignors: tuple[str, ...] = key(
        "group.consumer.assignors",
        Kind.LIST,
        ("uniform", "range"),
        "The server-side assignors; the first is the default.",
        ListOf(("uniform", "range"), empty_ok=False),
    )
    group_consumer_migration_policy: str = key(
        "group.consumer.migration.policy",
        Kind.STRING,
        "bidirectional",
        "Whether groups may change between the classic and the consumer protocol.",
        OneOf(("bidirectional", "upgrade", "downgrade", "disabled"), ignore_case=True),
    )
    offset_metadata_max_bytes: int = key(
        "offset.metadata.max.bytes",
        Kind.INT,
        4_096,
        "The maximum size of the metadata of a committed offset.",
    )
    offsets_commit_timeout_ms: int = key(
        "offsets.commit.timeout.ms",
        Kind.INT,
        5_000,
        "The timeout of a write to the offsets topic.",
        AtLeast(1),
        later=True,
    )
    offsets_load_buffer_size: int = key(
        "offsets.load.buffer.size",
        Kind.INT,
        5 * _MIB,
        "The number of bytes read at a time when offsets are loaded; at most 64 KiB, so that other requests are "
        "served in between.",
        AtLeast(1),
    )
    offsets_retention_minutes: int = key(
        "offsets.retention.minutes",
        Kind.INT,
        10_080,
        "How long the offsets of a group without members are kept.",
        AtLeast(1),
    )
    offsets_retention_check_interval_ms: int = key(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        600_000,
        "How often the broker checks for expired offsets.",
        AtLeast(1),
    )
    offsets_topic_num_partitions: int = key(
        "offsets.topic.num.partitions",
        Kind.INT,
        50,
        "The number of partitions of `__consumer_offsets`. Do not change it after the topic is created.",
        AtLeast(1),
    )
    offsets_topic_replication_factor: int = key(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "The replication factor of `__consumer_offsets`. With fewer brokers it has one replica on each, and gets "
        "more when brokers join.",
        AtLeast(1),
    )
    offsets_topic_segment_bytes: int = key(
        "offsets.topic.segment.bytes",
        Kind.INT,
        100 * _MIB,
        "The segment size of `__consumer_offsets`.",
        AtLeast(1),
    )
    offsets_topic_compression_codec: int = key(
        "offsets.topic.compression.codec",
        Kind.INT,
        0,
        "Codec of `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        Between(0, 4),
    )
    transaction_state_log_num_partitions: int = key(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "The number of partitions of `__transaction_state`. Do not change it after the topic is created.",
        AtLeast(1),
    )
    transaction_state_log_replication_factor: int = key(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "The replication factor of `__transaction_state`. With fewer brokers it has one replica on each, and gets "
        "more when brokers join.",
        AtLeast(1),
    )
    transaction_state_log_min_isr: int = key(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "`min.insync.replicas` of `__transaction_state`, at most the number of its replicas.",
        AtLeast(1),
    )
    transaction_state_log_segment_bytes: int = key(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        100 * _MIB,
        "The segment size of `__transaction_state`.",
        AtLeast(1),
    )
    transaction_state_log_load_buffer_size: int = key(
        "transaction.state.log.load.buffer.size",
        Kind.INT,
        5 * _MIB,
        "The number of bytes read at a time when transactions are loaded.",
        AtLeast(1),
        later=True,
    )
    transaction_max_timeout_ms: int = key(
        "transaction.max.timeout.ms",
        Kind.INT,
        900_000,
        "The maximum transaction timeout of a producer.",
        AtLeast(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10_000,
        "How often transactions that exceed their timeout are aborted.",
        AtLeast(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        3_600_000,
        "How often expired transactional ids are removed.",
        AtLeast(1),
    )
    transaction_partition_verification_enable: bool = key(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "Whether the broker verifies that a transactional append belongs to an open transaction.",
        dynamic=True,
    )
    transactional_id_expiration_ms: int = key(
        "transactional.id.expiration.ms",
        Kind.INT,
        604_800_000,
        "Idle time after which a transactional id expires.",
        AtLeast(1),
    )
    producer_id_expiration_ms: int = key(
        "producer.id.expiration.ms",
        Kind.INT,
        86_400_000,
        "Idle time after which a partition drops the state of an idempotent producer.",
        AtLeast(1),
        dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = key(
        "producer.id.expiration.check.interval.ms",
        Kind.INT,
        600_000,
        "How often idle producers are looked for.",
        AtLeast(1),
        internal=True,
    )
