"""The cluster and its clients: putting it up, healing it, and telling whether it has come to rest."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import Record
from moldau.metadata.topics import plan_create_topic
from simulation.broker import Broker
from simulation.checker import Checker
from simulation.clients import BACKOFF_US, Client
from simulation.controller import Step
from simulation.log import TopicPartition
from simulation.network import Network
from simulation.store import Store
from simulation.transactors import History
from simulation.world import MS, World

SETTLE_STEP_US = 100 * MS
RESTART_US = 300 * MS


class Admin(Client):
    """Asks everybody in turn, until the controller does it."""

    def run(self, step: Step, done: Callable[[Any], None] = lambda _: None) -> None:
        def told(answer: Any) -> None:
            if isinstance(answer, tuple) and answer[0] == "done":
                done(answer[1])
            else:
                self.after(BACKOFF_US, self.run, step, done)

        def marked(machine: Any, image: MetadataImage) -> tuple[Sequence[Record], Any]:
            records, reply = step(machine, image)
            return records, ("done", reply)

        self.ask_any("admin", marked, told)


class Cluster:
    def __init__(self, world: World, broker_count: int, *, unclean: bool = False, **config: Any) -> None:
        self.world = world
        self.checker = Checker(world, unclean=unclean)
        world.after_step = self.checker.after_step
        self.network = Network(world)
        self.store = Store(world, self.checker)
        self.history = History(self.checker)
        values = {
            "broker_session_timeout_ms": 2_000,
            "broker_heartbeat_interval_ms": 400,
            "replica_lag_time_max_ms": 1_500,
            "leader_imbalance_check_interval_seconds": 2,
            "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
            **config,
        }
        self.brokers = {
            broker_id: Broker(self, broker_id, BrokerConfig(node_id=broker_id, **values))
            for broker_id in range(1, broker_count + 1)
        }
        self.admin = Admin(self, "admin")
        self.clients: list[Client] = []

    # -- beginning

    def boot(self, topics: dict[str, tuple[int, int, dict[str, str]]]) -> None:
        """Every broker joins; then the topics are made: (partitions, replicas, configuration) by name."""
        for broker in self.brokers.values():
            broker.start()
        self._wait("the brokers to join", self._all_unfenced, 30_000)
        created: list[str] = []
        for number, (name, (partitions, replicas, configs)) in enumerate(topics.items(), 1):
            self.admin.run(self._creation(number, name, partitions, replicas, configs), lambda _: created.append(""))
        self._wait("the topics", lambda: len(created) == len(topics) and self.is_at_rest(), 30_000)

    def _creation(self, number: int, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> Step:
        def step(_: Any, image: MetadataImage) -> tuple[Sequence[Record], None]:
            if name in image.topics:
                return (), None
            return plan_create_topic(
                image,
                name,
                topic_id=uuid.UUID(int=number),
                broker_config=self.brokers[1].config,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=dict(configs),
            ), None

        return step

    def start(self, clients: Sequence[Client]) -> None:
        self.clients += clients
        for client in clients:
            client.start()

    # -- ending

    def heal(self) -> None:
        self.world.note("everything is healed")
        self.network.heal()
        self.store.refusals = 0.0
        if self.store.is_paused:
            self.store.resume()
        for broker in self.brokers.values():
            if broker.is_paused:
                broker.resume()
        self._restart_the_dead()

    def _restart_the_dead(self) -> None:
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.start()
        self.world.after(RESTART_US, self._restart_the_dead)

    def settle(self, limit_ms: int) -> None:
        self._wait("the cluster to come to rest", self._is_settled, limit_ms)
        self.history.check_at_end()

    def _wait(self, what: str, is_done: Callable[[], bool], limit_ms: int) -> None:
        until_us = self.world.now_us + limit_ms * MS
        while self.world.now_us < until_us:
            self.world.run(self.world.now_us + SETTLE_STEP_US)
            if is_done():
                return
        self.checker.fail(f"waited {limit_ms} ms for {what}: {self._unrest()}")

    def _is_settled(self) -> bool:
        return not self._unrest()

    def is_at_rest(self) -> bool:
        return self._all_unfenced() and not any(self._unrest_of(where, part) for where, part in self._partitions())

    def _unrest(self) -> str:
        """What is not as it should be; nothing, if all is well."""
        if not self._all_unfenced():
            return f"not all of brokers {list(self.brokers)} are there: {list(self.store.image.brokers.values())}"
        waiting = [client.name for client in self.clients if not client.is_done]
        if waiting:
            return f"clients {waiting} are not done"
        for where, part in self._partitions():
            problem = self._unrest_of(where, part)
            if problem:
                return f"{where}: {problem}: {part}"
        return ""

    def _all_unfenced(self) -> bool:
        image = self.store.image
        return all(
            broker.is_running
            and not broker.is_paused
            and broker.image.version == image.version
            and broker_id in image.brokers
            and image.brokers[broker_id].is_active
            for broker_id, broker in self.brokers.items()
        )

    def _partitions(self) -> list[tuple[TopicPartition, PartitionImage]]:
        topics = self.store.image.topics.values()
        return [((topic.name, part.index), part) for topic in topics for part in topic.partitions]

    def _unrest_of(self, where: TopicPartition, part: PartitionImage) -> str:
        if set(part.isr) != set(part.replicas) or part.adding or part.removing:
            return "not all replicas are in sync"
        if part.leader != part.replicas[0]:
            return "another replica than the first leads"
        leader = self.brokers[part.leader].logs[where]
        if leader.last_stable_offset != leader.log_end_offset:
            return f"the last stable offset is {leader.last_stable_offset} of {leader.log_end_offset}"
        if where not in self.checker.excused and len(self.checker.ledger[where]) != leader.log_end_offset:
            return "more is committed than its leader has"
        for broker_id in part.replicas:
            log = self.brokers[broker_id].logs.get(where)
            if log is None or log.high_watermark != leader.log_end_offset or log.entries != leader.entries:
                return f"the log of broker {broker_id} is not the leader's"
        return ""
