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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from moldau.broker.background import BackgroundTasks
from moldau.broker.cluster import adoption
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.leader_lease import Vigil
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.membership import Membership
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_follower import Listeners, MetadataFollower
from moldau.broker.cluster.packed_metadata import PackedMetadata
from moldau.broker.cluster.peers import CONTROLLER, REQUEST_TIMEOUT_S, Build, Peers
from moldau.broker.coordination.coordinators import Coordinators
from moldau.broker.coordination.host import Host
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
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.log.manager import LogManager
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, Record, RemoveBrokerRecord
from moldau.metadata.stores.local_store import LocalStore

logger = logging.getLogger(__name__)

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
        self.loop = loop
        self.environment = environment
        self.clock = environment.wall_clock
        self.monotonic_ms = environment.monotonic
        self.node_id = config.node_id
        self.local = LocalBroker(config)
        self.advertised = self.local.advertised
        self.metadata = MetadataCache(self.local)
        self.tasks = BackgroundTasks(loop)
        self.spawn = self.tasks.spawn
        self.applied = self.metadata.applied
        self.follow = self.metadata.follow
        self.topic_config = self.metadata.topic_config
        self.address_of, self.address_in = self.metadata.address_of, self.metadata.address_in
        directories = [Path(os.path.abspath(directory)) for directory in config.log_dirs]
        self.threads = environment.make_threads(loop, directories)
        self.group_commit = GroupCommit(loop, self.threads.disk)
        self.turns = Turns(self.threads.compute, environment.timer)
        self.metrics = Metrics()
        self.connections = Connections(config)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, loop.time)
        self.lost_brokers = LostBrokers(self)
        self.packed_metadata = PackedMetadata(self)
        self.controller = ControllerShell(self)
        self.peers = Peers(self)
        self.membership: Membership | None = None
        self.vigil: Vigil | None = None
        """Of a cluster, both; None for a broker on its own."""
        self.replication = ReplicaManager(self)
        self.hosted = HostedPartitions(self)
        self.find_partition = self.hosted.find
        self.host = Host(
            loop=loop,
            wall_clock=environment.wall_clock,
            monotonic=environment.monotonic,
            new_uuid=environment.new_uuid,
            turns=self.turns,
            spawn=self.spawn,
            metrics=self.metrics,
            local=self.local,
            metadata=self.metadata,
            peers=self.peers,
            find_partition=self.find_partition,
            group_commit=self.group_commit,
            ask_controller=self.ask_controller,
            change_metadata=self.change_metadata,
        )
        self.producer_ids = ProducerIds(self.local, self.spawn, self.ask_controller, self.change_metadata)
        self.coordinators = Coordinators(self.host, self.producer_ids)
        self.groups = self.coordinators.groups
        self.transactions = self.coordinators.transactions
        self.share_state = self.coordinators.share_state
        self.share_partitions = SharePartitions(self.host, self.share_state)
        self.is_serving = asyncio.Event()
        """From the moment that clients may come; before, a broker only talks to its cluster."""
        self.is_open = False
        """Whether the logs are loaded, and recovered where that was needed."""
        self.is_closing = False
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
        )

        self.follower = MetadataFollower(
            self.local,
            self.metadata,
            self.hosted,
            in_thread=self.threads.files,
            listeners=Listeners(
                config=[self.connections.configure],
                brokers=[self.lost_brokers.follow, self.peers.follow],
                topics=[self.coordinators.follow, self.share_partitions.follow],
                applied=[partial(self.controller.feed.made_true, self.node_id)],
            ),
            metrics=self.metrics,
        )
        self.retry_logs = self.follower.retry_logs
        self._following: asyncio.Task[None] | None = None

    # -- life

    def open(self) -> None:
        """For a broker on its own: it is its own controller, over a file beside its logs. Blocks: call it first."""
        adoption.refuse_folders_of_a_cluster(self.logs.disk, self.logs.directories)
        self.logs.lock()
        self.logs.check_in()
        self.metadata.begin_with(self.controller.open_alone(LocalStore(self.logs.directories[0] / METADATA_FILE)))
        self.open_logs()
        self.is_serving.set()

    def open_logs(self) -> None:
        """Loads (and after a crash recovers) the logs, and makes them what the image says. Blocks."""
        self.follower.apply_config()
        self.logs.open(self.topic_config, progress=_log_progress())
        if not self.config.is_clustered and self.image.version == 0 and self.logs.logs:
            self._adopt()
        self.hosted.settle()
        topics = list(self.image.topics.values())
        self.hosted.prepare(topics, self.image, self.image)
        for _ in self.hosted.match(topics):
            pass  # `begin` follows them all
        self.is_open = True

    def follow_metadata(self) -> None:
        """The logs are open: from now on every newer image comes into force. On the loop."""
        if self._following is None:
            self._following = self.spawn(self.follower.run())

    def begin(self) -> None:
        """Leads, follows and coordinates what the image says. On the loop."""
        self.follow_metadata()
        self.lost_brokers.begin(self.image)
        self.replication.follow(list(self.hosted))
        self.coordinators.follow()
        self.spawn(self.metadata.set_applied(self.image.version))  # nobody was told of the first image yet

    def _adopt(self) -> None:
        adoption.check(self.logs, METADATA_FILE)
        logger.warning(
            "adopting the topics found in the data folder; their configurations are not there, so retention is off "
            "for each until you set it",
            extra={"partitions": len(self.logs.logs)},
        )
        self.metadata.begin_with(self.controller.adopt(adoption.records_of(self.logs.logs, self.node_id)))

    async def close(self) -> None:
        """Everything to the disk, the clean-shutdown mark last. A disk that hangs is left behind after a while."""
        self.share_partitions.stop()
        self.coordinators.stop()
        self.replication.stop()
        await self.tasks.close()
        self.peers.close()
        await self.threads.settle(DISKS_SETTLE_TIMEOUT_S)  # what the cancelled tasks began
        await self.threads.files(partial(self.logs.close, self.broker_epoch, timeout_s=DISKS_CLOSE_TIMEOUT_S))
        close_store = self.controller.close if self.membership is None else self.membership.close
        try:
            async with asyncio.timeout(STORE_CLOSE_TIMEOUT_S):
                await self.threads.metadata(close_store)
        except TimeoutError:
            logger.error("the metadata store does not answer: it is left as it is")
        self.threads.stop()

    def disconnected(self, connection: ClientConnection) -> None:
        """Was it a broker that followed this controller? Then somebody has to look after it."""
        broker_id = self.controller.feed.broker_of(connection)
        if broker_id is not None and self.membership is not None:
            self.spawn(self.membership.probe(broker_id))

    # -- reading

    @property
    def config(self) -> BrokerConfig:
        return self.local.config

    @property
    def broker_epoch(self) -> int:
        return self.local.broker_epoch

    @broker_epoch.setter
    def broker_epoch(self, broker_epoch: int) -> None:
        self.local.broker_epoch = broker_epoch

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    @property
    def newest_image(self) -> MetadataImage:
        return self.metadata.newest

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    @property
    def live_brokers(self) -> frozenset[int]:
        return self.metadata.live_brokers

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        return self.local.inter_broker_address

    @property
    def endpoints(self) -> tuple[tuple[str, str, int, str], ...]:
        return self.local.endpoints

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

    async def ask_controller(
        self, key: int, build: Build, *, purpose: str = CONTROLLER, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Asks the controller, wherever it is; KafkaError when none is known or it does not answer."""
        leadership = self.controller.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no controller is known at the moment")
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


def _log_progress() -> Callable[[int, int], None]:
    """Says every two seconds how far the loading of logs is; nothing when it is quick."""
    last_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= PROGRESS_INTERVAL_S:
            last_s = time.monotonic()
            logger.info("loading logs", extra={"done": done, "of": total})

    return progress
