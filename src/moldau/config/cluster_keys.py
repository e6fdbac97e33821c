"""Broker keys of replication, of the controller and of what brokers say to each other."""

from __future__ import annotations

from moldau.config.keys import LONG_MAX, AtLeast, Configuration, Kind, configuration_part, key


@configuration_part
class ClusterKeys(Configuration):
    __slots__ = ()

    default_replication_factor: int = key(
        "default.replication.factor",
        Kind.INT,
        1,
        "The replication factor of a topic that is created without one.",
    )
    min_insync_replicas: int = key(
        "min.insync.replicas",
        Kind.INT,
        1,
        "The number of replicas that must have a record before acks=all is acknowledged. The value applies to the "
        "whole cluster: the first controller takes it from its configuration file, and it is changed for all "
        "brokers together. Lowering it to the number of replicas that are in sync can lose acknowledged records if "
        "the leader's machine is down and not fenced yet.",
        AtLeast(1),
        dynamic=True,
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that may lack acknowledged records can become leader if no other is left. The "
        "controller's value applies, so set the same value on all brokers.",
        dynamic=True,
    )
    auto_leader_rebalance_enable: bool = key(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        True,
        "Whether leadership moves back to the preferred replicas automatically.",
    )
    leader_imbalance_check_interval_seconds: int = key(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        300,
        "How often the controller checks whether leaders should move back to the preferred replicas.",
        AtLeast(1),
    )
    leader_imbalance_per_broker_percentage: int = key(
        "leader.imbalance.per.broker.percentage",
        Kind.INT,
        10,
        "Leaders move back if more than this percentage of the partitions that prefer a broker are led by others.",
        AtLeast(0),
    )
    controlled_shutdown_enable: bool = key(
        "controlled.shutdown.enable",
        Kind.BOOLEAN,
        True,
        "Whether a broker hands over its leaderships before it stops.",
    )
    broker_heartbeat_interval_ms: int = key(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        2_000,
        "How often a broker sends a heartbeat to the controller.",
        AtLeast(1),
    )
    broker_session_timeout_ms: int = key(
        "broker.session.timeout.ms",
        Kind.INT,
        9_000,
        "Time without heartbeats after which the controller fences a broker. A lost broker stays in Metadata "
        "responses for as long.",
        AtLeast(1),
    )
    replica_lag_time_max_ms: int = key(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30_000,
        "A follower that is behind for longer than this is removed from the in-sync replicas.",
    )
    replica_fetch_max_bytes: int = key(
        "replica.fetch.max.bytes",
        Kind.INT,
        1_048_576,
        "The maximum number of bytes per partition in a follower's fetch.",
        AtLeast(0),
    )
    replica_fetch_response_max_bytes: int = key(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10_485_760,
        "The maximum number of bytes in a follower's fetch.",
        AtLeast(0),
    )
    replica_fetch_min_bytes: int = key(
        "replica.fetch.min.bytes",
        Kind.INT,
        1,
        "The number of bytes the leader waits for before it responds to a follower.",
    )
    replica_fetch_wait_max_ms: int = key(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long the leader waits for records before it responds to a follower.",
    )
    replica_fetch_backoff_ms: int = key(
        "replica.fetch.backoff.ms",
        Kind.INT,
        1_000,
        "The delay after a failed fetch.",
        AtLeast(0),
    )
    replica_socket_timeout_ms: int = key(
        "replica.socket.timeout.ms",
        Kind.INT,
        30_000,
        "The network timeout of a follower's fetch.",
    )
    replica_socket_receive_buffer_bytes: int = key(
        "replica.socket.receive.buffer.bytes",
        Kind.INT,
        65_536,
        "SO_RCVBUF of a follower's connection.",
        later=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5_000,
        "How often high watermarks are written to disk.",
    )
    num_replica_fetchers: int = key(
        "num.replica.fetchers",
        Kind.INT,
        1,
        "The number of fetchers per source broker.",
        AtLeast(1),
        dynamic=True,
        later=True,
    )
    replica_selector_class: str | None = key(
        "replica.selector.class",
        Kind.STRING,
        None,
        "RackAwareReplicaSelector (or Kafka's full class name) lets consumers read from an in-sync replica in their "
        "rack.",
    )
    leader_replication_throttled_rate: int = key(
        "leader.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "The maximum number of bytes per second that leaders on this broker send to throttled replicas.",
        AtLeast(0),
        dynamic=True,
    )
    follower_replication_throttled_rate: int = key(
        "follower.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "The maximum number of bytes per second that throttled replicas on this broker fetch.",
        AtLeast(0),
        dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = key(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Kind.LONG,
        LONG_MAX,
        "The maximum number of bytes per second that move between log directories.",
        AtLeast(0),
        dynamic=True,
        later=True,
    )
