"""The shell around a coordinator's step machines: load, step, persist, reply, wake.

A coordinator keeps its state in a topic of its own, and each partition of that topic holds one shard. An event goes

    handler → ask → the shard's step → Effects → records appended → (flushed) → replies

on the event loop, so no two steps of a shard overlap and its records are in the order of its steps.

A step that raises a KafkaError (or NothingChanged) has changed nothing. Any other exception of a step, and records that
cannot be written, leave memory that differs from the log: the shard is thrown away, whoever waits in it is told to ask
again, and it is loaded anew. Its neighbours do not notice.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from moldau.broker.partition import Partition
from moldau.coordinators.effects import Effects, NothingChanged
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.producer_state import AppendOrigin, read_marker
from moldau.metadata.topics import plan_create_topic
from moldau.wire.batch import BatchHeader, check_batch, encode_batch, iter_headers, iter_records
from moldau.wire.compression import Codec
from moldau.wire.state_records import StateRecords, encode_key, encode_value
from moldau.wire.uuids import random_uuid

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

LOAD_BYTES_MAX = 64 * 1024
"""Read at a time while loading, from a disk that may be slow; Kafka's 5 MB would hold up the loop."""
RECORDS_PER_TURN = 100
"""Taken up while loading before others get their turn: a millisecond or so, over all shards together."""
WAKES_MAX_MS = 5
"""How long wakes may take in one go: groups that were made together tend to be due together."""
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


class Reply:
    """Where a reply arrives: at once, for whoever is still in `ask`, or through a future."""

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


class Coordinator(Generic[S]):
    def __init__(
        self,
        node: BrokerNode,
        topic: str,
        records: StateRecords,
        make_shard: Callable[[int], S],
        *,
        partitions: Callable[[], int],
        topic_configs: Callable[[], dict[str, str]],
        codec: Callable[[], Codec] = lambda: Codec.NONE,
        load_bytes: Callable[[], int] = lambda: LOAD_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self._node = node
        self._records = records
        self._make_shard = make_shard
        self._new_topic_partitions = partitions
        self._new_topic_configs = topic_configs
        self._codec = codec
        self._load_bytes = load_bytes
        self._shards: dict[int, S] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        """Held by a load for a handful of records: all loads together take one turn of the loop at a time."""
        self._is_stopped = False
        self._waiting: dict[int, set[Reply]] = {}
        self._wakes: list[tuple[int, int, int, Any]] = []
        """(when, a tie breaker, partition, key): a heap."""
        self._wake_count = 0
        self._timer: tuple[int, asyncio.TimerHandle] | None = None

    # -- finding

    async def ready(self) -> None:
        """Makes the state topic if this is the first time that somebody needs it."""
        if self._shards or self._loading:
            return  # a topic that is in the image alone may still be in the making, and nobody be told to come
        topic, configs, count = self.topic, self._new_topic_configs(), self._new_topic_partitions()

        def plan(image: Any) -> Any:
            if topic in image.topics:
                return ()
            return plan_create_topic(
                image,
                topic,
                topic_id=random_uuid(),
                num_partitions=count,
                replication_factor=1,
                configs=configs,
                brokers=(self._node.node_id,),
                broker_config=self._node.config,
            )

        await self._node.change_metadata(plan)

    @property
    def exists(self) -> bool:
        """Somebody needed the state topic once."""
        return self.topic in self._node.image.topics

    def partition_for(self, key: str) -> int:
        topic = self._node.image.topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} is not there yet")
        return java_hash(key) % len(topic.partitions)

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
        if partition not in self._shards:  # a reply of this step led to another one, which slipped
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic}-{partition} begins again")
        reply.future = self._node.loop.create_future()
        waiting = self._waiting.setdefault(partition, set())
        waiting.add(reply)
        reply.future.add_done_callback(lambda _: waiting.discard(reply))
        return reply.future

    def run(self, partition: int, step: Callable[[S, int], Effects]) -> None:
        """Runs a step. What it raises is a KafkaError, or NothingChanged."""
        shard = self._shard(partition)
        try:
            effects = step(shard, self._node.clock())
        except (KafkaError, NothingChanged):
            raise
        except Exception as error:
            raise self._distrust(partition, shard, error) from error
        try:
            self._perform(partition, shard, effects)
        except KafkaError as error:
            self._forget(partition, shard, error.message)
            is_passing = isinstance(error, StorageError) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            # What is wrong with the records themselves would be wrong again, if the client came back with them.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_passing else ErrorCode.UNKNOWN_SERVER_ERROR
            raise KafkaError(code, error.message) from error
        except Exception as error:
            raise self._distrust(partition, shard, error) from error

    def marker_written(self, partition: int, producer_id: int, committed: bool) -> None:
        """A transaction that wrote into this partition has ended. A shard that is being loaded meets the marker."""

        def replay_marker(shard: S, _: int) -> Effects:
            shard.replay_marker(producer_id, committed)
            return Effects()

        with suppress(KafkaError):  # being loaded, or from now on
            self.run(partition, replay_marker)

    def _distrust(self, partition: int, shard: S, error: Exception) -> KafkaError:
        """What to tell of a slip in the machine or the log; who knows how far the step came."""
        log.error("a step failed inside", exc_info=error, extra={"partition": f"{self.topic}-{partition}"})
        self._node.metrics.unexpected_errors += 1
        self._forget(partition, shard, "its coordinator begins again")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"failed inside the coordinator: {error!r}")

    def _perform(self, partition: int, shard: S, effects: Effects) -> None:
        if effects.records or effects.replies:
            leader = self._node.find_partition(self.topic, None, partition)
            if effects.records:
                self._append(leader, effects)
            # A step without records may tell of an earlier step's, so it waits for the same disk.
            if leader.log.unflushed_messages < leader.log.config.flush_messages:
                for reply, value in effects.replies:
                    reply.arrive(value)
            else:
                self._node.spawn(self._reply_when_flushed(partition, shard, leader, effects))
        if effects.wakes:
            for at_ms, key in effects.wakes:
                self._wake_count += 1
                heapq.heappush(self._wakes, (at_ms, self._wake_count, partition, key))
            self._arm()

    def _append(self, leader: Partition, effects: Effects) -> None:
        now_ms = self._node.clock()
        producer_id, producer_epoch = effects.producer or (-1, -1)
        batch = encode_batch(
            [
                (encode_key(key), None if value is None else encode_value(value), now_ms, ())
                for key, value in effects.records
            ],
            codec=self._codec(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=effects.producer is not None,
        )
        leader.append(memoryview(bytearray(batch)), now_ms, AppendOrigin.COORDINATOR)

    async def _reply_when_flushed(self, partition: int, shard: S, leader: Partition, effects: Effects) -> None:
        try:
            await self._node.group_commit.flushed(leader.log)
        except Exception as error:
            self._forget(partition, shard, str(error))
            for reply, _ in effects.replies:
                reply.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
            return
        for reply, value in effects.replies:
            reply.arrive(value)

    # -- time

    def _arm(self) -> None:
        """One timer of the loop, for the earliest wake."""
        if not self._wakes:
            return
        at_ms = self._wakes[0][0]
        if self._timer is not None:
            if self._timer[0] <= at_ms:
                return
            self._timer[1].cancel()
        delay_s = max(0, at_ms - self._node.clock()) / 1000
        self._timer = (at_ms, self._node.loop.call_later(delay_s, self._wake_due))

    def _wake_due(self) -> None:
        self._timer = None
        now_ms = self._node.clock()
        while self._wakes and self._wakes[0][0] <= now_ms and self._node.clock() - now_ms < WAKES_MAX_MS:
            _, _, partition, key = heapq.heappop(self._wakes)
            try:
                self.run(partition, partial(_wake, key))
            except KafkaError as error:
                log.warning("a timer's step failed", extra={"partition": f"{self.topic}-{partition}", "why": error})
        self._arm()

    # -- loading

    def follow(self) -> None:
        """Loads the shards of partitions that this broker leads now, and drops those it does not lead any more."""
        topic = self._node.image.topics.get(self.topic)
        led = {one.index for one in topic.partitions if one.leader == self._node.node_id} if topic else set()
        if self._is_stopped:
            led = set()
        here = self._shards.keys() | self._loading.keys()
        for partition in here - led:
            self._drop(partition, KafkaError(ErrorCode.NOT_COORDINATOR, "the coordinator moved"))
        for partition in led - here:
            if self._is_empty(partition):
                self._begin(partition, self._make_shard(partition))
            else:
                self._load_soon(partition)

    def stop(self) -> None:
        """Whoever waits here is told to ask elsewhere; no step and no wake comes after this."""
        self._is_stopped = True
        self.follow()

    def _is_empty(self, partition: int) -> bool:
        try:
            leader = self._node.find_partition(self.topic, None, partition)
        except KafkaError:
            return False
        return leader.log.log_end_offset == leader.log.log_start_offset

    def _load_soon(self, partition: int, delay_s: float = 0.0) -> None:
        self._loading[partition] = self._node.spawn(self._load(partition, delay_s))

    async def _load(self, partition: int, delay_s: float) -> None:
        """Until it succeeds; `_drop` cancels it."""
        while True:
            await asyncio.sleep(delay_s)
            shard = self._make_shard(partition)
            delay_s = min(max(2 * delay_s, RELOAD_DELAY_S), RELOAD_DELAY_MAX_S)
            try:
                await self._replay(partition, shard)
            except KafkaError as error:
                log.error("cannot load", extra={"partition": f"{self.topic}-{partition}", "why": error.message})
            except Exception:
                log.exception("cannot load", extra={"partition": f"{self.topic}-{partition}"})
            else:
                del self._loading[partition]
                self._begin(partition, shard)
                return

    def _begin(self, partition: int, shard: S) -> None:
        self._shards[partition] = shard
        try:
            self.run(partition, _loaded)
        except KafkaError as error:
            log.error("cannot begin", extra={"partition": f"{self.topic}-{partition}", "why": error.message})
            self._forget(partition, shard, error.message)  # without its wakes it would stand still

    async def _replay(self, partition: int, shard: S) -> None:
        leader = self._node.find_partition(self.topic, None, partition)
        offset = leader.log.log_start_offset
        while offset < leader.log.high_watermark:
            size = min(self._load_bytes(), LOAD_BYTES_MAX)
            data = bytes(leader.log.read(offset, size, upto_offset=leader.log.high_watermark, min_one=True))
            if not data:
                break
            for position, header in iter_headers(data):
                check_batch(data, position, header, strict=False)
                await self._replay_batch(shard, data, position, header)
                offset = header.next_offset

    async def _replay_batch(self, shard: S, data: bytes, position: int, header: BatchHeader) -> None:
        if header.is_control:
            marker = read_marker(memoryview(data)[position:], header)
            if marker is not None:
                shard.replay_marker(header.producer_id, not marker.is_abort)
            return
        producer_id = header.producer_id if header.is_transactional else -1
        records = iter_records(data, position, header)
        while turn := tuple(islice(records, RECORDS_PER_TURN)):
            async with self._turn:
                for record in turn:
                    pair = self._records.decode(record.key or b"", record.value)
                    if pair is not None:
                        shard.replay(
                            *pair, offset=record.offset, timestamp_ms=record.timestamp_ms, producer_id=producer_id
                        )
                await asyncio.sleep(0)

    def _forget(self, partition: int, shard: S, why: str) -> None:
        """Memory is not what the log holds: begin again from there."""
        if self._shards.get(partition) is not shard:
            return  # it is forgotten already
        log.error("memory and log differ: loading again", extra={"partition": f"{self.topic}-{partition}", "why": why})
        self._drop(partition, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why))
        self._load_soon(partition, RELOAD_DELAY_S)

    def _drop(self, partition: int, error: KafkaError) -> None:
        self._shards.pop(partition, None)
        if (loading := self._loading.pop(partition, None)) is not None:
            loading.cancel()
        self._wakes = [wake for wake in self._wakes if wake[2] != partition]
        heapq.heapify(self._wakes)
        for reply in tuple(self._waiting.pop(partition, ())):
            reply.fail(error)


def _wake(key: Any, shard: Shard, now_ms: int) -> Effects:
    return shard.wake(key, now_ms)


def _loaded(shard: Shard, now_ms: int) -> Effects:
    return shard.loaded(now_ms)


@lru_cache(maxsize=1024)  # the groups that are busy now; the hash is a fifth of what a small step costs
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`, over UTF-16 code units; 0 for the one number that has none."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)
