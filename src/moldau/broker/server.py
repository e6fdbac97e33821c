"""A broker on an event loop: listeners, housekeeping, the metrics endpoint, and an orderly stop.

The parts of the broker are built in `node`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from moldau.broker.environment import REAL, Environment
from moldau.broker.handlers.api_table import API_TABLE
from moldau.broker.housekeeping import Housekeeping
from moldau.broker.network.client_connection import ClientConnection
from moldau.broker.network.dispatch import Dispatcher
from moldau.broker.network.open_connections import SWEEP_INTERVAL_S
from moldau.broker.node import BrokerNode
from moldau.broker.replicas.failing_disks import CHECK_INTERVAL_S
from moldau.config.broker import BrokerConfig
from moldau.config.listeners import EVERY_INTERFACE, Listener
from moldau.errors import ConfigError

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""How long a stopping broker waits for its last responses to be sent."""
LISTEN_BACKLOG = 1024
"""Used unless `socket.listen.backlog.size` is set: Kafka's default of 50 is low for many clients at once."""


class Server:
    def __init__(self, config: BrokerConfig, environment: Environment = REAL) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self.node = BrokerNode(config, self._loop, environment)
        self._listeners: list[asyncio.Server] = []
        self._stopped = False
        self._metrics: Callable[[], None] | None = None

    async def start(self) -> None:
        """Returns when the broker is ready: logs are loaded, ports are bound and `bound` is complete."""
        serving_metrics = asyncio.ensure_future(self._serve_metrics())  # first, because recovery can take long
        try:
            await self.node.start(self._listen_all)
            await serving_metrics
        except BaseException:
            await asyncio.gather(serving_metrics, return_exceptions=True)
            await self.stop()
            raise
        self._start_housekeeping()

    def _start_housekeeping(self) -> None:
        node, config = self.node, self.config
        housekeeping = Housekeeping(
            node.local,
            node.logs,
            node.hosted,
            node.threads,
            spawn=node.spawn,
            clock=node.clock,
            monotonic_ms=node.monotonic_ms,
        )
        housekeeping.start()
        housekeeping.every(SWEEP_INTERVAL_S, self._sweep)
        housekeeping.every(1.0, node.follower.retry_logs)
        housekeeping.every(CHECK_INTERVAL_S, node.failing_disks.check)
        prune_interval_ms = config.share_coordinator_state_topic_prune_interval_ms
        housekeeping.every(prune_interval_ms / 1000, node.share_partitions.prune)
        if config.log_cleaner_enable:
            node.spawn(node.cleaner.run())

    async def _sweep(self) -> None:
        self.node.connections.sweep(self._loop.time())

    def give_up(self) -> None:
        """Cancels a start that waits for other brokers."""
        self.node.membership.give_up()

    async def _listen_all(self) -> None:
        for listener in self.config.listeners:
            await self._listen(listener)

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = self.node.is_closing = True
        await self.node.membership.leave()
        for listener in self._listeners:
            listener.close()
        self.node.hosted.wake_all()
        self.node.groups.stop()  # a JoinGroup may wait minutes for other members
        await self.node.connections.drain(STOP_TIMEOUT_S)
        await self.node.close()
        if self._metrics is not None:
            self._metrics()

    async def _serve_metrics(self) -> None:
        """Opens `moldau.metrics.port`, if one is set."""
        host, port = self.config.moldau_metrics_host, self.config.moldau_metrics_port
        if port <= 0:
            return

        def start() -> None:
            from moldau.broker.monitoring.metrics_endpoint import serve_metrics  # 50 ms of imports, in a thread

            self._metrics = serve_metrics(self.node, host, port)

        await self.node.threads.compute(start)
        logger.info("serving metrics", extra={"url": f"http://{host}:{port}/metrics"})

    @property
    def bound(self) -> dict[str, tuple[str, int]]:
        """Listener name → where clients find it."""
        return self.node.local.advertised

    async def _listen(self, listener: Listener) -> None:
        dispatcher = Dispatcher(self.node, API_TABLE)
        socket_options = self._socket_options()

        def connect() -> ClientConnection:
            return ClientConnection(
                dispatcher,
                listener.name,
                loop=self._loop,
                request_max_bytes=self.config.socket_request_max_bytes,
                budget=self.node.connections.receive_budget,
                send_budget=self.node.connections.send_budget,
                socket_options=socket_options,
            )

        try:
            server = await self._loop.create_server(
                connect, listener.host or None, listener.port, backlog=self._backlog(), reuse_address=True
            )
        except OSError as error:
            advice = (
                "this machine does not have that address"
                if error.errno == errno.EADDRNOTAVAIL
                else "is another broker running there? Choose another port with listeners or --port"
            )
            raise ConfigError(
                f"listeners: cannot listen on {listener.host}:{listener.port} ({error.strerror or error}); {advice}"
            ) from error
        self._listeners.append(server)
        port = server.sockets[0].getsockname()[1]
        host, told_port = self.node.local.advertised[listener.name] = self._advertised(listener, port)
        if listener.host in EVERY_INTERFACE:
            logger.warning(
                "listener %s is open to every network of this machine, without authentication. Clients are told to "
                "connect to %s:%d; if they cannot, set advertised.listeners, for example %s://%s:%d",
                listener._replace(port=port),
                host,
                told_port,
                listener.name,
                _outward_address(),
                port,
            )

    def _socket_options(self) -> list[tuple[int, int]]:
        """Buffer sizes that were set explicitly. Kafka's defaults of 100 KB would turn off the kernel's auto-tuning."""
        wanted = [
            (socket.SO_SNDBUF, "socket.send.buffer.bytes", self.config.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, "socket.receive.buffer.bytes", self.config.socket_receive_buffer_bytes),
        ]
        return [(option, size) for option, key, size in wanted if key in self.config.originals and size > 0]

    def _backlog(self) -> int:
        explicit = "socket.listen.backlog.size" in self.config.originals
        return self.config.socket_listen_backlog_size if explicit else LISTEN_BACKLOG

    def _advertised(self, listener: Listener, port: int) -> tuple[str, int]:
        """The address that clients of this listener get. With port 0 it is known only after binding."""
        told = next((one for one in self.config.advertised_listeners if one.name == listener.name), listener)
        return told.host or socket.getfqdn(), told.port or port


def _outward_address() -> str:
    """The address that this machine uses for outgoing connections: others can probably reach it there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation; nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
