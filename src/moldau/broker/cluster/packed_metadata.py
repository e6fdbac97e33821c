"""Encoded Metadata responses, cached until the metadata changes.

Every client asks again every few minutes, and all of them at the same time when a leader moved. The handlers of
`handlers.metadata` answer from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.turns import Work
from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.metadata.topics import is_internal
from moldau.wire.constants import NO_LEADER
from moldau.wire.metadata import (
    MetadataPartition,
    MetadataTopic,
    pack_metadata_response,
    pack_metadata_topic,
)

ANSWERS_MAX = 8
"""Answers with all topics that are kept, of 56 kinds. Each can have many megabytes; most clients ask in few ways."""
PACKED_INLINE_MAX = 500
"""Partitions of a topic that is packed on the loop: two milliseconds. A thread packs a larger one."""


class PackedMetadata:
    """Packed topics of the newest image, and packed answers that hold them all."""

    def __init__(
        self,
        metadata: MetadataCache,
        lost_brokers: LostBrokers,
        *,
        cluster_id: Callable[[], str],
        controller_id: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._lost_brokers = lost_brokers
        self._cluster_id = cluster_id
        self._find_controller = controller_id
        self._image: MetadataImage | None = None
        self._controller_id = -1
        self._alive: frozenset[int] = frozenset()
        self._lost: frozenset[int] = frozenset()
        self._topics: dict[tuple[str, int, int], tuple[TopicImage, bytes]] = {}
        self._answers: dict[tuple[str, int, int, int], bytes] = {}

    def topic(self, name: str, version: int, operations: int) -> Work[bytes | None]:
        """One topic of a response, or None where there is no such topic."""
        self._follow_image()
        known = self._topics.get((name, version, operations))
        if known is not None:
            return known[1]
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            return None
        alive = self._alive
        pack = partial(_packed, topic, alive, version, operations)
        packed: bytes = pack() if len(topic.partitions) <= PACKED_INLINE_MAX else (yield pack)
        if self._alive is alive and self._metadata.image.topics.get(name) is topic:
            self._topics[name, version, operations] = (topic, packed)
        return packed

    def all_topics(self, listener: str, version: int, operations: int, cluster_operations: int) -> Work[bytes]:
        """A whole response, from behind its correlation id."""
        self._follow_image()
        key = (listener, version, operations, cluster_operations)
        answer = self._answers.get(key)
        if answer is None:
            image = self._image
            topics = []
            for name in self._metadata.image.topics:
                packed = yield from self.topic(name, version, operations)
                if packed is not None:
                    topics.append(packed)
                yield
            self._follow_image()
            answer = self.response(listener, version, cluster_operations, topics)
            if self._image is image:
                while len(self._answers) >= ANSWERS_MAX:
                    del self._answers[next(iter(self._answers))]
                self._answers[key] = answer
        return answer

    def response(self, listener: str, version: int, cluster_operations: int, topics: Sequence[bytes]) -> bytes:
        return pack_metadata_response(
            version,
            brokers=self._metadata.endpoints(listener, also=self._lost_brokers.listed),
            cluster_id=self._cluster_id(),
            controller_id=self._find_controller(),
            topics=topics,
            cluster_operations=cluster_operations,
        )

    def _follow_image(self) -> None:
        image, controller = self._metadata.image, self._find_controller()
        lost = self._lost_brokers.listed
        if self._image is image and self._controller_id == controller and self._lost == lost:
            return
        self._image, self._controller_id, self._lost = image, controller, lost
        self._answers.clear()
        alive = self._metadata.live_brokers
        if self._alive != alive:  # each partition lists its offline replicas
            self._alive = alive
            self._topics.clear()
        # Images share the topics that did not change.
        self._topics = {key: known for key, known in self._topics.items() if image.topics.get(key[0]) is known[0]}


def _packed(topic: TopicImage, alive: frozenset[int], version: int, operations: int) -> bytes:
    return pack_metadata_topic(version, visible_topic(topic, alive, operations, version == 0))


def visible_topic(topic: TopicImage, alive: frozenset[int], operations: int, only_alive: bool = False) -> MetadataTopic:
    partitions = (_visible_partition(each, alive, only_alive) for each in topic.partitions)
    return MetadataTopic(
        topic.name,
        topic.topic_id.bytes,
        partitions,
        is_internal(topic.name),
        authorized_operations=operations,
    )


def _visible_partition(image: PartitionImage, alive: frozenset[int], only_alive: bool) -> MetadataPartition:
    """A partition as clients see it; version 0 (`only_alive`) cannot express offline replicas."""
    leader, replicas, isr, code = image.leader, image.replicas, image.isr, ErrorCode.NONE
    offline: tuple[int, ...] = ()
    if not alive.issuperset(replicas):
        offline = tuple(each for each in replicas if each not in alive)
        if only_alive:
            code = ErrorCode.REPLICA_NOT_AVAILABLE
            replicas = tuple(each for each in replicas if each in alive)
            isr = tuple(each for each in isr if each in alive)
    if leader not in alive:
        leader, code = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataPartition(
        image.index,
        leader,
        image.leader_epoch,
        replicas,
        isr,
        offline,
        int(code),
        image.elr,
        image.last_known_elr,
    )
