"""The parts of a broker that its coordinators and share partitions use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from moldau.broker.background import Spawn
from moldau.broker.cluster.controller_shell import Plan
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.peers import Build, Peers
from moldau.broker.monitoring.metrics import Metrics
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.replicas.partition import Partition
from moldau.broker.turns import Turns
from moldau.clocks import Clock
from moldau.metadata.image import MetadataImage


class AskController(Protocol):
    async def __call__(self, key: int, build: Build, /, *, purpose: str = ...) -> Any: ...


class ChangeMetadata(Protocol):
    """For a standalone broker, which is its own controller."""

    async def __call__(self, plan: Plan, /) -> MetadataImage: ...


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    loop: asyncio.AbstractEventLoop
    wall_clock: Clock
    """For what is written into records."""
    monotonic: Clock
    """For deadlines."""
    turns: Turns
    spawn: Spawn
    metrics: Metrics
    local: LocalBroker
    metadata: MetadataCache
    peers: Peers
    find_partition: Callable[[str | None, bytes | None, int], Partition]
    group_commit: GroupCommit
