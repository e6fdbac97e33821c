"""The partitions that this broker hosts: directories, logs and `Partition`s follow the metadata image.

An image is applied in two steps. `prepare` creates the logs that it needs, in a thread, while the previous image is
still the current one; `follow` then changes what requests see, partition by partition, on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.replicas.partition import ENOUGH_BYTES, Partition
from moldau.broker.replicas.replica_manager import ReplicaManager
from moldau.broker.threads import Lane
from moldau.broker.turns import Turns
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.manager import LogManager
from moldau.log.partition_log import PartitionLog
from moldau.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.wire.uuids import ZERO_UUID

logger = logging.getLogger(__name__)

FindPartition: TypeAlias = "Callable[[str | None, bytes | None, int], Partition]"
"""`HostedPartitions.find`, for parts that need nothing else of it."""

CHANGED_PER_STEP = 20
"""Partitions that change before others may have their turn: a fraction of a millisecond."""


class HostedPartitions:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        logs: LogManager,
        replication: ReplicaManager,
        *,
        files: Lane,
        turns: Turns,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._logs = logs
        self._replication = replication
        self._files = files
        self._turns = turns
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._images: dict[tuple[str, int], PartitionImage] = {}
        self._configs: dict[str, tuple[Mapping[str, str], BrokerConfig, TopicConfig]] = {}
        self._topics_without_logs: set[str] = set()

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    def all(self) -> list[Partition]:
        """From any thread."""
        return list(self._by_name.values())

    def find(self, topic: str | None, topic_id: bytes | None, index: int) -> Partition:
        """By id where the request has one, else by name; Kafka's error for what is not here."""
        if topic_id is not None:
            partition = self._by_id.get((topic_id, index))
            if partition is None:
                image = self._metadata.image.topic_by_id(topic_id)
                if image is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "this server hosts no topic of that id")
                raise self._not_here(image, image.name, index)
            return partition
        partition = self._by_name.get((topic or "", index))
        if partition is None:
            raise self._not_here(self._metadata.image.topics.get(topic or ""), topic, index)
        return partition

    def _not_here(self, topic: TopicImage | None, name: str | None, index: int) -> KafkaError:
        partition = topic.partition(index) if topic is not None else None
        if partition is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this server does not host {name}-{index}")
        if self._me.node_id not in partition.replicas:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this server has no replica of {name}-{index}")
        # Its directory could not be created or loaded. "Unknown" would make clients believe that it was deleted.
        return StorageError(f"{name}-{index} has no log here: its log directory is full or failed")

    # -- following the image

    def prepare(self, topics: Sequence[TopicImage], before: MetadataImage, after: MetadataImage) -> None:
        """Creates the logs of partitions that have none. This is slow for many, so it runs in a thread.

        A partition that this broker had `before` has its log somewhere, perhaps on a disk that failed: it must not
        begin anew on another one.
        """
        node_id = self._me.node_id
        for topic in topics:
            config = TopicConfig.resolve(after.topic_config(topic.name), self._me.config)
            known = before.topic_by_id(topic.topic_id)
            for partition in topic.partitions:
                is_here = node_id in partition.replicas
                if not is_here or self._logs.get(topic.name, partition.index) is not None:
                    continue
                was = known.partition(partition.index) if known is not None else None
                is_new = was is None or node_id not in was.replicas
                try:
                    self._logs.create(topic.name, partition.index, topic.topic_id, config, is_new=is_new)
                except StorageError as error:
                    # The topic is in the metadata already: the others of its partitions have to work.
                    if topic.name not in self._topics_without_logs:
                        logger.error(
                            "cannot create the logs of a topic, will retry",
                            extra={"topic": topic.name, "why": error.message},
                        )
                    self._topics_without_logs.add(topic.name)

    def _match(self, changed: Sequence[TopicImage]) -> Iterator[list[Partition]]:
        """Brings partitions and configurations of the `changed` topics in line with the current image, and removes
        partitions that are not in it; step by step, since a broker may have ten thousand of them.

        Each step yields the partitions that it changed. `ReplicaManager.follow` has to be called with them before the
        next step.
        """
        for key, partition in list(self._by_name.items()):
            if not self._belongs(partition):
                self._remove(key, partition)
                yield []
        for topic in changed:
            config = self._config_of(topic.name)
            for start in range(0, len(topic.partitions), CHANGED_PER_STEP):
                some = topic.partitions[start : start + CHANGED_PER_STEP]
                matched = (self._match_one(topic, each, config) for each in some)
                yield [each for each in matched if each is not None]

    def _remove(self, key: tuple[str, int], partition: Partition) -> None:
        del self._by_name[key]
        self._images.pop(key, None)
        self._configs.pop(partition.topic, None)
        self._by_id.pop((partition.topic_id, partition.index), None)
        partition.retire()
        try:
            self._logs.delete(*key)
        except StorageError as error:
            # The partition is out of service; the next start finds a stray directory.
            logger.error(
                "cannot delete the log of a removed partition",
                extra={"partition": partition.log.name, "why": error.message},
            )

    def _match_one(self, topic: TopicImage, image: PartitionImage, config: TopicConfig) -> Partition | None:
        partition = self._by_name.get((topic.name, image.index))
        if partition is None:
            partition_log = self._logs.get(topic.name, image.index)
            if partition_log is None or self._me.node_id not in image.replicas:
                return None
            topic_id = topic.topic_id.bytes
            partition = Partition(topic.name, topic_id, image, partition_log, self._replication)
            self._by_name[(topic.name, image.index)] = partition
            self._by_id[(topic_id, image.index)] = partition
        elif self._images.get((topic.name, image.index)) is image and partition.log.config is config:
            return None  # one of its neighbours changed
        self._images[(topic.name, image.index)] = image
        if partition.log.config is not config:
            partition.log.update_config(config)
        partition.follow_image(image)
        return partition

    def _config_of(self, topic: str) -> TopicConfig:
        """The same object as before, if nothing it is made of changed."""
        overrides, defaults = self._metadata.image.topic_config(topic), self._me.config
        known = self._configs.get(topic)
        if known is not None and known[0] is overrides and known[1] is defaults:
            return known[2]
        config = TopicConfig.resolve(overrides, defaults)
        self._configs[topic] = (overrides, defaults, config)
        return config

    def _belongs(self, partition: Partition) -> bool:
        topic = self._metadata.image.topics.get(partition.topic)
        if topic is None or topic.topic_id.bytes != partition.topic_id:
            return False
        image = topic.partition(partition.index)
        return image is not None and self._me.node_id in image.replicas

    async def follow(self, changed: Sequence[TopicImage]) -> None:
        """Applies the current image to the `changed` topics; on the loop, in turns."""
        async for partitions in self._turns.each(self._match(changed)):
            self._replication.follow(partitions)
        self._replication.follow(())  # brokers may have come or gone

    async def retry(self) -> None:
        """Retries partitions whose log could not be created, for example because the disk was full."""
        if not self._topics_without_logs:
            return
        image = self._metadata.image
        topics = [image.topics[name] for name in self._topics_without_logs if name in image.topics]
        await self._files(self.prepare, topics, image, image)
        await self.follow(topics)
        self._topics_without_logs = {topic.name for topic in topics if not self._has_all_logs(topic)}

    def _has_all_logs(self, topic: TopicImage) -> bool:
        return all(
            self._logs.get(topic.name, partition.index) is not None
            for partition in topic.partitions
            if self._me.node_id in partition.replicas
        )

    def open(self) -> None:
        """At the start, when the logs are loaded: partitions for all that the image has here. Blocks."""
        self._settle()
        image = self._metadata.image
        topics = list(image.topics.values())
        self.prepare(topics, image, image)
        for _ in self._match(topics):
            pass  # the replica manager follows them all at once, later

    def _settle(self) -> None:
        """Sets aside logs that belong to no topic of the metadata and deletes those of replicas that moved away."""
        for (name, index), partition_log in list(self._logs.logs.items()):
            topic = self._metadata.image.topics.get(name)
            partition = topic.partition(index) if topic is not None else None
            if topic is not None and partition is not None:
                if partition_log.topic_id == ZERO_UUID:
                    partition_log.assign_topic_id(topic.topic_id)
                if partition_log.topic_id == topic.topic_id:
                    if self._me.node_id not in partition.replicas:
                        self._logs.delete(name, index)
                    continue
            folder = self._logs.set_aside(name, index)
            logger.warning(
                "renamed a stray log that belongs to no topic", extra={"partition": f"{name}-{index}", "folder": folder}
            )

    def flushed(self, partition_log: PartitionLog) -> None:
        """A flush that its partition did not ask for: one that it did ask for may have failed before."""
        partition = self._by_name.get((partition_log.topic, partition_log.partition))
        if partition is not None and partition.log is partition_log:
            partition.flush_ended(None)

    def wake_all(self) -> None:
        """Answers all waiting fetches, so that a stopping broker need not wait for their `fetch.max.wait.ms`."""
        for partition in self._by_name.values():
            partition.wake(ENOUGH_BYTES, ENOUGH_BYTES)
