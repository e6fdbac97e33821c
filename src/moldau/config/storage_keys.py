"""Broker keys of topics and logs: where they lie, how they roll, flush, expire and are cleaned."""

from __future__ import annotations

from moldau.config.keys import (
    LONG_MAX,
    AtLeast,
    Between,
    Configuration,
    Kind,
    ListOf,
    OneOf,
    configuration_part,
    key,
)

CLEANUP_POLICIES = ListOf(("compact", "delete"))
COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
GZIP_LEVELS = Between(1, 9, also=-1)
LZ4_LEVELS = Between(1, 17)
ZSTD_LEVELS = Between(-131_072, 22)
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
MESSAGE_MAX_BYTES = 1_048_588  # 1 MiB of batch and the 12 bytes before it
DAY_MS = 24 * 3_600_000


@configuration_part
class StorageKeys(Configuration):
    __slots__ = ()

    log_dirs: tuple[str, ...] = key(
        "log.dirs",
        Kind.LIST,
        None,
        "The data directories. If unset, `log.dir`.",
        ListOf(empty_ok=False),
        value=("./moldau-data",),
    )
    log_dir: tuple[str, ...] = key(
        "log.dir",
        Kind.LIST,
        ("./moldau-data",),
        "The data directory if `log.dirs` is not set.",
        ListOf(empty_ok=False),
        kafka_default="/tmp/kafka-logs",
    )
    num_partitions: int = key(
        "num.partitions",
        Kind.INT,
        1,
        "The number of partitions of a topic that is created without one.",
        AtLeast(1),
    )
    auto_create_topics_enable: bool = key(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        True,
        "Whether a topic is created when a client first uses it.",
    )
    delete_topic_enable: bool = key(
        "delete.topic.enable",
        Kind.BOOLEAN,
        True,
        "Whether topics can be deleted.",
    )
    message_max_bytes: int = key(
        "message.max.bytes",
        Kind.INT,
        MESSAGE_MAX_BYTES,
        "The maximum size of a record batch, after compression.",
        AtLeast(0),
        dynamic=True,
    )
    compression_type: str = key(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec with which batches are stored; `producer` keeps the producer's.",
        COMPRESSION_TYPES,
        dynamic=True,
    )
    compression_gzip_level: int = key(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "The compression level if `compression.type` is gzip.",
        GZIP_LEVELS,
        dynamic=True,
    )
    compression_lz4_level: int = key(
        "compression.lz4.level",
        Kind.INT,
        9,
        "The compression level if `compression.type` is lz4.",
        LZ4_LEVELS,
        dynamic=True,
    )
    compression_zstd_level: int = key(
        "compression.zstd.level",
        Kind.INT,
        3,
        "The compression level if `compression.type` is zstd.",
        ZSTD_LEVELS,
        dynamic=True,
    )
    log_segment_bytes: int = key(
        "log.segment.bytes",
        Kind.INT,
        1_073_741_824,
        "The size at which a new segment is rolled.",
        AtLeast(1_048_576),
        dynamic=True,
    )
    log_roll_ms: int | None = key(
        "log.roll.ms",
        Kind.LONG,
        None,
        "The age at which a new segment is rolled, even if the current one is not full. If unset, `log.roll.hours`.",
        dynamic=True,
    )
    log_roll_hours: int = key(
        "log.roll.hours",
        Kind.INT,
        168,
        "Like `log.roll.ms`, in hours. `log.roll.ms` takes precedence.",
        AtLeast(1),
    )
    log_roll_jitter_ms: int | None = key(
        "log.roll.jitter.ms",
        Kind.LONG,
        None,
        "The maximum random time by which a segment is rolled earlier, so that segments do not all roll at the same "
        "time.",
        dynamic=True,
    )
    log_roll_jitter_hours: int = key(
        "log.roll.jitter.hours",
        Kind.INT,
        0,
        "Like `log.roll.jitter.ms`, in hours. `log.roll.jitter.ms` takes precedence.",
        AtLeast(0),
    )
    log_retention_ms: int | None = key(
        "log.retention.ms",
        Kind.LONG,
        None,
        "How long records are kept; -1 means forever. If unset, `log.retention.minutes`, then `log.retention.hours`.",
        dynamic=True,
    )
    log_retention_minutes: int | None = key(
        "log.retention.minutes",
        Kind.INT,
        None,
        "Like `log.retention.ms`, in minutes. `log.retention.ms` takes precedence.",
    )
    log_retention_hours: int = key(
        "log.retention.hours",
        Kind.INT,
        168,
        "Like `log.retention.ms`, in hours. The other two take precedence.",
    )
    log_retention_bytes: int = key(
        "log.retention.bytes",
        Kind.LONG,
        -1,
        "The maximum size of a partition before old segments are deleted; -1 means no limit.",
        dynamic=True,
    )
    log_retention_check_interval_ms: int = key(
        "log.retention.check.interval.ms",
        Kind.LONG,
        300_000,
        "How often the broker checks for segments to delete.",
        AtLeast(1),
    )
    log_initial_task_delay_ms: int = key(
        "log.initial.task.delay.ms",
        Kind.LONG,
        30_000,
        "Wait before the first retention and flush round.",
        AtLeast(0),
        internal=True,
        later=True,
    )
    log_cleanup_policy: tuple[str, ...] = key(
        "log.cleanup.policy",
        Kind.LIST,
        ("delete",),
        "What happens to old segments: delete, compact, or both.",
        CLEANUP_POLICIES,
        dynamic=True,
    )
    log_segment_delete_delay_ms: int = key(
        "log.segment.delete.delay.ms",
        Kind.LONG,
        60_000,
        "The delay before the file of a deleted segment is removed from disk.",
        AtLeast(0),
        dynamic=True,
    )
    log_index_size_max_bytes: int = key(
        "log.index.size.max.bytes",
        Kind.INT,
        10_485_760,
        "The maximum size of an index file; when it is full, a new segment is rolled.",
        AtLeast(4),
        dynamic=True,
    )
    log_index_interval_bytes: int = key(
        "log.index.interval.bytes",
        Kind.INT,
        4_096,
        "The number of bytes of log between two index entries.",
        AtLeast(0),
        dynamic=True,
    )
    log_flush_interval_messages: int = key(
        "log.flush.interval.messages",
        Kind.LONG,
        LONG_MAX,
        "The number of records in a partition after which it is flushed (fsync). With 1, a record is on disk before "
        "it is acknowledged, read or counted as replicated.",
        AtLeast(1),
        dynamic=True,
    )
    log_flush_interval_ms: int | None = key(
        "log.flush.interval.ms",
        Kind.LONG,
        None,
        "The age of an unflushed record at which its log is flushed (fsync). If unset, "
        "`log.flush.scheduler.interval.ms`.",
        dynamic=True,
    )
    log_flush_scheduler_interval_ms: int = key(
        "log.flush.scheduler.interval.ms",
        Kind.LONG,
        LONG_MAX,
        "How often the broker checks for logs to flush.",
    )
    log_flush_offset_checkpoint_interval_ms: int = key(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        60_000,
        "How often the recovery points are written.",
        AtLeast(0),
    )
    log_flush_start_offset_checkpoint_interval_ms: int = key(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        60_000,
        "How often the log start offsets are written.",
        AtLeast(0),
        later=True,
    )
    log_preallocate: bool = key(
        "log.preallocate",
        Kind.BOOLEAN,
        False,
        "Whether new segments are preallocated on disk.",
        dynamic=True,
        later=True,
    )
    log_message_timestamp_type: str = key(
        "log.message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whether the timestamp of a record is set by the producer or by the broker.",
        TIMESTAMP_TYPES,
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = key(
        "log.message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far behind the broker's clock a record's timestamp may be.",
        AtLeast(0),
        dynamic=True,
    )
    log_message_timestamp_after_max_ms: int = key(
        "log.message.timestamp.after.max.ms",
        Kind.LONG,
        3_600_000,
        "How far ahead of the broker's clock a record's timestamp may be.",
        AtLeast(0),
        dynamic=True,
    )
    log_dir_failure_timeout_ms: int = key(
        "log.dir.failure.timeout.ms",
        Kind.LONG,
        30_000,
        "How long a broker may take to report a failed log directory.",
        AtLeast(1),
        later=True,
    )
    num_recovery_threads_per_data_dir: int = key(
        "num.recovery.threads.per.data.dir",
        Kind.INT,
        2,
        "The number of threads per data directory that recover logs at startup and flush them at shutdown.",
        AtLeast(1),
        dynamic=True,
    )
    log_local_retention_ms: int = key(
        "log.local.retention.ms",
        Kind.LONG,
        -2,
        "Tiered storage.",
        AtLeast(-2),
        dynamic=True,
        later=True,
    )
    log_local_retention_bytes: int = key(
        "log.local.retention.bytes",
        Kind.LONG,
        -2,
        "Tiered storage.",
        AtLeast(-2),
        dynamic=True,
        later=True,
    )
    log_cleaner_enable: bool = key(
        "log.cleaner.enable",
        Kind.BOOLEAN,
        True,
        "Whether compacted topics are cleaned.",
    )
    log_cleaner_threads: int = key(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "The number of logs that are compacted at the same time, each in its own process.",
        AtLeast(0),
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = key(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15_000,
        "How long the cleaner sleeps if there is nothing to clean.",
        AtLeast(0),
        dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = key(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        134_217_728,
        "Memory for the key maps of all cleaner workers in total. A key takes up to 272 bytes. If a log has more "
        "keys than fit, it is cleaned in several passes.",
        dynamic=True,
    )
    log_cleaner_io_buffer_size: int = key(
        "log.cleaner.io.buffer.size",
        Kind.INT,
        524_288,
        "Memory for the I/O buffers of all cleaner workers in total.",
        AtLeast(0),
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        1.7976931348623157e308,
        "The maximum number of bytes per second that all cleaner workers read and write in total.",
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = key(
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "The fraction of a log that must be dirty before it is cleaned.",
        Between(0, 1),
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = key(
        "log.cleaner.delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a compacted topic keeps delete markers (tombstones).",
        AtLeast(0),
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms: int = key(
        "log.cleaner.min.compaction.lag.ms",
        Kind.LONG,
        0,
        "The minimum time a record stays uncompacted.",
        AtLeast(0),
        dynamic=True,
    )
    log_cleaner_max_compaction_lag_ms: int = key(
        "log.cleaner.max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "The maximum time a record stays uncompacted.",
        AtLeast(1),
        dynamic=True,
    )
