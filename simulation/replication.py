"""Stands for `broker.replication`, `broker.follower_sessions` and `broker.replica_fetcher`: who fetches what where, and
what the controller is asked about the ISR. What is decided is decided by `Partition`, `LeaderState` and
`cluster.follower`, which are the real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.replicas.partition import Partition
from moldau.cluster import isr_changes
from moldau.cluster.follower import last_common_epoch, truncation_offset
from moldau.cluster.replica import UNKNOWN_EPOCH, Follower, IsrChange
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.records import PartitionRecord
from simulation.log import Entry, Log, TopicPartition
from simulation.network import Answer, Failure
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

FETCH_WAIT_US = 400 * MS
FETCH_TIMEOUT_US = 900 * MS
BACKOFF_US = 40 * MS
WATERMARK_DELAY_US = 10 * MS
ENTRIES_PER_FETCH = 20


class Asked(NamedTuple):
    where: TopicPartition
    leader_epoch: int
    offset: int
    last_epoch: int


class FetchRequest(NamedTuple):
    replica_id: int
    broker_epoch: int
    partitions: tuple[Asked, ...]


class Fetched(NamedTuple):
    where: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    entries: tuple[Entry, ...] = ()
    high_watermark: int = 0
    diverging: tuple[int, int] | None = None


def log_of(partition: Partition) -> Log:
    log: Any = partition.log
    return log  # type: ignore[no-any-return]


class Session:
    """The leader's end: one follower's fetches, and the one that waits."""

    def __init__(self, broker: Broker, replica_id: int) -> None:
        self._broker = broker
        self._replica_id = replica_id
        self._subscriptions: dict[TopicPartition, Subscription] = {}
        self._waiting: tuple[FetchRequest, Answer] | None = None
        self.last_fetch_ms = 0
        self._answers_soon = False

    def fetch(self, request: FetchRequest, answer: Answer) -> None:
        self.end_wait()
        self.last_fetch_ms = self._broker.monotonic_ms()
        results = [self._named(request, asked) for asked in request.partitions]
        named = {asked.where for asked in request.partitions}
        for where in [one for one in self._subscriptions if one not in named]:
            self._subscriptions.pop(where).leave()
        if any(result.entries or result.error or result.diverging for result in results):
            answer(results)
            return
        self._waiting = (request, answer)
        self._broker.after(FETCH_WAIT_US, self._end_wait_of, request)

    def _named(self, request: FetchRequest, asked: Asked) -> Fetched:
        try:
            partition, follower = self._check(request, asked)
            diverging = last_common_epoch(log_of(partition), asked.offset, asked.last_epoch)
        except KafkaError as error:
            return Fetched(asked.where, error.code)
        if diverging is not None:
            return Fetched(asked.where, diverging=diverging)
        known = self._subscriptions.get(asked.where)
        if known is None or known.partition is not partition or known.follower is not follower:
            if known is not None:
                known.leave()
            self._subscriptions[asked.where] = Subscription(self, partition, follower)
        partition.fetched(
            follower,
            asked.offset,
            log_start_offset=0,
            broker_epoch=request.broker_epoch,
            now_ms=self._broker.monotonic_ms(),
        )
        return _read(partition, asked)

    def _check(self, request: FetchRequest, asked: Asked) -> tuple[Partition, Follower]:
        partition = self._broker.find(asked.where)
        partition.check_leader_epoch(asked.leader_epoch)
        partition.check_leads()
        leadership = partition.leadership
        follower = leadership.followers.get(self._replica_id) if leadership is not None else None
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {self._replica_id} is no replica")
        registered = self._broker.image.brokers.get(self._replica_id)
        if registered is not None and UNKNOWN_EPOCH < request.broker_epoch < registered.broker_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker has registered anew since")
        return partition, follower

    def answer_in(self, delay_us: int) -> None:
        if self._waiting is not None and (not self._answers_soon or not delay_us):
            self._answers_soon = True
            self._broker.after(delay_us, self._end_wait_of, self._waiting[0])

    def _end_wait_of(self, request: FetchRequest) -> None:
        if self._waiting is not None and self._waiting[0] is request:
            self.end_wait()

    def end_wait(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._answers_soon = False
        if waiting is None:
            return
        request, answer = waiting
        results = []
        for asked in request.partitions:
            try:
                partition, _ = self._check(request, asked)
                results.append(_read(partition, asked))
            except KafkaError as error:
                results.append(Fetched(asked.where, error.code))
        answer(results)


class Subscription:
    """What a partition tells a follower's session."""

    def __init__(self, session: Session, partition: Partition, follower: Follower) -> None:
        self._session = session
        self.partition = partition
        self.follower = follower
        self.broker_id = follower.broker_id
        partition.subscribers.append(self)

    @property
    def last_fetch_ms(self) -> int:
        return self._session.last_fetch_ms

    def leave(self) -> None:
        self.partition.subscribers.remove(self)

    def appended(self, base_offset: int, byte_count: int) -> None:
        if self.follower.log_end_offset == base_offset:
            self.follower.was_caught_up_at(self._session.last_fetch_ms)
        self._session.answer_in(0)

    def high_watermark_moved(self) -> None:
        self._session.answer_in(WATERMARK_DELAY_US)

    def leader_changed(self) -> None:
        self._session.answer_in(0)


def _read(partition: Partition, asked: Asked) -> Fetched:
    log = log_of(partition)
    entries = tuple(log.read(asked.offset, log.log_end_offset, ENTRIES_PER_FETCH))
    return Fetched(asked.where, ErrorCode.NONE, entries, log.high_watermark)


class Fetcher:
    """The follower's end: one for each broker that leads something this one follows."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self._followed: dict[TopicPartition, Partition] = {}
        self._left_out: dict[TopicPartition, int] = {}
        self._named: dict[TopicPartition, Partition] = {}
        self._is_asking = False

    def follow(self, partition: Partition) -> None:
        where = log_of(partition).where
        self._followed[where] = partition
        self._left_out.pop(where, None)
        self._fetch()

    def leave(self, where: TopicPartition) -> None:
        self._followed.pop(where, None)
        self._named.pop(where, None)

    def _fetch(self) -> None:
        if self._is_asking:
            return
        broker = self._broker
        now_us = broker.world.now_us
        asked = []
        self._named = {}
        for where, partition in self._followed.items():
            if self._left_out.get(where, 0) <= now_us:
                log = log_of(partition)
                self._named[where] = partition
                asked.append(Asked(where, partition.leader_epoch, log.log_end_offset, log.epochs.latest))
        if not asked:
            return
        self._is_asking = True
        request = FetchRequest(broker.broker_id, broker.broker_epoch, tuple(asked))
        broker.ask(self._leader_id, "fetch", request, self._answered, timeout_us=FETCH_TIMEOUT_US)

    def _answered(self, results: list[Fetched] | Failure) -> None:
        self._is_asking = False
        if isinstance(results, Failure):
            self._broker.after(BACKOFF_US, self._fetch)
            return
        for result in results:
            partition = self._named.get(result.where)
            if partition is not None and self._followed.get(result.where) is partition:
                self._take(partition, result)
        self._fetch()

    def _take(self, partition: Partition, result: Fetched) -> None:
        log = log_of(partition)
        try:
            if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                # The leader begins at 0 here, so its end is before ours, or its epochs are all newer.
                raise KafkaError(result.error, "the leader does not have this offset")
            if result.error:
                raise KafkaError(result.error, "the leader refused it")
            if result.diverging is not None:
                self._cut(partition, log, *result.diverging)
                return
            partition.append_as_follower(result.entries, result.high_watermark, 0, self._broker.wall_clock())  # type: ignore[arg-type]
        except KafkaError as error:
            self._broker.world.note("{}: cannot follow {}: {}", self._broker.name, log.name, error.code.name)
            self._left_out[log.where] = self._broker.world.now_us + BACKOFF_US
            self._broker.after(BACKOFF_US, self._fetch)

    def _cut(self, partition: Partition, log: Log, leader_epoch: int, leader_end_offset: int) -> None:
        own_epoch, own_end_offset = log.offset_for_leader_epoch(leader_epoch)
        offset = truncation_offset(
            leader_epoch,
            leader_end_offset,
            own_epoch=own_epoch,
            own_end_offset=own_end_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
        )
        self._broker.world.note("{}: {} is cut to {} of {}", self._broker.name, log.name, offset, log.log_end_offset)
        partition.truncate_to(offset, "")


class IsrReports:
    """What the controller is asked about the ISR: one request at a time, with all that came meanwhile."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queue: list[tuple[Partition, IsrChange]] = []
        self._is_asking = False

    def propose(self, partition: Partition, change: IsrChange) -> None:
        self._queue.append((partition, change))
        self._send()

    def _send(self) -> None:
        if self._is_asking:
            return
        asked = [
            (partition, change)
            for partition, change in self._queue
            if partition.leadership is not None and partition.leadership.pending is change
        ]
        self._queue = []
        if asked:
            self._is_asking = True
            broker = self._broker
            changes = [self._packed(partition, change) for partition, change in asked]
            broker.ask_controller(
                "alter_partition",
                (broker.broker_id, broker.broker_epoch, changes),
                lambda outcomes: self._answered(asked, outcomes),
            )

    def _packed(self, partition: Partition, change: IsrChange) -> isr_changes.IsrChangeRequest:
        broker = self._broker
        isr = tuple((one, broker.broker_epoch if one == broker.broker_id else epoch) for one, epoch in change.isr)
        topic = broker.image.topics[partition.topic]
        return isr_changes.IsrChangeRequest(
            topic.topic_id, partition.index, change.leader_epoch, change.partition_epoch, isr
        )

    def _answered(self, asked: list[tuple[Partition, IsrChange]], outcomes: Any) -> None:
        self._is_asking = False
        if not isinstance(outcomes, list):
            code = outcomes.code if isinstance(outcomes, KafkaError) else ErrorCode.NETWORK_EXCEPTION
            outcomes = [code] * len(asked)
        again = []
        for (partition, change), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, PartitionRecord):
                partition.isr_accepted(change, outcome.isr, outcome.leader_epoch, outcome.partition_epoch)
            elif partition.isr_refused(change, outcome):
                again.append((partition, change))
        if again:
            self._broker.after(BACKOFF_US, self._again, again)
        self._send()

    def _again(self, changes: list[tuple[Partition, IsrChange]]) -> None:
        self._queue += changes
        self._send()
