"""What a broker is, apart from its sockets: its configuration, the metadata image, the logs, and how they change.

Handlers get the node and nothing else. Reads are plain attribute access on the event loop. Metadata changes in one
place of the cluster, the controller (`controller`); its records reach this node as ever newer images, which `follow`
makes true one after the other: make the logs an image needs, then swap everything that requests see.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from moldau.broker.cluster import adoption
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.forwarding import FORWARDED
from moldau.broker.cluster.leader_lease import Vigil
from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.membership import Membership
from moldau.broker.cluster.packed_metadata import PackedMetadata
from moldau.broker.cluster.peers import CONTROLLER, FORWARDING, REQUEST_TIMEOUT_S, Build, Peers
from moldau.broker.coordination.coordinator_shell import Coordinator
from moldau.broker.coordination.coordinators import Coordinators
from moldau.broker.coordination.producer_ids import ProducerIds
from moldau.broker.coordination.share_partitions import SharePartitions
from moldau.broker.environment import REAL, Environment
from moldau.broker.monitoring.metrics import Metrics
from moldau.broker.network.client_connection import ClientConnection
from moldau.broker.network.connection_limits import Connections
from moldau.broker.replicas.fetch_sessions import FetchSessions
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.replicas.hosted_partitions import HostedPartitions
from moldau.broker.replicas.replica_manager import ReplicaManager
from moldau.broker.turns import Turns, Work
from moldau.config.broker import CLUSTER_WIDE, BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.share.state_shard import ShareStateShard
from moldau.coordinators.transactions.shard import TransactionShard
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.log.manager import LogManager
from moldau.metadata.image import MetadataImage, TopicImage
from moldau.metadata.records import BrokerRecord, Record, RemoveBrokerRecord
from moldau.metadata.stores.local_store import LocalStore

log = logging.getLogger(__name__)

METADATA_FILE = "moldau-metadata.jsonl"
"""In the first of `log.dirs`, beside the partitions it describes; of a cluster, in the folder its brokers share."""

PROGRESS_INTERVAL_S = 2.0
DISKS_CLOSE_TIMEOUT_S = 20.0
"""In which at least one log has to come to its end: else its disk hangs, and the next start checks what is there."""
DISKS_SETTLE_TIMEOUT_S = 5.0
"""For what is under way when the broker stops, such as the folders of a new topic: nobody may write behind its back."""
STORE_CLOSE_TIMEOUT_S = 10.0

Plan: TypeAlias = "Callable[[MetadataImage], Sequence[Record] | Work[Sequence[Record]]]"
T = TypeVar("T")


class BrokerNode:
    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment = REAL,
    ) -> None:
        self.config = config
        self.loop = loop
        self.environment = environment
        self.clock = environment.wall_clock
        self.monotonic_ms = environment.monotonic
        self.node_id = config.node_id
        self.broker_epoch = -1
        """Of this life of the broker, as the controller counted it; -1 before it registered."""
        directories = [Path(os.path.abspath(directory)) for directory in config.log_dirs]
        self.threads = environment.make_threads(loop, directories)
        self.group_commit = GroupCommit(loop, self.threads.disk)
        self.turns = Turns(self.threads.compute, environment.timer)
        self.metrics = Metrics()
        self.connections = Connections(config)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, loop.time)
        self.producer_ids = ProducerIds(self)
        self.lost_brokers = LostBrokers(self)
        self.packed_metadata = PackedMetadata(self)
        self.image = MetadataImage()
        self.controller = ControllerShell(self)
        self.peers = Peers(self)
        self.membership: Membership | None = None
        self.vigil: Vigil | None = None
        """Of a cluster, both; None for a broker on its own."""
        self.replication = ReplicaManager(self)
        self.coordinators = Coordinators(self)
        self.share_partitions = SharePartitions(self)
        self.hosted = HostedPartitions(self)
        self.find_partition = self.hosted.find
        self.advertised: dict[str, tuple[str, int]] = {}
        """Where clients of each listener find this broker; known once the listeners are bound."""
        self.is_serving = asyncio.Event()
        """From the moment that clients may come; before, a broker only talks to its cluster."""
        self._rejected_overrides: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._following = asyncio.Lock()
        self._newest = self.image
        self._is_open = False
        self.is_closing = False
        self._applied = asyncio.Condition()
        self._applied_version = -1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self.logs = LogManager(
            directories,
            default_config=TopicConfig.resolve({}, config),
            node_id=config.node_id,
            clock=self.clock,
            monotonic=self.monotonic_ms,
            recovery_threads=config.num_recovery_threads_per_data_dir,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            single_replica=not config.is_clustered,
        )

    # -- life

    def open(self) -> None:
        """For a broker on its own: it is its own controller, over a file beside its logs. Blocks: call it first."""
        adoption.refuse_folders_of_a_cluster(self.logs.directories)
        self.logs.lock()
        self.logs.check_in()
        self.begin_with(self.controller.open_alone(LocalStore(self.logs.directories[0] / METADATA_FILE)))
        self.open_logs()
        self.is_serving.set()

    def open_logs(self) -> None:
        """Loads (and after a crash recovers) the logs, and makes them what the image says. Blocks."""
        self._apply_broker_overrides()
        self.logs.open(self.topic_config, progress=_log_progress())
        if not self.config.is_clustered and self.image.version == 0 and self.logs.logs:
            self._adopt()
        self.hosted.settle()
        topics = list(self.image.topics.values())
        self.hosted.prepare(topics, self.image, self.image)
        for _ in self.hosted.match(topics):
            pass  # `begin` follows them all
        self._is_open = True

    def begin(self) -> None:
        """The logs are open: leads, follows and coordinates what the image says. On the loop."""
        self.replication.follow(list(self.hosted))
        self.coordinators.follow()
        self.spawn(self._tell_applied(self.image.version))  # the first image came into force without a word
        self._catch_up()

    def _adopt(self) -> None:
        adoption.check(self.logs, METADATA_FILE)
        log.warning(
            "adopting the topics found in the data folder; their configurations are not there, so retention is off "
            "for each until you set it",
            extra={"partitions": len(self.logs.logs)},
        )
        self.begin_with(self.controller.adopt(adoption.records_of(self.logs.logs, self.node_id)))

    async def close(self) -> None:
        """Everything to the disk, the clean-shutdown mark last. A disk that hangs is left behind after a while."""
        self.share_partitions.stop()
        self.coordinators.stop()
        self.replication.stop()
        self._is_closing = True
        for task in tuple(self._tasks):
            task.cancel()
        while self._tasks:  # the end of one may begin another
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.peers.close()
        await self.threads.settle(DISKS_SETTLE_TIMEOUT_S)  # what the cancelled tasks began
        await self.threads.files(partial(self.logs.close, self.broker_epoch, timeout_s=DISKS_CLOSE_TIMEOUT_S))
        close_store = self.controller.close if self.membership is None else self.membership.close
        try:
            async with asyncio.timeout(STORE_CLOSE_TIMEOUT_S):
                await self.threads.metadata(close_store)
        except TimeoutError:
            log.error("the metadata store does not answer: it is left as it is")
        self.threads.stop()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task the node keeps alive, and ends when it closes."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_closing:
            task.cancel()
        return task

    def disconnected(self, connection: ClientConnection) -> None:
        """Was it a broker that followed this controller? Then somebody has to look after it."""
        broker_id = self.controller.feed.broker_of(connection)
        if broker_id is not None and self.membership is not None:
            self.spawn(self.membership.probe(broker_id))

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

    @property
    def live_brokers(self) -> frozenset[int]:
        return frozenset(one.broker_id for one in self.image.brokers.values() if not one.fenced) or frozenset(
            (self.node_id,)
        )

    def address_of(self, broker_id: int) -> tuple[str, int]:
        """Where other brokers find that one."""
        return self.address_in(self.image, broker_id)

    def address_in(self, image: MetadataImage, broker_id: int) -> tuple[str, int]:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.endpoints:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered")
        named = [endpoint for endpoint in broker.endpoints if endpoint[0] == self._inter_broker_listener]
        _, host, port, _ = (named or broker.endpoints)[0]
        return host, port

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        """Where other brokers find this one."""
        return self.advertised[self._inter_broker_listener]

    @property
    def endpoints(self) -> tuple[tuple[str, str, int, str], ...]:
        """Name, host, port and security protocol of each listener, as others reach it."""
        protocols = {listener.name: listener.protocol for listener in self.config.listeners}
        return tuple((name, host, port, protocols[name]) for name, (host, port) in self.advertised.items())

    @property
    def _inter_broker_listener(self) -> str:
        name = self.config.inter_broker_listener_name
        return name.upper() if name is not None else self.config.listeners[0].name

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self.image.topic_config(topic), self.config)

    # -- changing

    async def change_metadata(self, plan: Plan) -> MetadataImage:
        """Runs `plan` on the newest image and makes its records true, on every broker that lives.

        A KafkaError from the plan changes nothing; NOT_CONTROLLER where another broker has to be asked.
        """

        def step(image: MetadataImage) -> Work[tuple[Sequence[Record], int]]:
            planned = plan(image)
            records = planned if isinstance(planned, Sequence) else (yield from planned)
            return records, image.version + len(records)

        version = await self.controller.run(step)
        await self.controller.everywhere(version)
        return self.image

    async def ask_controller(self, key: int, build: Build, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Asks the controller, wherever it is; KafkaError when none is known or it does not answer."""
        leadership = self.controller.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no controller is known at the moment")
        purpose = FORWARDING if key in FORWARDED else CONTROLLER
        return await self.peers.at((leadership.host, leadership.port), purpose).ask(key, build, timeout_s=timeout_s)

    async def register_alone(self) -> None:
        """A broker without a cluster stands in its metadata, too, so that all who look there see one way."""

        def plan(image: MetadataImage) -> list[Record]:
            me = BrokerRecord(self.node_id, image.version + 1, self.endpoints, self.config.broker_rack)
            known = image.brokers.get(self.node_id)
            others = [RemoveBrokerRecord(broker_id) for broker_id in image.brokers if broker_id != self.node_id]
            if known is not None and not others and replace(known, broker_epoch=me.broker_epoch) == me:
                return []
            return [me, *others]

        await self.change_metadata(plan)
        self.broker_epoch = self.image.brokers[self.node_id].broker_epoch

    def follow(self, image: MetadataImage) -> None:
        """Makes a newer image true, soon; of several that come meanwhile only the last."""
        if image.version <= self._newest.version:
            return
        self._newest = image
        self._catch_up()

    def _catch_up(self) -> None:
        if self._is_open and not self._following.locked() and self.image is not self._newest:
            self.spawn(self._follow())

    def begin_with(self, image: MetadataImage) -> None:
        """The first image; `open_logs` makes it true."""
        self.image = image
        self._applied_version = image.version
        self.lost_brokers.begin(image)
        if image.version >= self._newest.version:
            self._newest = image

    @property
    def is_open(self) -> bool:
        """Whether the logs are loaded, and recovered where that was needed."""
        return self._is_open

    @property
    def newest_image(self) -> MetadataImage:
        """The one in force, or a newer one that is being made true."""
        return self._newest

    async def applied(self, version: int) -> None:
        """Returns when an image of that version, or a later one, is wholly in force."""
        async with self._applied:
            await self._applied.wait_for(lambda: self._applied_version >= version)

    async def _follow(self) -> None:
        async with self._following:
            while self.image is not (newest := self._newest):
                try:
                    await self._make_true(newest)
                except Exception:
                    # A slip with one partition must not keep this broker from ever hearing of the others.
                    self.metrics.unexpected_errors += 1
                    log.exception("a change of metadata is not wholly in force", extra={"version": newest.version})
                    self.image = newest
                self.controller.feed.made_true(self.node_id, newest.version)
                await self._tell_applied(newest.version)

    async def _tell_applied(self, version: int) -> None:
        self._applied_version = version
        async with self._applied:
            self._applied.notify_all()

    async def _make_true(self, after: MetadataImage) -> None:
        before = self.image
        changed = self._changed_topics(before, after)
        if changed:
            await self.threads.files(self.hosted.prepare, changed, before, after)
        self.image = after
        if self._apply_broker_overrides():
            changed = list(after.topics.values())
        await self.hosted.follow(changed)
        replaced = [topic for topic in changed if _takes_a_name(topic, before)]
        if replaced:  # whose logs could not be made while those of the topics before them were there
            await self.threads.files(self.hosted.prepare, replaced, MetadataImage(), after)
            await self.hosted.follow(replaced)
        if after.brokers is not before.brokers:
            self.lost_brokers.follow(before, after)
            self.peers.follow(before, after)
        if changed or len(after.topics) != len(before.topics):
            self.coordinators.follow()
            self.share_partitions.follow()

    def _changed_topics(self, before: MetadataImage, after: MetadataImage) -> list[TopicImage]:
        """Topics whose partitions or configuration may differ. An image shares what did not change, so `is` tells."""
        return [
            topic
            for name, topic in after.topics.items()
            if before.topics.get(name) is not topic or before.topic_config(name) is not after.topic_config(name)
        ]

    async def retry_logs(self) -> None:
        async with self._following:
            await self.hosted.retry()
        self._catch_up()  # with what came meanwhile

    def _apply_broker_overrides(self) -> bool:
        """True when a dynamic broker configuration changed something.

        What is stored was checked, but against another server.properties perhaps: values that no longer fit are left
        out, and the broker serves on. Those in which all brokers have to agree are in force in any case.
        """
        own, cluster = wanted = (self.image.broker_config(self.node_id), self.image.broker_config(None))
        if wanted in ((self.config.dynamic, self.config.dynamic_default), self._rejected_overrides):
            return False
        before = self.config
        try:
            self.config = self.config.with_overrides(own, cluster)
        except ConfigError as error:
            self._rejected_overrides = wanted
            log.error("the dynamic broker configuration is not in force", extra={"why": str(error)})
            agreed = {key: cluster[key] for key in CLUSTER_WIDE if key in cluster}
            self.config = self.config.with_overrides(self.config.dynamic, {**self.config.dynamic_default, **agreed})
        if self.config is before:
            return False
        self.connections.configure(self.config)
        return True


def _takes_a_name(topic: TopicImage, before: MetadataImage) -> bool:
    known = before.topics.get(topic.name)
    return known is not None and known.topic_id != topic.topic_id


def _log_progress() -> Callable[[int, int], None]:
    """Says every two seconds how far the loading of logs is; nothing when it is quick."""
    last_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= PROGRESS_INTERVAL_S:
            last_s = time.monotonic()
            log.info("loading logs", extra={"done": done, "of": total})

    return progress
