"""Bugs, put into the brokers one at a time: the simulation has to find each of them.

The first three are bugs that the brokers really had. Each of the others breaks one rule of replication, durability or
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from moldau.broker.cluster.membership import ClusterMembership
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.replicas.partition import Partition
from moldau.broker.replicas.replica_manager import ReplicaManager
from moldau.cluster import partition_changes
from moldau.cluster.controller import Controller
from moldau.cluster.replica import LeaderState
from moldau.coordinators.effects import Effects
from moldau.coordinators.transactions.shard import TransactionShard
from moldau.log.epoch_cache import EpochCache
from moldau.log.producer_state import ProducerState
from moldau.log.segments.segment import Segment

Put = Callable[[Any, str, Any], None]
"""Replaces an attribute until the bug is removed again."""


def first_image_not_announced(put: Put) -> None:
    """Tasks that wait for the first metadata image to be applied are not notified, and wait for ever."""
    set_applied = MetadataCache.set_applied

    async def only_later_ones(self: MetadataCache, version: int) -> None:
        if version > self._applied_version:
            await set_applied(self, version)

    put(MetadataCache, "set_applied", only_later_ones)


def deposed_start(put: Put) -> None:
    """A broker that was the controller for a moment while it started opens its logs with an empty image."""

    async def only_as_controller(self: ClusterMembership) -> None:
        await self._store_thread(self._store.open)
        await self._store_thread(self._store.campaign, self._me.candidate, self._on_term_changed)
        self._spawn(self._fetcher.run())
        await self._wait_logging_progress("waiting for a controller", self._fetcher.has_image.wait)
        if self._controller.is_active:
            self._metadata.begin_with(self._controller.image)

    put(ClusterMembership, "find_controller", only_as_controller)


def follower_checks_end(put: Put) -> None:
    """One exception ends the task that removes slow followers from the ISR."""
    check_followers, shrink = ReplicaManager._check_followers, ReplicaManager._shrink

    class InternalError(BaseException):
        pass

    def failing(self: ReplicaManager) -> None:
        shrink(self)
        raise InternalError

    async def unguarded(self: ReplicaManager) -> None:
        try:
            await check_followers(self)
        except InternalError:
            return

    put(ReplicaManager, "_shrink", failing)
    put(ReplicaManager, "_check_followers", unguarded)


def commits_before_replication(put: Put) -> None:
    """The high watermark does not wait for the in-sync replicas."""

    def high_watermark(_: LeaderState, known: int, *, log_end_offset: int, **__: int) -> int:
        return max(known, log_end_offset)

    put(LeaderState, "high_watermark", high_watermark)


def epochs_unknown(put: Put) -> None:
    """A follower does not learn from leader epochs where its log differs from the leader's."""
    put(EpochCache, "end_offset_for", lambda _, epoch, end_offset: (epoch, end_offset))


def truncation_skipped(put: Put) -> None:
    """A follower keeps records that its leader does not have."""
    put(Partition, "truncate_to", lambda *_: None)


def unclean_elections(put: Put) -> None:
    """A replica that is not in sync is elected."""
    rightly = partition_changes.changed

    def changed(topic_id: Any, partition: Any, rules: Any, *args: Any, **options: Any) -> Any:
        return rightly(topic_id, partition, replace(rules, unclean=True), *args, **options)

    put(partition_changes, "changed", changed)


def lost_power_unnoticed(put: Put) -> None:
    """A broker that lost records with its machine's power still counts as in sync."""
    rightly = Controller._removed_from_isrs

    def without(controller: Controller, image: Any, *broker_ids: int, lost: bool = False) -> Any:
        return rightly(controller, image, *broker_ids)

    put(Controller, "_removed_from_isrs", without)


def leads_unregistered(put: Put) -> None:
    """A restarted broker leads partitions by an old image, before it is registered."""
    put(ReplicaManager, "is_registered", True)


def duplicates_taken(put: Put) -> None:
    """A retry of an idempotent producer is appended twice."""
    put(ProducerState, "check", lambda *_, **__: None)


def decisions_forgotten(put: Put) -> None:
    """A new transaction coordinator does not finish transactions that its predecessor had decided."""
    put(TransactionShard, "loaded", lambda *_: Effects())


def syncs_skipped(put: Put) -> None:
    """Flushes do nothing: records that are reported as synced are not on the disk."""
    put(Segment, "flush", lambda *_, **__: None)


PLANTED: dict[str, tuple[Callable[[Put], None], str]] = {
    bug.__name__: (bug, scenario)
    for bug, scenario in (
        (first_image_not_announced, "starts"),
        (deposed_start, "storms"),
        (follower_checks_end, "lasting"),
        (commits_before_replication, "crashes"),
        (epochs_unknown, "network"),
        (truncation_skipped, "network"),
        (unclean_elections, "crashes"),
        (lost_power_unnoticed, "crashes"),
        (leads_unregistered, "controllers"),
        (duplicates_taken, "network"),
        (decisions_forgotten, "coordinators"),
        (syncs_skipped, "power"),
    )
}
"""Each with a scenario that finds it quickly."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    originals: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, replacement: Any) -> None:
        originals.append((owner, attribute, vars(owner)[attribute]))
        setattr(owner, attribute, replacement)

    try:
        PLANTED[name][0](put)
        yield
    finally:
        for owner, attribute, original in reversed(originals):
            setattr(owner, attribute, original)
