"""The leader's end of replication: the fetch sessions of followers.

A session holds its partitions in memory, each as a `FollowerSubscription` in the partition's list. An append or a new
high watermark marks the subscription as due, so a fetch costs what has changed, not what it follows: three thousand
idle partitions cost nothing.

    named     the request holds the partition: its offset says what the follower has; checked, then counted
    due       there is something to send: records, a high watermark, a log start, another leader
    sent      records went out, or where to cut: until it is named again, its offset here is not the follower's
    held      records would be due, but the replica is throttled: until the quota has room again

A fetch that finds no records waits. An append answers it; a high watermark alone does so a little later, since the
next records will most likely take it along; another fetch of the session does so at once, so that a follower can
bring in a new partition at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.network.byte_budget import ByteBudget
from moldau.broker.network.client_connection import Buffers, ClientConnection, Pipelined
from moldau.broker.network.request import RequestContext
from moldau.broker.replicas.hosted_partitions import FindPartition
from moldau.broker.replicas.partition import Partition
from moldau.broker.turns import Work
from moldau.clocks import Clock
from moldau.cluster.brokers import check_broker_epoch, is_registered
from moldau.cluster.follower import last_common_epoch
from moldau.cluster.replica import NEVER_MS, UNKNOWN_EPOCH, UNKNOWN_OFFSET, Follower
from moldau.cluster.replication_quota import ReplicationQuota
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_response,
)

HIGH_WATERMARK_DELAY_S = 0.01
"""How long a high watermark waits for records to travel with. Consumers that read from followers wait for it."""
WAIT_MAX_MS = 600_000
"""The longest wait of a fetch, after which a lost follower is forgotten."""
RESULTS_MAX = 1000
"""Partitions in one answer: a few milliseconds. The others are due in the next one."""
HELD_MAX_S = 0.5
"""How long a throttled partition is held before its follower is looked at again: it may be in sync by then."""
_NOTHING_SENT = -2
_OPEN, _SENT, _HELD = range(3)

_PartitionKey = tuple[bytes, int]


class FollowerSubscription:
    """One partition in a follower's session."""

    __slots__ = (
        "follower",
        "is_due",
        "muted",
        "partition",
        "refusal",
        "requested",
        "sent_high_watermark",
        "sent_start_offset",
        "session",
        "topic_id",
    )

    def __init__(self, session: FollowerSession, topic_id: bytes, requested: FetchPartition) -> None:
        self.session = session
        self.topic_id = topic_id
        self.requested = requested
        self.partition: Partition | None = None
        self.follower: Follower | None = None
        self.refusal: FetchPartitionResult | None = None
        self.is_due = False
        self.muted = _OPEN
        """Otherwise nothing makes it due: it was sent, or is held."""
        self.sent_high_watermark = self.sent_start_offset = _NOTHING_SENT

    # -- called by the partition

    @property
    def broker_id(self) -> int:
        return self.session.replica_id

    @property
    def last_fetch_ms(self) -> int:
        return self.session.last_fetch_ms

    def appended(self, base_offset: int, byte_count: int) -> None:
        follower = self.follower
        if follower is not None and follower.log_end_offset == base_offset:
            follower.was_caught_up_at(self.session.last_fetch_ms)
        if not self.muted:
            self.mark_due()
            self.session.more(byte_count)

    def high_watermark_moved(self) -> None:
        if not self.muted:
            self.mark_due()
            self.session.answer_later()

    def leader_changed(self) -> None:
        self.check()
        self.muted = _OPEN
        self.mark_due()
        self.session.answer_soon()

    def mark_due(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.session.due[self] = None

    # -- what the follower sends

    def check(self) -> None:
        """Finds the partition and the follower's place in it, and what is wrong with the request."""
        session, requested = self.session, self.requested
        self.follower = None
        try:
            partition = session.shared.find_partition(None, self.topic_id, requested.index)
            self.move_to(partition)
            partition.check_leader_epoch(requested.current_leader_epoch)
            partition.check_leads()
            leadership = partition.leadership
            follower = leadership.followers.get(session.replica_id) if leadership is not None else None
            if follower is None:
                # Its metadata is ahead of ours, or far behind.
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {session.replica_id} is not a replica")
            session.check_broker_epoch()
            self.refusal = diverging_epoch(partition, requested)
            self.follower = follower
        except KafkaError as error:
            self.refusal = FetchPartitionResult(requested.index, int(error.code))

    def move_to(self, partition: Partition | None) -> None:
        """A partition that left and came back is another one."""
        if self.partition is not partition:
            if self.partition is not None:
                self.partition.subscribers.remove(self)
            if partition is not None:
                partition.subscribers.append(self)
            self.partition = partition

    def end(self) -> None:
        """The session no longer holds it. If nothing is due, the follower was caught up at its last fetch."""
        if self.follower is not None and not self.is_due and not self.muted:
            self.follower.was_caught_up_at(self.session.last_fetch_ms)
        self.move_to(None)

    # -- what is sent to it

    def read(self, left: int, *, min_one: bool) -> tuple[FetchPartitionResult | None, int]:
        """The result, if it changed, and the bytes of its records."""
        requested, partition = self.requested, self.partition
        if self.refusal is not None or partition is None:
            self.sent_high_watermark = _NOTHING_SENT  # the follower has to see that it is over
            return self.refusal, 0
        if partition.is_throttled and self._has_to_wait(partition):
            return None, 0
        log = partition.log
        high_watermark, start_offset = log.high_watermark, log.log_start_offset
        try:
            max_bytes = min(left, requested.max_bytes)
            records = log.read(requested.fetch_offset, max_bytes, upto_offset=log.log_end_offset, min_one=min_one)
        except KafkaError as error:
            self.sent_high_watermark = _NOTHING_SENT
            return FetchPartitionResult(requested.index, int(error.code)), 0
        size = len(records)
        if not size and high_watermark == self.sent_high_watermark and start_offset == self.sent_start_offset:
            return None, 0
        stable_offset = log.last_stable_offset
        return FetchPartitionResult(
            requested.index, 0, high_watermark, stable_offset, start_offset, None, -1, records
        ), size

    def _has_to_wait(self, partition: Partition) -> bool:
        """A replica that is in sync, or about to be, never has to."""
        leadership, session = partition.leadership, self.session
        if leadership is None or session.replica_id in leadership.maximal_isr:
            return False
        wait_ms = session.shared.quota.wait_ms(session.shared.monotonic_ms())
        if wait_ms:
            self.muted = _HELD
            session.hold(self, wait_ms)
        return wait_ms > 0

    def on_sent(self, result: FetchPartitionResult) -> None:
        self.muted = _SENT if result.records or result.diverging_epoch is not None else _OPEN
        if self.partition is not None and self.partition.is_throttled and result.records:
            shared = self.session.shared
            shared.quota.record(len(result.records), shared.monotonic_ms())
        if not result.error_code and result.diverging_epoch is None:
            self.sent_high_watermark = result.high_watermark
            self.sent_start_offset = result.log_start_offset


def diverging_epoch(partition: Partition, requested: FetchPartition) -> FetchPartitionResult | None:
    """A reader whose last record is not in this log gets the end of what they have in common."""
    log = partition.log
    agreed = last_common_epoch(log, requested.fetch_offset, requested.last_fetched_epoch)
    if agreed is None:
        return None
    stable_offset, start_offset = log.last_stable_offset, log.log_start_offset
    return FetchPartitionResult(
        requested.index, 0, log.high_watermark, stable_offset, start_offset, diverging_epoch=agreed
    )


_Results = list[tuple[FollowerSubscription, FetchPartitionResult]]


class _Waiting:
    """A fetch that is not answered yet."""

    __slots__ = ("answer", "context", "missing_bytes", "timer")

    def __init__(
        self, context: RequestContext, answer: Pipelined, missing_bytes: int, timer: asyncio.TimerHandle
    ) -> None:
        self.context = context
        self.answer = answer
        self.missing_bytes = missing_bytes
        self.timer = timer


class FollowerSession:
    def __init__(
        self, shared: FollowerSessions, session_id: int, replica_id: int, connection: ClientConnection
    ) -> None:
        self.shared = shared
        self.id = session_id
        self.epoch = 0
        self.replica_id = replica_id
        self.connection = connection
        self.last_fetch_ms = NEVER_MS
        self.subscriptions: dict[_PartitionKey, FollowerSubscription] = {}
        self.due: dict[FollowerSubscription, None] = {}
        """In the order in which they became due."""
        self._is_closed = False
        self._replica_epoch = UNKNOWN_EPOCH
        self._max_bytes = 0
        self._held: list[FollowerSubscription] = []
        self._waiting: _Waiting | None = None
        self._timer: asyncio.TimerHandle | None = None

    def check_broker_epoch(self) -> None:
        check_broker_epoch(self.shared.metadata.image, self.replica_id, self._replica_epoch)

    def close(self) -> None:
        self._is_closed = True
        self.answer()
        for subscription in self.subscriptions.values():
            subscription.end()
        self.subscriptions.clear()
        self.due.clear()
        self._held.clear()

    def _registered(self, replica_epoch: int) -> None:
        """The follower has its broker epoch now: what it sent before on this connection was from it, too."""
        self._replica_epoch = replica_epoch
        for subscription in self.subscriptions.values():
            if subscription.follower is not None:
                subscription.follower.broker_epoch = replica_epoch

    # -- a fetch

    def fetch(self, context: RequestContext, request: FetchRequest) -> Work[Buffers | Pipelined]:
        self.answer()
        self.epoch = 1 if self.epoch == 2**31 - 1 else self.epoch + 1
        now_ms = self.last_fetch_ms = self.shared.monotonic_ms()
        if request.replica_epoch != self._replica_epoch:
            self._registered(request.replica_epoch)
        self._max_bytes = request.max_bytes
        for forgotten in request.forgotten:
            for index in forgotten.partitions:
                self._forget((forgotten.topic_id or b"", index))
            yield
        is_refused = False
        for topic in request.topics:
            for requested in topic.partitions:
                if not self._is_closed:
                    is_refused |= not self._on_requested(topic.topic_id or b"", requested, now_ms)
                yield
        if self._is_closed:  # by a newer session of the follower
            code = int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return encode_fetch_response(context.version, context.correlation_id, [], error_code=code)
        results, size = self._read()
        # A session that begins is answered at once: with its id the follower can send another request at any time.
        if size >= request.min_bytes or is_refused or request.session_epoch == 0 or request.max_wait_ms <= 0:
            return self._encode(context, results)
        for subscription, _ in results:
            subscription.mark_due()
        return self._wait(context, request, size)

    def _forget(self, key: _PartitionKey) -> None:
        subscription = self.subscriptions.pop(key, None)
        if subscription is not None:
            subscription.end()
            subscription.muted = _SENT
            self.due.pop(subscription, None)
            if subscription.follower is not None:
                # It stopped following, perhaps because its disk failed: its offset no longer counts for the ISR.
                subscription.follower.log_end_offset = UNKNOWN_OFFSET

    def _on_requested(self, topic_id: bytes, requested: FetchPartition, now_ms: int) -> bool:
        """Takes the follower's offset; False if it is wrong, and the follower has to be told."""
        key = (topic_id, requested.index)
        subscription = self.subscriptions.get(key)
        if subscription is None:
            subscription = self.subscriptions[key] = FollowerSubscription(self, topic_id, requested)
        subscription.requested = requested
        subscription.muted = _OPEN
        subscription.check()
        partition, follower = subscription.partition, subscription.follower
        if subscription.refusal is not None or partition is None or follower is None:
            subscription.mark_due()
            if partition is None:
                del self.subscriptions[key]  # refused once; partitions that do not exist are not remembered
            return False
        partition.fetched(
            follower,
            requested.fetch_offset,
            log_start_offset=requested.log_start_offset,
            broker_epoch=self._replica_epoch,
            now_ms=now_ms,
        )
        log = partition.log
        if requested.fetch_offset < log.log_end_offset or log.high_watermark != subscription.sent_high_watermark:
            subscription.mark_due()
        return True

    def _read(self) -> tuple[_Results, int]:
        """What is due, as far as the answer has room; the rest stays due."""
        left = min(self._max_bytes, self.shared.send_budget.left)
        size = 0
        results: _Results = []
        for subscription in tuple(islice(self.due, RESULTS_MAX)):
            if left <= 0 and size:
                break
            subscription.is_due = False
            del self.due[subscription]
            result, count = subscription.read(left, min_one=not size)
            if result is not None:
                results.append((subscription, result))
                size += count
                left -= count
        return results, size

    def _encode(self, context: RequestContext, results: _Results) -> Buffers:
        topics: dict[bytes, list[FetchPartitionResult]] = {}
        for subscription, result in results:
            subscription.on_sent(result)
            topics.setdefault(subscription.topic_id, []).append(result)
        return encode_fetch_response(
            context.version,
            context.correlation_id,
            [(None, topic_id, of_topic) for topic_id, of_topic in topics.items()],
            session_id=self.id,
        )

    # -- throttled replicas

    def hold(self, subscription: FollowerSubscription, wait_ms: int) -> None:
        if not self._held:
            self.shared.loop.call_later(min(wait_ms / 1000, HELD_MAX_S), self._release)
        self._held.append(subscription)

    def _release(self) -> None:
        held, self._held = self._held, []
        for subscription in held:
            if subscription.muted == _HELD:
                subscription.muted = _OPEN
                subscription.mark_due()
                self.answer_soon()

    # -- waiting

    def _wait(self, context: RequestContext, request: FetchRequest, size: int) -> Pipelined:
        loop = self.shared.loop
        answer = Pipelined(loop.create_future())
        timer = loop.call_later(min(request.max_wait_ms, WAIT_MAX_MS) / 1000, self.answer)
        self._waiting = _Waiting(context, answer, request.min_bytes - size, timer)
        if self.due:
            self.answer_later()
        return answer

    def more(self, byte_count: int) -> None:
        waiting = self._waiting
        if waiting is not None and waiting.missing_bytes > 0:
            waiting.missing_bytes -= byte_count
            if waiting.missing_bytes <= 0:
                # Not now: a burst of appends makes one answer.
                self.shared.loop.call_soon(self.answer)

    def answer_soon(self) -> None:
        self.more(2**31)

    def answer_later(self) -> None:
        if self._waiting is not None and self._timer is None:
            self._timer = self.shared.loop.call_later(HIGH_WATERMARK_DELAY_S, self.answer)

    def answer(self) -> None:
        """Ends the wait, if there is one, with what is due."""
        waiting, self._waiting = self._waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting is None:
            return
        waiting.timer.cancel()
        if not waiting.answer.future.done():
            results, _ = self._read()
            waiting.answer.settle(self._encode(waiting.context, results))


class FollowerSessions:
    """One for each follower: what arrives late on a connection that it gave up is about another state."""

    def __init__(
        self,
        metadata: MetadataCache,
        find_partition: FindPartition,
        quota: ReplicationQuota,
        *,
        send_budget: ByteBudget,
        loop: asyncio.AbstractEventLoop,
        monotonic_ms: Clock,
        new_id: Callable[[], int],
    ) -> None:
        """`quota` is for the replicas that catch up at a limited rate."""
        self.metadata = metadata
        self.find_partition = find_partition
        self.quota = quota
        self.send_budget = send_budget
        self.loop = loop
        self.monotonic_ms = monotonic_ms
        self._new_id = new_id
        self._sessions: dict[int, FollowerSession] = {}

    def fetch(self, context: RequestContext, request: FetchRequest) -> Work[Buffers | Pipelined]:
        """KafkaError where there is no such session; the work of a follower that names thousands takes turns."""
        if request.session_epoch <= 0:
            return self._begin(request, context.connection).fetch(context, request)
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return session.fetch(context, request)

    def _begin(self, request: FetchRequest, connection: ClientConnection) -> FollowerSession:
        replica_id = request.replica_id
        may_replace = is_registered(self.metadata.image, replica_id, request.replica_epoch)  # and not any client
        for old in list(self._sessions.values()):
            if old.connection is connection or (may_replace and old.replica_id == replica_id):
                self._close(old)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = FollowerSession(self, session_id, replica_id, connection)
        return session

    def disconnected(self, connection: ClientConnection) -> None:
        for session in list(self._sessions.values()):
            if session.connection is connection:
                self._close(session)

    def _close(self, session: FollowerSession) -> None:
        del self._sessions[session.id]
        session.close()
