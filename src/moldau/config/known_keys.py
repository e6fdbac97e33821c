"""Apache Kafka broker keys that have no effect here but are accepted: a stock server.properties starts."""

from __future__ import annotations

# Whole families that belong to parts Kafka has and this broker has not (or not yet).
KNOWN_PREFIXES = (
    "listener.name.", "ssl.", "sasl.", "zookeeper.", "controller.quorum.", "remote.log.", "metadata.log.",
    "delegation.token.", "config.providers.", "confluent.", "inkless.",
)

_OPEN = "requests are not authorized, every client that connects may do everything"

# Ignoring these changes what is protected: the warning says so.
UNSAFE_TO_IGNORE = {
    "authorizer.class.name": _OPEN,
    "super.users": _OPEN,
    "allow.everyone.if.no.acl.found": _OPEN,
}

KNOWN_WITHOUT_EFFECT = frozenset(
    ["process.roles", "num.network.threads", "num.io.threads", "background.threads"]
)
