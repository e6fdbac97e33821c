"""What a broker is, apart from its sockets: its configuration, the metadata image, the logs, and how they change.

Handlers get the node and nothing else. Reads are plain attribute access on the event loop. Every change of metadata
goes through `change_metadata`, one at a time: plan against the current image, make the records durable, swap the image,
bring the logs in line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from moldau.broker import adoption
from moldau.broker.connections import Connections
from moldau.broker.coordinator import Coordinator
from moldau.broker.coordinators import Coordinators
from moldau.broker.fetch_sessions import FetchSessions
from moldau.broker.group_commit import GroupCommit
from moldau.broker.metrics import Metrics
from moldau.broker.packed_metadata import PackedMetadata
from moldau.broker.partition import ENOUGH_BYTES, Partition
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.share_partitions import SharePartitions
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.share.state_shard import ShareStateShard
from moldau.coordinators.transactions.shard import TransactionShard
from moldau.errors import ConfigError, ErrorCode, KafkaError, StorageError
from moldau.log.manager import LogManager
from moldau.metadata.image import MetadataImage, TopicImage
from moldau.metadata.local_store import LocalStore
from moldau.metadata.records import Record
from moldau.metadata.store import Candidate, Leadership
from moldau.wire.uuids import ZERO_UUID

log = logging.getLogger(__name__)

METADATA_FILE = "moldau-metadata.jsonl"
"""In the first of `log.dirs`, beside the partitions it describes."""

PROGRESS_INTERVAL_S = 2.0

Plan = Callable[[MetadataImage], Sequence[Record]]
T = TypeVar("T")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class BrokerNode:
    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.config = config
        self.loop = loop
        self.clock = clock
        self.node_id = config.node_id
        self.executor = ThreadPoolExecutor(max_workers=4, thread_name_prefix="moldau")
        self.metrics = Metrics()
        self.connections = Connections(config)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots)
        self.group_commit = GroupCommit(loop, self.executor)
        self.producer_ids = ProducerIds(self)
        self.packed_metadata = PackedMetadata(self)
        self.image = MetadataImage()
        self.coordinators = Coordinators(self)
        self.share_partitions = SharePartitions(self)
        self.advertised: dict[str, tuple[str, int]] = {}
        """Where clients of each listener find this broker; known once the listeners are bound."""
        self._store: LocalStore | None = None
        self._controller_epoch = 0
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._partitions_by_id: dict[tuple[bytes, int], Partition] = {}
        self._topics_without_logs: set[str] = set()
        self._rejected_overrides: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.logs = LogManager(
            [Path(directory) for directory in config.log_dirs],
            default_config=TopicConfig.resolve({}, config),
            node_id=config.node_id,
            clock=clock,
            recovery_threads=config.num_recovery_threads_per_data_dir,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
        )

    # -- life

    def open(self) -> None:
        """Locks the folders, reads the metadata, loads (and after a crash recovers) the logs. Blocks: call it first."""
        self.logs.lock()
        store = LocalStore(self.logs.directories[0] / METADATA_FILE)
        store.open()
        self._store = store
        store.campaign(Candidate(self.node_id, "", 0), self._follow_leadership)
        self.image = store.load(self._controller_epoch)
        self._apply_broker_overrides()
        is_new = self.image.version == 0
        self.logs.open(self.topic_config, progress=_log_progress())
        if is_new and self.logs.logs:
            adoption.check(self.logs, METADATA_FILE)
            log.warning(
                "adopting the topics found in the data folder; their configurations are not there, so retention is off "
                "for each until you set it",
                extra={"partitions": len(self.logs.logs)},
            )
            self.image = self._keep(self.image, adoption.records_of(self.logs.logs, self.node_id))
        self._set_strays_aside()
        topics = list(self.image.topics.values())
        self._create_logs(topics, self.image)
        self._match_logs(topics)

    async def close(self) -> None:
        """Everything to the disk, the clean-shutdown mark last."""
        self.share_partitions.stop()
        self.coordinators.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.loop.run_in_executor(self.executor, self.logs.close)
        if self._store is not None:
            self._store.close()
        self.executor.shutdown()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task the node keeps alive, and ends when it closes."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await self.loop.run_in_executor(self.executor, work, *args)

    # -- reading

    @property
    def groups(self) -> Coordinator[GroupShard]:
        return self.coordinators.groups

    @property
    def share_state(self) -> Coordinator[ShareStateShard]:
        return self.coordinators.share_state

    @property
    def transactions(self) -> Coordinator[TransactionShard]:
        return self.coordinators.transactions

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    def find_partition(self, topic: str | None, topic_id: bytes | None, index: int) -> Partition:
        """By id where the request has one, else by name; Kafka's error for what is not here."""
        if topic_id is not None:
            partition = self._partitions_by_id.get((topic_id, index))
            if partition is None:
                image = self.image.topic_by_id(topic_id)
                if image is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "this server hosts no topic of that id")
                raise _not_here(image, image.name, index)
            return partition
        partition = self._partitions.get((topic or "", index))
        if partition is None:
            raise _not_here(self.image.topics.get(topic or ""), topic, index)
        return partition

    @property
    def live_brokers(self) -> frozenset[int]:
        return frozenset(one.broker_id for one in self.image.brokers.values() if not one.fenced) or frozenset(
            (self.node_id,)
        )

    def address_of(self, broker_id: int) -> tuple[str, int]:
        """Where other brokers find that one."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or not broker.endpoints:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered")
        wanted = self.config.inter_broker_listener_name
        named = [endpoint for endpoint in broker.endpoints if endpoint[0] == wanted]
        _, host, port, _ = (named or broker.endpoints)[0]
        return host, port

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self.image.topic_config(topic), self.config)

    def answer_waiting_fetches(self) -> None:
        """A broker that stops need not wait for `fetch.max.wait.ms` of its readers."""
        for partition in self._partitions.values():
            partition.wake(ENOUGH_BYTES, ENOUGH_BYTES)

    # -- changing

    async def change_metadata(self, plan: Plan) -> MetadataImage:
        """Runs `plan` on the newest image and makes its records true. A KafkaError from the plan changes nothing."""
        # A client that goes away cancels its request, but no change may stop half-way.
        return await asyncio.shield(self.spawn(self._change_metadata(plan)))

    async def _change_metadata(self, plan: Plan) -> MetadataImage:
        async with self._changing:
            before = self.image
            records = plan(before)
            if not records:
                return before
            self.image = await self.in_thread(self._keep, before, records)
            changed = self._changed_topics(before, self.image)
            await self.in_thread(self._create_logs, changed, before)
            self._match_logs(changed)
            if self.image.topics is not before.topics:
                self.coordinators.follow()
                self.share_partitions.follow()
            return self.image

    def _keep(self, before: MetadataImage, records: Sequence[Record]) -> MetadataImage:
        assert self._store is not None
        image = before.apply(records)
        self._store.append(self._controller_epoch, records, image)
        return image

    def _follow_leadership(self, leadership: Leadership | None) -> None:
        self._controller_epoch = leadership.epoch if leadership is not None else 0

    def _changed_topics(self, before: MetadataImage, after: MetadataImage) -> list[TopicImage]:
        """Topics whose partitions or configuration may differ. An image shares what did not change, so `is` tells."""
        if self._apply_broker_overrides():
            return list(after.topics.values())
        return [
            topic
            for name, topic in after.topics.items()
            if before.topics.get(name) is not topic or before.topic_config(name) != after.topic_config(name)
        ]

    def _create_logs(self, topics: Sequence[TopicImage], before: MetadataImage) -> None:
        """Folders and files for partitions that have none: slow for many, so in a thread.

        A partition that was there `before` has its log somewhere, perhaps on a disk that failed: it must not begin anew
        on another one.
        """
        for topic in topics:
            config = self.topic_config(topic.name)
            known = before.topic_by_id(topic.topic_id)
            known_count = len(known.partitions) if known is not None else 0
            for partition in topic.partitions:
                if self.node_id not in partition.replicas or self.logs.get(topic.name, partition.index) is not None:
                    continue
                is_new = partition.index >= known_count
                try:
                    self.logs.create(topic.name, partition.index, topic.topic_id, config, is_new=is_new)
                except StorageError as error:
                    # The topic is in the metadata already: the others of its partitions have to work.
                    if topic.name not in self._topics_without_logs:
                        log.error("no log for a topic's partitions", extra={"topic": topic.name, "why": error.message})
                    self._topics_without_logs.add(topic.name)

    async def retry_logs(self) -> None:
        """Tries again for partitions that got no folder, because the disk was full perhaps."""
        if not self._topics_without_logs:
            return
        async with self._changing:
            topics = [self.image.topics[name] for name in self._topics_without_logs if name in self.image.topics]
            await self.in_thread(self._create_logs, topics, self.image)
            self._match_logs(topics)
            self._topics_without_logs = {topic.name for topic in topics if not self._has_all_logs(topic)}

    def _has_all_logs(self, topic: TopicImage) -> bool:
        return all(
            self.logs.get(topic.name, partition.index) is not None
            for partition in topic.partitions
            if self.node_id in partition.replicas
        )

    def _match_logs(self, changed: Sequence[TopicImage]) -> None:
        """Partitions, configurations and log folders follow the image."""
        for topic in changed:
            self._match_topic(topic, self.topic_config(topic.name))
        for key in [key for key, part in self._partitions.items() if not _holds(self.image, part)]:
            partition = self._partitions.pop(key)
            self._partitions_by_id.pop((partition.topic_id, partition.index), None)
            partition.wake(ENOUGH_BYTES, ENOUGH_BYTES)
            try:
                self.logs.delete(*key)
            except StorageError as error:
                # Out of service it is; at the next start the folder is found to belong to nobody.
                log.error("cannot delete a log", extra={"partition": partition.log.name, "why": error.message})

    def _match_topic(self, topic: TopicImage, config: TopicConfig) -> None:
        topic_id = topic.topic_id.bytes
        for image in topic.partitions:
            partition = self._partitions.get((topic.name, image.index))
            if partition is not None and partition.topic_id == topic_id:
                partition.log.update_config(config)
                partition.leader_epoch = image.leader_epoch
                continue
            partition_log = self.logs.get(topic.name, image.index)
            if partition_log is None:
                continue
            partition = Partition(topic.name, topic_id, image, partition_log)
            self._partitions[(topic.name, image.index)] = partition
            self._partitions_by_id[(topic_id, image.index)] = partition

    def _apply_broker_overrides(self) -> bool:
        """True when a dynamic broker configuration changed something.

        What is stored was checked, but against another server.properties perhaps: values that no longer fit are left
        out, and the broker serves on.
        """
        wanted = (self.image.broker_config(self.node_id), self.image.broker_config(None))
        if wanted in ((self.config.dynamic, self.config.dynamic_default), self._rejected_overrides):
            return False
        try:
            self.config = self.config.with_overrides(*wanted)
        except ConfigError as error:
            self._rejected_overrides = wanted
            log.error("the dynamic broker configuration is not in force", extra={"why": str(error)})
            return False
        self.connections.configure(self.config)
        return True

    def _set_strays_aside(self) -> None:
        """Logs that no topic of the metadata owns: of a topic deleted just before a crash, or copied in by hand."""
        for (name, index), partition_log in list(self.logs.logs.items()):
            topic = self.image.topics.get(name)
            if topic is not None and index < len(topic.partitions):
                if partition_log.topic_id == ZERO_UUID:
                    partition_log.assign_topic_id(topic.topic_id)
                if partition_log.topic_id == topic.topic_id:
                    continue
            folder = self.logs.set_aside(name, index)
            log.warning(
                "a log that no topic owns was set aside", extra={"partition": f"{name}-{index}", "folder": folder}
            )


def _log_progress() -> Callable[[int, int], None]:
    """Says every two seconds how far the loading of logs is; nothing when it is quick."""
    last_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= PROGRESS_INTERVAL_S:
            last_s = time.monotonic()
            log.info("loading logs", extra={"done": done, "of": total})

    return progress


def _not_here(topic: TopicImage | None, name: str | None, index: int) -> KafkaError:
    if topic is not None and 0 <= index < len(topic.partitions):
        # Its folder could not be made or loaded. "Unknown" would make clients believe that it was deleted.
        return StorageError(f"{name}-{index} has no log here: its log directory is full or failed")
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this server does not host {name}-{index}")


def _holds(image: MetadataImage, partition: Partition) -> bool:
    topic = image.topics.get(partition.topic)
    return topic is not None and topic.topic_id.bytes == partition.topic_id and partition.index < len(topic.partitions)
