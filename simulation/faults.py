"""What goes wrong. Each fault begins at some moment and ends by itself, unless everything is healed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moldau.cluster.elections import ElectionType
from moldau.metadata.configs import ConfigChange, ConfigOp, plan_incremental_alter_configs
from moldau.wire.topic_partition import TopicPartition
from simulation.broker import Broker
from simulation.cluster import Cluster


class Faults:
    def __init__(self, cluster: Cluster, menu: Sequence[str], *, moves: Sequence[str] = ()) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._menu = menu
        self._moves = moves
        """Topics whose partitions are reassigned, and whose configuration changes."""
        self._is_over = False
        self._world.after(self._world.between_ms(100, 700), self._next)

    def stop(self) -> None:
        self._is_over = True

    def _next(self) -> None:
        if not self._is_over:
            getattr(self, "_" + self._world.random.choice(self._menu))()
            self._world.after(self._world.between_ms(150, 1_200), self._next)

    def _undo(self, low_ms: int, high_ms: int, action: Callable[[], None]) -> None:
        self._world.after(self._world.between_ms(low_ms, high_ms), lambda: None if self._is_over else action())

    def _somebody(self) -> Broker:
        brokers = self._cluster.brokers
        return brokers[self._world.random.choice(sorted(brokers))]

    def _controller(self) -> Broker:
        elected = self._cluster.store.elected
        return self._somebody() if elected is None else self._cluster.brokers[elected.node_id]

    # -- processes and machines

    def _kill(self) -> None:
        self._kill_one(self._somebody())

    def _kill_controller(self) -> None:
        self._kill_one(self._controller())

    def _kill_all(self) -> None:
        for broker in self._cluster.brokers.values():
            self._kill_one(broker)

    def _kill_one(self, broker: Broker) -> None:
        if broker.is_running:
            broker.kill()
            self._undo(1, self._world.random.choice((50, 3_500)), lambda: self._start(broker))

    def _crash_machine(self) -> None:
        broker = self._somebody()
        if broker.is_running and self._cluster.checker.may_lose(broker.broker_id):
            broker.crash_machine()
            self._undo(1, self._world.random.choice((200, 4_000)), lambda: self._start(broker))

    def _crash_any_machine(self) -> None:
        """Even where nobody else vouches for the records: they may be lost."""
        broker = self._somebody()
        if broker.is_running:
            broker.crash_machine()
            self._undo(1, 4_000, lambda: self._start(broker))

    def _shut_down(self) -> None:
        broker = self._somebody()
        if broker.is_running and not broker.is_paused:
            broker.stop()
            self._undo(4_000, 6_000, lambda: self._start(broker))

    def _start(self, broker: Broker) -> None:
        if not broker.is_running:
            broker.start()

    def _pause(self) -> None:
        self._pause_one(self._somebody())

    def _pause_controller(self) -> None:
        self._pause_one(self._controller())

    def _pause_one(self, broker: Broker) -> None:
        if broker.is_running and not broker.is_paused:
            self._world.note("{}: is stopped for a while", broker.name)
            broker.pause()
            self._undo(50, 4_500, lambda: self._resume(broker))

    def _resume(self, broker: Broker) -> None:
        if broker.is_paused:
            self._world.note("{}: goes on", broker.name)
            broker.resume()

    # -- the network

    def _heal_network(self) -> None:
        self._world.note("the network is whole again")
        self._cluster.network.heal()

    def _isolate(self) -> None:
        """From other brokers, perhaps from the store, perhaps from clients."""
        lonely, cluster = self._somebody(), self._cluster
        others = [one for one in cluster.brokers.values() if one is not lonely]
        with_store, with_clients = self._world.chance(0.5), self._world.chance(0.5)
        self._world.note("{}: cut off (store: {}, clients: {})", lonely.name, with_store, with_clients)
        for other in (*others, *([cluster.store] if with_store else ()), *(cluster.clients if with_clients else ())):
            cluster.network.cut(lonely, other)
        self._undo(200, 4_000, self._heal_network)

    def _cut(self) -> None:
        one, other = self._world.random.sample(sorted(self._cluster.brokers), 2)
        self._world.note("brokers {} and {} do not reach each other", one, other)
        self._cluster.network.cut(self._cluster.brokers[one], self._cluster.brokers[other])
        self._undo(200, 4_000, self._heal_network)

    def _slow(self) -> None:
        broker = self._somebody()
        self._world.note("{}: is slow", broker.name)
        self._cluster.network.slow_us[broker] = self._world.between_ms(50, 1_800)
        self._undo(500, 4_000, self._heal_network)

    def _lose(self) -> None:
        self._world.note("messages get lost")
        self._cluster.network.loss = 0.08
        self._undo(300, 2_500, self._heal_network)

    # -- the store

    def _store_outage(self) -> None:
        store = self._cluster.store
        if not store.is_paused:
            self._world.note("store: does not answer")
            store.pause()
            self._undo(100, 3_000, lambda: store.resume() if store.is_paused else None)

    def _store_cut(self) -> None:
        broker = self._controller()
        self._world.note("{}: does not reach the store", broker.name)
        self._cluster.network.cut(broker, self._cluster.store)
        self._undo(200, 4_000, self._heal_network)

    def _store_refuses(self) -> None:
        self._cluster.store.refusals = 0.4
        self._undo(300, 2_000, lambda: setattr(self._cluster.store, "refusals", 0.0))

    # -- what people do

    def _reassign(self) -> None:
        cluster, random = self._cluster, self._world.random
        topic = random.choice(list(self._moves))
        partitions = cluster.store.image.topics[topic].partitions
        index = random.randrange(len(partitions))
        replicas: list[int] | None = random.sample(sorted(cluster.brokers), len(partitions[index].replicas))
        if random.random() < 0.2:
            replicas = None
        self._world.note("{}-{} is to move to {}", topic, index, replicas)
        cluster.admin.run(lambda machine, image: machine.reassign(image, {TopicPartition(topic, index): replicas}))

    def _set_minimum(self) -> None:
        topic = self._world.random.choice(list(self._moves))
        change = ConfigChange("min.insync.replicas", ConfigOp.SET, str(self._world.random.choice((2, 3))))
        self._world.note("{}: min.insync.replicas={}", topic, change.value)
        config = self._somebody().config
        self._cluster.admin.run(
            lambda _, image: (plan_incremental_alter_configs(image, "topic", topic, [change], config), None)
        )

    def _elect(self) -> None:
        self._world.note("preferred leaders are asked for")
        self._cluster.admin.run(lambda machine, image: machine.elect_leaders(image, ElectionType.PREFERRED, None))
