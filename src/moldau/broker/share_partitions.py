"""The share partitions that are in use on this broker: machines, their state's way to the log, and their clocks.

A share partition comes to life with the first fetch of its group: its state is taken from the share coordinator, or
begins where the group's `share.auto.offset.reset` says. It is given up again with its group's last session, when
its topic, its group or its offsets are deleted, and when a write of its state is refused: memory must never be ahead of
the log for good. What members held is then available again, and their acknowledgements come too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.partition import Partition
from moldau.broker.share_sessions import ShareSession, ShareSessions
from moldau.config.group import GroupConfig
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.share.partition import Ack, ShareLimits, SharePartition, StateWrite
from moldau.coordinators.share.state_shard import UNINITIALIZED, Epochs, ShareKey, ShareStateShard
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.broker.connection import ClientConnection
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

PRUNE_RECORDS_MIN = 1_000
"""A partition of the state topic with fewer records is left as it is: loading them takes milliseconds."""


class Waiting(Protocol):
    def wake(self, key: ShareKey) -> None: ...


class LiveSharePartition:
    """It waits in its partition for appends, on behalf of all fetches that wait in it."""

    __slots__ = ("committed", "epochs", "is_behind", "key", "machine", "partition", "timer", "waiting")

    def __init__(self, key: ShareKey, partition: Partition, machine: SharePartition, epochs: Epochs) -> None:
        self.key = key
        self.partition = partition
        self.machine = machine
        self.epochs = epochs
        self.timer: tuple[int, asyncio.TimerHandle] | None = None
        self.waiting: set[Waiting] = set()
        self.is_behind = False
        """The last look at the log ended early: the next fetch that waits here is to look again."""
        self.committed = False  # every append is worth a look: bytes are not counted here
        partition.waiting.add(self)

    def more(self, byte_count: int) -> None:
        self.wake()

    def wake(self) -> None:
        """Something may be available: fetches that wait here look again."""
        for one in tuple(self.waiting):
            one.wake(self.key)

    def stop(self) -> None:
        self.partition.waiting.discard(self)
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer[1].cancel()
            self.timer = None


class SharePartitions:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._live: dict[ShareKey, LiveSharePartition] = {}
        self.sessions = ShareSessions()

    def group_config(self, group_id: str) -> GroupConfig:
        return GroupConfig.resolve(self._node.image.group_config(group_id), self._node.config)

    # -- life

    def is_live(self, key: ShareKey) -> bool:
        return key in self._live

    def get(self, key: ShareKey, config: GroupConfig) -> LiveSharePartition:
        """Loads it when it is not there; KafkaError while its topic or its state cannot be had."""
        partition = self._node.find_partition(None, key.topic_id.bytes, key.partition)
        live = self._live.get(key)
        if live is not None and (live.partition is not partition or live.epochs.leader != partition.leader_epoch):
            self.forget((key,))
            live = None
        if live is None:
            live = self._live[key] = self._load(key, partition, config)
        limits = _limits(config)
        if live.machine.limits != limits:
            live.machine.configure(limits)
        live.machine.move_start(partition.log.log_start_offset)
        return live

    def _load(self, key: ShareKey, partition: Partition, config: GroupConfig) -> LiveSharePartition:
        state = self._node.share_state.shard(key.coordinator_key).states.get(key)
        state_epoch = 0 if state is None else state.state_epoch
        if state is None or state.start_offset == UNINITIALIZED:
            # Written down at once: a queue that begins at the end of the log must not begin at another end after a
            # restart, and miss what came between.
            start_offset = self._first_offset(partition, config)
            self._tell(
                key, lambda shard, waiter, now_ms: shard.initialize(waiter, key, start_offset, state_epoch, now_ms)
            )
            machine = SharePartition(start_offset, _limits(config))
        else:
            machine = SharePartition.restore(state.start_offset, state.batches, _limits(config))
        live = LiveSharePartition(key, partition, machine, Epochs(state_epoch, partition.leader_epoch))
        self._write(live, machine.truncate(partition.log.log_end_offset))
        return live

    def _first_offset(self, partition: Partition, config: GroupConfig) -> int:
        if config.share_auto_offset_reset == "earliest":
            return partition.log.log_start_offset
        duration_ms = config.reset_duration_ms
        if duration_ms is not None:
            found = partition.log.offset_for_timestamp(self._node.clock() - duration_ms)
            if found is not None:
                return found[1]
        return partition.log.high_watermark

    def forget(self, keys: Iterable[ShareKey]) -> None:
        for key in keys:
            live = self._live.pop(key, None)
            if live is not None:
                live.stop()
                live.wake()

    def follow(self) -> None:
        """Topics were deleted: their queues go with them."""
        self.forget([key for key in self._live if self._node.image.topic_by_id(key.topic_id) is None])

    def stop(self) -> None:
        self.forget(list(self._live))

    # -- letting go

    def acknowledge(self, key: ShareKey, member: str, acks: Sequence[Ack]) -> Awaitable[Any] | None:
        """KafkaError when refused; what it returns, if anything, is done when the acknowledgement is durable."""
        live = self._live.get(key)
        if live is None:
            self._node.find_partition(None, key.topic_id.bytes, key.partition)
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "nothing of this partition is acquired")
        return self._write(live, live.machine.acknowledge(member, acks, self._node.clock()))

    def release(self, session: ShareSession) -> None:
        """The member is gone: whatever it holds is free."""
        self.sessions.close(session.owner)
        for key in session.partitions:
            live = self._live.get(key)
            if live is None:
                continue
            try:
                self._write(live, live.machine.release(session.owner[1]))
            except KafkaError as error:
                log.warning("cannot release", extra={"group": key.group_id, "why": error.message})
        group_id = session.owner[0]
        if not self.sessions.has_group(group_id):
            # Nobody fetches any more: what has to last is in the log.
            self.forget([key for key in self._live if key.group_id == group_id])

    def disconnected(self, connection: ClientConnection) -> None:
        for session in self.sessions.of_connection(connection):
            self.release(session)

    def _write(self, live: LiveSharePartition, write: StateWrite | None) -> Awaitable[Any] | None:
        if write is None:
            return None
        key = live.key
        durable = self._tell(key, lambda shard, waiter, now_ms: shard.write(waiter, key, live.epochs, write, now_ms))
        self.arm(live)
        live.wake()
        return durable

    def _tell(self, key: ShareKey, step: Callable[[ShareStateShard, Waiter, int], Effects]) -> Awaitable[Any] | None:
        """Has the share coordinator write something down; who is refused, now or by the disk, is given up."""
        try:
            reply = self._node.share_state.ask(key.coordinator_key, step)
        except KafkaError:
            self.forget((key,))
            raise
        if not isinstance(reply, asyncio.Future):
            return None

        def written(done: asyncio.Future[Any]) -> None:
            # Cancelled is only the waiting: a client went away.
            if not done.cancelled() and done.exception() is not None:
                self.forget((key,))

        reply.add_done_callback(written)
        return reply

    # -- locks

    def arm(self, live: LiveSharePartition) -> None:
        """One timer for the first lock of a partition to run out."""
        at_ms = live.machine.next_lock_ms
        if live.timer is not None:
            if at_ms is not None and live.timer[0] <= at_ms:
                return  # it comes earlier, finds nothing, and is set again
            live.stop_timer()
        if at_ms is not None:
            delay_s = max(0, at_ms - self._node.clock()) / 1000
            live.timer = (at_ms, self._node.loop.call_later(delay_s, self._locks_ran_out, live))

    def _locks_ran_out(self, live: LiveSharePartition) -> None:
        live.timer = None
        try:
            self._write(live, live.machine.expire(self._node.clock()))
        except KafkaError as error:
            log.warning("cannot take back what timed out", extra={"group": live.key.group_id, "why": error.message})
        else:
            self.arm(live)

    # -- the state topic

    async def prune(self) -> None:
        """Says the state of every partition of the state topic again, and deletes what was said before."""
        for index, shard in self._node.share_state.shards():
            try:
                partition = self._node.find_partition(self._node.share_state.topic, None, index)
                behind = partition.log.log_end_offset - partition.log.log_start_offset
                if behind < max(PRUNE_RECORDS_MIN, 2 * len(shard.states)):
                    continue
                end_offset = partition.log.log_end_offset
                self._node.share_state.run(index, lambda each, now_ms: each.snapshot_all(now_ms))
                await self._node.group_commit.flushed(partition.log)
                partition.log.delete_records(end_offset)
            except KafkaError as error:
                log.warning("cannot prune share state", extra={"partition": index, "why": error.message})


def _limits(config: GroupConfig) -> ShareLimits:
    return ShareLimits(
        config.share_delivery_count_limit, config.share_partition_max_record_locks, config.share_record_lock_duration_ms
    )
