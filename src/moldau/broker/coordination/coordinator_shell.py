"""The shell around a coordinator's step machines: load, step, persist, reply, wake.

A coordinator keeps its state in a topic of its own; each partition of the topic is one shard. An event takes this path:

    handler → ask → the shard's step → Effects → records appended → committed (and flushed) → replies

All of it runs on the event loop, so no two steps of a shard overlap and its records are in the order of its steps. A
reply leaves when its records are committed, so every replica that could lead the partition next has them. While there
are fewer in-sync replicas than `min.insync.replicas` no step runs: its records would be rejected after memory changed.

A shard is on the broker that leads its partition, for one leader epoch. A new leader loads the whole log, including
what is not committed yet: the previous leader may have acknowledged it, and it will be committed.

A step that raises a KafkaError (or NothingChanged) has changed nothing. After any other exception, or when records
cannot be written, memory may differ from the log. Then the shard is dropped, its waiting clients are told to retry, and
it is loaded again. Other shards are not affected.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.state_topic import StateTopic
from moldau.broker.replicas.partition import Partition
from moldau.broker.turns import Work
from moldau.coordinators.effects import Effects, NothingChanged
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin, read_marker
from moldau.wire.batch import BatchHeader, check_batch, encode_batch, iter_headers, iter_records
from moldau.wire.compression import Codec
from moldau.wire.state_records import StateRecords, encode_key, encode_value

logger = logging.getLogger(__name__)

LOAD_BYTES_MAX = 64 * 1024
"""Read at a time while loading, from a disk that may be slow; Kafka's 5 MB would hold up the loop."""
WAKES_MAX_MS = 5
"""How long wakes may take in one go: groups that were made together tend to be due together."""
RETRY_WAKE_MS = 500
"""After a timer's step that came when too few replicas were in sync."""
ENOUGH_REPLICAS_POLL_S = 0.1
RELOAD_DELAY_S = 1.0
RELOAD_DELAY_MAX_S = 10.0
"""Between two tries to load a shard whose disk refuses, doubling: clients ask again in the meantime."""


class Shard(Protocol):
    """The state that one partition of a state topic holds."""

    def replay(self, key: Any, value: Any | None, *, offset: int, timestamp_ms: int, producer_id: int = -1) -> None: ...
    def replay_marker(self, producer_id: int, committed: bool) -> None: ...
    def loaded(self, now_ms: int) -> Effects: ...
    def wake(self, key: Any, now_ms: int) -> Effects: ...


S = TypeVar("S", bound=Shard)


class StepNotStartedError(KafkaError):
    """The step did not run, so it can be tried again as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)


class Reply:
    """Receives a reply: at once while `ask` is running, later through a future."""

    __slots__ = ("future", "is_here", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.is_here = False
        self.future: asyncio.Future[Any] | None = None

    def arrive(self, value: Any) -> None:
        self.value = value
        self.is_here = True
        if self.future is not None and not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class CoordinatorShell(Generic[S]):
    def __init__(
        self,
        context: CoordinatorContext,
        state_topic: StateTopic,
        records: StateRecords,
        make_shard: Callable[[int], S],
        *,
        codec: Callable[[], Codec] = lambda: Codec.NONE,
        load_bytes: Callable[[], int] = lambda: LOAD_BYTES_MAX,
    ) -> None:
        self.topic = state_topic.name
        self._context = context
        self._records = records
        self._make_shard = make_shard
        self._state_topic = state_topic
        self.partition_for = state_topic.partition_for
        self.leader_for = state_topic.leader_for
        self._codec = codec
        self._load_bytes = load_bytes
        self._shards: dict[int, S] = {}
        self._epochs: dict[int, int] = {}
        """The leader epochs of the partitions whose shards are here, or are being loaded."""
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._is_stopped = False
        self._waiting: dict[int, dict[Reply, None]] = {}
        self._wakes: list[tuple[int, int, int, Any]] = []
        """(when, a tie breaker, partition, key): a heap."""
        self._wake_count = 0
        self._timer: tuple[int, asyncio.TimerHandle] | None = None

    # -- finding

    async def ready(self) -> None:
        """Creates the state topic on first use."""
        if self._shards or self._loading:
            return  # if only the image has the topic, it may still be in creation on other brokers
        await self._state_topic.create()

    @property
    def exists(self) -> bool:
        """Whether the state topic has been created, which happens on its first use."""
        return self._state_topic.exists

    def leads(self, key: str) -> bool:
        """Whether this broker has the shard of `key`, or is loading it."""
        return self.partition_for(key) in self._epochs

    def epoch_for(self, key: str) -> int:
        """The leader epoch of the partition of `key`; -1 if this broker does not lead it."""
        return self._epochs.get(self.partition_for(key), -1)

    def shard(self, key: str) -> S:
        return self._shard(self.partition_for(key))

    def shards(self) -> Iterable[tuple[int, S]]:
        return tuple(self._shards.items())

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def _shard(self, partition: int) -> S:
        shard = self._shards.get(partition)
        if shard is None:
            if partition not in self._loading:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic}-{partition}")
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is being loaded")
        return shard

    # -- steps

    def ask(self, key: str, step: Callable[[S, Reply, int], Effects]) -> Any | Awaitable[Any]:
        """Runs a step that replies sometime; gives the reply if it is there, else an awaitable of it."""
        partition = self.partition_for(key)
        reply = Reply()
        self.run(partition, lambda shard, now_ms: step(shard, reply, now_ms))
        if reply.is_here:
            return reply.value
        if partition not in self._shards:  # a reply of this step led to another one, which failed
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic}-{partition} is loaded again")
        reply.future = self._context.loop.create_future()
        waiting = self._waiting.setdefault(partition, {})
        waiting[reply] = None
        reply.future.add_done_callback(lambda _: waiting.pop(reply, None))
        return reply.future

    def settled(self, key: str) -> asyncio.Future[Any] | None:
        """Done when all that the shard of `key` knows now is safe; None if it is. For answers without a step."""
        partition = self.partition_for(key)
        self._shard(partition)
        safe = self._when_safe(self._hosted(partition))
        if safe is None:
            return None
        settled = self._context.loop.create_future()
        reply = Reply()
        reply.future = settled
        safe.add_done_callback(partial(self._reply_all, partition, self._shards[partition], [(reply, None)]))
        return settled

    def run(self, partition: int, step: Callable[[S, int], Effects]) -> None:
        """Runs a step. What it raises is a KafkaError, or NothingChanged."""
        shard = self._shard(partition)
        leader = self._leader(partition)
        try:
            effects = step(shard, self._context.monotonic())
        except (KafkaError, NothingChanged):
            raise
        except Exception as error:
            raise self._fail_and_reload(partition, shard, error) from error
        try:
            self._perform(partition, shard, leader, effects)
        except KafkaError as error:
            self._reload(partition, shard, _client_error(error, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            # What is wrong with the records themselves would be wrong again, if the client came back with them.
            raise _client_error(error, ErrorCode.UNKNOWN_SERVER_ERROR) from error
        except Exception as error:
            raise self._fail_and_reload(partition, shard, error) from error

    def _leader(self, partition: int) -> Partition:
        """Where the records of a step can go."""
        leader = self._hosted(partition)
        if _has_too_few_replicas(leader):
            raise StepNotStartedError(f"too few replicas of {self.topic}-{partition} are in sync")
        return leader

    def _hosted(self, partition: int) -> Partition:
        try:
            return self._context.find_partition(self.topic, None, partition)
        except KafkaError as error:
            raise StepNotStartedError(error.message) from error

    def marker_written(self, partition: int, producer_id: int, committed: bool) -> None:
        """A transaction that wrote into this partition has ended. A shard that is being loaded meets the marker."""

        shard = self._shards.get(partition)
        if shard is None:
            return
        try:
            shard.replay_marker(producer_id, committed)
        except Exception as error:
            self._fail_and_reload(partition, shard, error)

    def _fail_and_reload(self, partition: int, shard: S, error: Exception) -> KafkaError:
        """After an internal error it is unknown how far the step came. Returns the error for its client."""
        logger.error(
            "internal error in a coordinator (please report it)",
            exc_info=error,
            extra={"partition": f"{self.topic}-{partition}"},
        )
        self._context.metrics.unexpected_errors += 1
        self._reload(
            partition,
            shard,
            KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is loading its state again"),
        )
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"internal error in the coordinator: {error!r}")

    def _perform(self, partition: int, shard: S, leader: Partition, effects: Effects) -> None:
        if effects.records:
            batch = effects.batch or self.encode(effects.records, effects.producer)
            leader.append(memoryview(bytearray(batch)), self._context.wall_clock(), AppendOrigin.COORDINATOR)
        if effects.replies:
            # A reply without records may depend on those of an earlier step, so it waits for the same commit and flush.
            safe = self._when_safe(leader)
            if safe is None:
                for reply, value in effects.replies:
                    reply.arrive(value)
            else:
                safe.add_done_callback(partial(self._reply_all, partition, shard, effects.replies))
        if effects.wakes:
            for at_ms, key in effects.wakes:
                self._wake_at(at_ms, partition, key)
            self._arm()

    def _when_safe(self, leader: Partition) -> asyncio.Future[Any] | None:
        return self._context.group_commit.safe(leader, leader.log.config.flush_messages)

    def _reply_all(
        self, partition: int, shard: S, replies: Sequence[tuple[Any, Any]], safe: asyncio.Future[Any]
    ) -> None:
        error = asyncio.CancelledError() if safe.cancelled() else safe.exception()
        if error is None:
            try:
                for reply, value in replies:
                    reply.arrive(value)
            except Exception as failure:
                self._fail_and_reload(partition, shard, failure)
            return
        reason = _client_error(error, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._reload(partition, shard, reason)
        for reply, _ in replies:
            reply.fail(reason)

    def encode(self, records: Sequence[tuple[Any, Any | None]], producer: tuple[int, int] | None) -> bytes:
        """The batch that a step's records are appended as. Any thread may call it."""
        now_ms = self._context.wall_clock()
        producer_id, producer_epoch = producer or (-1, -1)
        return encode_batch(
            [(encode_key(key), None if value is None else encode_value(value), now_ms, ()) for key, value in records],
            codec=self._codec(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=producer is not None,
        )

    # -- time

    def _wake_at(self, at_ms: int, partition: int, key: Any) -> None:
        self._wake_count += 1
        heapq.heappush(self._wakes, (at_ms, self._wake_count, partition, key))

    def _arm(self) -> None:
        """One timer of the loop, for the earliest wake."""
        if not self._wakes:
            return
        at_ms = self._wakes[0][0]
        if self._timer is not None:
            if self._timer[0] <= at_ms:
                return
            self._timer[1].cancel()
        delay_s = max(0, at_ms - self._context.monotonic()) / 1000
        self._timer = (at_ms, self._context.loop.call_later(delay_s, self._wake_due))

    def _wake_due(self) -> None:
        self._timer = None
        now_ms = self._context.monotonic()
        while self._wakes and self._wakes[0][0] <= now_ms and self._context.monotonic() - now_ms < WAKES_MAX_MS:
            _, _, partition, key = heapq.heappop(self._wakes)
            try:
                self.run(partition, partial(_wake, key))
            except StepNotStartedError:
                self._wake_at(now_ms + RETRY_WAKE_MS, partition, key)
            except KafkaError as error:
                logger.warning(
                    "a timeout could not be handled", extra={"partition": f"{self.topic}-{partition}", "why": error}
                )
        self._arm()

    # -- loading

    def follow(self) -> None:
        """Loads the shards of partitions that this broker leads now, and drops those it does not lead any more."""
        topic = self._context.metadata.image.topics.get(self.topic)
        led: dict[int, int] = {}
        if topic is not None and not self._is_stopped:
            led = {one.index: one.leader_epoch for one in topic.partitions if one.leader == self._context.local.node_id}
        # If the leader epoch has changed since it was loaded, another broker may have led in between.
        for partition in [one for one, epoch in self._epochs.items() if led.get(one) != epoch]:
            self._unload(
                partition, KafkaError(ErrorCode.NOT_COORDINATOR, "another broker coordinates this partition now")
            )
        for partition in led.keys() - self._epochs.keys():
            self._epochs[partition] = led[partition]
            if self._is_empty(partition):
                self._start_shard(partition, self._make_shard(partition))
            else:
                self._load_soon(partition)

    def stop(self) -> None:
        """Waiting clients get NOT_COORDINATOR; no step and no timeout runs after this."""
        self._is_stopped = True
        self.follow()

    def _is_empty(self, partition: int) -> bool:
        try:
            written = self._leader(partition).log
        except KafkaError:
            return False
        return written.log_end_offset == written.log_start_offset

    def _load_soon(self, partition: int, delay_s: float = 0.0) -> None:
        self._loading[partition] = self._context.spawn(self._load(partition, delay_s))

    async def _load(self, partition: int, delay_s: float) -> None:
        """Until it succeeds; `_unload` cancels it."""
        while True:
            await asyncio.sleep(delay_s)
            await self._context.turns.pause()  # a failover loads many shards: first turns, too, one by one
            shard = self._make_shard(partition)
            delay_s = min(max(2 * delay_s, RELOAD_DELAY_S), RELOAD_DELAY_MAX_S)
            try:
                await self._context.turns.finish(self._replay(partition, shard))
            except KafkaError as error:
                logger.error(
                    "cannot load coordinator state, will retry",
                    extra={"partition": f"{self.topic}-{partition}", "why": error.message},
                )
            except Exception:
                logger.exception(
                    "cannot load coordinator state, will retry", extra={"partition": f"{self.topic}-{partition}"}
                )
            else:
                del self._loading[partition]
                self._start_shard(partition, shard)
                return

    def _start_shard(self, partition: int, shard: S) -> None:
        self._shards[partition] = shard
        try:
            self.run(partition, _loaded)
        except KafkaError as error:
            logger.error(
                "cannot start coordinating a partition, loading it again",
                extra={"partition": f"{self.topic}-{partition}", "why": error.message},
            )
            self._reload(partition, shard, error)  # without its timers it would stand still

    def _replay(self, partition: int, shard: S) -> Work[None]:
        leader = self._context.find_partition(self.topic, None, partition)
        leader.check_leads()
        written = leader.log
        offset = written.log_start_offset
        while True:
            committed = leader.committed(written.log_end_offset)
            if committed is not None:
                yield committed
                continue
            if offset >= written.log_end_offset:
                if not _has_too_few_replicas(leader):  # its first step could write something
                    return
                # There is no event for it. A marker that is written as soon as there are enough is replayed, too.
                yield asyncio.sleep(ENOUGH_REPLICAS_POLL_S)
                continue
            size = min(self._load_bytes(), LOAD_BYTES_MAX)
            data = bytes(written.read(offset, size, upto_offset=written.high_watermark, min_one=True))
            if not data:
                return
            for position, header in iter_headers(data):
                check_batch(data, position, header, strict=False)
                yield from self._replay_batch(shard, data, position, header)
                offset = header.next_offset

    def _replay_batch(self, shard: S, data: bytes, position: int, header: BatchHeader) -> Work[None]:
        if header.is_control:
            marker = read_marker(memoryview(data)[position:], header)
            if marker is not None:
                shard.replay_marker(header.producer_id, not marker.is_abort)
            return
        producer_id = header.producer_id if header.is_transactional else -1
        for record in iter_records(data, position, header):
            pair = self._records.decode(record.key or b"", record.value)
            if pair is not None:
                shard.replay(*pair, offset=record.offset, timestamp_ms=record.timestamp_ms, producer_id=producer_id)
            yield

    def _reload(self, partition: int, shard: S, why: KafkaError) -> None:
        """Memory may differ from the log: load it again from there."""
        if self._shards.get(partition) is not shard:
            return  # it was unloaded already
        logger.error(
            "coordinator state may differ from its log: loading it again",
            extra={"partition": f"{self.topic}-{partition}", "why": why},
        )
        epoch = self._epochs[partition]
        self._unload(partition, why)
        self._epochs[partition] = epoch
        self._load_soon(partition, RELOAD_DELAY_S)

    def _unload(self, partition: int, error: KafkaError) -> None:
        self._shards.pop(partition, None)
        self._epochs.pop(partition, None)
        if (loading := self._loading.pop(partition, None)) is not None:
            loading.cancel()
        self._wakes = [wake for wake in self._wakes if wake[2] != partition]
        heapq.heapify(self._wakes)
        for reply in tuple(self._waiting.pop(partition, ())):
            reply.fail(error)


_CLIENT_CODES = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}


def _client_error(error: BaseException, otherwise: ErrorCode) -> KafkaError:
    """What clients are told when a log did not take records, or could not keep them."""
    if isinstance(error, KafkaError):
        return KafkaError(_CLIENT_CODES.get(error.code, otherwise), error.message)
    return KafkaError(otherwise, str(error))


def _has_too_few_replicas(leader: Partition) -> bool:
    return leader.leadership is not None and len(leader.leadership.isr) < leader.min_isr


def _wake(key: Any, shard: Shard, now_ms: int) -> Effects:
    return shard.wake(key, now_ms)


def _loaded(shard: Shard, now_ms: int) -> Effects:
    return shard.loaded(now_ms)
