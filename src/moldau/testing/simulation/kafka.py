"""The simulated cluster as a story sees it: its brokers, its own processes, and what can go wrong between them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from moldau.broker.cluster.peers import Peer
from moldau.broker.coordination.state_topic import java_hash
from moldau.config.properties import as_property
from moldau.errors import ErrorCode, KafkaError, SimulationError
from moldau.testing.simulation.cluster import PORT, SimulatedBroker, SimulatedCluster
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import SECOND
from moldau.testing.simulation.processes import ApplicationHost, Main, Process
from moldau.testing.simulation.responses import LostResponse, ResponseFilter
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, ms

APPLICATION = "application"
POLL_S = 0.01
"""How often `until` looks."""

K = TypeVar("K")
V = TypeVar("V")


class _Known(dict[K, V]):
    """A missing key is an error that says which ones there are."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __missing__(self, key: object) -> V:
        raise SimulationError(f"there is no {self._kind} {key!r}; known are {', '.join(map(repr, self))}")


class Broker:
    """One broker of the cluster. Its disk stays over kills and restarts."""

    def __init__(self, simulated: SimulatedBroker, note: Callable[[str, str], None]) -> None:
        self.id = simulated.node_id
        self.host = simulated.host
        self.name = simulated.host.name
        self._simulated = simulated
        self._note = note

    def __repr__(self) -> str:
        return f"<broker {self.id}, {'serving' if self.is_serving else 'running' if self.is_running else 'down'}>"

    @property
    def is_running(self) -> bool:
        return self.host.loop is not None

    @property
    def is_serving(self) -> bool:
        return self._simulated.is_serving

    @property
    def is_stopping(self) -> bool:
        """Whether it still hands its partitions over after `stop`."""
        return self.is_running and self._simulated.is_stopping

    def start(self) -> None:
        """Starts it again; see `SimulatedKafka.until_ready`."""
        if self.is_running:
            raise SimulationError(f"broker {self.id} is already running")
        self._note(self.name, "is started")
        self._simulated.start()

    def kill(self) -> None:
        """As `kill -9`."""
        self._note(self.name, "is killed")
        self._simulated.kill()

    def stop(self) -> None:
        """As SIGTERM: it hands its partitions over, and ends."""
        self._note(self.name, "is stopped")
        self._simulated.stop()

    def lose_power(self) -> None:
        """The machine vanishes: nobody is told, and what was not synced to its disk is lost."""
        self._note(self.name, "loses power")
        self._simulated.lose_power()

    def pause(self) -> None:
        """As SIGSTOP: its connections stay open, and it responds to nobody."""
        self._note(self.name, "is paused")
        self.host.pause()

    def resume(self) -> None:
        self._note(self.name, "is resumed")
        self.host.resume()

    def fill_disk(self, bytes_left: int = 0) -> None:
        """Writes fail with ENOSPC once `bytes_left` are used up."""
        self._note(self.name, f"has {bytes_left} bytes left on its disk")
        self._simulated.disk.fill(bytes_left)

    def fail_disk(self) -> None:
        """Reads and writes fail with EIO."""
        self._note(self.name, "has a broken disk")
        self._simulated.disk.fail()

    def heal_disk(self) -> None:
        self._note(self.name, "has a working disk")
        self._simulated.disk.heal()

    def set_clock(self, by_s: float) -> None:
        """Moves its wall clock."""
        self._note(self.name, f"has its clock set by {by_s:g} s")
        self.host.jump_clock(round(by_s * SECOND))


class SimulatedKafka:
    """What a story gets. Times are virtual seconds."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.brokers: dict[int, Broker] = _Known("broker")
        self.brokers.update((node_id, Broker(one, self.note_of)) for node_id, one in cluster.brokers.items())
        self.processes: dict[str, Process] = _Known("process")
        self.random = Random(self._world.random.random())
        """For choices of the story: the seed decides them."""
        self._responses = ResponseFilter(self._world, cluster.network.hosts)
        cluster.network.on_write = self._responses

    # -- where things are

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{broker.name}:{PORT}" for broker in self.brokers.values())

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster began to start."""
        return self._world.now_us / SECOND

    @property
    def fingerprint(self) -> int:
        """Of everything that happened so far: two runs with the same one are the same run."""
        return self._world.digest

    def leader_of(self, topic: str, partition: int = 0) -> Broker:
        """As the controller has it: the leader may be dead without anybody having noticed yet."""
        known = self._cluster.store.image.topics.get(topic)
        if known is None:
            raise SimulationError(f"the topic {topic} does not exist yet; create it with create_topic()")
        if partition not in range(len(known.partitions)):
            raise SimulationError(
                f"{topic}-{partition} does not exist: {topic} has {len(known.partitions)} partition(s)"
            )
        leader = known.partitions[partition].leader
        if leader not in self.brokers:
            raise SimulationError(f"{topic}-{partition} has no leader at the moment; await until_ready() first")
        return self.brokers[leader]

    def coordinator_of(self, group: str) -> Broker:
        """The broker that coordinates a consumer group. It is known once the group's first member has joined."""
        return self._coordinator("__consumer_offsets", group)

    def transaction_coordinator_of(self, transactional_id: str) -> Broker:
        return self._coordinator("__transaction_state", transactional_id)

    def _coordinator(self, topic: str, key: str) -> Broker:
        known = self._cluster.store.image.topics.get(topic)
        if known is None:
            raise SimulationError(f"{key!r} has no coordinator yet: no client has asked for one")
        return self.leader_of(topic, java_hash(key) % len(known.partitions))

    @property
    def controller(self) -> Broker:
        term = self._cluster.store.term
        if term is None:
            raise SimulationError("the cluster has no controller at the moment; await until_ready() first")
        return self.brokers[term.node_id]

    # -- what a story waits for

    async def until(self, is_so: Callable[[], object]) -> None:
        """Returns when `is_so()` is true; it may be async. `asyncio.timeout` limits it, as it does everything else."""
        while True:
            value = is_so()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(POLL_S)

    async def until_ready(self) -> None:
        """Returns when all brokers serve and every partition has a leader and all its replicas in sync."""
        await self.until(lambda: self._cluster.is_serving and self._is_in_sync())

    def _is_in_sync(self) -> bool:
        topics = self._cluster.store.image.topics.values()
        return all(
            one.leader in self.brokers and len(one.isr) == len(one.replicas)
            for topic in topics
            for one in topic.partitions
        )

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Returns when its leaders are elected. Without `replication_factor` it has three replicas, if there are so
        many brokers."""

        def build(schema: Schema) -> object:
            configs = tuple(
                schema.CreatableTopicConfig(name=key, value=as_property(value)) for key, value in (config or {}).items()
            )
            topic = schema.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=(),
                configs=configs,
            )
            return schema.CreateTopicsRequest(topics=(topic,), timeout=ms(30_000), validate_only=False)

        broker = next((one for one in self.brokers.values() if one.is_serving), None)
        if broker is None:
            raise SimulationError(f"no broker is running that could create the topic {name}")
        peer = Peer(asyncio.get_running_loop(), (broker.name, PORT), "story")
        try:
            (answer,) = (await peer.ask(ApiKey.CREATE_TOPICS, build)).topics
        finally:
            peer.close()
        if answer.error_code:
            raise KafkaError(ErrorCode(int(answer.error_code)), str(answer.error_message))
        await self.until(lambda: name in self._cluster.store.image.topics)

    # -- the application

    def process(self, name: str, main: Main) -> Process:
        """Starts a process of the application, on a machine of its own. An exception out of `main` fails the story."""
        if name in self._cluster.network.hosts:
            raise SimulationError(f"there is already a host {name!r}; process.start() starts a process again")
        if not callable(main):
            if inspect.iscoroutine(main):
                main.close()
            raise SimulationError(f"process({name!r}, main): expected an async function, got {main!r}; do not call it")
        process = self.processes[name] = Process(ApplicationHost(self._world, self._cluster.network, name), main)
        process.start()
        return process

    @property
    def application(self) -> Process:
        """The process that the story itself runs in."""
        return self.processes[APPLICATION]

    def note(self, text: str) -> None:
        """Adds a line to the timeline, which a failing story prints."""
        current = self._world.current
        self.note_of(current.name if current is not None else "story", text)

    def note_of(self, who: str, text: str) -> None:
        self._world.note(who, "{}", text)

    def timeline(self) -> list[str]:
        return self._world.timeline()

    # -- what goes wrong

    def cut(self, one: Broker | Process | str, other: Broker | Process | str | None = None) -> None:
        """Nothing passes between the two in either direction, or between `one` and everybody."""
        a = self._host(one)
        others = [self._host(other)] if other is not None else self._cluster.network.hosts.values()
        for b in others:
            if b is not a:
                self._cluster.network.cut(a, b)
                self._cluster.network.cut(b, a)
        self.note_of(a.name, f"is cut off from {'everybody' if other is None else self._host(other).name}")

    def cut_link(self, source: Broker | Process | str, target: Broker | Process | str) -> None:
        """Nothing from `source` reaches `target`; the other direction still works."""
        a, b = self._host(source), self._host(target)
        self._cluster.network.cut(a, b)
        self.note_of(a.name, f"does not reach {b.name} any more")

    def slow(self, one: Broker | Process | str, seconds: float) -> None:
        """Whatever goes to or from it takes up to so much longer."""
        host = self._host(one)
        self._cluster.network.slow_down(host, round(seconds * SECOND))
        self.note_of(host.name, f"has a slow network: up to {seconds:g} s")

    def stop_store(self) -> None:
        """The metadata store (ZooKeeper) responds to nobody."""
        self._cluster.store.stop()
        self.note_of("store", "does not respond")

    def heal(self) -> None:
        """Ends all cuts and delays, and the outage of the metadata store."""
        self._cluster.network.heal()
        self._cluster.store.heal()
        self.note_of("network", "is healed")

    def lose_response(
        self, api: str, *, broker: Broker | str | None = None, client: Process | str | None = None
    ) -> LostResponse:
        """The next request of that API ("Produce", "OffsetCommit", "EndTxn") is applied, but its response is lost and
        the connection breaks. `LostResponse.happened` says whether that has been."""
        lost = LostResponse(
            api,
            None if broker is None else self._host(broker, Broker),
            None if client is None else self._host(client, Process),
        )
        self._responses.to_lose.append(lost)
        return lost

    def _host(self, one: Broker | Process | str, *kinds: type[Broker] | type[Process]) -> Host:
        """Of a broker or a process, or of the name that it has in the timeline."""
        known = {
            each.name: each
            for each in (*self.brokers.values(), *self.processes.values())
            if isinstance(each, kinds or (Broker, Process))
        }
        found = known.get(one if isinstance(one, str) else getattr(one, "name", ""))
        if found is None:
            what = " or ".join(kind.__name__.lower() for kind in kinds or (Broker, Process))
            raise SimulationError(f"expected a {what} or its name, got {one!r}; known are {', '.join(known)}")
        return found.host

    @asynccontextmanager
    async def random_faults(
        self, *kinds: str, pause_s: tuple[float, float] = (0.2, 2.0), length_s: tuple[float, float] = (0.1, 4.0)
    ) -> AsyncIterator[None]:
        """While the block runs, one broker after another has a fault; at its end all is well again.

        `kinds` are of "kill", "stop", "pause", "cut", "slow" and "lose_power"; without any, all but the last.
        """
        unknown = set(kinds) - _FAULTS.keys()
        if unknown:
            raise SimulationError(f"unknown faults: {', '.join(sorted(unknown))}; expected {', '.join(_FAULTS)}")
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._cause_faults(kinds or _SAFE_FAULTS, pause_s, length_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self.heal()
            for broker in self.brokers.values():
                await self._mend(broker)
            await self.until_ready()

    async def _cause_faults(
        self, kinds: tuple[str, ...], pause_s: tuple[float, float], length_s: tuple[float, float]
    ) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(*pause_s))
            broker, kind = self.random.choice(list(self.brokers.values())), self.random.choice(kinds)
            _FAULTS[kind](self, broker)
            await asyncio.sleep(self.random.uniform(*length_s))
            await self._mend(broker)
            if kind in ("cut", "slow"):
                self.heal()

    async def _mend(self, broker: Broker) -> None:
        await self.until(lambda: not broker.is_stopping)
        if not broker.is_running:
            broker.start()
        elif not broker.host.is_running:
            broker.resume()


_FAULTS: dict[str, Callable[[SimulatedKafka, Broker], None]] = {
    "kill": lambda _, broker: broker.kill(),
    "stop": lambda _, broker: broker.stop(),
    "pause": lambda _, broker: broker.pause(),
    "cut": lambda cluster, broker: cluster.cut(broker),
    "slow": lambda cluster, broker: cluster.slow(broker, cluster.random.uniform(0.01, 0.3)),
    "lose_power": lambda _, broker: broker.lose_power(),
}
_SAFE_FAULTS = tuple(kind for kind in _FAULTS if kind != "lose_power")
"""After these a cluster of three has every acknowledged record, whatever the settings of its disks."""
