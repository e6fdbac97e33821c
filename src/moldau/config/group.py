"""The configuration of one group, and how it falls back on the broker's.

A group key that is not set takes the broker's value (`share.session.timeout.ms` from `group.share.session.timeout.ms`);
where the broker has no such key, its own default. What a group may be given lies between the broker's bounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from moldau.config.broker import BrokerConfig
from moldau.config.keys import (
    AtLeast,
    Configuration,
    Kind,
    OneOf,
    attribute_of,
    configuration,
    key,
    key_table,
    nearest,
)
from moldau.config.share_keys import DELIVERY_COUNT_LIMITS, RECORD_LOCKS
from moldau.errors import ConfigError, ErrorCode, KafkaError

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_BY_DURATION = "by_duration:"
_DIGITS_MAX = 12  # thirty thousand years


def duration_ms(text: str) -> int | None:
    """An ISO-8601 duration of days and less, as Java writes it (`PT1H30M`); None unless it is one, and not zero."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()) or any(len(digits or "") > _DIGITS_MAX for digits in found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.group("days", "hours", "minutes", "seconds"))
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000) or None


class _AutoOffsetReset(NamedTuple):
    def problem(self, value: Any) -> str | None:
        if value in ("latest", "earliest"):
            return None
        if value.startswith(_BY_DURATION) and duration_ms(value.removeprefix(_BY_DURATION)) is not None:
            return None
        return f"{value} must be latest, earliest or by_duration:<positive ISO-8601 duration>, as in by_duration:PT1H"

    def allowed(self) -> str:
        return "latest, earliest, or by_duration:PnDTnHnMn.nS"


@configuration
class GroupConfig(Configuration):
    """Immutable; the values in force for one group."""

    consumer_session_timeout_ms: int = key(
        "consumer.session.timeout.ms",
        Kind.INT,
        45_000,
        "Time without heartbeats after which a member is removed from this consumer group.",
        AtLeast(1),
    )
    consumer_heartbeat_interval_ms: int = key(
        "consumer.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The heartbeat interval of the members of this consumer group.",
        AtLeast(1),
    )
    share_session_timeout_ms: int = key(
        "share.session.timeout.ms",
        Kind.INT,
        45_000,
        "Time without heartbeats after which a member is removed from this share group.",
        AtLeast(1),
    )
    share_heartbeat_interval_ms: int = key(
        "share.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "The heartbeat interval of the members of this share group.",
        AtLeast(1),
    )
    share_record_lock_duration_ms: int = key(
        "share.record.lock.duration.ms",
        Kind.INT,
        30_000,
        "How long a member of this share group may hold a record before it becomes available to others.",
        AtLeast(1_000),
    )
    share_delivery_count_limit: int = key(
        "share.delivery.count.limit",
        Kind.INT,
        5,
        "The maximum number of times a record is delivered to this share group before it is archived.",
        DELIVERY_COUNT_LIMITS,
    )
    share_partition_max_record_locks: int = key(
        "share.partition.max.record.locks",
        Kind.INT,
        2_000,
        "The maximum number of records of a partition that this share group has in flight.",
        RECORD_LOCKS,
    )
    share_auto_offset_reset: str = key(
        "share.auto.offset.reset",
        Kind.STRING,
        "latest",
        "Where this share group starts in a partition: latest, earliest, or a duration ago (by_duration:PT1H).",
        _AutoOffsetReset(),
    )
    share_isolation_level: str = key(
        "share.isolation.level",
        Kind.STRING,
        "read_uncommitted",
        "Whether this share group sees records of open and aborted transactions.",
        OneOf(("read_committed", "read_uncommitted")),
    )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> GroupConfig:
        """What is in force for a group with these overrides; ConfigError where one is no value of its key."""
        return _resolved(tuple(overrides.items()), broker)

    @property
    def reads_committed(self) -> bool:
        return self.share_isolation_level == "read_committed"

    @property
    def reset_duration_ms(self) -> int | None:
        """How long ago a queue begins, where `share.auto.offset.reset` says so."""
        return duration_ms(self.share_auto_offset_reset.removeprefix(_BY_DURATION))


GROUP_KEYS = key_table(GroupConfig)
SYNONYMS = {
    name: f"group.{name}" for name in GROUP_KEYS if name not in ("share.auto.offset.reset", "share.isolation.level")
}
"""The broker key behind each group key that has one."""

_BOUNDED = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.record.lock.duration.ms",
)


def bounds_of(name: str) -> tuple[str, ...]:
    """The broker keys that say between which values a group key may lie."""
    protocol, _, rest = name.partition(".")
    return (f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest}") if name in _BOUNDED else ()


def broker_value(name: str, broker: BrokerConfig) -> Any:
    return broker.get(SYNONYMS[name]) if name in SYNONYMS else GROUP_KEYS[name].default


@lru_cache(maxsize=256)  # asked for with every heartbeat and fetch, and most groups have no overrides
def _resolved(overrides: tuple[tuple[str, str], ...], broker: BrokerConfig) -> GroupConfig:
    values = {declared.attribute: broker_value(name, broker) for name, declared in GROUP_KEYS.items()}
    for name, text in overrides:
        declared = GROUP_KEYS.get(name)
        if declared is not None:
            values[declared.attribute] = declared.parse(text)
    return GroupConfig(**values)


def validate_group_overrides(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """KafkaError(INVALID_CONFIG) unless every override is a group key with a value that a group may be given."""
    for name in overrides:
        if name not in GROUP_KEYS:
            meant = nearest(name, GROUP_KEYS)
            hint = f" (did you mean {meant}?)" if meant else ""
            raise _invalid(f"Unknown group config name: {name}{hint}")
    try:
        config = GroupConfig.resolve(overrides, broker)
    except ConfigError as error:
        raise _invalid(str(error)) from None
    for name in _BOUNDED:
        value = getattr(config, attribute_of(name))
        least, most = bounds_of(name)
        if value < broker.get(least):
            raise _invalid(f"{name} must be greater than or equal to {least}")
        if value > broker.get(most):
            raise _invalid(f"{name} must be less than or equal to {most}")
    for protocol in ("consumer", "share"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if getattr(config, attribute_of(session)) <= getattr(config, attribute_of(heartbeat)):
            raise _invalid(f"{session} must be greater than {heartbeat}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
