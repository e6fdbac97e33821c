"""The shell around a coordinator's step machines: load, step, persist, reply, wake.

A coordinator keeps its state in a topic of its own, and each partition of that topic holds one shard. An event goes

    handler → ask → the shard's step → Effects → records appended → (flushed) → replies

on the event loop, so no two steps of a shard overlap and its records are in the order of its steps. When records
cannot be written, memory has run ahead of the log: the shard is thrown away, whoever waits in it is told to ask
again, and it is loaded anew.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from moldau.broker.partition import Partition
from moldau.coordinators.effects import Effects
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.producer_state import AppendOrigin, read_marker
from moldau.metadata.topics import plan_create_topic
from moldau.wire.batch import decode_records, encode_batch, iter_headers
from moldau.wire.state_records import StateRecords, encode_key, encode_value
from moldau.wire.uuids import random_uuid

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

LOAD_BYTES = 64 * 1024
"""Read at a time while loading: some milliseconds of decoding, then others get their turn."""
RELOAD_DELAY_S = 1.0
"""Between two tries to load a shard whose disk refuses: clients ask again in the meantime."""


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
    ) -> None:
        self.topic = topic
        self._node = node
        self._records = records
        self._make_shard = make_shard
        self._new_topic_partitions = partitions
        self._new_topic_configs = topic_configs
        self._shards: dict[int, S] = {}
        self._loading: set[int] = set()
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
        shard = self._shard(partition)
        reply = Reply()
        self._perform(partition, step(shard, reply, self._node.clock()))
        if reply.is_here:
            return reply.value
        reply.future = self._node.loop.create_future()
        waiting = self._waiting.setdefault(partition, set())
        waiting.add(reply)
        reply.future.add_done_callback(lambda _: waiting.discard(reply))
        return reply.future

    def run(self, partition: int, step: Callable[[S, int], Effects]) -> None:
        """Runs a step that nobody waits for."""
        self._perform(partition, step(self._shard(partition), self._node.clock()))

    def marker_written(self, partition: int, producer_id: int, committed: bool) -> None:
        """A transaction that wrote into this partition has ended. A shard that is being loaded meets the marker."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.replay_marker(producer_id, committed)

    def _perform(self, partition: int, effects: Effects) -> None:
        for at_ms, key in effects.wakes:
            self._wake_count += 1
            heapq.heappush(self._wakes, (at_ms, self._wake_count, partition, key))
        if effects.wakes:
            self._arm()
        if not effects.records and not effects.replies:
            return
        try:
            leader = self._node.find_partition(self.topic, None, partition)
            if effects.records:
                self._append(leader, effects)
        except KafkaError as error:
            self._forget(partition, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        # A step without records may tell of an earlier step's, so it waits for the same disk.
        if leader.log.unflushed_messages < leader.log.config.flush_messages:
            for reply, value in effects.replies:
                reply.arrive(value)
        else:
            self._node.spawn(self._reply_when_flushed(partition, leader, effects))

    def _append(self, leader: Partition, effects: Effects) -> None:
        now_ms = self._node.clock()
        producer_id, producer_epoch = effects.producer or (-1, -1)
        batch = encode_batch(
            [
                (encode_key(key), None if value is None else encode_value(value), now_ms, ())
                for key, value in effects.records
            ],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=effects.producer is not None,
        )
        leader.append(memoryview(bytearray(batch)), now_ms, AppendOrigin.COORDINATOR)

    async def _reply_when_flushed(self, partition: int, leader: Partition, effects: Effects) -> None:
        try:
            await self._node.group_commit.flushed(leader.log)
        except StorageError as error:
            self._forget(partition, error)
            for reply, _ in effects.replies:
                reply.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message))
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
        while self._wakes and self._wakes[0][0] <= now_ms:
            _, _, partition, key = heapq.heappop(self._wakes)
            shard = self._shards.get(partition)
            if shard is None:
                continue
            try:
                self._perform(partition, shard.wake(key, now_ms))
            except KafkaError as error:
                log.warning("a timer's step failed", extra={"partition": f"{self.topic}-{partition}", "why": error})
            except Exception:
                # A slip in one group's machine must not stop the clock of all others.
                log.exception("a timer's step failed", extra={"partition": f"{self.topic}-{partition}"})
        self._arm()

    # -- loading

    def follow(self) -> None:
        """Loads the shards of partitions that this broker leads now, and drops those it does not lead any more."""
        topic = self._node.image.topics.get(self.topic)
        led = {one.index for one in topic.partitions if one.leader == self._node.node_id} if topic else set()
        for partition in self._shards.keys() - led:
            self._drop(partition, KafkaError(ErrorCode.NOT_COORDINATOR, "the coordinator moved"))
        self._loading &= led
        for partition in led - self._shards.keys() - self._loading:
            self._loading.add(partition)
            if self._is_empty(partition):
                self._begin(partition, self._make_shard(partition))
            else:
                self._node.spawn(self._load(partition))

    def _is_empty(self, partition: int) -> bool:
        try:
            leader = self._node.find_partition(self.topic, None, partition)
        except KafkaError:
            return False
        return leader.log.log_end_offset == leader.log.log_start_offset

    async def _load(self, partition: int) -> None:
        while partition in self._loading:
            shard = self._make_shard(partition)
            try:
                await self._replay(partition, shard)
            except KafkaError as error:
                log.error("cannot load", extra={"partition": f"{self.topic}-{partition}", "why": error.message})
                await asyncio.sleep(RELOAD_DELAY_S)
                continue
            self._begin(partition, shard)

    def _begin(self, partition: int, shard: S) -> None:
        self._loading.discard(partition)
        self._shards[partition] = shard
        try:
            self._perform(partition, shard.loaded(self._node.clock()))
        except KafkaError as error:
            log.error("cannot begin", extra={"partition": f"{self.topic}-{partition}", "why": error.message})

    async def _replay(self, partition: int, shard: S) -> None:
        leader = self._node.find_partition(self.topic, None, partition)
        offset = leader.log.log_start_offset
        while offset < leader.log.high_watermark:
            data = leader.log.read(offset, LOAD_BYTES, upto_offset=leader.log.high_watermark, min_one=True)
            if not data:
                break
            offset = self._replay_batches(shard, bytes(data), offset)
            await asyncio.sleep(0)

    def _replay_batches(self, shard: S, data: bytes, offset: int) -> int:
        for position, header in iter_headers(data):
            offset = header.next_offset
            if header.is_control:
                marker = read_marker(memoryview(data)[position:], header)
                if marker is not None:
                    shard.replay_marker(header.producer_id, not marker.is_abort)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in decode_records(data, position, header):
                pair = self._records.decode(record.key or b"", record.value)
                if pair is not None:
                    shard.replay(*pair, offset=record.offset, timestamp_ms=record.timestamp_ms, producer_id=producer_id)
        return offset

    def _forget(self, partition: int, error: KafkaError) -> None:
        """Memory is ahead of the log: begin again from what the log holds."""
        log.error("state lost its log: loading it again", extra={"partition": f"{self.topic}-{partition}"})
        self._drop(partition, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message))
        self._loading.add(partition)
        self._node.spawn(self._load_later(partition))

    async def _load_later(self, partition: int) -> None:
        await asyncio.sleep(RELOAD_DELAY_S)
        await self._load(partition)

    def _drop(self, partition: int, error: KafkaError) -> None:
        self._shards.pop(partition, None)
        for reply in tuple(self._waiting.pop(partition, ())):
            reply.fail(error)


@lru_cache(maxsize=1024)  # the groups that are busy now; the hash is a fifth of what a small step costs
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`, over UTF-16 code units; 0 for the one number that has none."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)
