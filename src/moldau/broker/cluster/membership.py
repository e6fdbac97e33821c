"""Membership of a broker in its cluster: it stands for election, finds the controller, registers, and leaves in order.

    campaign ── elected ──> controller.elected            (called by the store, from its own thread)
       └─ another one leads ──> fetch its records, again and again (`metadata_fetcher`)

    first image → logs opened → registered (fenced) → caught up with the own registration → unfenced: clients may come

The controller watches the other brokers here, too: a port that refuses connections proves that a process is dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from moldau.broker.background import Spawn
from moldau.broker.cluster.broker_lifecycle import BrokerLifecycle
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.incarnation import Incarnation
from moldau.broker.cluster.leader_lease import LeaderLease, ReadLease
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_fetcher import MetadataFetcher
from moldau.broker.cluster.peers import CONTROLLER, FORWARDING, Peers, refuses
from moldau.broker.cluster.takeover import Takeover
from moldau.broker.threads import Lane
from moldau.errors import KafkaError, MoldauError
from moldau.metadata.cluster_wide import ignored_values
from moldau.metadata.stores.store import ControllerTerm, MetadataStore

logger = logging.getLogger(__name__)

PROBE_PAUSES_S = (0.0, 0.1, 0.4)
"""Before each check of whether a broker is dead: its connections may break a moment before its port is closed."""
PREDECESSOR_GRACE_S = 0.5
"""For the controller before this one to follow its successor. If it is only slow, its next heartbeat unfences it."""
PROGRESS_S = 2.0
PROGRESS_MAX_S = 60.0
"""What a start waits for is logged after two seconds, then after four, eight, …, and at least once a minute."""


class Membership(Protocol):
    """What the rest of the broker uses of its membership in a cluster; `Standalone` is that of a single broker."""

    @property
    def lease(self) -> ReadLease: ...

    def grants_vote(self, epoch: int) -> bool:
        """Whether this broker, too, has lost contact with the controller of `epoch`."""
        ...

    def on_broker_disconnected(self, broker_id: int) -> None:
        """A broker that followed this controller lost its connection."""
        ...

    def give_up(self) -> None:
        """Cancels a start that waits for other brokers."""
        ...

    async def leave(self) -> None:
        """Before the listeners close."""
        ...

    def close(self) -> None:
        """Closes the metadata store. Blocks."""
        ...


class ClusterMembership:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        *,
        store: MetadataStore,
        controller: ControllerShell,
        peers: Peers,
        fetcher: MetadataFetcher,
        lifecycle: BrokerLifecycle,
        lease: LeaderLease,
        takeover: Takeover,
        store_thread: Lane,
        spawn: Spawn,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lease = lease
        self.grants_vote = takeover.grants_vote
        self._me = me
        self._metadata = metadata
        self._store = store
        self._controller = controller
        self._peers = peers
        self._fetcher = fetcher
        self._lifecycle = lifecycle
        self._takeover = takeover
        self._store_thread = store_thread
        self._spawn = spawn
        self._loop = loop
        self._waiting: asyncio.Task[Any] | None = None
        self._gave_up = False
        self._predecessor: ControllerTerm | None = None

    # -- joining, step by step

    async def find_controller(self) -> None:
        """Returns when the first image is the current one. The listeners must be bound."""
        await self._store_thread(self._store.open)
        await self._store_thread(self._store.campaign, self._me.candidate, self._on_term_changed)
        self._spawn(self._fetcher.run())
        await self._wait_logging_progress("waiting for a controller", self._fetcher.has_image.wait)
        self._metadata.begin_with(self._metadata.newest)

    async def register(self, incarnation: Incarnation) -> None:
        await self._wait_logging_progress("waiting to be registered", lambda: self._lifecycle.register(incarnation))

    async def unfence(self) -> None:
        """Returns when clients may connect."""
        self._spawn(self._lifecycle.send_heartbeats())
        self._spawn(self.lease.run())
        self._spawn(self._takeover.run())
        await self._wait_logging_progress("waiting to be unfenced", self._lifecycle.unfenced)
        for warning in ignored_values(self._metadata.image, self._me.config):
            logger.warning(warning)
        me = self._me
        await self._store_thread(self._store.announce, me.node_id, me.endpoints, me.config.broker_rack)

    async def _wait_logging_progress(self, what: str, work: Callable[[], Any]) -> None:
        """Logs now and then what the start waits for."""
        interval_s = PROGRESS_S
        self._waiting = task = asyncio.ensure_future(work())
        if self._gave_up:
            task.cancel()
        try:
            while not (await asyncio.wait({task}, timeout=interval_s))[0]:
                logger.info(what)
                interval_s = min(2 * interval_s, PROGRESS_MAX_S)
            await task
        finally:
            task.cancel()

    def give_up(self) -> None:
        self._gave_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    # -- elections

    def _on_term_changed(self, term: ControllerTerm | None) -> None:
        """From a thread of the store."""
        with suppress(RuntimeError):  # the loop is closed: this broker stops
            self._loop.call_soon_threadsafe(self._on_new_controller, term)

    def _on_new_controller(self, term: ControllerTerm | None) -> None:
        controller = self._controller
        known = controller.term
        if term is not None and known is not None and term.epoch <= known.epoch:
            return
        controller.follow(term)
        self._takeover.on_contact(controller.epoch)
        if known is not None:
            # If it is only suspended, requests to it, such as heartbeats, would wait instead of going to its successor.
            for purpose in (CONTROLLER, FORWARDING):
                self._peers.at((known.host, known.port), purpose).hang_up()
        self._fetcher.on_new_controller()
        if term is None:
            return
        if self._me.is_elected(term):
            self._spawn(self._elected(term, self._predecessor))
        self._predecessor = term

    async def _elected(self, term: ControllerTerm, predecessor: ControllerTerm | None) -> None:
        controller = self._controller
        await controller.elected(self._store, term)
        if controller.is_active and controller.epoch == term.epoch:
            self._fetcher.has_image.set()
            self._lifecycle.send_heartbeat()
            work = [self._fence_dead_brokers()]
            if predecessor is not None and predecessor.node_id != self._me.node_id:
                work.append(self._watch_predecessor(predecessor, term.epoch))
            # Concurrently: a machine that is gone refuses no connection, so each check of it takes seconds.
            await asyncio.gather(*work)

    # -- other brokers, for the controller

    async def _watch_predecessor(self, predecessor: ControllerTerm, epoch: int) -> None:
        """Fences the previous controller if it was replaced because it did not respond."""
        controller, won = self._controller, self._takeover.won
        if won is not None and won.epoch == predecessor.epoch:
            # Its session is not over yet, but began with its last contact.
            if won.is_majority_in(controller.image):
                controller.set_last_contact(predecessor.node_id, won.silent_since_ms)
            return
        # The store waited for the end of its session.
        await asyncio.sleep(PREDECESSOR_GRACE_S)
        if controller.epoch == epoch and not controller.feed.is_connected(predecessor.node_id):
            await controller.broker_died(predecessor.node_id)

    async def _fence_dead_brokers(self) -> None:
        """A new controller does not wait a whole session for brokers that died with the one before."""
        brokers = self._controller.image.brokers.values()
        live = [one.broker_id for one in brokers if not one.fenced and one.broker_id != self._me.node_id]
        await asyncio.gather(*(self._fence_if_dead(broker_id) for broker_id in live))

    def on_broker_disconnected(self, broker_id: int) -> None:
        self._spawn(self._fence_if_dead(broker_id))

    async def _fence_if_dead(self, broker_id: int) -> None:
        """Checks a broker whose connection broke or that never connected."""
        controller = self._controller
        for pause_s in PROBE_PAUSES_S:
            await asyncio.sleep(pause_s)
            broker = controller.image.brokers.get(broker_id)
            if broker is None or broker.fenced or not controller.is_active or controller.feed.is_connected(broker_id):
                return
            with suppress(KafkaError):
                if await refuses(self._loop, self._metadata.address_in(controller.image, broker_id)):
                    await controller.broker_died(broker_id)
                    return

    # -- leaving

    async def leave(self) -> None:
        """Hands over leaderships, then the role of the controller."""
        await self._lifecycle.hand_over()
        with suppress(MoldauError):
            await self._store_thread(self._store.resign)

    def close(self) -> None:
        self._store.close()
