"""Broker keys of share groups and of the share coordinator, which keeps what became of their records."""

from __future__ import annotations

from moldau.config.keys import AtLeast, Between, Configuration, Kind, configuration_part, key

_MIB = 1024 * 1024
_HOUR_MS = 3_600_000

DELIVERY_COUNT_LIMITS = Between(2, 10)
RECORD_LOCKS = Between(100, 10_000)


@configuration_part
class ShareKeys(Configuration):
    __slots__ = ()

    group_share_session_timeout_ms: int = key(
        "group.share.session.timeout.ms",
        Kind.INT,
        45_000,
        "Time without heartbeats after which a member is removed from a share group.",
        AtLeast(1),
    )
    group_share_min_session_timeout_ms: int = key(
        "group.share.min.session.timeout.ms",
        Kind.INT,
        45_000,
        "The minimum session timeout of a share group.",
        AtLeast(1),
    )
    group_share_max_session_timeout_ms: int = key(
        "group.share.max.session.timeout.ms",
        Kind.INT,
        60_000,
        "The maximum session timeout of a share group.",
        AtLeast(1),
    )
    group_share_heartbeat_interval_ms: int = key(
        "group.share.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The heartbeat interval of the members of share groups.",
        AtLeast(1),
    )
    group_share_min_heartbeat_interval_ms: int = key(
        "group.share.min.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The minimum heartbeat interval of a share group.",
        AtLeast(1),
    )
    group_share_max_heartbeat_interval_ms: int = key(
        "group.share.max.heartbeat.interval.ms",
        Kind.INT,
        15_000,
        "The maximum heartbeat interval of a share group.",
        AtLeast(1),
    )
    group_share_max_size: int = key(
        "group.share.max.size",
        Kind.INT,
        200,
        "The maximum number of members of a share group.",
        Between(1, 1_000),
    )
    group_share_max_share_sessions: int = key(
        "group.share.max.share.sessions",
        Kind.INT,
        2_000,
        "The maximum number of share sessions on this broker.",
        AtLeast(1),
    )
    group_share_delivery_count_limit: int = key(
        "group.share.delivery.count.limit",
        Kind.INT,
        5,
        "The maximum number of times a record is delivered to a share group before it is archived.",
        DELIVERY_COUNT_LIMITS,
    )
    group_share_record_lock_duration_ms: int = key(
        "group.share.record.lock.duration.ms",
        Kind.INT,
        30_000,
        "How long a member may hold a record before it becomes available to others.",
        Between(1_000, _HOUR_MS),
    )
    group_share_min_record_lock_duration_ms: int = key(
        "group.share.min.record.lock.duration.ms",
        Kind.INT,
        15_000,
        "The minimum record lock duration of a share group.",
        Between(1_000, 30_000),
    )
    group_share_max_record_lock_duration_ms: int = key(
        "group.share.max.record.lock.duration.ms",
        Kind.INT,
        60_000,
        "The maximum record lock duration of a share group.",
        Between(30_000, _HOUR_MS),
    )
    group_share_partition_max_record_locks: int = key(
        "group.share.partition.max.record.locks",
        Kind.INT,
        2_000,
        "The maximum number of records of a partition that a share group has in flight.",
        RECORD_LOCKS,
    )
    share_coordinator_state_topic_num_partitions: int = key(
        "share.coordinator.state.topic.num.partitions",
        Kind.INT,
        50,
        "The number of partitions of `__share_group_state`. Do not change it after the topic is created.",
        AtLeast(1),
    )
    share_coordinator_state_topic_replication_factor: int = key(
        "share.coordinator.state.topic.replication.factor",
        Kind.SHORT,
        3,
        "The replication factor of `__share_group_state`. With fewer brokers it has one replica on each, and gets "
        "more when brokers join.",
        AtLeast(1),
    )
    share_coordinator_state_topic_min_isr: int = key(
        "share.coordinator.state.topic.min.isr",
        Kind.SHORT,
        2,
        "`min.insync.replicas` of `__share_group_state`, at most the number of its replicas.",
        AtLeast(1),
    )
    share_coordinator_state_topic_segment_bytes: int = key(
        "share.coordinator.state.topic.segment.bytes",
        Kind.INT,
        100 * _MIB,
        "The segment size of `__share_group_state`.",
        AtLeast(1),
    )
    share_coordinator_state_topic_prune_interval_ms: int = key(
        "share.coordinator.state.topic.prune.interval.ms",
        Kind.INT,
        300_000,
        "How often records that newer ones replaced are deleted from `__share_group_state`.",
        AtLeast(1),
        internal=True,
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = key(
        "share.coordinator.snapshot.update.records.per.snapshot",
        Kind.INT,
        500,
        "The number of updates of a share partition's state between two snapshots.",
        AtLeast(0),
    )


def share_key_problem(config: ShareKeys) -> str | None:
    """Kafka's rules between these keys."""
    for least, value, most in (
        ("min.session.timeout.ms", "session.timeout.ms", "max.session.timeout.ms"),
        ("min.heartbeat.interval.ms", "heartbeat.interval.ms", "max.heartbeat.interval.ms"),
        ("min.record.lock.duration.ms", "record.lock.duration.ms", "max.record.lock.duration.ms"),
    ):
        for lower, upper in ((least, value), (value, most)):
            if _value(config, lower) > _value(config, upper):
                return f"group.share.{upper} must be greater than or equal to group.share.{lower}"
    if config.group_share_heartbeat_interval_ms >= config.group_share_session_timeout_ms:
        return "group.share.heartbeat.interval.ms must be less than group.share.session.timeout.ms"
    if config.group_share_max_share_sessions < config.group_share_max_size:
        return "group.share.max.share.sessions must be greater than or equal to group.share.max.size"
    return None


def _value(config: ShareKeys, name: str) -> int:
    value: int = getattr(config, "group_share_" + name.replace(".", "_"))
    return value
