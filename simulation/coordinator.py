"""Stands for `broker.coordinator`: a shard lives where its partition is led, for one leader epoch; load, step, persist,
reply when that is committed, wake. The shards are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.broker.replicas.partition import Partition
from moldau.coordinators.effects import Effects
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin
from simulation.log import Batch, Log, TopicPartition
from simulation.network import Answer
from simulation.replication import log_of
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

RELOAD_US = 300 * MS
RETRY_WAKE_US = 200 * MS
ENOUGH_REPLICAS_POLL_US = 100 * MS

Shard = Any


class NotNowError(KafkaError):
    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)


class Reply:
    """Whoever waits for a step's reply."""

    def __init__(self, answer: Answer) -> None:
        self._answer: Answer | None = answer

    def arrive(self, value: Any) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(value)

    def fail(self, error: KafkaError) -> None:
        self.arrive(error)


class Committed:
    """Calls back when an offset is committed, or will not be under this leader."""

    def __init__(self, done: Callable[[KafkaError | None], None]) -> None:
        self._done = done

    def committed(self) -> None:
        self._done(None)

    def failed(self, error: KafkaError) -> None:
        self._done(error)


def when_committed(partition: Partition, offset: int, done: Callable[[KafkaError | None], None]) -> None:
    if partition.wait_for_commit(offset, Committed(done)):
        done(None)


class Coordinator:
    def __init__(self, broker: Broker, topic: str, make_shard: Callable[[], Shard]) -> None:
        self.where: TopicPartition = (topic, 0)
        self._broker = broker
        self._make_shard = make_shard
        self.shard: Shard | None = None
        self.epoch = -1
        """The leader epoch in which the shard is here, or is being loaded."""
        self._waiting: list[Reply] = []

    # -- steps

    def ask(self, step: Callable[[Shard, Reply, int], Effects], answer: Answer) -> None:
        """`answer` gets what the step replies or a KafkaError. NothingChanged is the asker's."""
        reply = Reply(answer)
        self._waiting.append(reply)
        try:
            self.run(lambda shard, now_ms: step(shard, reply, now_ms))
        except KafkaError as error:
            reply.fail(error)

    def settled(self, answer: Callable[[KafkaError | None], None]) -> None:
        """When all that the shard knows now is safe."""
        try:
            self.here()
            partition = self._broker.find(self.where)
        except KafkaError as error:
            answer(error)
            return
        when_committed(partition, log_of(partition).log_end_offset, answer)

    def here(self) -> Shard:
        if self.shard is None:
            loads = self.epoch >= 0
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NOT_COORDINATOR)
        return self.shard

    def run(self, step: Callable[[Shard, int], Effects]) -> None:
        shard = self.here()
        partition = self._leader()
        effects = step(shard, self._broker.monotonic_ms())
        try:
            self._perform(shard, partition, effects)
        except KafkaError as error:
            self._forget(shard, error)
            raise

    def _leader(self) -> Partition:
        try:
            partition = self._broker.find(self.where)
        except KafkaError as error:
            raise NotNowError(error.message) from error
        if _has_too_few_replicas(partition):
            raise NotNowError("too few replicas are in sync")
        return partition

    def _perform(self, shard: Shard, partition: Partition, effects: Effects) -> None:
        if effects.records:
            producer_id, epoch = effects.producer or (-1, -1)
            batch = Batch(("state", tuple(effects.records)), producer_id, epoch, -1, effects.producer is not None)
            self._broker.append(partition, batch, AppendOrigin.COORDINATOR)
        if effects.replies:
            when_committed(
                partition,
                log_of(partition).log_end_offset,
                lambda error: self._reply(shard, effects.replies, error),
            )
        now_ms = self._broker.monotonic_ms()
        for at_ms, key in effects.wakes:
            self._broker.after(max(0, at_ms - now_ms) * MS, self._wake, shard, key)

    def _reply(self, shard: Shard, replies: list[tuple[Any, Any]], error: KafkaError | None) -> None:
        if error is not None:
            self._forget(shard, error)
        for reply, value in replies:
            if error is None:
                reply.arrive(value)
            else:
                reply.fail(_as_told(error))

    def _wake(self, shard: Shard, key: Any) -> None:
        if shard is not self.shard:
            return
        try:
            self.run(lambda shard, now_ms: shard.wake(key, now_ms))
        except NotNowError:
            self._broker.after(RETRY_WAKE_US, self._wake, shard, key)
        except KafkaError as error:
            self._broker.world.note("{}: a wake failed: {}", self._broker.name, error.code.name)

    def marker_written(self, producer_id: int, committed: bool) -> None:
        if self.shard is not None:
            self.shard.replay_marker(producer_id, committed)

    # -- loading

    def follow(self) -> None:
        topic = self._broker.image.topics.get(self.where[0])
        part = topic.partition(0) if topic is not None else None
        led = part.leader_epoch if part is not None and part.leader == self._broker.broker_id else -1
        if self.epoch != led:
            self._drop(KafkaError(ErrorCode.NOT_COORDINATOR, "the coordinator moved"))
            self.epoch = led
            if led >= 0:
                self._load(led)

    def _load(self, epoch: int) -> None:
        if self.epoch != epoch or self.shard is not None:
            return
        try:
            partition = self._broker.find(self.where)
            partition.check_leads()
        except KafkaError:
            self._broker.after(RELOAD_US, self._load, epoch)
            return
        log = log_of(partition)
        if log.high_watermark < log.log_end_offset:
            when_committed(partition, log.log_end_offset, lambda _: self._broker.soon(self._load, epoch))
        elif _has_too_few_replicas(partition):
            self._broker.after(ENOUGH_REPLICAS_POLL_US, self._load, epoch)
        else:
            self._begin(self._replayed(log))

    def _replayed(self, log: Log) -> Shard:
        shard = self._make_shard()
        for entry in log.entries:
            header = entry.header
            if entry.batch.marker is not None:
                shard.replay_marker(header.producer_id, not entry.batch.marker.is_abort)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for key, value in entry.payload[1]:
                shard.replay(
                    key, value, offset=header.base_offset, timestamp_ms=header.max_timestamp, producer_id=producer_id
                )
        return shard

    def _begin(self, shard: Shard) -> None:
        self._broker.world.note("{}: {} is loaded, epoch {}", self._broker.name, self.where[0], self.epoch)
        self.shard = shard
        try:
            self.run(lambda shard, now_ms: shard.loaded(now_ms))
        except KafkaError as error:
            self._forget(shard, error)

    def _forget(self, shard: Shard, why: KafkaError) -> None:
        if self.shard is not shard:
            return
        self._broker.world.note("{}: {} is loaded again: {}", self._broker.name, self.where[0], why.code.name)
        epoch = self.epoch
        self._drop(_as_told(why))
        self.epoch = epoch
        self._broker.after(RELOAD_US, self._load, epoch)

    def _drop(self, error: KafkaError) -> None:
        self.shard = None
        self.epoch = -1
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply.fail(error)


def _has_too_few_replicas(partition: Partition) -> bool:
    return partition.leadership is not None and len(partition.leadership.isr) < partition.min_isr


def _as_told(error: KafkaError) -> KafkaError:
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return KafkaError(ErrorCode.NOT_COORDINATOR, error.message)
    return error
