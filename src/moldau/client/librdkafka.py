"""Java client properties for librdkafka: same meaning, its names.

People bring `producer.properties` and `consumer.properties` written for the Java client. Most keys are the
same in librdkafka; some have another name or unit, some have no counterpart. Keys this table does not know
go through as they are, so librdkafka's own names work too, and librdkafka names the ones it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moldau.client.security import Security
from moldau.errors import ConfigError

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}

# Java machinery that librdkafka has no need of: left out without a word.
_NOT_NEEDED = frozenset(
    {
        "auto.include.jmx.reporter", "default.api.timeout.ms", "key.deserializer", "key.serializer",
        "max.block.ms", "max.poll.records", "metadata.max.idle.ms", "metric.reporters", "metrics.num.samples",
        "metrics.recording.level", "metrics.sample.window.ms", "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms", "security.providers", "socket.connection.setup.timeout.max.ms",
        "value.deserializer", "value.serializer",
    }
)  # fmt: skip

# Somebody who wrote one of these expects something to happen, and here it does not.
_NO_EFFECT = frozenset(
    {
        "config.providers", "exclude.internal.topics", "interceptor.classes", "partitioner.class",
        "zookeeper.connect", "zookeeper.connection.timeout.ms", "zookeeper.session.timeout.ms",
    }
)  # fmt: skip

_SECURITY_PREFIXES = ("ssl.", "sasl.jaas.", "sasl.username", "sasl.password", "sasl.mechanism")

_CODEC_LEVELS = frozenset({"compression.gzip.level", "compression.lz4.level", "compression.zstd.level"})

_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "cooperative-sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def to_librdkafka(props: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """librdkafka's configuration, and the names of the keys people should know have no effect there."""
    security = Security.from_properties(props).librdkafka()
    config: dict[str, str] = {}
    ignored = []
    for name, text in props.items():
        value = text.strip()
        if name in _NO_EFFECT:
            ignored.append(name)
        elif name in _NOT_NEEDED or name == "security.protocol" or name.startswith(_SECURITY_PREFIXES):
            continue
        elif name == "buffer.memory":
            config["queue.buffering.max.kbytes"] = str(max(1, _integer(name, value) // 1024))
        elif name == "auto.offset.reset":
            config[name] = "error" if value == "none" else value
        elif name == "partition.assignment.strategy":
            config[name] = ",".join(_assignor(part.strip()) for part in value.split(","))
        elif name in _CODEC_LEVELS:
            if name == f"compression.{props.get('compression.type', '')}.level":
                config["compression.level"] = value
        else:
            config[_RENAMED.get(name, name)] = value
    return config | security, ignored


def producer_defaults(config: Mapping[str, str]) -> dict[str, Any]:
    """What a Java producer does unless told otherwise, so that both put a key on the same partition."""
    defaults: dict[str, Any] = {"partitioner": "murmur2_random"}
    if config.get("acks", "all") in ("all", "-1") and config.get("retries") != "0":
        defaults["enable.idempotence"] = "true"
    return defaults


def _assignor(name: str) -> str:
    return _ASSIGNORS.get(name.rpartition(".")[2], name)


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value}: expected a number") from None
