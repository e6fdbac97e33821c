"""The metadata image: everything the cluster knows about itself at one moment, immutable.

`apply` gives the next image and leaves this one as it was, so a request works on one image from beginning to
end without a lock; what did not change is shared between the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from moldau.errors import StorageError
from moldau.metadata.records import (
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

_PARTITION_FIELDS = tuple(each.name for each in fields(PartitionRecord) if each.name not in ("topic_id", "index"))
_NO_CONFIG: Mapping[str, str] = MappingProxyType({})


def unified_name(topic: str) -> str | None:
    """What metrics make of a topic's name: topics that share it would share their metrics. None: nobody can."""
    return topic.replace(".", "_") if "." in topic or "_" in topic else None


@dataclass(frozen=True, slots=True)
class PartitionImage:
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    target_factor: int = 0

    def record(self, topic_id: uuid.UUID, **changes: Any) -> PartitionRecord:
        """The record that makes this partition what it is, but for `changes`."""
        values = {name: getattr(self, name) for name in _PARTITION_FIELDS} | changes
        return PartitionRecord(topic_id, self.index, **values)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...] = ()

    def partition(self, index: int) -> PartitionImage | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """`version` counts the records that led here: it grows with every change and never goes back."""

    version: int = 0
    cluster_id: str = ""
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRecord] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    names_by_id: Mapping[bytes, str] = field(default_factory=dict)
    partition_count: int = 0
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics by `unified_name`, of those whose name that changes or could change."""

    def topic_by_id(self, topic_id: uuid.UUID | bytes) -> TopicImage | None:
        raw = topic_id.bytes if isinstance(topic_id, uuid.UUID) else bytes(topic_id)
        name = self.names_by_id.get(raw)
        return None if name is None else self.topics[name]

    def topic_config(self, name: str) -> Mapping[str, str]:
        """The topic's own overrides."""
        return self.configs.get(("topic", name), _NO_CONFIG)

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """The group's own overrides."""
        return self.configs.get(("group", group_id), _NO_CONFIG)

    def broker_config(self, broker_id: int | None) -> Mapping[str, str]:
        """The dynamic configuration of one broker; None stands for the default of all of them."""
        return self.configs.get(("broker", "" if broker_id is None else str(broker_id)), _NO_CONFIG)

    def apply(self, records: Iterable[Record]) -> MetadataImage:
        """The image after `records`; StorageError where they do not fit what is there."""
        draft = ImageDraft(self)
        draft.add(records)
        return draft.image()

    def to_records(self) -> Iterator[Record]:
        """Records that build this image from an empty one (its version apart)."""
        if self.cluster_id:
            yield ClusterRecord(self.cluster_id)
        for topic in self.topics.values():
            yield TopicRecord(topic.name, topic.topic_id)
            for each in topic.partitions:
                yield each.record(topic.topic_id)
        for (resource_type, resource_name), values in self.configs.items():
            for key, value in values.items():
                yield ConfigRecord(resource_type, resource_name, key, value)
        yield from self.brokers.values()
        for name, level in self.features.items():
            yield FeatureLevelRecord(name, level)
        if self.next_producer_id:
            yield ProducerIdsRecord(self.next_producer_id)


class ImageDraft:
    """An image in the making: the maps are copied once, however many changes follow.

    `image` may be asked for between changes, to plan the next one on top of those before. It is a view of the
    draft then, and good only until the next `add`.
    """

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._count = 0
        self._cluster_id = base.cluster_id
        self._next_producer_id = base.next_producer_id
        self._topics = dict(base.topics)
        self._names_by_id = dict(base.names_by_id)
        self._configs = dict(base.configs)
        self._brokers = dict(base.brokers)
        self._features = dict(base.features)
        self._partition_count = base.partition_count
        self._alike = dict(base.alike)
        # Open while they change: a topic's tuple, or a resource's map, would be copied again for each record.
        self._open_partitions: dict[str, list[PartitionImage]] = {}
        self._open_configs: dict[tuple[str, str], dict[str, str]] = {}

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._add(record)

    def _add(self, record: Record) -> None:
        self._count += 1
        match record:
            case TopicRecord():
                self._add_topic(record)
            case PartitionRecord():
                self._put_partition(record)
            case RemoveTopicRecord():
                self._remove_topic(record)
            case ConfigRecord():
                self._put_config(record)
            case ProducerIdsRecord():
                # Never back: an id that was given out must not be given out again.
                self._next_producer_id = max(self._next_producer_id, record.next_producer_id)
            case BrokerRecord():
                self._brokers[record.broker_id] = record
            case RemoveBrokerRecord():
                self._brokers.pop(record.broker_id, None)
            case ClusterRecord():
                self._cluster_id = record.cluster_id
            case FeatureLevelRecord():
                if record.level:
                    self._features[record.name] = record.level
                else:
                    self._features.pop(record.name, None)

    def image(self) -> MetadataImage:
        for name, partitions in self._open_partitions.items():
            self._topics[name] = replace(self._topics[name], partitions=tuple(partitions))
        self._open_partitions = {}
        for resource, values in self._open_configs.items():
            if values:
                self._configs[resource] = MappingProxyType(values)
            else:
                self._configs.pop(resource, None)
        self._open_configs = {}
        return MetadataImage(
            version=self._base.version + self._count,
            cluster_id=self._cluster_id,
            topics=MappingProxyType(self._topics),
            brokers=MappingProxyType(self._brokers),
            features=MappingProxyType(self._features),
            next_producer_id=self._next_producer_id,
            configs=MappingProxyType(self._configs),
            names_by_id=MappingProxyType(self._names_by_id),
            partition_count=self._partition_count,
            alike=MappingProxyType(self._alike),
        )

    def _name_of(self, topic_id: uuid.UUID) -> str:
        name = self._names_by_id.get(topic_id.bytes)
        if name is None:
            raise StorageError(f"metadata: a record has the unknown topic id {topic_id}")
        return name

    def _add_topic(self, record: TopicRecord) -> None:
        if record.name in self._topics or record.topic_id.bytes in self._names_by_id:
            raise StorageError(f"metadata: topic {record.name} with id {record.topic_id} already exists")
        self._topics[record.name] = TopicImage(record.name, record.topic_id)
        self._names_by_id[record.topic_id.bytes] = record.name
        unified = unified_name(record.name)
        if unified is not None:
            self._alike[unified] = (*self._alike.get(unified, ()), record.name)

    def _put_partition(self, record: PartitionRecord) -> None:
        name = self._name_of(record.topic_id)
        partitions = self._open_partitions.get(name)
        if partitions is None:
            partitions = self._open_partitions[name] = list(self._topics[name].partitions)
        if not 0 <= record.index <= len(partitions):
            raise StorageError(f"metadata: expected partition {len(partitions)} of {name}, got {record.index}")
        partition = PartitionImage(
            record.index,
            record.leader,
            record.leader_epoch,
            record.replicas,
            record.isr,
            record.partition_epoch,
            record.adding,
            record.removing,
            record.elr,
            record.last_known_elr,
            record.target_factor,
        )
        self._partition_count += record.index == len(partitions)
        partitions[record.index : record.index + 1] = [partition]

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        name = self._name_of(record.topic_id)
        topic = self._topics.pop(name)
        del self._names_by_id[record.topic_id.bytes]
        self._partition_count -= len(self._open_partitions.pop(name, topic.partitions))
        self._open_configs.pop(("topic", name), None)
        self._configs.pop(("topic", name), None)
        unified = unified_name(name)
        if unified is not None:
            others = tuple(other for other in self._alike.pop(unified) if other != name)
            if others:
                self._alike[unified] = others

    def _put_config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self._open_configs.get(resource)
        if values is None:
            values = self._open_configs[resource] = dict(self._configs.get(resource, _NO_CONFIG))
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
