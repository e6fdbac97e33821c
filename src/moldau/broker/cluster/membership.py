"""A broker's place in its cluster: stand for election, find the controller, follow it, register, send heartbeats.

    campaign ── elected ──> controller.elected            (the store tells, from its own thread)
       └─ another one leads ──> fetch its records, again and again, each answer a newer image

    first image → logs opened → registered (fenced) → caught up with the own registration → unfenced: clients may come

A connection to the controller that breaks is no proof of its death, a port that refuses is: then its place is taken at
once. Otherwise the brokers decide (`takeover`), or the store, when it has been silent for too long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from moldau.broker.cluster.incarnation import Life
from moldau.broker.cluster.leader_lease import Vigil
from moldau.broker.cluster.metadata_feed import METADATA_TOPIC_ID, apply_result
from moldau.broker.cluster.peers import CONTROLLER, FORWARDING, Peer, refuses
from moldau.broker.cluster.takeover import Takeover
from moldau.config.listeners import SECURITY_PROTOCOLS
from moldau.errors import ConfigError, ErrorCode, KafkaError, MoldauError, ProtocolError
from moldau.log_limits import LogLimit
from moldau.metadata.cluster_wide import ignored_values
from moldau.metadata.stores.store import Candidate, Leadership, MetadataStore
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from moldau.wire.messages import Schema
from moldau.wire.uuids import uuid_from_text

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

logger = logging.getLogger(__name__)

POLL_WAIT_MS = 5_000
"""How long the controller may hold a fetch of metadata when nothing changes."""
RETRY_S = 0.05
BEATS_PER_SESSION = 4
"""At least: one heartbeat that is lost must not cost a broker its place."""
FENCED_BEAT_S = 0.1
"""Between the heartbeats of a broker that waits to be unfenced."""
PROBE_PAUSES_S = (0.0, 0.1, 0.4)
"""Before each look at whether a broker is dead: its connections may break a moment before its port is closed."""
PREDECESSOR_GRACE_S = 0.5
"""For the controller before this one to follow its successor. If it only is slow, its next heartbeat unfences it."""
JOIN_PROGRESS_S = 2.0
JOIN_PROGRESS_MAX_S = 60.0
"""What a start waits for is logged after two seconds, then after four, eight, …, and at least once a minute."""
SHUTDOWN_TIMEOUT_S = 10.0
"""For handing leaderships over; then the broker stops anyway, and the controller finds out."""

_FETCH_VERSION = APIS[ApiKey.FETCH].max_version


class Membership:
    def __init__(self, node: BrokerNode, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._vigil = node.vigil = Vigil(node)
        self.takeover = Takeover(node, store.usurp)
        self._life: Life | None = None
        self._changed = asyncio.Event()
        """A leadership was told of."""
        self._has_image = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None
        self._gave_up = False
        self._predecessor: Leadership | None = None
        self._wants_shutdown = False
        self._may_shut_down = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._log_limit = LogLimit()

    # -- joining

    async def join(self) -> None:
        """Returns when clients may come. The listeners are bound by now."""
        node = self._node
        await node.threads.metadata(self._store.open)
        await node.threads.metadata(self._store.campaign, self._candidate, self._told)
        node.spawn(self._follow_forever())
        await self._patiently("waiting for a controller", self._has_image.wait)
        node.metadata.begin_with(node.newest_image)
        await node.threads.files(self._open_logs)
        node.follow_metadata()
        await self._patiently("waiting to be registered", self._register)
        node.begin()
        node.spawn(self._beat_forever())
        node.spawn(self._vigil.keep())
        node.spawn(self.takeover.keep())
        await self._patiently("waiting to be unfenced", self._unfenced)
        for warning in ignored_values(node.image, node.config):
            logger.warning(warning)
        await node.threads.metadata(self._announce)
        node.is_serving.set()

    def _open_logs(self) -> None:
        node = self._node
        node.logs.check_in(node.image.cluster_id)
        node.open_logs()
        self._life = Life.of(node.logs, node.environment.new_uuid(), node.environment.boot_id())

    def _announce(self) -> None:
        self._store.announce(self._node.node_id, self._node.endpoints, self._node.config.broker_rack)

    @property
    def _candidate(self) -> Candidate:
        return Candidate(self._node.node_id, *self._node.inter_broker_address)

    async def _patiently(self, what: str, work: Callable[[], Any]) -> None:
        """Says now and then what the start waits for."""
        interval_s = JOIN_PROGRESS_S
        self._waiting = task = asyncio.ensure_future(work())
        if self._gave_up:
            task.cancel()
        try:
            while not (await asyncio.wait({task}, timeout=interval_s))[0]:
                logger.info(what)
                interval_s = min(2 * interval_s, JOIN_PROGRESS_MAX_S)
            await task
        finally:
            task.cancel()

    def give_up(self) -> None:
        """A join that still waits for others is cancelled."""
        self._gave_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    # -- who leads

    def _told(self, leadership: Leadership | None) -> None:
        """From a thread of the store."""
        with suppress(RuntimeError):  # the loop is closed: this broker stops
            self._node.loop.call_soon_threadsafe(self._leads, leadership)

    def _is_ours(self, leadership: Leadership) -> bool:
        """The same id at another address is another broker, which has taken ours."""
        return leadership[1:] == self._candidate

    def _leads(self, leadership: Leadership | None) -> None:
        controller = self._node.controller
        known = controller.leadership
        if leadership is not None and known is not None and leadership.epoch <= known.epoch:
            return
        if leadership is None or not self._is_ours(leadership) or controller.is_active:
            controller.deposed()
        controller.leadership = leadership
        self.takeover.heard(controller.epoch)
        if known is not None:
            # One that only sleeps would keep whoever asks it, heartbeats above all, from asking its successor.
            for purpose in (CONTROLLER, FORWARDING):
                self._node.peers.at((known.host, known.port), purpose).hang_up()
        self._changed.set()
        if leadership is None:
            return
        if self._is_ours(leadership):
            self._node.spawn(self._elected(leadership, self._predecessor))
        self._predecessor = leadership

    async def _elected(self, leadership: Leadership, predecessor: Leadership | None) -> None:
        controller = self._node.controller
        await controller.elected(self._store, leadership)
        if controller.is_active and controller.epoch == leadership.epoch:
            self._has_image.set()
            self._beat_now.set()
            work = [self._bury_the_dead()]
            if predecessor is not None and predecessor.node_id != self._node.node_id:
                work.append(self._look_after(predecessor, leadership.epoch))
            # At once: a machine that vanished refuses nothing, and each look at it takes seconds.
            await asyncio.gather(*work)

    async def _look_after(self, predecessor: Leadership, epoch: int) -> None:
        """A controller that lost its place for its silence is silent as a broker, too."""
        controller, won = self._node.controller, self.takeover.won
        if won is not None and won.epoch == predecessor.epoch:
            # Its session is not over yet, but began when it was last heard.
            if won.is_majority_in(controller.image):
                controller.silent_since(predecessor.node_id, won.silent_since_ms)
            return
        # The store waited for the end of its session.
        await asyncio.sleep(PREDECESSOR_GRACE_S)
        if controller.epoch == epoch and not controller.feed.is_connected(predecessor.node_id):
            await controller.broker_died(predecessor.node_id)

    async def _bury_the_dead(self) -> None:
        """A new controller does not wait a whole session for brokers that died with the one before."""
        node = self._node
        lost = [
            one for one in node.controller.image.brokers.values() if not one.fenced and one.broker_id != node.node_id
        ]
        await asyncio.gather(*(self.probe(one.broker_id) for one in lost))

    async def probe(self, broker_id: int) -> None:
        """A broker's connection broke, or never came: is anybody there?"""
        controller = self._node.controller
        for pause_s in PROBE_PAUSES_S:
            await asyncio.sleep(pause_s)
            broker = controller.image.brokers.get(broker_id)
            if broker is None or broker.fenced or not controller.is_active or controller.feed.is_connected(broker_id):
                return
            with suppress(KafkaError):
                if await refuses(self._node.loop, self._node.address_in(controller.image, broker_id)):
                    await controller.broker_died(broker_id)
                    return

    # -- following

    async def _follow_forever(self) -> None:
        while True:
            leadership = self._node.controller.leadership
            self._changed.clear()
            if leadership is None or self._is_ours(leadership):
                await self._changed.wait()
                continue
            peer = self._node.peers.at((leadership.host, leadership.port), "metadata")
            following = asyncio.ensure_future(self._follow(peer, leadership))
            changing = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({following, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changing.cancel()
                was_following = following.cancel()
            if was_following:
                with suppress(asyncio.CancelledError):
                    await following
                peer.close()

    async def _follow(self, peer: Peer, leadership: Leadership) -> None:
        """One fetch after the other, until it fails."""
        node = self._node
        try:
            while True:
                image = node.newest_image
                request = FetchRequest(
                    replica_id=node.node_id if node.broker_epoch >= 0 else -1,
                    replica_epoch=node.broker_epoch,
                    max_wait_ms=POLL_WAIT_MS,
                    min_bytes=1,
                    topics=[FetchTopic(None, METADATA_TOPIC_ID, [_from(image.version, leadership.epoch)])],
                )
                body = encode_fetch_request(_FETCH_VERSION, request)
                frame = await peer.ask_raw(ApiKey.FETCH, _FETCH_VERSION, [body], timeout_s=2 * POLL_WAIT_MS / 1000)
                ((_, _, (result,)),) = parse_fetch_response(_FETCH_VERSION, frame).topics
                if result.error_code:
                    raise KafkaError(ErrorCode(result.error_code), "the controller refused a fetch of metadata")
                self.takeover.heard(leadership.epoch)
                newer = apply_result(image, result)
                if newer is not image:
                    if self._has_image.is_set():
                        node.follow(newer)
                        await node.applied(newer.version)
                    else:
                        node.metadata.begin_with(newer)
                        self._has_image.set()
                elif image.cluster_id:  # before there is one, nothing is known, and no log would seem to belong here
                    self._has_image.set()
        except Exception as error:  # whatever it was: a broker that follows nobody is lost
            if self._log_limit.allows((leadership, str(error))):
                logger.info("lost the controller", extra={"controller": leadership.node_id, "why": str(error)})
            if await refuses(node.loop, (leadership.host, leadership.port)):
                await node.threads.metadata(self._store.usurp, leadership.epoch)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), RETRY_S)

    # -- registration and heartbeats

    async def _register(self) -> None:
        node, life = self._node, self._life
        assert life is not None
        told: ErrorCode | None = None
        duplicate_since_s, asked_epoch = math.inf, -1
        while True:
            try:
                answer = await node.ask_controller(ApiKey.BROKER_REGISTRATION, self._registration)
                code = ErrorCode(answer.error_code)
                if code is ErrorCode.NONE:
                    break
                if code in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION):
                    raise ConfigError(f"the controller refuses this broker: {code.name}")
                now_s, epoch = node.loop.time(), node.controller.epoch
                if code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION or epoch != asked_epoch:
                    duplicate_since_s, asked_epoch = now_s, epoch  # a new controller gives all a new session
                # An earlier life of this broker, at another address, would have lost its session by now.
                if now_s - duplicate_since_s >= node.config.broker_session_timeout_ms / 1000:
                    raise ConfigError(self._id_is_taken())
                if code is not told:
                    logger.info("not registered yet", extra={"why": code.name})
                    told = code
            except (KafkaError, ProtocolError) as error:
                logger.debug("not registered yet: %s", error)
            await asyncio.sleep(FENCED_BEAT_S)
        node.broker_epoch = answer.broker_epoch
        await node.threads.files(life.began, answer.broker_epoch)

    def _id_is_taken(self) -> str:
        node_id = self._node.node_id
        other = self._node.newest_image.brokers.get(node_id)
        where = ", ".join(f"{host}:{port}" for _, host, port, _ in other.endpoints) if other is not None else "?"
        return (
            f"broker.id={node_id} (node.id) is taken: a broker of this cluster with the same id runs at {where}. "
            "Give each broker an id of its own, or stop that one first"
        )

    def _registration(self, schema: Schema) -> Any:
        node, life = self._node, self._life
        assert life is not None
        return schema.BrokerRegistrationRequest(
            broker_id=node.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=life.incarnation_id,
            listeners=tuple(
                schema.Listener(name=name, host=host, port=port, security_protocol=SECURITY_PROTOCOLS.index(protocol))
                for name, host, port, protocol in node.endpoints
            ),
            features=(),
            rack=node.config.broker_rack,
            is_migrating_zk_broker=False,
            log_dirs=tuple(uuid_from_text(one) for one in node.logs.directory_ids.values()),
            previous_broker_epoch=life.previous_broker_epoch,
        )

    async def _unfenced(self) -> None:
        node = self._node
        while (me := node.image.brokers.get(node.node_id)) is None or me.fenced or me.broker_epoch != node.broker_epoch:
            await node.applied(node.image.version + 1)

    async def _beat_forever(self) -> None:
        node = self._node
        while True:
            sent_s, epoch = node.loop.time(), node.controller.epoch
            try:
                # Its session outlasts one that gets lost.
                timeout_s = node.config.broker_session_timeout_ms / 2000
                answer = await node.ask_controller(ApiKey.BROKER_HEARTBEAT, self._heartbeat, timeout_s=timeout_s)
                code = ErrorCode(answer.error_code)
                if code is not ErrorCode.NOT_CONTROLLER:
                    self.takeover.heard(epoch)
                if code is ErrorCode.NONE:
                    if answer.should_shut_down:
                        self._may_shut_down.set()
                    if not answer.is_fenced:
                        self._vigil.heard(sent_s)
                    interval_ms = min(
                        node.config.broker_heartbeat_interval_ms,
                        node.config.broker_session_timeout_ms // BEATS_PER_SESSION,
                    )
                    interval_s = interval_ms / 1000
                    if answer.is_fenced or self._wants_shutdown:
                        interval_s = min(interval_s, FENCED_BEAT_S)
                else:
                    interval_s = FENCED_BEAT_S
                    await self._refused(code)
            except KafkaError as error:
                logger.debug("heartbeat failed: %s", error.message)
                interval_s = FENCED_BEAT_S
            except ConfigError as error:  # while it was fenced, another broker was started with its id
                if self._log_limit.allows("taken"):
                    logger.error("this broker is out of its cluster", extra={"why": str(error)})
                interval_s = JOIN_PROGRESS_S
            except Exception:  # one that sends no more heartbeats would be fenced for ever
                logger.exception("heartbeat failed")
                interval_s = JOIN_PROGRESS_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._beat_now.wait(), interval_s)
            self._beat_now.clear()

    async def _refused(self, code: ErrorCode) -> None:
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            # Unregistered by hand, or taken for dead and replaced: begin again as the same process.
            logger.warning("the controller does not know this broker: registering again", extra={"code": code.name})
            self._node.broker_epoch = -1
            await self._register()

    def _heartbeat(self, schema: Schema) -> Any:
        node = self._node
        return schema.BrokerHeartbeatRequest(
            broker_id=node.node_id,
            broker_epoch=node.broker_epoch,
            current_metadata_offset=node.image.version,
            want_fence=False,
            want_shut_down=self._wants_shutdown,
            offline_log_dirs=(),
        )

    # -- leaving

    async def leave(self) -> None:
        """Hands leaderships over, so that clients need not wait for anything; then the controller's own place."""
        node = self._node
        if node.broker_epoch >= 0 and node.config.controlled_shutdown_enable:
            self._wants_shutdown = True
            self._beat_now.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._may_shut_down.wait(), SHUTDOWN_TIMEOUT_S)
        with suppress(MoldauError):
            await node.threads.metadata(self._store.resign)

    def close(self) -> None:
        """Blocks."""
        self._store.close()


def _from(version: int, epoch: int) -> FetchPartition:
    return FetchPartition(0, current_leader_epoch=epoch, fetch_offset=version)
