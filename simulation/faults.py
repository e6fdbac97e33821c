"""What goes wrong. Each fault begins at some moment and ends by itself, unless everything is healed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.testing.simulation.cluster import SimulatedBroker
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import MS
from moldau.wire.apis import ApiKey
from simulation.client import Admin, electing, reassigning, setting

if TYPE_CHECKING:
    from simulation.run import Run


class Faults:
    """Each public method except `heal` is a fault that a scenario can use."""

    def __init__(self, run: Run, menu: Sequence[Fault]) -> None:
        self._run = run
        self._world = run.world
        self._cluster = run.cluster
        self._menu = menu
        self._is_over = False
        self._count = 0
        self._had_bad_disks: set[int] = set()
        self._world.after(self._ms(50, 600), self._next)

    def heal(self) -> None:
        """The end of all of them."""
        self._is_over = True
        self._note("everything is healed")
        self._cluster.network.heal()
        self._cluster.store.heal()
        for broker in self._cluster.brokers.values():
            self._mend_disk(broker)
            broker.host.resume()
        self._restart_the_dead()

    # -- faults that stay until `heal` is called again

    def cut_for_good(self) -> None:
        """Two brokers do not reach each other, everybody else does."""
        one, other = self._world.random.sample(list(self._cluster.brokers.values()), 2)
        self._note("the link {} <-> {} is cut for good", one.host.name, other.host.name)
        self._cluster.network.cut(one.host, other.host)
        self._cluster.network.cut(other.host, one.host)

    def pause_for_good(self) -> None:
        broker = self._random_broker()
        self._note("{} is paused for good", broker.host.name)
        broker.host.pause()

    def isolate_for_good(self) -> None:
        lonely = self._random_broker()
        self._note("{} is cut off for good", lonely.host.name)
        for host in [host for host in self._cluster.network.hosts.values() if host is not lonely.host]:
            self._cluster.network.cut(lonely.host, host)
            self._cluster.network.cut(host, lonely.host)

    def _restart_the_dead(self) -> None:
        for broker in self._cluster.brokers.values():
            if broker.node_id in self._had_bad_disks and broker.server and broker.server.node.logs.offline_dirs:
                # A directory that failed, or was full when its logs were loaded, is offline until the next start.
                self._note("{} is killed: its log directory is offline", broker.host.name)
                broker.kill()
            self._start(broker)
        self._world.after(300 * MS, self._restart_the_dead)

    # -- tools

    def _next(self) -> None:
        if not self._is_over:
            self._world.random.choice(self._menu)(self)
            self._world.after(self._ms(*self._run.scenario.interval_ms), self._next)

    def _ms(self, least: int, most: int) -> int:
        return self._world.between_us(least * MS, most * MS)

    def _note(self, text: str, *args: object) -> None:
        self._world.note("FAULT", text, *args)

    def _undo(self, least_ms: int, most_ms: int, action: Callable[..., None], *args: object) -> None:
        self._world.after(self._ms(least_ms, most_ms), lambda: None if self._is_over else action(*args))

    def _random_broker(self) -> SimulatedBroker:
        return self._world.random.choice(list(self._cluster.brokers.values()))

    def _controller(self) -> SimulatedBroker:
        term = self._cluster.store.term
        return self._random_broker() if term is None else self._cluster.brokers[term.node_id]

    def _ask(self, name: str, key: int, build: Callable[..., object]) -> None:
        self._count += 1
        self._run.add(Admin(self._run, f"admin-{self._count}-{name}", key, build))

    # -- processes and machines

    def kill(self) -> None:
        self._kill_one(self._random_broker())

    def kill_controller(self) -> None:
        self._kill_one(self._controller())

    def kill_all(self) -> None:
        for broker in self._cluster.brokers.values():
            self._kill_one(broker)

    def _kill_one(self, broker: SimulatedBroker) -> None:
        if broker.host.loop is not None:
            self._note("{} is killed", broker.host.name)
            broker.kill()
            self._undo(1, self._world.random.choice((50, 3_500)), self._start, broker)

    def restart(self) -> None:
        """At once."""
        self._restart_one(self._random_broker())

    def restart_follower(self) -> None:
        """A broker that is not the controller."""
        broker = self._random_broker()
        if broker is not self._controller():
            self._restart_one(broker)

    def _restart_one(self, broker: SimulatedBroker) -> None:
        if broker.host.loop is not None:
            self._note("{} is killed", broker.host.name)
            broker.kill()
            self._undo(1, 60, self._start, broker)

    def kill_in_write(self) -> None:
        """In the middle of what it does with its disk."""
        broker = self._random_broker()
        if broker.host.loop is not None:
            broker.disk.kill_after(self._world.between_us(0, 25), lambda: self._kill_one(broker))

    def lose_power(self) -> None:
        self._lose_power_of(self._random_broker(), even_if_lost=False)

    def lose_any_power(self) -> None:
        """Even if no other broker has the records on its disk."""
        self._lose_power_of(self._random_broker(), even_if_lost=True)

    def _lose_power_of(self, broker: SimulatedBroker, *, even_if_lost: bool) -> None:
        checker = self._run.checker
        if broker.host.loop is None or not (even_if_lost or checker.may_lose(broker.node_id)):
            return
        self._note("{} loses its power", broker.host.name)
        durable = checker.durable_on(broker) if self._run.scenario.is_synced else {}
        checker.machine_died(broker.node_id)
        broker.lose_power()
        checker.check_survived(broker, durable)
        self._undo(1, self._world.random.choice((20, 200, 4_000)), self._start, broker)

    def shut_down(self) -> None:
        broker = self._random_broker()
        if broker.is_serving and broker.host.is_running and not broker.is_stopping:
            self._note("{} is shut down", broker.host.name)
            broker.stop()
            self._undo(500, 6_000, self._start, broker)

    def _start(self, broker: SimulatedBroker) -> None:
        if broker.host.loop is None:
            self._note("{} is started", broker.host.name)
            broker.start()

    def pause(self) -> None:
        self._pause_one(self._random_broker())

    def pause_controller(self) -> None:
        self._pause_one(self._controller())

    def _pause_one(self, broker: SimulatedBroker) -> None:
        if broker.host.is_running:
            self._note("{} is paused", broker.host.name)
            broker.host.pause()
            self._undo(50, 4_500, self._resume, broker)

    def _resume(self, broker: SimulatedBroker) -> None:
        if broker.host.loop is not None and broker.host.loop.is_paused:
            self._note("{} goes on", broker.host.name)
            broker.host.resume()

    def jump_clock(self) -> None:
        broker = self._random_broker()
        by_s = self._world.random.choice((-1_800, -30, -2, 1, 45, 86_400))
        self._note("the clock of {} is set by {} s", broker.host.name, by_s)
        broker.host.jump_clock(by_s * 1_000 * MS)

    # -- the network

    def _cut_off(self, source: Host, targets: Sequence[Host], directions: tuple[int, int]) -> None:
        """Directions are those of a slice of (out, in)."""
        network = self._cluster.network
        cuts: list[tuple[Host, Host]] = []
        for target in targets:
            cuts += [(source, target), (target, source)][slice(*directions)]
        for pair in cuts:
            network.cut(*pair)

        def mend() -> None:
            self._note("{} is connected again", source.name)
            for pair in cuts:
                network.mend(*pair)

        self._undo(200, 4_000, mend)

    def isolate(self) -> None:
        """From other brokers, perhaps from the store, perhaps from clients."""
        lonely, cluster = self._random_broker(), self._cluster
        targets = [one.host for one in cluster.brokers.values() if one is not lonely]
        with_store, with_clients = self._world.chance(0.5), self._world.chance(0.5)
        if with_store:
            targets.append(cluster.store.host)
        if with_clients:
            targets += [client.host for client in self._run.clients]
        directions = self._world.random.choice(((0, 2), (0, 2), (0, 1), (1, 2)))
        way = {(0, 2): "both ways", (0, 1): "nobody hears it", (1, 2): "it hears nobody"}[directions]
        self._note("{} is cut off, {} (store: {}, clients: {})", lonely.host.name, way, with_store, with_clients)
        self._cut_off(lonely.host, targets, directions)

    def cut(self) -> None:
        one, other = self._world.random.sample(list(self._cluster.brokers.values()), 2)
        directions = self._world.random.choice(((0, 2), (0, 1)))
        arrow = "<->" if directions == (0, 2) else "->"
        self._note("the link {} {} {} is cut", one.host.name, arrow, other.host.name)
        self._cut_off(one.host, [other.host], directions)

    def slow(self) -> None:
        broker = self._random_broker()
        self._note("the links of {} are slow", broker.host.name)
        self._cluster.network.slow_down(broker.host, self._ms(50, 1_800))
        self._undo(500, 4_000, self._cluster.network.slow_down, broker.host, 0)

    # -- the store

    def store_outage(self) -> None:
        store = self._cluster.store
        if not store.is_away:
            self._note("the store does not answer")
            store.stop()
            self._undo(100, 5_000, self._store_is_back)

    def _store_is_back(self) -> None:
        self._note("the store answers again")
        self._cluster.store.start()

    def store_cut(self) -> None:
        broker = self._controller()
        self._note("{} does not reach the store", broker.host.name)
        self._cut_off(broker.host, [self._cluster.store.host], (0, 2))

    def store_refuses(self) -> None:
        self._note("appends to the store fail now and then")
        self._cluster.store.refuse(0.4)
        self._undo(300, 2_000, self._cluster.store.refuse, 0.0)

    def store_flaps(self) -> None:
        """One controller after the other, each for a moment."""
        if not self._cluster.store.flaps:
            self._note("the store elects one controller after the other")
            self._cluster.store.flap()
            self._undo(300, 1_500, self._cluster.store.stop_flapping)

    # -- disks

    def disk_full(self) -> None:
        broker = self._random_broker()
        self._note("the disk of {} is full", broker.host.name)
        self._had_bad_disks.add(broker.node_id)
        broker.disk.fill(self._world.between_us(0, 2_000))
        self._undo(300, 4_000, self._mend_disk, broker)

    def disk_fails(self) -> None:
        broker = self._random_broker()
        if broker.host.loop is not None and self._run.checker.may_lose(broker.node_id):
            self._note("the disk of {} fails", broker.host.name)
            self._had_bad_disks.add(broker.node_id)
            broker.disk.fail(reads=self._world.chance(0.5))
            self._run.checker.disk_failed(broker.node_id)
            self._undo(300, 4_000, self._mend_disk, broker)

    def disk_hangs(self) -> None:
        broker = self._random_broker()
        self._note("the disk of {} hangs", broker.host.name)
        broker.host.hang_disk()
        self._undo(300, 4_000, self._mend_disk, broker)

    def _mend_disk(self, broker: SimulatedBroker) -> None:
        """A failed directory is offline until the next start of the broker."""
        if not broker.disk.can_write and broker.host.loop is not None:
            self._note("{} gets another disk controller, and is started again", broker.host.name)
            broker.kill()
            self._world.after(self._ms(50, 500), self._start, broker)
        broker.disk.heal()
        broker.host.release_disk()

    # -- what people do

    def reassign(self) -> None:
        random, data = self._world.random, self._run.scenario.data_topic
        topic = self._cluster.store.image.topics[data]
        index = random.randrange(len(topic.partitions))
        replicas: list[int] | None = random.sample(list(self._cluster.brokers), len(topic.partitions[index].replicas))
        if random.random() < 0.2:
            replicas = None
        self._note("{}-{} is to move to {}", data, index, replicas)
        self._ask("reassign", ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassigning(data, index, replicas))

    def set_minimum(self) -> None:
        data, value = self._run.scenario.data_topic, self._world.random.choice(("2", "3"))
        self._note("{}: min.insync.replicas is set to {}", data, value)
        self._ask("config", ApiKey.INCREMENTAL_ALTER_CONFIGS, setting(data, "min.insync.replicas", value))

    def elect(self) -> None:
        self._note("preferred leaders are asked for")
        self._ask("elect", ApiKey.ELECT_LEADERS, electing)


Fault = Callable[[Faults], None]
