"""The broker side of registration, heartbeats and controlled shutdown."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from moldau.broker.cluster.controller_channel import ControllerChannel
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.incarnation import Incarnation
from moldau.broker.cluster.leader_lease import LeaderLease
from moldau.broker.cluster.local_broker import NOT_REGISTERED, LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.takeover import Takeover
from moldau.config.listeners import SECURITY_PROTOCOLS
from moldau.errors import ConfigError, ErrorCode, KafkaError, ProtocolError
from moldau.log.manager import LogManager
from moldau.log_limits import LogLimit
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from moldau.wire.uuids import uuid_from_text

logger = logging.getLogger(__name__)

HEARTBEATS_PER_SESSION = 4
"""At least so many, so that one lost heartbeat does not fence a broker."""
FENCED_HEARTBEAT_S = 0.1
"""Between the heartbeats of a broker that waits to be unfenced."""
FAILED_HEARTBEAT_S = 2.0
"""After a heartbeat that failed for a reason that will last."""
SHUTDOWN_TIMEOUT_S = 10.0
"""For handing over leaderships; then the broker stops anyway, and the controller fences it."""


class BrokerLifecycle:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        logs: LogManager,
        *,
        controller: ControllerShell,
        channel: ControllerChannel,
        lease: LeaderLease,
        takeover: Takeover,
        in_thread: Callable[..., Awaitable[Any]],
        now_s: Callable[[], float],
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._logs = logs
        self._controller = controller
        self._channel = channel
        self._lease = lease
        self._takeover = takeover
        self._in_thread = in_thread
        self._now_s = now_s
        self._incarnation: Incarnation | None = None
        self._wants_shutdown = False
        self._may_shut_down = asyncio.Event()
        self._heartbeat_now = asyncio.Event()
        self._log_limit = LogLimit(clock=now_s)

    # -- registration

    async def register(self, incarnation: Incarnation) -> None:
        """Returns when the controller has registered this process; ConfigError if it never will."""
        self._incarnation = incarnation
        logged: ErrorCode | None = None
        duplicate_since_s, asked_epoch = math.inf, -1
        while True:
            try:
                answer = await self._channel.ask(ApiKey.BROKER_REGISTRATION, self._registration)
                code = ErrorCode(answer.error_code)
                if code is ErrorCode.NONE:
                    break
                if code in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION):
                    raise ConfigError(f"the controller refuses this broker: {code.name}")
                now_s, epoch = self._now_s(), self._controller.epoch
                if code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION or epoch != asked_epoch:
                    duplicate_since_s, asked_epoch = now_s, epoch  # a new controller gives all a new session
                # An earlier process of this broker, at another address, would have lost its session by now.
                if now_s - duplicate_since_s >= self._me.config.broker_session_timeout_ms / 1000:
                    raise ConfigError(self._duplicate_id_message())
                if code is not logged:
                    logger.info("waiting to register with the controller", extra={"why": code.name})
                    logged = code
            except (KafkaError, ProtocolError) as error:
                logger.debug("cannot register with the controller, will retry: %s", error)
            await asyncio.sleep(FENCED_HEARTBEAT_S)
        self._me.broker_epoch = answer.broker_epoch
        await self._in_thread(incarnation.save_epoch, answer.broker_epoch)

    def _duplicate_id_message(self) -> str:
        node_id = self._me.node_id
        other = self._metadata.newest.brokers.get(node_id)
        where = ", ".join(f"{host}:{port}" for _, host, port, _ in other.endpoints) if other is not None else "?"
        return (
            f"broker.id={node_id} (node.id) is taken: a broker of this cluster with the same id runs at {where}. "
            "Give each broker an id of its own, or stop that one first"
        )

    def _registration(self, schema: Schema) -> Any:
        incarnation = self._incarnation
        assert incarnation is not None
        return schema.BrokerRegistrationRequest(
            broker_id=self._me.node_id,
            cluster_id=self._logs.cluster_id,
            incarnation_id=incarnation.incarnation_id,
            listeners=tuple(
                schema.Listener(name=name, host=host, port=port, security_protocol=SECURITY_PROTOCOLS.index(protocol))
                for name, host, port, protocol in self._me.endpoints
            ),
            features=(),
            rack=self._me.config.broker_rack,
            is_migrating_zk_broker=False,
            log_dirs=tuple(uuid_from_text(one) for one in self._logs.directory_ids.values()),
            previous_broker_epoch=incarnation.previous_broker_epoch,
        )

    async def unfenced(self) -> None:
        """Returns when the current image contains this process as an unfenced broker."""
        me, metadata = self._me, self._metadata
        while (
            (known := metadata.image.brokers.get(me.node_id)) is None
            or known.fenced
            or known.broker_epoch != me.broker_epoch
        ):
            await metadata.applied(metadata.image.version + 1)

    # -- heartbeats

    def send_heartbeat(self) -> None:
        """Sends the next heartbeat now."""
        self._heartbeat_now.set()

    async def send_heartbeats(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                interval_s = await self._heartbeat_once()
            except KafkaError as error:
                logger.debug("heartbeat failed: %s", error.message)
                interval_s = FENCED_HEARTBEAT_S
            except ConfigError as error:  # while it was fenced, another broker was started with its id
                if self._log_limit.allows("taken"):
                    logger.error("this broker cannot return to its cluster", extra={"why": str(error)})
                interval_s = FAILED_HEARTBEAT_S
            except Exception:  # without heartbeats it would stay fenced for ever
                logger.exception("internal error in a heartbeat (please report it)")
                interval_s = FAILED_HEARTBEAT_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._heartbeat_now.wait(), interval_s)
            self._heartbeat_now.clear()

    async def _heartbeat_once(self) -> float:
        """Returns the seconds to the next heartbeat."""
        config = self._me.config
        sent_s, epoch = self._now_s(), self._controller.epoch
        # Half a session: if this one is lost, the next can still arrive in time.
        timeout_s = config.broker_session_timeout_ms / 2000
        answer = await self._channel.ask(ApiKey.BROKER_HEARTBEAT, self.heartbeat, timeout_s=timeout_s)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NOT_CONTROLLER:
            self._takeover.on_contact(epoch)
        if code is not ErrorCode.NONE:
            await self._refused(code)
            return FENCED_HEARTBEAT_S
        if answer.should_shut_down:
            self._may_shut_down.set()
        if not answer.is_fenced:
            self._lease.on_heartbeat_answered(sent_s)
        config = self._me.config
        interval_ms = min(
            config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms // HEARTBEATS_PER_SESSION
        )
        is_urgent = answer.is_fenced or self._wants_shutdown
        return min(interval_ms / 1000, FENCED_HEARTBEAT_S) if is_urgent else interval_ms / 1000

    async def _refused(self, code: ErrorCode) -> None:
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            # Unregistered by an operator, or replaced after it seemed dead: register again as the same process.
            logger.warning("the controller does not know this broker, registering again", extra={"code": code.name})
            assert self._incarnation is not None
            self._me.broker_epoch = NOT_REGISTERED
            await self.register(self._incarnation)

    def heartbeat(self, schema: Schema) -> Any:
        return schema.BrokerHeartbeatRequest(
            broker_id=self._me.node_id,
            broker_epoch=self._me.broker_epoch,
            current_metadata_offset=self._metadata.image.version,
            want_fence=False,
            want_shut_down=self._wants_shutdown,
            offline_log_dirs=(),
        )

    # -- shutdown

    async def hand_over(self) -> None:
        """Asks the controller to move leaderships away, so that clients do not wait for a failover."""
        if self._me.broker_epoch >= 0 and self._me.config.controlled_shutdown_enable:
            self._wants_shutdown = True
            self.send_heartbeat()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._may_shut_down.wait(), SHUTDOWN_TIMEOUT_S)
