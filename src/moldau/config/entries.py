"""A key of DescribeConfigs with its value and where that comes from: as a broker sends it and a client receives it.

Apart from `describe`, which fills it in: a client does not need the tables of all keys, and they take time to load.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from moldau.config.keys import Kind


class ConfigSource(IntEnum):
    """Where a value comes from; names and numbers are Kafka's, and its tools print the names."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN  # of a broker newer than this list


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A request that did not ask for synonyms or documentation gets the entry without them."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: Kind = Kind.UNKNOWN
    doc: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG
