"""A broker's process: its lives, its place in the cluster, its image and what that makes of its partitions.

Stands for `broker.node`, `broker.hosted` and `broker.membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from moldau.broker.replicas.partition import Partition
from moldau.cluster.brokers import Heartbeat, HeartbeatReply, Registration
from moldau.cluster.replica import UNKNOWN_EPOCH, IsrChange
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import AppendInfo
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.image import MetadataImage, PartitionImage, TopicImage
from simulation.controller import ControllerShell, Feed, News, apply_news
from simulation.log import Batch, Log, TopicPartition
from simulation.network import Answer, Failure, Host
from simulation.replication import Fetcher, FetchRequest, IsrReports, Session, log_of
from simulation.services import Services
from simulation.store import PING_US, SESSION_US, Elected, StoreClient
from simulation.world import MS, Process

if TYPE_CHECKING:
    from simulation.cluster import Cluster

RETRY_US = 50 * MS
FENCED_BEAT_US = 100 * MS
ASK_TIMEOUT_US = 1_000 * MS
FEED_TIMEOUT_US = 3_000 * MS
WALL_CLOCK_SET_MS = 7_000
SHUTDOWN_US = 4_000 * MS


class Broker(Host):
    def __init__(self, cluster: Cluster, broker_id: int, config: BrokerConfig) -> None:
        super().__init__(cluster.world, f"broker {broker_id}")
        self.cluster = cluster
        self.checker = cluster.checker
        self.broker_id = broker_id
        self.config = config
        self.is_running = False
        # On disk:
        self.logs: dict[TopicPartition, Log] = {}
        self._previous_epoch = -1

    # -- lives

    def start(self) -> None:
        self.world.note("{}: starts", self.name)
        self.is_running = self.is_machine_up = True
        self.image = self._newest = MetadataImage()
        self.broker_epoch = -1
        self.partitions: dict[TopicPartition, Partition] = {}
        self.store = StoreClient(self, self.cluster.store, self.cluster.network)
        self.controller = ControllerShell(self)
        self.services = Services(self)
        self.is_serving = False
        self._has_image = self._wants_shutdown = self._is_applying = False
        self._sessions: dict[int, Session] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._reports = IsrReports(self)
        self._last_ping_us = self.world.now_us
        self._beats = 0
        self._ping()
        self.after(self.config.replica_lag_time_max_ms * MS // 2, self._check_lag)
        self.after(self.world.between_ms(100, 1_500), self._flush)

    def kill(self) -> None:
        """SIGKILL: what was written is with the kernel."""
        self.world.note("{}: killed", self.name)
        self.die()
        for log in self.logs.values():
            log.survive_process()
        self._closed()

    def crash_machine(self) -> None:
        self.world.note("{}: its machine dies", self.name)
        self.die()
        self.is_machine_up = False
        self._previous_epoch = -1  # the boot id will be another one
        self.checker.machine_died(self.broker_id)
        for log in self.logs.values():
            log.survive_machine(self.world.random)
        self._closed()

    def stop(self) -> None:
        """SIGTERM: hands its leaderships over, then goes."""
        self._wants_shutdown = True
        self.world.note("{}: is to shut down", self.name)
        self._beat_now()
        self.after(SHUTDOWN_US, self._stopped)

    def _stopped(self) -> None:
        self.world.note("{}: stopped", self.name)
        if self.controller.elected is not None and self.controller.machine is not None:
            self.store.resign(self.controller.elected)
        for log in self.logs.values():
            log.flush()
        self.die()
        for log in self.logs.values():
            log.survive_process()
        self._closed()

    def _closed(self) -> None:
        self.cluster.network.process_died(self)
        for other in self.cluster.brokers.values():
            if other is not self and self.is_machine_up and self.cluster.network.connects(self, other):
                self.world.after(self.cluster.network.latency_us(self, other), other.now, other.peer_closed, self)

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    def wall_clock(self) -> int:
        """Each broker's is hours off in its own way, and somebody sets it again and again."""
        now_ms = self.world.now_ms
        hours_off = (now_ms // WALL_CLOCK_SET_MS + self.broker_id) % 3 - 1
        return now_ms + hours_off * 3_600_000

    # -- who leads

    def _ping(self) -> None:
        def told(elected: Elected | Failure | None) -> None:
            if not isinstance(elected, Failure):
                self._last_ping_us = self.world.now_us
                self.controller.leads(elected)
            elif self.world.now_us - self._last_ping_us > SESSION_US:
                self.controller.leads(None)

        self.store.ping(self.broker_id, told, stands=self.controller.stands)
        self.after(PING_US if self.controller.elected is not None else RETRY_US, self._ping)

    def controller_changed(self) -> None:
        elected = self.controller.elected
        if elected is not None and elected.node_id != self.broker_id:
            self._fetch_news(elected)
        self._beat_now()

    def _fetch_news(self, elected: Elected) -> None:
        if self.controller.elected != elected:
            return
        image = self._newest
        feed = Feed(elected.epoch, image.version)
        self.ask(
            elected.node_id, "feed", feed, lambda news: self._told(elected, image, news), timeout_us=FEED_TIMEOUT_US
        )

    def _told(self, elected: Elected, image: MetadataImage, news: News | KafkaError | Failure) -> None:
        if self.controller.elected != elected:
            return
        if isinstance(news, News):
            self.follow(apply_news(image, news))
            # By asking on it says that it made this true.
            self._when_applied(lambda: self._fetch_news(elected))
            return
        if isinstance(news, Failure):
            self._probe(elected.node_id, lambda: self._usurp(elected))
        self.after(RETRY_US, self._fetch_news, elected)

    def _usurp(self, elected: Elected) -> None:
        def told(next_one: Elected | Failure | None) -> None:
            if not isinstance(next_one, Failure):
                self.controller.leads(next_one)

        if self.controller.elected == elected:
            self.store.usurp(elected.epoch, self.broker_id, told)

    def _probe(self, broker_id: int, if_dead: Callable[[], None]) -> None:
        def told(answer: object) -> None:
            if answer is Failure.REFUSED:
                if_dead()

        self.ask(broker_id, "probe", None, told, timeout_us=ASK_TIMEOUT_US)

    def on_probe(self, _: object, answer: Answer) -> None:
        answer(None)

    def peer_closed(self, peer: Process) -> None:
        if isinstance(peer, Broker) and self.controller.machine is not None:
            self._bury(peer.broker_id)

    def bury_the_dead(self) -> None:
        for broker in self.controller.image.brokers.values():
            if not broker.fenced and broker.broker_id != self.broker_id:
                self._bury(broker.broker_id)

    def _bury(self, broker_id: int) -> None:
        known = self.controller.image.brokers.get(broker_id)
        if known is None or known.fenced:
            return
        epoch = known.broker_epoch

        def dead() -> None:
            self.controller.run(
                lambda machine, image: (machine.broker_died(image, broker_id, epoch), None), lambda _: None
            )

        self._probe(broker_id, dead)

    # -- registration and heartbeats

    def _register(self) -> None:
        asked = Registration(
            self.broker_id,
            "c",
            f"{self.broker_id}/{self.life}",
            (("L", "h", 1, "PLAINTEXT"),),
            None,
            self._previous_epoch,
        )

        def answered(epoch: int | KafkaError | Failure) -> None:
            if isinstance(epoch, int):
                self.world.note("{}: registered, epoch {}", self.name, epoch)
                self.broker_epoch = self._previous_epoch = epoch
                self._beat_now()
            else:
                self.after(FENCED_BEAT_US, self._register)

        self.ask_controller("register", asked, answered)

    def on_register(self, asked: Registration, answer: Answer) -> None:
        self.controller.run(lambda machine, image: machine.register(image, asked, self.monotonic_ms()), answer)

    def _beat_now(self) -> None:
        self._beats += 1
        if self.broker_epoch >= 0:
            self._beat(self._beats)

    def _beat(self, beats: int) -> None:
        if beats != self._beats:
            return
        beat = Heartbeat(self.broker_id, self.broker_epoch, self.image.version, False, self._wants_shutdown)

        def answered(reply: HeartbeatReply | KafkaError | Failure) -> None:
            interval_us = FENCED_BEAT_US
            if isinstance(reply, HeartbeatReply):
                if reply.should_shut_down and self._wants_shutdown:
                    self._stopped()
                    return
                if not reply.is_fenced and not self._wants_shutdown:
                    interval_us = self.config.broker_heartbeat_interval_ms * MS
            elif isinstance(reply, KafkaError) and reply.code is ErrorCode.STALE_BROKER_EPOCH:
                self.broker_epoch = -1
                self._register()
                return
            if beats == self._beats:
                self.after(interval_us, self._beat, beats)

        self.ask_controller("heartbeat", beat, answered)

    def on_heartbeat(self, beat: Heartbeat, answer: Answer) -> None:
        self.controller.run(lambda machine, image: machine.heartbeat(image, beat, self.monotonic_ms()), answer)

    # -- asking

    def ask(self, broker_id: int, what: str, request: Any, answer: Answer, *, timeout_us: int = ASK_TIMEOUT_US) -> None:
        self.cluster.network.ask(self, self.cluster.brokers[broker_id], what, request, answer, timeout_us=timeout_us)

    def ask_controller(self, what: str, request: Any, answer: Answer) -> None:
        elected = self.controller.elected
        if elected is None:
            self.soon(answer, KafkaError(ErrorCode.NOT_CONTROLLER, "no controller is known"))
        else:
            self.ask(elected.node_id, what, request, answer)

    def handler_of(self, what: str) -> Callable[[Any, Answer], None]:
        return getattr(self, "on_" + what, None) or self.services.handler_of(what)

    def on_feed(self, asked: Feed, answer: Answer) -> None:
        self.controller.feed(asked, answer)

    def on_alter_partition(self, request: tuple[int, int, Sequence[Any]], answer: Answer) -> None:
        self.controller.run(lambda machine, image: machine.alter_partition(image, *request), answer)

    def on_fetch(self, request: FetchRequest, answer: Answer) -> None:
        session = self._sessions.get(request.replica_id)
        if session is None:
            session = self._sessions[request.replica_id] = Session(self, request.replica_id)
        session.fetch(request, answer)

    # -- the image

    def follow(self, image: MetadataImage) -> None:
        if image.version <= self._newest.version:
            return
        self._newest = image
        if not self._is_applying:
            self._is_applying = True
            self.after(self.world.between_ms(0.1, 3), self._apply)

    def _when_applied(self, action: Callable[[], None]) -> None:
        if self._is_applying:
            self.after(1 * MS, self._when_applied, action)
        else:
            action()

    def _apply(self) -> None:
        self._is_applying = False
        image = self._newest
        self.checker.image_applied(self.broker_id, image)
        self.image = image
        self._match()
        self.services.follow()
        if not self._has_image:
            self._has_image = True
            self._register()
        me = image.brokers.get(self.broker_id)
        if me is not None and not me.fenced and me.broker_epoch == self.broker_epoch:
            self.is_serving = True

    def _match(self) -> None:
        image = self.image
        for where, log in list(self.logs.items()):
            part = _part(image, where)
            if part is None or self.broker_id not in part.replicas:
                partition = self.partitions.pop(where, None)
                if partition is not None:
                    partition.retire()
                    self._leave(where)
                if part is not None:
                    self.world.note("{}: {} moved away", self.name, log.name)
                    del self.logs[where]
                    self.checker.remove_log(log)
        for topic in image.topics.values():
            for part in topic.partitions:
                if self.broker_id in part.replicas:
                    self._match_one(topic, part)

    def _match_one(self, topic: TopicImage, part: PartitionImage) -> None:
        where = (topic.name, part.index)
        log = self.logs.get(where)
        config = _topic_config(tuple(self.image.topic_config(topic.name).items()))
        if log is None:
            log = self.logs[where] = Log(where, config, self.broker_id, self.checker.touched)
            self.checker.add_log(log)
        is_configured, log.config = log.config is config, config
        partition = self.partitions.get(where)
        if partition is None:
            stands_in: Any = log
            partition = Partition(topic.name, topic.topic_id.bytes, part, stands_in, self)  # type: ignore[arg-type]
            self.partitions[where] = partition
        elif partition.partition_epoch == part.partition_epoch:
            if not is_configured:
                partition.follow_image(part)
            return
        partition.follow_image(part)
        self._leave(where)
        if not partition.is_leader and partition.leader_id >= 0:
            self._fetcher(partition.leader_id).follow(partition)

    def _fetcher(self, leader: int) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(self, leader)
        return fetcher

    def _leave(self, where: TopicPartition) -> None:
        for fetcher in self._fetchers.values():
            fetcher.leave(where)

    def find(self, where: TopicPartition) -> Partition:
        partition = self.partitions.get(where)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{where} is not here")
        return partition

    def append(self, partition: Partition, batch: Batch, origin: AppendOrigin, *, required_acks: int = 1) -> AppendInfo:
        records: Any = batch
        info = partition.append(records, self.wall_clock(), origin, required_acks=required_acks)
        log = log_of(partition)
        self.checker.written(log, partition.leader_epoch, self.life)
        self.world.note("{}: {} takes {}", self.name, log.name, log.entries[-1])
        return info

    # -- what a partition asks (`broker.replication.ReplicaManager`)

    loop = None

    @property
    def lag_time_max_ms(self) -> int:
        return self.config.replica_lag_time_max_ms

    @property
    def is_registered(self) -> bool:
        return 0 <= self.broker_epoch <= self.image.version

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active and broker_epoch in (UNKNOWN_EPOCH, broker.broker_epoch)

    def propose(self, partition: Partition, change: IsrChange) -> None:
        self._reports.propose(partition, change)

    def forget(self, partition: Partition) -> None:
        self._leave((partition.topic, partition.index))

    def _check_lag(self) -> None:
        for partition in self.partitions.values():
            partition.shrink_isr(self.monotonic_ms())
        self.after(self.config.replica_lag_time_max_ms * MS // 2, self._check_lag)

    def _flush(self) -> None:
        for log in self.logs.values():
            if self.world.chance(0.5):
                log.flush()
        self.after(self.world.between_ms(1_000, 6_000), self._flush)


@cache
def _topic_config(overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    """The same for all brokers, and slow to make."""
    return TopicConfig.resolve(dict(overrides), BrokerConfig())


def _part(image: MetadataImage, where: TopicPartition) -> PartitionImage | None:
    topic = image.topics.get(where[0])
    return topic.partition(where[1]) if topic is not None else None
