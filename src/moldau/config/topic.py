"""The configuration of one topic, and how it falls back on the broker's.

A topic key that is not overridden takes the broker's value through its synonym (`retention.ms` from
`log.retention.ms`, else `log.retention.minutes`, else `log.retention.hours`, converted).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from moldau.config.broker import BrokerConfig
from moldau.config.keys import (
    LONG_MAX,
    AtLeast,
    Between,
    Configuration,
    Kind,
    ReplicaList,
    attribute_of,
    configuration,
    key,
    key_table,
    nearest,
)
from moldau.config.storage_keys import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    DAY_MS,
    GZIP_LEVELS,
    LZ4_LEVELS,
    MESSAGE_MAX_BYTES,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
)
from moldau.errors import ConfigError, ErrorCode, KafkaError


@configuration
class TopicConfig(Configuration):
    """Immutable; the values in force for one topic."""

    cleanup_policy: frozenset[str] = key(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "What happens to old segments: delete, compact, or both.",
        CLEANUP_POLICIES,
        value=frozenset({"delete"}),
    )
    compression_type: str = key(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec with which batches are stored; `producer` keeps the producer's.",
        COMPRESSION_TYPES,
    )
    compression_gzip_level: int = key(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "The compression level if `compression.type` is gzip.",
        GZIP_LEVELS,
    )
    compression_lz4_level: int = key(
        "compression.lz4.level",
        Kind.INT,
        9,
        "The compression level if `compression.type` is lz4.",
        LZ4_LEVELS,
    )
    compression_zstd_level: int = key(
        "compression.zstd.level",
        Kind.INT,
        3,
        "The compression level if `compression.type` is zstd.",
        ZSTD_LEVELS,
    )
    delete_retention_ms: int = key(
        "delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a compacted topic keeps delete markers (tombstones).",
        AtLeast(0),
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms",
        Kind.LONG,
        60_000,
        "The delay before the file of a deleted segment is removed from disk.",
        AtLeast(0),
    )
    flush_messages: int = key(
        "flush.messages",
        Kind.LONG,
        LONG_MAX,
        "The number of records after which the log is flushed (fsync). With 1, a record is on disk before it is "
        "acknowledged, read or counted as replicated.",
        AtLeast(1),
    )
    flush_ms: int = key(
        "flush.ms",
        Kind.LONG,
        LONG_MAX,
        "The age of an unflushed record at which its log is flushed (fsync).",
        AtLeast(0),
    )
    index_interval_bytes: int = key(
        "index.interval.bytes",
        Kind.INT,
        4_096,
        "The number of bytes of log between two index entries.",
        AtLeast(0),
    )
    max_compaction_lag_ms: int = key(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "The maximum time a record stays uncompacted.",
        AtLeast(1),
    )
    max_message_bytes: int = key(
        "max.message.bytes",
        Kind.INT,
        MESSAGE_MAX_BYTES,
        "The maximum size of a record batch, after compression.",
        AtLeast(0),
    )
    message_timestamp_after_max_ms: int = key(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        3_600_000,
        "How far ahead of the broker's clock a record's timestamp may be.",
        AtLeast(0),
    )
    message_timestamp_before_max_ms: int = key(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far behind the broker's clock a record's timestamp may be.",
        AtLeast(0),
    )
    message_timestamp_type: str = key(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whether the timestamp of a record is set by the producer or by the broker.",
        TIMESTAMP_TYPES,
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "The fraction of the log that must be dirty before it is cleaned.",
        Between(0, 1),
    )
    min_compaction_lag_ms: int = key(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "The minimum time a record stays uncompacted.",
        AtLeast(0),
    )
    min_insync_replicas: int = key(
        "min.insync.replicas",
        Kind.INT,
        1,
        "The number of replicas that must have a record before acks=all is acknowledged. Lowering it to the number "
        "of replicas that are in sync can lose acknowledged records if the leader's machine is down and not fenced "
        "yet.",
        AtLeast(1),
    )
    preallocate: bool = key(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "Whether new segments are preallocated on disk.",
        later=True,
    )
    retention_bytes: int = key(
        "retention.bytes",
        Kind.LONG,
        -1,
        "The maximum size of a partition before old segments are deleted; -1 means no limit.",
    )
    retention_ms: int = key(
        "retention.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long records are kept; -1 means forever.",
        AtLeast(-1),
    )
    segment_bytes: int = key(
        "segment.bytes",
        Kind.INT,
        1_073_741_824,
        "The size at which a new segment is rolled.",
        AtLeast(1_048_576),
    )
    segment_index_bytes: int = key(
        "segment.index.bytes",
        Kind.INT,
        10_485_760,
        "The maximum size of an index file; when it is full, a new segment is rolled.",
        AtLeast(4),
    )
    segment_jitter_ms: int = key(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "The maximum random time that is subtracted from `segment.ms`, so that segments do not all roll at the same "
        "time.",
        AtLeast(0),
    )
    segment_ms: int = key(
        "segment.ms",
        Kind.LONG,
        7 * DAY_MS,
        "The age at which a new segment is rolled, even if the current one is not full.",
        AtLeast(1),
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that may lack acknowledged records can become leader if no other is left.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        (),
        "The replicas that are throttled on the leader, as partition:broker, or `*`.",
        ReplicaList(),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        (),
        "The replicas that are throttled on the follower, as partition:broker, or `*`.",
        ReplicaList(),
    )
    remote_storage_enable: bool = key(
        "remote.storage.enable",
        Kind.BOOLEAN,
        False,
        "Tiered storage. It is not supported, so only false is allowed.",
        later=True,
    )
    remote_log_copy_disable: bool = key(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        False,
        "Tiered storage.",
        later=True,
    )
    remote_log_delete_on_disable: bool = key(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "Tiered storage.",
        later=True,
    )
    local_retention_ms: int = key(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "Tiered storage.",
        AtLeast(-2),
        later=True,
    )
    local_retention_bytes: int = key(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "Tiered storage.",
        AtLeast(-2),
        later=True,
    )
    internal_segment_bytes: int | None = key(
        "internal.segment.bytes",
        Kind.INT,
        None,
        "Segment size below the least of `segment.bytes`, for tests.",
        AtLeast(1),
        internal=True,
    )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """The topic's overrides over the broker's values; ConfigError where an override is not valid."""
        defaults = _from_broker(broker)
        if not overrides:
            return defaults
        values = {attribute: getattr(defaults, attribute) for attribute in _ATTRIBUTES}
        for name, text in overrides.items():
            declared = TOPIC_KEYS.get(name)
            if declared is not None:
                values[declared.attribute] = _typed(name, declared.parse(text))
        if values["internal_segment_bytes"] is not None:
            values["segment_bytes"] = values["internal_segment_bytes"]
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._defaults])

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """A compacted topic rolls in time for `max.compaction.lag.ms`: the active segment is never cleaned."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy


class Synonym(NamedTuple):
    """A broker key that stands in for a topic key; its value times `factor` is the topic's."""

    name: str
    factor: int = 1


_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000

# In order of precedence: the first that has a value is used.
SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "preallocate": (Synonym("log.preallocate"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
}

TOPIC_KEYS = key_table(TopicConfig)
_ATTRIBUTES = tuple(declared.attribute for declared in TOPIC_KEYS.values())


def validate_topic_overrides(overrides: Mapping[str, str | None], broker: BrokerConfig | None = None) -> None:
    """KafkaError(INVALID_CONFIG) unless every override is a topic key with a value that a topic can have."""
    missing = [name for name, text in overrides.items() if text is None]
    if missing:
        raise _invalid(f"Null value not supported for topic configs: {','.join(missing)}")
    texts = {name: text for name, text in overrides.items() if text is not None}
    for name in texts:
        if name not in TOPIC_KEYS:
            meant = nearest(name, TOPIC_KEYS)
            hint = f" (did you mean {meant}?)" if meant else ""
            raise _invalid(f"Unknown topic config name: {name}{hint}")
    try:
        config = TopicConfig.resolve(texts, broker if broker is not None else BrokerConfig())
    except ConfigError as error:
        raise _invalid(str(error)) from None
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise _invalid(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    if config.remote_storage_enable:
        raise _invalid(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def _typed(name: str, value: Any) -> Any:
    return frozenset(value) if name == "cleanup.policy" else value


def broker_value(name: str, broker: BrokerConfig) -> Any:
    """What the broker's keys say for a topic key (the key's own default where the broker has no synonym)."""
    for synonym in SYNONYMS.get(name, ()):
        value = getattr(broker, attribute_of(synonym.name))
        if value is not None:
            value = value if synonym.factor == 1 else value * synonym.factor
            # A negative retention, in whatever unit, means for ever.
            return max(value, -1) if name == "retention.ms" else value
    return TOPIC_KEYS[name].default


@lru_cache(maxsize=8)  # thousands of topics share one broker configuration, and mostly have no overrides
def _from_broker(broker: BrokerConfig) -> TopicConfig:
    values = {declared.attribute: _typed(name, broker_value(name, broker)) for name, declared in TOPIC_KEYS.items()}
    return TopicConfig(**values)
