"""The share partitions in use on this broker: their state machines, persistence and lock timers.

A share partition is started on the leader of its partition by the first fetch of its group. Its state comes from the
share coordinator; if there is none, it starts where `share.auto.offset.reset` says. It is stopped with the last session
of its group, when its topic, group or offsets are deleted, when another broker becomes the leader, and when a write of
its state fails: memory must not stay ahead of the log. Records that members held are then available again, and late
acknowledgements are rejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.coordinator_shell import CoordinatorShell
from moldau.broker.coordination.share_sessions import ShareSession, ShareSessions
from moldau.broker.coordination.share_state_client import ShareStateClient
from moldau.broker.replicas.partition import Partition
from moldau.config.group import GroupConfig
from moldau.coordinators.share.partition import Ack, ShareLimits, SharePartition, StateWrite
from moldau.coordinators.share.state_shard import UNINITIALIZED, Epochs, ShareKey, ShareState, ShareStateShard
from moldau.errors import ErrorCode, KafkaError
from moldau.log.lookups import offset_for_timestamp

if TYPE_CHECKING:
    from moldau.broker.network.client_connection import ClientConnection

logger = logging.getLogger(__name__)

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
        self.waiting: dict[Waiting, None] = {}
        self.is_behind = False
        """The last look at the log ended early: the next fetch that waits here is to look again."""
        self.committed = False  # every append is worth a look: bytes are not counted here
        partition.waiting[self] = None

    def more(self, byte_count: int) -> None:
        self.wake()

    def wake(self) -> None:
        """Something may be available: fetches that wait here look again."""
        for one in tuple(self.waiting):
            one.wake(self.key)

    def stop(self) -> None:
        self.partition.waiting.pop(self, None)
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer[1].cancel()
            self.timer = None


class SharePartitions:
    def __init__(self, context: CoordinatorContext, share_state: CoordinatorShell[ShareStateShard]) -> None:
        self._context = context
        self._share_state = share_state
        self._live: dict[ShareKey, LiveSharePartition] = {}
        self._loading: dict[ShareKey, asyncio.Task[None]] = {}
        self.states = ShareStateClient(share_state, context.peers, context.spawn)
        self.sessions = ShareSessions()

    def group_config(self, group_id: str) -> GroupConfig:
        return GroupConfig.resolve(self._context.metadata.image.group_config(group_id), self._context.local.config)

    # -- loading

    def is_live(self, key: ShareKey) -> bool:
        return key in self._live

    def get(self, key: ShareKey, config: GroupConfig) -> LiveSharePartition:
        """Loads it when it is not there; KafkaError while its partition or its state cannot be had."""
        partition = self._partition(key)
        live = self._live.get(key)
        if live is not None and not _is_current(live, partition):
            self.forget((key,))
            live = None
        if live is None:
            if self.load(key, config) is not None:
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the state of the share partition is being loaded"
                )
            live = self._live[key]
        limits = _limits(config)
        if live.machine.limits != limits:
            live.machine.configure(limits)
        live.machine.move_start(partition.log.log_start_offset)
        return live

    def _partition(self, key: ShareKey) -> Partition:
        partition = self._context.find_partition(None, key.topic_id.bytes, key.partition)
        partition.check_leads()
        return partition

    def load(self, key: ShareKey, config: GroupConfig) -> asyncio.Task[None] | None:
        """Loads it; returns a task, which several may await, if that takes time."""
        loading = self._loading.get(key)
        if loading is None:
            partition = self._partition(key)
            epoch = partition.leader_epoch
            state: Any = self.states.read(key, epoch)
            if not isinstance(state, asyncio.Future):
                self._start(key, partition, epoch, state, config)
                return None
            loading = self._loading[key] = self._context.spawn(self._load_later(key, partition, epoch, state, config))
            loading.add_done_callback(partial(self._loaded, key))
        return loading

    async def _load_later(
        self, key: ShareKey, partition: Partition, epoch: int, state: Awaitable[ShareState], config: GroupConfig
    ) -> None:
        loaded = await state
        if not partition.is_leader or partition.leader_epoch != epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the state was read")
        self._start(key, partition, epoch, loaded, config)

    def _loaded(self, key: ShareKey, loading: asyncio.Task[None]) -> None:
        self._loading.pop(key, None)
        if not loading.cancelled() and (error := loading.exception()) is not None:
            logger.info(
                "cannot load the state of a share partition, will retry",
                extra={"group": key.group_id, "why": str(error)},
            )

    def _start(self, key: ShareKey, partition: Partition, epoch: int, state: ShareState, config: GroupConfig) -> None:
        epochs = Epochs(state.state_epoch, epoch)
        start_offset = state.start_offset
        if start_offset == UNINITIALIZED:
            # Written down at once: a queue that begins at the end of the log must not begin at another end after a
            # restart, and miss what came between.
            start_offset = self._first_offset(partition, config)
            self._write_state(key, epochs, StateWrite(start_offset, 0, ()))
        machine = SharePartition.restore(start_offset, state.batches, _limits(config))
        live = self._live[key] = LiveSharePartition(key, partition, machine, epochs)
        self._write(live, machine.truncate(partition.log.log_end_offset))

    def _first_offset(self, partition: Partition, config: GroupConfig) -> int:
        if config.share_auto_offset_reset == "earliest":
            return partition.log.log_start_offset
        duration_ms = config.reset_duration_ms
        if duration_ms is not None:
            found = offset_for_timestamp(partition.log, self._context.wall_clock() - duration_ms)
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
        """Topics were deleted, or have other leaders: their queues here are over."""
        self.forget(
            [
                key
                for key, live in self._live.items()
                if self._context.metadata.image.topic_by_id(key.topic_id) is None
                or not _is_current(live, live.partition)
            ]
        )

    def stop(self) -> None:
        self.forget(list(self._live))

    # -- letting go

    def acknowledge(self, key: ShareKey, member: str, acks: Sequence[Ack]) -> Awaitable[Any] | None:
        """KafkaError when refused; what it returns, if anything, is done when the acknowledgement is durable."""
        live = self._live.get(key)
        if live is None:
            self._partition(key)
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "no records of this partition are acquired")
        return self._write(live, live.machine.acknowledge(member, acks, self._context.monotonic()))

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
                logger.warning(
                    "cannot release the records of a member", extra={"group": key.group_id, "why": error.message}
                )
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
        durable = self._write_state(live.key, live.epochs, write)
        self.arm(live)
        live.wake()
        return durable

    def _write_state(self, key: ShareKey, epochs: Epochs, write: StateWrite) -> Awaitable[Any] | None:
        """Has the share coordinator write something down; who is refused, now or later, is given up."""
        try:
            reply = self.states.write(key, epochs, write)
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
            delay_s = max(0, at_ms - self._context.monotonic()) / 1000
            live.timer = (at_ms, self._context.loop.call_later(delay_s, self._on_locks_expired, live))

    def _on_locks_expired(self, live: LiveSharePartition) -> None:
        live.timer = None
        try:
            self._write(live, live.machine.expire(self._context.monotonic()))
        except KafkaError as error:
            logger.warning(
                "cannot release records whose locks expired", extra={"group": live.key.group_id, "why": error.message}
            )
        else:
            self.arm(live)

    # -- the state topic

    async def prune(self) -> None:
        """Writes snapshots of all state in each partition of the state topic, and deletes the records before them."""
        for index, shard in self._share_state.shards():
            try:
                partition = self._context.find_partition(self._share_state.topic, None, index)
                behind = partition.log.log_end_offset - partition.log.log_start_offset
                if behind < max(PRUNE_RECORDS_MIN, 2 * len(shard.states)):
                    continue
                end_offset = partition.log.log_end_offset
                self._share_state.run(index, lambda each, _: each.snapshot_all())
                safe = self._context.group_commit.safe(partition, 0)
                if safe is not None:
                    await safe
                partition.delete_records(end_offset)
            except KafkaError as error:
                logger.warning(
                    "cannot prune the share-group state topic", extra={"partition": index, "why": error.message}
                )


def _is_current(live: LiveSharePartition, partition: Partition) -> bool:
    """Whether it belongs to the leader's epoch, and to the topic of today."""
    return live.partition is partition and partition.is_leader and live.epochs.leader == partition.leader_epoch


def _limits(config: GroupConfig) -> ShareLimits:
    return ShareLimits(
        config.share_delivery_count_limit, config.share_partition_max_record_locks, config.share_record_lock_duration_ms
    )
