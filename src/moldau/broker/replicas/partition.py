"""One replica of a partition on this broker: its log, its leader, and the requests that wait for new records.

If this broker has the only replica, the log end offset is the high watermark, and replication costs nothing. Otherwise
the leader keeps a `LeaderState`, which makes the decisions: the fetches of followers say what they have, this moves the
high watermark, and that completes waiting acks=all requests and fetches of consumers. The high watermark of a follower
is set by its fetcher.

**The disk.** With `flush.messages=N` a power loss loses fewer than N of the records that were acknowledged or read.
Kafka flushes inside the append; here the fsync runs in a thread, and nothing runs ahead of it:

- An append that leaves N or more records unflushed requests a flush, whatever appends, and with any acks.
- Until it ends, the log counts only up to its recovery point (`PartitionLog.durable_end_offset`): that is how far the
  high watermark of a single replica goes, and what a leader contributes to it. Readers, the last stable offset,
  acks=all and the coordinators' replies go by the high watermark. acks=1 waits for the flush, acks=0 for nothing.
- A follower names a partition in a fetch only when it is durable: the offset confirms everything below it
  (`replica_fetcher`).
- The same holds for the unflushed tail of a new leader, which this replica has not served to anyone, and after N was
  lowered: a flush is requested at once. After a kill, logs are flushed before they are read (`LogManager`).
- A failed flush fails the requests that wait for a commit; the high watermark stays until a later one succeeds.

With N = 2⁶³-1, the default, none of this ever happens. `flush.ms` promises nothing beyond a flush now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from moldau.broker.replicas.waiting import CommitFuture, Subscriber, WaitingCommit, WaitingFetch
from moldau.cluster.replica import Follower, IsrChange, LeaderState, ReplicaContext
from moldau.cluster.replication_quota import is_throttled
from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import AppendInfo, PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.cluster_wide import effective_min_isr
from moldau.metadata.image import PartitionImage
from moldau.metadata.topics import is_internal
from moldau.wire.constants import NO_LEADER

logger = logging.getLogger(__name__)


class Replicas(ReplicaContext, Protocol):
    """What a partition needs of the broker's `ReplicaManager`."""

    @property
    def broker_id(self) -> int: ...

    @property
    def is_registered(self) -> bool:
        """Whether the image knows this process of the broker. An earlier image may still make it the leader that it
        was, and followers would truncate their logs to what a crash of its machine left of it."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def monotonic_ms(self) -> Callable[[], int]: ...

    def propose(self, partition: Partition, change: IsrChange) -> None:
        """Sends a change of the ISR to the controller; `isr_accepted` or `isr_refused` comes back."""
        ...

    def forget(self, partition: Partition) -> None:
        """This broker has no replica of it any more."""
        ...

    def flush(self, partition: Partition) -> None:
        """Forces its log to disk, soon; `flush_ended` comes back."""
        ...


ENOUGH_BYTES = 2**31
"""More than any fetch can wait for."""
UNCOMMITTED_MAX = 1000
"""Batches above the high watermark that are counted one by one; what comes behind counts as one. With too few replicas
in sync, acks=1 goes on writing for as long as the disk has room."""


class Partition:
    __slots__ = (
        "_commits",
        "_replicas",
        "_uncommitted",
        "adding",
        "index",
        "is_in_sync",
        "is_internal",
        "is_leader",
        "is_throttled",
        "leader_epoch",
        "leader_id",
        "leadership",
        "log",
        "partition_epoch",
        "replicas",
        "subscribers",
        "topic",
        "topic_id",
        "waiting",
    )

    def __init__(
        self, topic: str, topic_id: bytes, image: PartitionImage, partition_log: PartitionLog, replicas: Replicas
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.is_internal = is_internal(topic)
        self.index = image.index
        self.log = partition_log
        self.waiting: dict[WaitingFetch, None] = {}
        self.subscribers: list[Subscriber] = []
        self.is_leader = self.is_in_sync = False
        self.is_throttled = False
        """Whether its topic names this replica, in the role that it has, as one that catches up at a limited rate."""
        self.leader_id = self.leader_epoch = self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.leadership: LeaderState | None = None
        """Set while this broker leads the partition and it has followers."""
        self._replicas = replicas
        self._uncommitted: deque[tuple[int, int]] = deque()
        """End offset and size of each batch above the high watermark: waiting fetches count these bytes."""
        self._commits: deque[tuple[int, WaitingCommit]] = deque()
        """Waiters for the high watermark to reach an offset, in order of offsets."""
        self.follow_image(image)

    @property
    def name(self) -> str:
        return self.log.name

    @property
    def isr(self) -> frozenset[int]:
        """On a leader: the committed ISR, as far as it knows."""
        return self.leadership.isr if self.leadership is not None else frozenset((self._replicas.broker_id,))

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas`, as far as there are replicas."""
        leadership = self.leadership
        # An answer of the controller can be ahead of its records: what was being added may be a replica by now.
        is_ahead = leadership is not None and leadership.partition_epoch != self.partition_epoch
        return effective_min_isr(self.log.config.min_insync_replicas, self.replicas, () if is_ahead else self.adding)

    @property
    def is_short_of_replicas(self) -> bool:
        """Whether there are too few replicas for acks=all, even with those that are about to join the ISR."""
        return self.leadership is not None and len(self.leadership.maximal_isr) < self.min_isr

    # -- following the metadata

    def follow_image(self, image: PartitionImage) -> None:
        """The newest metadata of this partition."""
        was_leader, was_epoch = self.is_leader, self.leader_epoch
        self.replicas, self.adding = image.replicas, image.adding
        self.is_leader = image.leader == self._replicas.broker_id and self._replicas.is_registered
        is_former = image.leader == self._replicas.broker_id and not self.is_leader
        self.leader_id, self.leader_epoch = NO_LEADER if is_former else image.leader, image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.is_in_sync = self._replicas.broker_id in image.isr
        config = self.log.config
        throttled = (
            config.leader_replication_throttled_replicas
            if self.is_leader
            else config.follower_replication_throttled_replicas
        )
        self.is_throttled = is_throttled(throttled, self.index, self._replicas.broker_id)
        if self.is_leader:
            if not was_leader or was_epoch != image.leader_epoch:
                # Followers ask where epochs ended, also one in which nothing was written.
                self.log.epochs.assign(image.leader_epoch, self.log.log_end_offset)
            self._lead(image)
        else:
            self.leadership = None
            self.log.single_replica = False
        if was_leader and not self.is_leader:
            self._fail_commits(self._not_leading())
        if was_epoch != image.leader_epoch or was_leader != self.is_leader:
            # Waiting requests have to learn that the leader has changed.
            self.wake(ENOUGH_BYTES, ENOUGH_BYTES)
            for subscriber in tuple(self.subscribers):
                subscriber.leader_changed()

    def _lead(self, image: PartitionImage) -> None:
        now_ms = self._replicas.monotonic_ms()
        end_offset, durable_end_offset = self.log.log_end_offset, self.log.durable_end_offset
        if durable_end_offset < end_offset:
            self._replicas.flush(self)
        if len(image.replicas) == 1:
            self.leadership = None
            self._move_high_watermark(max(durable_end_offset, self.log.high_watermark))
            self.log.single_replica = True
            return
        self.log.single_replica = False
        if self.leadership is None:
            self.leadership = LeaderState(
                self._replicas.broker_id, image, self._replicas, log_end_offset=end_offset, now_ms=now_ms
            )
        else:
            self.leadership.follow_image(image, log_end_offset=end_offset, now_ms=now_ms)
        self.advance(now_ms)

    def retire(self) -> None:
        """This broker has no replica of the partition any more."""
        self.is_leader, self.leader_id = False, -1
        self.leadership = None
        self._replicas.forget(self)
        self._fail_commits(self._not_leading())
        self.wake(ENOUGH_BYTES, ENOUGH_BYTES)
        for subscriber in tuple(self.subscribers):
            subscriber.leader_changed()

    def has_follower_contact(self, within_ms: int) -> bool:
        """Whether an in-sync follower fetched from this leader lately; always, where it alone is in sync."""
        isr = self.isr
        since_ms = self._replicas.monotonic_ms() - within_ms
        return len(isr) == 1 or any(one.broker_id in isr and one.last_fetch_ms >= since_ms for one in self.subscribers)

    def check_leads(self) -> None:
        if not self.is_leader:
            raise self._not_leading()

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """A client that knows another leader epoch than ours has to refresh its metadata first."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # -- appending

    def append(
        self,
        records: memoryview,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        required_acks: int = 1,
        is_prepared: bool = False,
    ) -> AppendInfo:
        """As the leader; KafkaError where this broker is none, or for acks=all has too few in-sync followers.

        `now_ms` is the wall clock's. A batch that `is_prepared` comes from `LogRules.prepare`.
        """
        log = self.log
        leadership = self.leadership
        if leadership is not None:
            if required_acks == -1 and len(leadership.isr) < self.min_isr:
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{self.name} has {len(leadership.isr)} in-sync replicas, {self.min_isr} are needed",
                )
            info = log.append(
                records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, is_prepared=is_prepared
            )
            self._appended(info.base_offset, len(records))
            return info
        if not self.is_leader:
            self.check_leads()
        stable_before = log.last_stable_offset
        info = log.append(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, is_prepared=is_prepared
        )
        if log.is_flush_due:
            self._count_uncommitted(len(records))
            self._replicas.flush(self)
        elif self._uncommitted:  # a flush has ended, and this partition is not told yet
            self._count_uncommitted(len(records))
            self.advance(self._replicas.monotonic_ms())
        elif self.waiting:
            self.wake(len(records), self._newly_stable(stable_before, info.base_offset, len(records)))
        return info

    def _appended(self, base_offset: int, byte_count: int) -> None:
        """A batch that is above the high watermark, until followers have it."""
        self._count_uncommitted(byte_count)
        for subscriber in self.subscribers:
            subscriber.appended(base_offset, byte_count)
        if self.log.is_flush_due:
            self._replicas.flush(self)
        assert self.leadership is not None
        if len(self.leadership.maximal_isr) == 1:
            self.advance(self._replicas.monotonic_ms())

    def append_as_follower(
        self, records: memoryview, leader_high_watermark: int, leader_start_offset: int, now_ms: int
    ) -> None:
        """What the leader sent, as it came. Its high watermark goes for as much of the log as is here."""
        partition_log = self.log
        if records:
            partition_log.append_as_follower(
                records, now_ms=now_ms, leader_epoch=self.leader_epoch, contiguous=not partition_log.config.compact
            )
            self._count_uncommitted(len(records))
        high_watermark = min(leader_high_watermark, partition_log.log_end_offset)
        if high_watermark > partition_log.high_watermark:
            self._move_high_watermark(high_watermark)
        if leader_start_offset > partition_log.log_start_offset:
            partition_log.delete_records(min(leader_start_offset, partition_log.high_watermark))

    def _count_uncommitted(self, byte_count: int) -> None:
        uncommitted = self._uncommitted
        if len(uncommitted) >= UNCOMMITTED_MAX:
            byte_count += uncommitted.pop()[1]
        uncommitted.append((self.log.log_end_offset, byte_count))

    def delete_records(self, before_offset: int) -> int:
        """As the leader: the log begins at `before_offset` (-1: the high watermark); followers hear of it."""
        start_offset = self.log.delete_records(before_offset)
        for subscriber in self.subscribers:
            subscriber.high_watermark_moved()
        return start_offset

    def truncate_to(self, offset: int, why: str) -> None:
        """Drops what the leader does not have."""
        partition_log = self.log
        where = {"partition": self.name, "offset": offset, "from": partition_log.log_end_offset, "why": why}
        if offset < partition_log.high_watermark:
            where["high_watermark"] = partition_log.high_watermark
            logger.error("truncating committed records that the leader does not have (data loss)", extra=where)
        elif offset < partition_log.log_end_offset:
            logger.info("truncating records that the leader does not have", extra=where)
        partition_log.truncate_to(offset)
        while self._uncommitted and self._uncommitted[-1][0] > partition_log.log_end_offset:
            self._uncommitted.pop()

    def start_over_at(self, offset: int, why: str) -> None:
        """Drops everything: the leader's log begins after the end of this one."""
        if self.log.log_end_offset > self.log.log_start_offset:
            logger.warning(
                "deleting the local log: the leader's log starts after its end",
                extra={"partition": self.name, "offset": offset, "from": self.log.log_end_offset, "why": why},
            )
        self.log.truncate_fully_and_start_at(offset)
        self._uncommitted.clear()

    def _newly_stable(self, stable_before: int, readable_before: int, byte_count: int) -> int:
        """How many of the bytes that became readable readers of committed records may see."""
        stable = self.log.last_stable_offset
        if stable == stable_before:
            return 0  # part of an open transaction, or behind one
        # The end of a transaction makes everything since its beginning readable.
        return byte_count if stable_before == readable_before else ENOUGH_BYTES

    def wake(self, byte_count: int, stable_byte_count: int) -> None:
        """Tells the fetches that wait here of new bytes, and how many of them readers of committed records may see."""
        for fetch in tuple(self.waiting):
            fetch.more(stable_byte_count if fetch.committed else byte_count)

    # -- the high watermark

    def fetched(
        self, follower: Follower, offset: int, *, log_start_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """A follower has everything below `offset`; `now_ms` is monotonic."""
        leadership = self.leadership
        if leadership is None or leadership.followers.get(follower.broker_id) is not follower:
            return
        known = follower.log_end_offset
        follower.fetched(
            offset,
            log_start_offset=log_start_offset,
            leader_end_offset=self.log.log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if follower.broker_id not in leadership.maximal_isr:
            self.grow_isr()
        if offset != known:
            self.advance(now_ms)

    def advance(self, now_ms: int) -> None:
        """Moves a leader's high watermark to where its followers are, and its disk."""
        leadership, partition_log = self.leadership, self.log
        known, offset = partition_log.high_watermark, partition_log.durable_end_offset
        if leadership is not None:
            offset = leadership.high_watermark(
                known,
                log_end_offset=partition_log.log_end_offset,
                durable_end_offset=offset,
                min_isr=self.min_isr,
                now_ms=now_ms,
            )
        elif not self.is_leader:
            return
        if offset > known:
            self._move_high_watermark(offset)

    def flush_ended(self, error: KafkaError | None) -> None:
        """What was in the log when the flush began is on disk, unless there is an `error`."""
        if error is not None:
            self._fail_commits(error)
        else:
            self.advance(self._replicas.monotonic_ms())

    def _move_high_watermark(self, offset: int) -> None:
        partition_log = self.log
        before, stable_before = partition_log.high_watermark, partition_log.last_stable_offset
        partition_log.high_watermark = offset
        byte_count = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            byte_count += uncommitted.popleft()[1]
        if self.waiting:
            self.wake(byte_count, self._newly_stable(stable_before, before, byte_count))
        for subscriber in self.subscribers:
            subscriber.high_watermark_moved()
        commits = self._commits
        while commits and commits[0][0] <= offset:
            commits.popleft()[1].committed()

    # -- requests that wait for a commit

    def wait_for_commit(self, offset: int, waiting: WaitingCommit) -> bool:
        """True when the high watermark is at `offset` already; else `waiting` is told, once.

        For a leader, at once after the append: what stands at `offset` later may be another leader's.
        """
        if self.log.high_watermark >= offset:
            return True
        commits = self._commits
        if not commits or commits[-1][0] <= offset:
            commits.append((offset, waiting))
        else:  # the repeated batch of a producer that lost an answer
            place = next(number for number, (other, _) in enumerate(commits) if other > offset)
            commits.insert(place, (offset, waiting))
        return False

    def stop_waiting(self, waiting: WaitingCommit) -> None:
        if self._commits and self._commits[0][1] is waiting:  # requests mostly time out in the order in which they came
            self._commits.popleft()
        else:
            self._commits = deque(entry for entry in self._commits if entry[1] is not waiting)

    def committed(self, offset: int) -> asyncio.Future[None] | None:
        """None if everything below `offset` is committed; else a future that is done when it is.

        It fails with NOT_LEADER_OR_FOLLOWER when this broker leads the partition no more.
        """
        if self.log.high_watermark >= offset:
            return None
        future: asyncio.Future[None] = self._replicas.loop.create_future()
        if self.is_leader:
            self.wait_for_commit(offset, CommitFuture(future))
        else:  # a caller that was suspended may be too late for `_fail_commits`
            future.set_exception(self._not_leading())
        return future

    def _fail_commits(self, error: KafkaError) -> None:
        commits, self._commits = self._commits, deque()
        for _, waiting in commits:
            waiting.failed(error)

    def _not_leading(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.leader_id} leads {self.name}")

    # -- the in-sync set

    def grow_isr(self) -> None:
        leadership = self.leadership
        change = leadership.grow(self.log.high_watermark) if leadership is not None else None
        if change is not None:
            self._replicas.propose(self, change)

    def shrink_isr(self, now_ms: int) -> None:
        leadership = self.leadership
        change = leadership.shrink(self.log.log_end_offset, now_ms) if leadership is not None else None
        if change is not None:
            assert leadership is not None
            logger.debug(
                "followers lag behind, removing them from the in-sync replicas",
                extra={"partition": self.name, "isr": sorted(leadership.isr), "proposed": list(change.broker_ids)},
            )
            self._replicas.propose(self, change)

    def isr_accepted(self, change: IsrChange, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int) -> None:
        leadership = self.leadership
        if leadership is not None and leadership.accepted(change, isr, leader_epoch, partition_epoch):
            self.advance(self._replicas.monotonic_ms())
            self.grow_isr()  # others may have come back meanwhile

    def isr_refused(self, change: IsrChange, code: ErrorCode) -> bool:
        """True when the same change is to be sent again."""
        return self.leadership is not None and self.leadership.refused(change, code)
