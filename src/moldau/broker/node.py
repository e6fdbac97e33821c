"""The composition root: builds the parts of a broker in order, and opens and closes them.

No part imports this module: each receives the parts it needs. Request handlers see it through the protocols of `needs`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from moldau.broker.background import BackgroundTasks
from moldau.broker.cluster import adoption
from moldau.broker.cluster.broker_lifecycle import BrokerLifecycle
from moldau.broker.cluster.controller_channel import ControllerChannel
from moldau.broker.cluster.controller_shell import ControllerShell, find_cluster_id
from moldau.broker.cluster.incarnation import Incarnation
from moldau.broker.cluster.leader_lease import LeaderLease
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.membership import ClusterMembership
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_fetcher import MetadataFetcher
from moldau.broker.cluster.metadata_follower import Listeners, MetadataFollower
from moldau.broker.cluster.packed_metadata import PackedMetadata
from moldau.broker.cluster.peers import Peers
from moldau.broker.cluster.standalone import METADATA_FILE, Standalone
from moldau.broker.cluster.takeover import Takeover
from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.coordinators import Coordinators
from moldau.broker.coordination.producer_ids import ProducerIds
from moldau.broker.coordination.share_partitions import SharePartitions
from moldau.broker.coordination.state_topic import StateTopic
from moldau.broker.environment import REAL, Environment
from moldau.broker.monitoring.metrics import Metrics
from moldau.broker.network.client_connection import ClientConnection
from moldau.broker.network.open_connections import OpenConnections
from moldau.broker.replicas.cleaning import Cleaner
from moldau.broker.replicas.failing_disks import FailingDisks
from moldau.broker.replicas.fetch_sessions import FetchSessions
from moldau.broker.replicas.follower_sessions import FollowerSessions
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.replicas.hosted_partitions import HostedPartitions
from moldau.broker.replicas.replica_fetcher import ReplicaFetcher
from moldau.broker.replicas.replica_manager import ReplicaManager
from moldau.broker.turns import Turns
from moldau.cluster.replication_quota import ReplicationQuota
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.log.manager import LogManager
from moldau.metadata.stores.store import MetadataStore

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 2.0
DISKS_CLOSE_TIMEOUT_S = 20.0
"""If no log is closed within this time, a disk hangs: its logs are left open, and the next start recovers them."""
DISKS_SETTLE_TIMEOUT_S = 5.0
"""For work in other threads when the broker stops, such as creating a topic: nothing may write after the logs close."""
STORE_CLOSE_TIMEOUT_S = 10.0


class BrokerNode:
    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment = REAL,
    ) -> None:
        self.loop = loop
        self.environment = environment
        self.clock = environment.wall_clock
        self.monotonic_ms = environment.monotonic
        self.node_id = config.node_id
        self.is_serving = asyncio.Event()
        """Set when clients are served; before that a broker only talks to its cluster."""
        self.is_open = False
        """Whether the logs are loaded, and recovered where that was needed."""
        self.is_closing = False
        self._build_base(config)
        self._build_cluster(config)
        self._build_replicas()
        self._build_coordination()
        self.follower = MetadataFollower(
            self.local,
            self.metadata,
            self.hosted,
            in_thread=self.threads.files,
            listeners=Listeners(
                config=[self.connections.configure],
                brokers=[self.lost_brokers.follow, self.peers.follow],
                topics=[self.coordinators.follow, self.share_partitions.follow],
                applied=[partial(self.controller.feed.on_applied, self.node_id)],
            ),
            metrics=self.metrics,
        )
        self._following: asyncio.Task[None] | None = None

    def _build_base(self, config: BrokerConfig) -> None:
        loop, environment = self.loop, self.environment
        directories = [Path(os.path.abspath(directory)) for directory in config.log_dirs]
        self.local = LocalBroker(config)
        self.metadata = MetadataCache(self.local)
        self.tasks = BackgroundTasks(loop)
        self.spawn = self.tasks.spawn
        self.threads = environment.make_threads(loop, directories)
        self.turns = Turns(self.threads.compute, environment.timer)
        self.metrics = Metrics()
        self.connections = OpenConnections(config)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, loop.time, environment.new_session_id
        )
        self.logs = LogManager(
            directories,
            default_config=TopicConfig.resolve({}, config),
            node_id=config.node_id,
            clock=self.clock,
            monotonic=self.monotonic_ms,
            recovery_threads=config.num_recovery_threads_per_data_dir,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            single_replica=not config.is_clustered,
            disk=environment.disk,
            start_thread=environment.start_thread,
            new_uuid=environment.new_uuid,
        )
        self.group_commit = GroupCommit(loop, self.threads.disk)

    def _build_cluster(self, config: BrokerConfig) -> None:
        self.peers = Peers(self.node_id, self.metadata, self.loop)
        self.controller = ControllerShell(
            self.local,
            self.metadata,
            store_thread=self.threads.metadata,
            turns=self.turns,
            spawn=self.spawn,
            metrics=self.metrics,
            new_cluster_id=partial(find_cluster_id, self.logs, self.environment.new_uuid),
            loop=self.loop,
            clock=self.clock,
            monotonic_ms=self.monotonic_ms,
        )
        self.controller_channel = ControllerChannel(self.node_id, self.peers, self.controller, self.loop)
        self.lost_brokers = LostBrokers(self.local, self.loop.time)
        self.packed_metadata = PackedMetadata(
            self.metadata,
            self.lost_brokers,
            cluster_id=lambda: self.logs.cluster_id,
            controller_id=lambda: self.controller.leader_id,
        )
        self.membership: ClusterMembership | Standalone = (
            self._new_membership(self.environment.make_store(config))
            if config.is_clustered
            else Standalone(self.local, self.metadata, self.controller, self.logs, self.environment.new_uuid)
        )
        self.lease = self.membership.lease

    def _new_membership(self, store: MetadataStore) -> ClusterMembership:
        local, metadata, controller, peers, loop = self.local, self.metadata, self.controller, self.peers, self.loop
        take_over = partial(self.threads.metadata, store.take_over)
        lease = LeaderLease(local, controller, loop.time)
        takeover = Takeover(
            local,
            metadata,
            controller,
            peers,
            take_over=take_over,
            cluster_id=lambda: self.logs.cluster_id,
            now_s=loop.time,
            monotonic_ms=self.monotonic_ms,
        )
        return ClusterMembership(
            local,
            metadata,
            store=store,
            controller=controller,
            peers=peers,
            fetcher=MetadataFetcher(
                local, metadata, controller, peers, takeover=takeover, take_over=take_over, loop=loop
            ),
            lifecycle=BrokerLifecycle(
                local,
                metadata,
                self.logs,
                controller=controller,
                channel=self.controller_channel,
                lease=lease,
                takeover=takeover,
                in_thread=self.threads.files,
                now_s=loop.time,
            ),
            lease=lease,
            takeover=takeover,
            store_thread=self.threads.metadata,
            spawn=self.spawn,
            loop=loop,
        )

    def _build_replicas(self) -> None:
        local, metadata, loop = self.local, self.metadata, self.loop
        self.replication = ReplicaManager(
            local,
            metadata,
            self.controller_channel,
            self.group_commit,
            new_fetcher=partial(
                ReplicaFetcher,
                me=local,
                peers=self.peers,
                group_commit=self.group_commit,
                quota=ReplicationQuota(lambda: local.config.follower_replication_throttled_rate),
                spawn=self.spawn,
                loop=loop,
                clock=self.clock,
                monotonic_ms=self.monotonic_ms,
            ),
            spawn=self.spawn,
            loop=loop,
            monotonic_ms=self.monotonic_ms,
        )
        self.hosted = HostedPartitions(
            local, metadata, self.logs, self.replication, files=self.threads.files, turns=self.turns
        )
        self.find_partition = self.hosted.find
        self.follower_sessions = FollowerSessions(
            metadata,
            self.find_partition,
            ReplicationQuota(lambda: local.config.leader_replication_throttled_rate),
            send_budget=self.connections.send_budget,
            loop=loop,
            monotonic_ms=self.monotonic_ms,
            new_id=self.environment.new_session_id,
        )
        self.failing_disks = FailingDisks(
            local,
            metadata,
            self.logs,
            partitions=self.hosted,
            replication=self.replication,
            controller=self.controller_channel,
            disk_thread=self.threads.disk,
        )
        self.cleaner = Cleaner(local, self.logs, self.threads, metrics=self.metrics, loop=loop, clock=self.clock)

    def _build_coordination(self) -> None:
        self.coordinator_context = CoordinatorContext(
            loop=self.loop,
            wall_clock=self.clock,
            monotonic=self.monotonic_ms,
            turns=self.turns,
            spawn=self.spawn,
            metrics=self.metrics,
            local=self.local,
            metadata=self.metadata,
            peers=self.peers,
            find_partition=self.find_partition,
            group_commit=self.group_commit,
        )
        self.new_state_topic = partial(
            StateTopic,
            loop=self.loop,
            local=self.local,
            metadata=self.metadata,
            new_uuid=self.environment.new_uuid,
            ask_controller=self.controller_channel.ask,
            change_metadata=self.controller.change,
        )
        self.producer_ids = ProducerIds(self.local, self.spawn, self.controller_channel.ask, self.controller.change)
        self.coordinators = Coordinators(self.coordinator_context, self.new_state_topic, self.producer_ids)
        self.groups = self.coordinators.groups
        self.transactions = self.coordinators.transactions
        self.share_state = self.coordinators.share_state
        self.share_partitions = SharePartitions(self.coordinator_context, self.share_state)

    def disconnected(self, connection: ClientConnection) -> None:
        self.share_partitions.disconnected(connection)
        self.follower_sessions.disconnected(connection)
        # If it was a broker that follows this controller, check whether it is dead.
        broker_id = self.controller.feed.broker_of(connection)
        if broker_id is not None:
            self.membership.on_broker_disconnected(broker_id)

    # -- open and close

    async def start(self, listen: Callable[[], Awaitable[None]]) -> None:
        """Returns when clients are served; `listen` opens the ports as soon as other brokers may connect."""
        if isinstance(self.membership, Standalone):
            await self.threads.files(self.open)
            self.begin()
            self.is_serving.set()
            await listen()
            await self.membership.register()
        else:
            await self._join(self.membership, listen)
            self.is_serving.set()

    async def _join(self, membership: ClusterMembership, listen: Callable[[], Awaitable[None]]) -> None:
        """Other brokers have to reach this one before clients do, because it may already be the controller."""
        logs = self.logs
        adoption.refuse_folders_of_a_single_broker(logs.disk, logs.directories, METADATA_FILE)
        await self.threads.files(logs.lock)
        await listen()
        await membership.find_controller()
        await self.threads.files(logs.check_in, self.metadata.image.cluster_id)
        await self.threads.files(self.open_logs)
        self.follow_metadata()
        environment = self.environment
        incarnation = await self.threads.files(Incarnation.load, logs, environment.new_uuid(), environment.boot_id())
        await membership.register(incarnation)
        self.begin()
        await membership.unfence()

    def open(self) -> None:
        """Opens the metadata and the logs of a standalone broker. Blocks."""
        assert isinstance(self.membership, Standalone)
        self.membership.open()
        self.open_logs()

    def open_logs(self) -> None:
        """Loads the logs (after a crash, recovers them) and brings them in line with the image. Blocks."""
        self.follower.apply_config()
        self.logs.open(self.metadata.topic_config, progress=_log_progress(self.loop.time))
        if isinstance(self.membership, Standalone):
            self.membership.adopt()
        self.hosted.open()
        self.is_open = True

    def follow_metadata(self) -> None:
        """Applies every newer image from now on; the logs must be open. On the loop."""
        if self._following is None:
            self._following = self.spawn(self.follower.run())

    def begin(self) -> None:
        """Starts to lead, follow and coordinate as the image says. On the loop."""
        self.follow_metadata()
        self.lost_brokers.begin(self.metadata.image)
        self.replication.follow(list(self.hosted))
        self.coordinators.follow()
        self.spawn(self.metadata.set_applied(self.metadata.image.version))  # some may wait for the first image

    async def close(self) -> None:
        """Writes everything to disk, the clean shutdown marker last. A disk that hangs is given up after a while."""
        self.share_partitions.stop()
        self.coordinators.stop()
        self.replication.stop()
        await self.tasks.close()
        self.peers.close()
        await self.threads.settle(DISKS_SETTLE_TIMEOUT_S)  # what the cancelled tasks began
        await self.threads.files(partial(self.logs.close, self.local.broker_epoch, timeout_s=DISKS_CLOSE_TIMEOUT_S))
        try:
            async with asyncio.timeout(STORE_CLOSE_TIMEOUT_S):
                await self.threads.metadata(self.membership.close)
        except TimeoutError:
            logger.error("the metadata store does not respond; stopping without closing it")
        self.threads.stop()


def _log_progress(now_s: Callable[[], float]) -> Callable[[int, int], None]:
    """Logs the progress of loading every two seconds."""
    last_s = now_s()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        if now_s() - last_s >= PROGRESS_INTERVAL_S:
            last_s = now_s()
            logger.info("loading logs", extra={"done": done, "of": total})

    return progress
