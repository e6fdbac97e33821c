"""What handlers, dispatch and monitoring need of a broker: one protocol for each part.

A module combines those that it uses in a `Broker` of its own. That is all its functions can touch, and all that a test
has to give them. mypy checks where the server builds the dispatcher that a real broker has them all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.background import Spawn
    from moldau.broker.cluster.controller_channel import ControllerChannel
    from moldau.broker.cluster.controller_shell import ControllerShell
    from moldau.broker.cluster.leader_lease import ReadLease
    from moldau.broker.cluster.local_broker import LocalBroker
    from moldau.broker.cluster.membership import Membership
    from moldau.broker.cluster.metadata_cache import MetadataCache
    from moldau.broker.cluster.packed_metadata import PackedMetadata
    from moldau.broker.cluster.peers import Peers
    from moldau.broker.coordination.coordinator_shell import CoordinatorShell
    from moldau.broker.coordination.producer_ids import ProducerIds
    from moldau.broker.coordination.share_partitions import SharePartitions
    from moldau.broker.coordination.transaction_coordinator import TransactionCoordinator
    from moldau.broker.environment import Environment
    from moldau.broker.monitoring.metrics import Metrics
    from moldau.broker.network.open_connections import OpenConnections
    from moldau.broker.replicas.fetch_sessions import FetchSessions
    from moldau.broker.replicas.follower_sessions import FollowerSessions
    from moldau.broker.replicas.group_commit import GroupCommit
    from moldau.broker.replicas.hosted_partitions import FindPartition, HostedPartitions
    from moldau.broker.replicas.replica_manager import ReplicaManager
    from moldau.broker.threads import Threads
    from moldau.broker.turns import Turns
    from moldau.clocks import Clock
    from moldau.coordinators.group_shard import GroupShard
    from moldau.coordinators.share.state_shard import ShareStateShard
    from moldau.log.manager import LogManager


# -- the process and its surroundings


class HasLoop(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class HasClock(Protocol):
    @property
    def clock(self) -> Clock:
        """The wall clock: for what is written into records, never for deadlines."""


class HasMonotonicClock(Protocol):
    @property
    def monotonic_ms(self) -> Clock: ...


class HasEnvironment(Protocol):
    @property
    def environment(self) -> Environment: ...


class HasTurns(Protocol):
    @property
    def turns(self) -> Turns: ...


class HasThreads(Protocol):
    @property
    def threads(self) -> Threads: ...


class HasTasks(Protocol):
    @property
    def spawn(self) -> Spawn: ...


class HasMetrics(Protocol):
    @property
    def metrics(self) -> Metrics: ...


class HasConnections(Protocol):
    @property
    def connections(self) -> OpenConnections: ...


# -- the cluster


class HasLocalBroker(Protocol):
    @property
    def local(self) -> LocalBroker: ...


class HasMetadata(Protocol):
    @property
    def metadata(self) -> MetadataCache: ...


class HasPackedMetadata(Protocol):
    @property
    def packed_metadata(self) -> PackedMetadata: ...


class HasController(Protocol):
    @property
    def controller(self) -> ControllerShell: ...


class HasControllerChannel(Protocol):
    @property
    def controller_channel(self) -> ControllerChannel: ...


class HasPeers(Protocol):
    @property
    def peers(self) -> Peers: ...


class HasMembership(Protocol):
    @property
    def membership(self) -> Membership: ...


class HasReadLease(Protocol):
    @property
    def lease(self) -> ReadLease: ...


# -- partitions


class HasPartitions(Protocol):
    @property
    def find_partition(self) -> FindPartition: ...


class HasHostedPartitions(Protocol):
    @property
    def hosted(self) -> HostedPartitions: ...


class HasLogs(Protocol):
    @property
    def logs(self) -> LogManager: ...


class HasGroupCommit(Protocol):
    @property
    def group_commit(self) -> GroupCommit: ...


class HasFetchSessions(Protocol):
    @property
    def fetch_sessions(self) -> FetchSessions: ...


class HasFollowerSessions(Protocol):
    @property
    def follower_sessions(self) -> FollowerSessions: ...


class HasReplicaManager(Protocol):
    @property
    def replication(self) -> ReplicaManager: ...


# -- coordinators


class HasGroups(Protocol):
    @property
    def groups(self) -> CoordinatorShell[GroupShard]: ...


class HasTransactions(Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...


class HasProducerIds(Protocol):
    @property
    def producer_ids(self) -> ProducerIds: ...


class HasShareState(Protocol):
    @property
    def share_state(self) -> CoordinatorShell[ShareStateShard]: ...


class HasSharePartitions(Protocol):
    @property
    def share_partitions(self) -> SharePartitions: ...


class Broker(
    HasLoop,
    HasClock,
    HasMonotonicClock,
    HasEnvironment,
    HasTurns,
    HasThreads,
    HasTasks,
    HasMetrics,
    HasConnections,
    HasLocalBroker,
    HasMetadata,
    HasPackedMetadata,
    HasController,
    HasControllerChannel,
    HasPeers,
    HasMembership,
    HasReadLease,
    HasPartitions,
    HasHostedPartitions,
    HasLogs,
    HasGroupCommit,
    HasFetchSessions,
    HasFollowerSessions,
    HasReplicaManager,
    HasGroups,
    HasTransactions,
    HasProducerIds,
    HasShareState,
    HasSharePartitions,
    Protocol,
):
    """All of it: what the handlers together need."""
