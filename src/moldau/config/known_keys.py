"""Broker keys of Apache Kafka that are accepted and have no effect, so that a stock server.properties works."""

from __future__ import annotations

# Whole families that belong to parts that Kafka has and this broker has not, or does not configure this way.
KNOWN_PREFIXES = (
    "config.providers.",
    "controller.quorum.",
    "delegation.token.",
    "group.streams.",
    "listener.name.",
    "metadata.log.",
    "metadata.max.",
    "metric.",
    "metrics.",
    "password.encoder.",
    "remote.",
    "sasl.",
    "share.coordinator.",
    "ssl.",
    "zookeeper.",
)

_OPEN = "requests are not authorized, and every client may do everything"

# Ignoring these changes what is protected: the warning says so.
UNSAFE_TO_IGNORE = {
    "allow.everyone.if.no.acl.found": _OPEN,
    "authorizer.class.name": _OPEN,
    "super.users": _OPEN,
}

KNOWN_WITHOUT_EFFECT = frozenset(
    (
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "alter.config.policy.class.name",
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "background.threads",
        "client.quota.callback.class",
        "config.providers",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "controller.socket.timeout.ms",
        "cordoned.log.dirs",
        "create.topic.policy.class.name",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "group.consumer.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads",
        "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.threads",
        "group.share.assignment.interval.ms",
        "group.share.assignors",
        "group.share.max.assignment.interval.ms",
        "group.share.max.delivery.count.limit",
        "group.share.max.partition.max.record.locks",
        "group.share.min.assignment.interval.ms",
        "group.share.min.delivery.count.limit",
        "group.share.min.partition.max.record.locks",
        "initial.broker.registration.timeout.ms",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "log.cleaner.io.buffer.load.factor",
        "max.connection.creation.rate",
        "num.io.threads",
        "num.network.threads",
        "num.replica.alter.log.dirs.threads",
        "principal.builder.class",
        "process.roles",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "quota.window.num",
        "quota.window.size.seconds",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "security.inter.broker.protocol",
        "security.providers",
        "share.fetch.purgatory.purge.interval.requests",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "telemetry.max.bytes",
        "transaction.two.phase.commit.enable",
        # Keys of Kafka 3 that Kafka 4 took away: old files still carry them.
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "inter.broker.protocol.version",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.commit.required.acks",
        "reserved.broker.max.id",
    )
)


def has_no_effect(name: str) -> bool:
    """Whether `name` is a key of Apache Kafka that is accepted and changes nothing."""
    return name in KNOWN_WITHOUT_EFFECT or name in UNSAFE_TO_IGNORE or name.startswith(KNOWN_PREFIXES)
