"""The coordinators of this broker, the topics they keep their state in, and how they learn of new topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.coordinator_shell import CoordinatorShell, Shard, StepNotStartedError
from moldau.broker.coordination.producer_ids import ProducerIds
from moldau.broker.coordination.state_topic import NewStateTopic, StateTopicSettings
from moldau.broker.coordination.transaction_coordinator import TransactionCoordinator
from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.share.records import STATE_RECORDS
from moldau.coordinators.share.state_shard import ShareStateShard
from moldau.errors import KafkaError
from moldau.metadata.image import MetadataImage
from moldau.wire.compression import Codec
from moldau.wire.constants import GROUPS_TOPIC, SHARE_STATE_TOPIC


class Coordinators:
    def __init__(self, context: CoordinatorContext, new_state_topic: NewStateTopic, producer_ids: ProducerIds) -> None:
        self._metadata = context.metadata
        self._topics: tuple[Mapping[bytes, str], int] = ({}, 0)
        """Their names and how many partitions they have together, as the shards know them."""
        self._outdated_groups: set[int] = set()
        self._outdated_states: set[int] = set()
        local, topics = context.local, ImageTopics(context.metadata)
        self.groups: CoordinatorShell[GroupShard] = CoordinatorShell(
            context,
            new_state_topic(GROUPS_TOPIC, _groups_topic),
            GROUP_RECORDS,
            lambda _: GroupShard(lambda: local.config, topics, self._overrides, wall_clock=context.wall_clock),
            codec=lambda: Codec(local.config.offsets_topic_compression_codec),
            load_bytes=lambda: local.config.offsets_load_buffer_size,
        )
        self.transactions = TransactionCoordinator(context, new_state_topic, producer_ids, self.groups)
        self.share_state: CoordinatorShell[ShareStateShard] = CoordinatorShell(
            context,
            new_state_topic(SHARE_STATE_TOPIC, _share_state_topic),
            STATE_RECORDS,
            lambda _: ShareStateShard(lambda: local.config, topics, wall_clock=context.wall_clock),
        )

    def _overrides(self, group_id: str) -> Mapping[str, str]:
        return self._metadata.image.group_config(group_id)

    def follow(self) -> None:
        """The metadata changed: coordinators move with the partitions of their topics, groups see new topics."""
        self.groups.follow()
        self.transactions.follow()
        self.share_state.follow()
        image = self._metadata.image
        topics = (image.names_by_id, image.partition_count)
        if topics != self._topics:  # and not only who leads them
            self._topics = topics
            self._outdated_groups = {partition for partition, _ in self.groups.shards()}
            self._outdated_states = {partition for partition, _ in self.share_state.shards()}
        self._outdated_groups = _update_topics(self.groups, self._outdated_groups)
        self._outdated_states = _update_topics(self.share_state, self._outdated_states)

    def stop(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        self.share_state.stop()


class _TopicsShard(Shard, Protocol):
    def topics_changed(self, now_ms: int) -> Effects: ...


_S = TypeVar("_S", bound=_TopicsShard)


def _update_topics(coordinator: CoordinatorShell[_S], partitions: Iterable[int]) -> set[int]:
    """The partitions that are still outdated: their replicas are too few, and with more of them this is tried again."""
    outdated = set()
    for partition in partitions:
        try:
            coordinator.run(partition, lambda shard, now_ms: shard.topics_changed(now_ms))
        except StepNotStartedError:
            outdated.add(partition)
        except KafkaError:
            continue  # the shard is elsewhere, or loaded again and will look at the topics then
    return outdated


class HasImage(Protocol):
    @property
    def image(self) -> MetadataImage: ...


class ImageTopics:
    """The topics of the current image, as the coordinators ask for them."""

    def __init__(self, metadata: HasImage) -> None:
        self._metadata = metadata

    def partition_count(self, name: str) -> int | None:
        topic = self._metadata.image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._metadata.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self._metadata.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        return self._metadata.image.topics.keys()


def _groups_topic(config: BrokerConfig) -> StateTopicSettings:
    return StateTopicSettings(
        config.offsets_topic_num_partitions,
        _compacted(config.offsets_topic_segment_bytes),
        config.offsets_topic_replication_factor,
    )


def _share_state_topic(config: BrokerConfig) -> StateTopicSettings:
    return StateTopicSettings(
        config.share_coordinator_state_topic_num_partitions,
        {
            **_compacted(config.share_coordinator_state_topic_segment_bytes),
            # An update does not contain the one before it: what snapshots replaced is deleted in front of them.
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
        },
        config.share_coordinator_state_topic_replication_factor,
    )


def _compacted(segment_bytes: int) -> dict[str, str]:
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
