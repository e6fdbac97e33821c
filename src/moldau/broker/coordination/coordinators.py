"""The coordinators of this broker: which there are, the topics they keep their state in, and what they are told."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.broker.coordination.coordinator_shell import Coordinator, NotNowError, Shard
from moldau.broker.coordination.remote_transactions import RemoteTransactions
from moldau.broker.coordination.transaction_coordinator import make_transactions
from moldau.broker.coordination.txn_markers import RemoteMarkers
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.share.records import STATE_RECORDS
from moldau.coordinators.share.state_shard import ShareStateShard
from moldau.errors import KafkaError
from moldau.wire.compression import Codec
from moldau.wire.constants import GROUPS_TOPIC, SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode


class Coordinators:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._topics: tuple[Mapping[bytes, str], int] = ({}, 0)
        """Their names and how many partitions they have together, as the shards know them."""
        self._untold_groups: set[int] = set()
        self._untold_states: set[int] = set()
        topics = NodeTopics(node)
        self.groups: Coordinator[GroupShard] = Coordinator(
            node,
            GROUPS_TOPIC,
            GROUP_RECORDS,
            lambda _: GroupShard(lambda: node.config, topics, self._overrides, wall_clock=node.clock),
            partitions=lambda: node.config.offsets_topic_num_partitions,
            topic_configs=lambda: _state_topic_configs(node.config.offsets_topic_segment_bytes),
            replication_factor=lambda: node.config.offsets_topic_replication_factor,
            codec=lambda: Codec(node.config.offsets_topic_compression_codec),
            load_bytes=lambda: node.config.offsets_load_buffer_size,
        )
        self.transactions = make_transactions(node)
        self.remote_transactions = RemoteTransactions(node)
        self.remote_markers = RemoteMarkers(node)
        self.share_state: Coordinator[ShareStateShard] = Coordinator(
            node,
            SHARE_STATE_TOPIC,
            STATE_RECORDS,
            lambda _: ShareStateShard(lambda: node.config, topics, wall_clock=node.clock),
            partitions=lambda: node.config.share_coordinator_state_topic_num_partitions,
            topic_configs=lambda: {
                **_state_topic_configs(node.config.share_coordinator_state_topic_segment_bytes),
                # An update does not contain the one before it: what snapshots replaced is deleted in front of them.
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "min.insync.replicas": str(node.config.share_coordinator_state_topic_min_isr),
            },
            replication_factor=lambda: node.config.share_coordinator_state_topic_replication_factor,
        )

    def _overrides(self, group_id: str) -> Mapping[str, str]:
        return self._node.image.group_config(group_id)

    def follow(self) -> None:
        """The metadata changed: coordinators move with the partitions of their topics, groups see new topics."""
        self.groups.follow()
        self.transactions.follow()
        self.share_state.follow()
        image = self._node.image
        topics = (image.names_by_id, image.partition_count)
        if topics != self._topics:  # and not only who leads them
            self._topics = topics
            self._untold_groups = {partition for partition, _ in self.groups.shards()}
            self._untold_states = {partition for partition, _ in self.share_state.shards()}
        self._untold_groups = _tell_of_topics(self.groups, self._untold_groups)
        self._untold_states = _tell_of_topics(self.share_state, self._untold_states)

    def stop(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        self.share_state.stop()


class _TopicsShard(Shard, Protocol):
    def topics_changed(self, now_ms: int) -> Effects: ...


_S = TypeVar("_S", bound=_TopicsShard)


def _tell_of_topics(coordinator: Coordinator[_S], partitions: Iterable[int]) -> set[int]:
    """Those that could not be told: their replicas are too few, and with more of them this is tried again."""
    untold = set()
    for partition in partitions:
        try:
            coordinator.run(partition, lambda shard, now_ms: shard.topics_changed(now_ms))
        except NotNowError:
            untold.add(partition)
        except KafkaError:
            continue  # the shard is elsewhere, or loaded again and will look at the topics then
    return untold


class NodeTopics:
    """The topics of a node's current image, as the coordinators ask for them."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def partition_count(self, name: str) -> int | None:
        topic = self._node.image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._node.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self._node.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        return self._node.image.topics.keys()


def _state_topic_configs(segment_bytes: int) -> dict[str, str]:
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
