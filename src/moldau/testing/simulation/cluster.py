"""Real brokers on simulated hosts: the composition root of a process, in an environment of the world's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from moldau.broker.environment import Environment
from moldau.broker.server import Server
from moldau.broker.threads import Threads
from moldau.config.broker import BrokerConfig
from moldau.errors import MoldauError
from moldau.testing.simulation.disk import SimulatedDisk
from moldau.testing.simulation.host import Host, seeded_uuids
from moldau.testing.simulation.loop import SECOND, World
from moldau.testing.simulation.network import Network
from moldau.testing.simulation.store import SimulatedStore
from moldau.testing.simulation.threads import SimulatedLane

logger = logging.getLogger(__name__)

PORT = 9092
RESTART_US = SECOND
"""After which a process that ended by itself is started again."""
PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.enable": "false",  # it is another process
    "zookeeper.connect": "store:2181",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}
"""What a simulated broker has unless told otherwise: quick sessions, small state topics."""


class SimulatedBroker:
    def __init__(self, cluster: SimulatedCluster, node_id: int, properties: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.host = Host(cluster.world, cluster.network, f"broker-{node_id}")
        self.server: Server | None = None
        """Of the present process, started or not."""
        self.is_wanted = False
        """Whether somebody would start it again if it ended by itself."""
        self.is_stopping = False
        self.disk = SimulatedDisk(clock_s=lambda: self.host.wall_clock_ms() / 1000)
        self._cluster = cluster
        self._config, _ = BrokerConfig.from_properties(
            {
                **PROPERTIES,
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{self.host.name}:{PORT}",
                "log.dirs": "/data",
                **properties,
            },
            strict=True,
        )

    def start(self) -> asyncio.Task[None]:
        """A task of the broker's own loop that ends when clients may come."""
        self.is_wanted = True
        self.is_stopping = False
        loop = self.host.start_process()
        cluster, host = self._cluster, self.host
        environment = Environment(
            wall_clock=host.wall_clock_ms,
            monotonic=host.monotonic_ms,
            timer=host.timer,
            new_uuid=cluster.new_uuid,
            boot_id=lambda: host.boot_id,
            disk=self.disk.mount(),
            start_thread=lambda work, _: work(),
            make_threads=partial(Threads, lane=SimulatedLane),
            make_store=lambda _: cluster.store.session(loop),
        )
        return loop.create_task(self._run(environment))

    async def _run(self, environment: Environment) -> None:
        server = self.server = Server(self._config, environment)
        try:
            await server.start()
        except MoldauError as error:
            logger.error("%s cannot start: %s", self.host.name, error)
            self.ended()

    async def _stop(self) -> None:
        assert self.server is not None
        await self.server.stop()
        self.ended()

    def stop(self) -> None:
        """As SIGTERM: it hands its partitions over and ends by itself."""
        self.is_wanted = False
        if self.host.loop is not None and not self.is_stopping:
            self.is_stopping = True
            self.host.loop.create_task(self._stop())

    def ended(self) -> None:
        self.host.exited()
        self.disk.kill()
        self._retain_server()
        if self.is_wanted:
            self._cluster.world.after(RESTART_US, self.start_if_needed)

    def start_if_needed(self) -> None:
        if self.host.loop is None:
            self.start()

    def kill(self) -> None:
        self.is_wanted = False
        self.host.kill()
        self.disk.kill()
        self._retain_server()

    def lose_power(self) -> None:
        self.is_wanted = False
        self.host.lose_power()
        self.disk.lose_power(self._cluster.world.random)
        self._retain_server()

    def _retain_server(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self._cluster.world.retained.append(server)

    @property
    def is_serving(self) -> bool:
        return self.server is not None and self.server.node.is_serving.is_set()


class SimulatedCluster:
    def __init__(self, world: World, brokers: int = 3, properties: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.network = Network(world)
        self.new_uuid = seeded_uuids(world)
        self.store = SimulatedStore(world, self.network)
        self.brokers = {node_id: SimulatedBroker(self, node_id, properties or {}) for node_id in range(1, brokers + 1)}

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()

    @property
    def is_serving(self) -> bool:
        return all(broker.is_serving for broker in self.brokers.values())

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(broker.host.name, PORT) for broker in self.brokers.values()]
