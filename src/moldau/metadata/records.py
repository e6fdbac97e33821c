"""Metadata records: the facts a cluster is made of, each a frozen dataclass with a JSON form.

A record is what a `MetadataStore` keeps and what `MetadataImage.apply` understands. Field names are the JSON
names; ids are written as Kafka's base64 text, as `kafka-topics --describe` shows them. A record type of a
later version is an error, never skipped: an image with a hole is not the cluster's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any

from moldau.errors import StorageError
from moldau.wire.uuids import uuid_from_text, uuid_to_text


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """The topic was deleted, with its partitions and its configuration."""

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition as a whole: new, or in the place of what was known of it."""

    topic_id: uuid.UUID
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    """Replicas a reassignment brings; they are among `replicas` already."""
    removing: tuple[int, ...] = ()
    """Replicas a reassignment will drop when the new ones are in sync."""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas: left the ISR when it was at its minimum, but have every committed record."""
    last_known_elr: tuple[int, ...] = ()
    target_factor: int = 0
    """How many replicas it gets once there are brokers for them; 0: it has what was asked for."""


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """One dynamic configuration value; `value` None takes it away.

    Resource types: `topic` (by name) and `broker` (by id; the empty name is the default of all brokers).
    """

    resource_type: str
    resource_name: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Producer ids below this one are given out."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker that registered; endpoints are (listener name, host, port, security protocol).

    `broker_epoch` is the version of the image with its registration; `incarnation_id` identifies one
    process of the broker.
    """

    broker_id: int
    broker_epoch: int
    endpoints: tuple[tuple[str, str, int, str], ...]
    rack: str | None = None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    incarnation_id: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it may lead, be in an ISR, and get new replicas."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class RemoveBrokerRecord:
    broker_id: int


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """The level at which the cluster uses a feature; 0 turns it off."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The id of the cluster, which never changes."""

    cluster_id: str


Record = (
    TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | ConfigRecord
    | ProducerIdsRecord
    | BrokerRecord
    | RemoveBrokerRecord
    | FeatureLevelRecord
    | ClusterRecord
)

_TYPES: dict[str, type[Record]] = {
    "topic": TopicRecord,
    "remove-topic": RemoveTopicRecord,
    "partition": PartitionRecord,
    "config": ConfigRecord,
    "producer-ids": ProducerIdsRecord,
    "broker": BrokerRecord,
    "remove-broker": RemoveBrokerRecord,
    "feature-level": FeatureLevelRecord,
    "cluster": ClusterRecord,
}
_NAMES: dict[type[Any], str] = {cls: name for name, cls in _TYPES.items()}

# The partitions of a topic follow each other, by the thousand.
_topic_id = lru_cache(maxsize=16)(uuid_from_text)
_topic_id_text = lru_cache(maxsize=16)(uuid_to_text)

# JSON knows neither UUIDs nor tuples.
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "topic_id": _topic_id,
    "replicas": tuple,
    "isr": tuple,
    "adding": tuple,
    "removing": tuple,
    "elr": tuple,
    "last_known_elr": tuple,
    "endpoints": lambda endpoints: tuple(tuple(endpoint) for endpoint in endpoints),
}
_FIELDS: dict[type[Any], tuple[str, ...]] = {cls: tuple(each.name for each in fields(cls)) for cls in _TYPES.values()}
_DEFAULTS: dict[type[Any], dict[str, Any]] = {
    cls: {each.name: each.default for each in fields(cls) if each.default is not MISSING} for cls in _TYPES.values()
}


def record_to_json(record: Record) -> dict[str, Any]:
    cls = type(record)
    defaults = _DEFAULTS[cls]
    result: dict[str, Any] = {"type": _NAMES[cls]}
    for name in _FIELDS[cls]:
        value = getattr(record, name)
        if name in defaults and value == defaults[name]:
            continue  # a third of the bytes, in an image of many partitions
        result[name] = _topic_id_text(value) if isinstance(value, uuid.UUID) else value
    return result


def record_from_json(data: Mapping[str, Any]) -> Record:
    """The record that `data` holds; StorageError where it is none that this version knows."""
    name = data.get("type")
    cls = _TYPES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise StorageError(
            f"unknown type of metadata record {name!r}, perhaps of a newer version; known types: {', '.join(_TYPES)}"
        )
    try:
        values = {
            field: _FROM_JSON[field](data[field]) if field in _FROM_JSON else data[field]
            for field in _FIELDS[cls]
            if field in data or field not in _DEFAULTS[cls]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"cannot read metadata record of type {name}: {error!r} in {data}") from None
    return cls(**values)
