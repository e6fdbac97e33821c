"""The follower's end of replication: one fetcher for each broker that leads partitions which this one follows.

Each has one connection and one fetch session: the first request names all partitions, a later one those whose offset
has changed. The leader holds a fetch while it has no records. If another partition is added in the meantime, a second
request names it at once and ends the wait of the first.

`cluster.follower` decides where a log diverges from its leader's. A partition that fails is left out for a while. The
first pauses are short: after a change of leader, either side may learn of it first. A partition that is throttled and
not in sync is not named while the quota is exceeded. Other partitions are not affected.

A fetch from an offset confirms that this replica has everything below it. With `flush.messages=1` that means on the
disk, including records from earlier leaders: a partition whose flush is due is flushed before it is named, in every
request of every session. And what is appended has to continue the log:

- An answer counts only for the offset that was asked for, and only while the log still ends there.
- Its first batch begins at the log end. It may begin before, where records were deleted up to the middle of it and the
  log is empty. It may begin after: compaction removes whole batches, so in a compacted topic such a gap is legal, as in
  Kafka. In other topics it is not, except for what was left by a compaction before `cleanup.policy` changed. So there
  a gap is refused and fetched again; a replica that is catching up takes it when the leader's second answer has it too.
  One that is in sync never does: what it gets was written a moment ago, and it would confirm records that it lacks.
- The batches behind it never step back, and those that a gap separates wait for the next fetch, where it is the first.
- None is of a later leader epoch than the one that was asked in: the log may have been truncated since (KAFKA-18723).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import Any

from moldau.broker.background import Spawn
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.peers import Peers
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.replicas.partition import Partition
from moldau.clocks import Clock
from moldau.cluster.follower import out_of_range, truncation_offset
from moldau.cluster.replication_quota import ReplicationQuota
from moldau.errors import ErrorCode, KafkaError, OffsetMismatchError, StorageError
from moldau.wire.apis import ApiKey
from moldau.wire.batch import read_header
from moldau.wire.constants import EARLIEST, LATEST
from moldau.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from moldau.wire.messages import Schema, ms

logger = logging.getLogger(__name__)

NAMED_MAX = 2000
"""Partitions in one request, which the leader looks at one by one; the others are in the next ones."""

FETCH_VERSION = 17
RETRY_MIN_S = 0.02
"""After a first failure; it doubles up to `replica.fetch.backoff.ms`."""
EXPECTED_FAILURES = 5
"""In a row, until either side knows of a new leader: not worth a line in the log."""
THROTTLED_MAX_S = 0.5
"""How long a throttled partition waits before it is looked at again: it may be in sync by then, or the rate another."""
LIST_OFFSETS_TIMEOUT_MS = 30_000
_NEW_SESSION = (0, 0)

Key = tuple[bytes, int]


class Followed:
    """One partition, and the state of its fetches."""

    __slots__ = ("failures", "fetch_offset", "gap_end", "key", "leader_epoch", "named_in", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.index)
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.named_in = 0
        """The number of the request that named it last: what answers an earlier one is about another state."""
        self.fetch_offset = -1
        """The offset from which that request fetched."""
        self.gap_end = -1
        """Where the records began that were refused because they did not begin at the log end."""

    @property
    def is_current(self) -> bool:
        """Whether what was asked for in this leader epoch may still go into the log."""
        return not self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def fetch_partition(self, max_bytes: int) -> FetchPartition:
        partition_log = self.partition.log
        self.fetch_offset = partition_log.log_end_offset
        return FetchPartition(
            self.partition.index,
            self.leader_epoch,
            self.fetch_offset,
            partition_log.epochs.latest,
            partition_log.log_start_offset,
            max_bytes,
        )

    def check_continues(self, records: memoryview) -> None:
        """OffsetMismatchError unless the log may go on with `records`; the module's docstring has the rules."""
        partition_log = self.partition.log
        end_offset = partition_log.log_end_offset
        if self.fetch_offset != end_offset:
            raise OffsetMismatchError(partition_log.name, end_offset, self.fetch_offset)
        first_offset = read_header(records).base_offset
        if first_offset > end_offset and not partition_log.config.compact:
            is_confirmed = first_offset == self.gap_end and not self.partition.is_in_sync
            self.gap_end = first_offset
            if not is_confirmed:
                raise OffsetMismatchError(partition_log.name, end_offset, first_offset)
            logger.warning(
                "the leader has no records between two offsets, continuing after the gap",
                extra={"partition": partition_log.name, "log_end_offset": end_offset, "first_offset": first_offset},
            )


class ReplicaFetcher:
    def __init__(
        self,
        broker_id: int,
        *,
        me: LocalBroker,
        peers: Peers,
        group_commit: GroupCommit,
        quota: ReplicationQuota,
        spawn: Spawn,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        monotonic_ms: Clock,
    ) -> None:
        """`quota` is for the partitions that this broker catches up with at a limited rate."""
        self.broker_id = broker_id
        self._me = me
        self._peers = peers
        self._group_commit = group_commit
        self._quota = quota
        self._spawn = spawn
        self._loop = loop
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._followed: dict[Key, Followed] = {}
        self._unnamed: dict[Key, Followed] = {}
        """What the next request has to name."""
        self._named: dict[Key, Followed] = {}
        """What the leader's session holds."""
        self._gone: set[Key] = set()
        """What the leader's session is to forget."""
        self._throttled: list[Followed] = []
        """What is to be named when the quota has room."""
        self._session = _NEW_SESSION
        self._sent = self._answered = 0
        self._failures = 0
        self._is_waiting = False
        self._ahead: asyncio.Task[memoryview] | None = None
        """A request that was sent while another one waits."""
        self._wanted = asyncio.Event()
        self._task = spawn(self._run())

    def add(self, partition: Partition) -> None:
        """Follows it, from where its log ends; in another leader epoch, if it did already."""
        known = self._followed.get((partition.topic_id, partition.index))
        if known is None or known.partition is not partition or known.leader_epoch != partition.leader_epoch:
            self._follow(Followed(partition))

    def remove(self, partition: Partition) -> None:
        followed = self._followed.pop((partition.topic_id, partition.index), None)
        if followed is not None:
            self._leave_out(followed)
            self._send_ahead()

    def stop(self) -> None:
        self._task.cancel()
        if self._ahead is not None:
            self._ahead.cancel()

    def _follow(self, followed: Followed) -> None:
        self._followed[followed.key] = self._unnamed[followed.key] = followed
        self._wanted.set()
        self._send_ahead()

    def _send_ahead(self) -> None:
        """Sends the next request now, without waiting for the response to the current one."""
        if self._is_waiting and self._ahead is None and self._session != _NEW_SESSION:
            self._ahead = self._spawn(self._ask())

    def _leave_out(self, followed: Followed) -> None:
        self._unnamed.pop(followed.key, None)
        if self._named.pop(followed.key, None) is not None:
            self._gone.add(followed.key)

    # -- one fetch after the other

    async def _run(self) -> None:
        while True:
            if not self._followed and not self._gone:
                self._start_session()
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._fetch()
                self._failures = 0
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._start_session()
                await self._back_off(error)

    async def _back_off(self, error: Exception) -> None:
        self._failures += 1
        where = {"leader": self.broker_id, "why": str(error)}
        if not isinstance(error, KafkaError):
            logger.error("internal error while fetching from a leader (please report it)", exc_info=error, extra=where)
        elif self._failures == 1:
            logger.info("cannot fetch from a leader, will retry", extra=where)
        await asyncio.sleep(self._retry_s(self._failures))

    def _retry_s(self, failures: int) -> float:
        longest_s = self._me.config.replica_fetch_backoff_ms / 1000
        return min(RETRY_MIN_S * (1 << min(failures - 1, 16)), longest_s)

    def _start_session(self) -> None:
        self._session = _NEW_SESSION
        self._answered = self._sent
        self._named.clear()
        self._gone.clear()
        self._throttled.clear()
        self._unnamed = dict(self._followed)
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    async def _fetch(self) -> None:
        asking = self._ask() if self._ahead is None else self._ahead
        self._ahead = None
        self._is_waiting = True
        try:
            frame = await asking
        finally:
            self._is_waiting = False
        self._answered += 1
        response = parse_fetch_response(FETCH_VERSION, frame)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "the leader refused a fetch")
        if self._session == _NEW_SESSION and response.session_id:
            self._session = (response.session_id, 1)
        now_ms = self._clock()
        for _, topic_id, results in response.topics:
            for result in results:
                followed = self._named.get((topic_id or b"", result.index))
                if followed is not None and followed.named_in <= self._answered and followed.is_current:
                    self._take(followed, result, now_ms)

    async def _ask(self) -> memoryview:
        """Sends the next request of the session; its answer."""
        me = self._me
        config = me.config
        if me.broker_epoch < 0:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is not registered yet")
        session_id, epoch = self._session
        if session_id:
            self._session = (session_id, 1 if epoch == 2**31 - 1 else epoch + 1)
        self._sent += 1
        wait_ms = 0
        topics: dict[bytes, list[FetchPartition]] = {}
        for key in tuple(islice(self._unnamed, NAMED_MAX)):
            followed = self._unnamed.pop(key)
            # A named offset confirms the records below it: on the disk, if the topic requires that.
            if followed.partition.log.durable_end_offset < followed.partition.log.log_end_offset:
                self._flush(followed)
                continue
            if followed.partition.is_throttled and not followed.partition.is_in_sync:
                wait_ms = wait_ms or self._quota.wait_ms(self._monotonic_ms())
                if wait_ms:
                    self._throttle(followed, wait_ms)
                    continue
            followed.named_in = self._sent
            self._named[key] = followed
            topics.setdefault(key[0], []).append(followed.fetch_partition(config.replica_fetch_max_bytes))
        request = FetchRequest(
            replica_id=me.node_id,
            replica_epoch=me.broker_epoch,
            max_wait_ms=0 if self._unnamed else config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(None, topic_id, partitions) for topic_id, partitions in topics.items()],
            forgotten=[ForgottenTopic(None, topic_id, [index]) for topic_id, index in self._gone],
        )
        self._gone.clear()
        body = encode_fetch_request(FETCH_VERSION, request)
        timeout_s = (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000
        peer = self._peers.broker(self.broker_id, "replica")
        return await peer.ask_raw(ApiKey.FETCH, FETCH_VERSION, [body], timeout_s=timeout_s)

    def _throttle(self, followed: Followed, wait_ms: int) -> None:
        if not self._throttled:
            self._loop.call_later(min(wait_ms / 1000, THROTTLED_MAX_S), self._name_throttled)
        self._throttled.append(followed)

    def _name_throttled(self) -> None:
        throttled, self._throttled = self._throttled, []
        for followed in throttled:
            self._return(followed)

    # -- responses

    def _take(self, followed: Followed, result: FetchPartitionResult, now_ms: int) -> None:
        """Handles the result of one partition; a failure does not affect the others."""
        try:
            if result.error_code:
                self._refused(followed, ErrorCode(result.error_code))
                return
            if result.diverging_epoch is not None:
                self._truncate_diverging(followed.partition, *result.diverging_epoch)
                self._unnamed[followed.key] = followed
            else:
                records = result.records if isinstance(result.records, memoryview) else memoryview(b"")
                if records:
                    followed.check_continues(records)
                followed.partition.append_as_follower(records, result.high_watermark, result.log_start_offset, now_ms)
                if records:
                    self._unnamed[followed.key] = followed
                    if followed.partition.is_throttled:
                        self._quota.record(len(records), self._monotonic_ms())
            followed.failures = 0
        except Exception as error:
            self._failed(followed, error)

    def _flush(self, followed: Followed) -> None:
        flushed = self._group_commit.flushed(followed.partition.log)
        flushed.add_done_callback(partial(self._flushed, followed))

    def _flushed(self, followed: Followed, done: asyncio.Future[None]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._return(followed)
        elif isinstance(error, Exception) and self._followed.get(followed.key) is followed:
            self._failed(followed, error)

    def _refused(self, followed: Followed, code: ErrorCode) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._leave_out(followed)
            self._spawn(self._find_place(followed))
        else:
            self._failed(followed, KafkaError(code, "the leader refused a fetch of this partition"))

    def _failed(self, followed: Followed, error: Exception) -> None:
        followed.failures += 1
        where = {"partition": followed.partition.name, "leader": self.broker_id, "why": str(error)}
        if not isinstance(error, KafkaError):
            logger.error("internal error while replicating a partition (please report it)", exc_info=error, extra=where)
        elif isinstance(error, OffsetMismatchError):
            if followed.failures & (followed.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th time …
                logger.warning("received records that do not continue the log, fetching again", extra=where)
        elif followed.failures == (1 if isinstance(error, StorageError) else EXPECTED_FAILURES + 1):
            logger.error("cannot replicate a partition: it stays out of sync until the cause is fixed", extra=where)
        self._leave_out(followed)
        self._loop.call_later(self._retry_s(followed.failures), self._return, followed)

    def _return(self, followed: Followed) -> None:
        if self._followed.get(followed.key) is followed:
            self._follow(followed)

    # -- where the logs diverge

    def _truncate_diverging(self, partition: Partition, leader_epoch: int, leader_end_offset: int) -> None:
        partition_log = partition.log
        own_epoch, own_end_offset = partition_log.offset_for_leader_epoch(leader_epoch)
        offset = truncation_offset(
            leader_epoch,
            leader_end_offset,
            own_epoch=own_epoch,
            own_end_offset=own_end_offset,
            log_end_offset=partition_log.log_end_offset,
            high_watermark=partition_log.high_watermark,
        )
        partition.truncate_to(offset, f"leader epoch {leader_epoch} ended at {leader_end_offset}")

    async def _find_place(self, followed: Followed) -> None:
        """The leader does not have the offset at which this log ends."""
        partition = followed.partition
        own_end_offset = partition.log.log_end_offset
        try:
            end_offset = await self._leader_offset(followed, LATEST)
            start_offset = await self._leader_offset(followed, EARLIEST)
            if self._followed.get(followed.key) is not followed or partition.log.log_end_offset != own_end_offset:
                return  # a session that began meanwhile has asked for it, and got on
            place = out_of_range(start_offset, end_offset, own_end_offset)
            why = f"the leader has offsets {start_offset} to {end_offset}"
            if place.starts_over:
                partition.start_over_at(place.offset, why)
            else:
                partition.truncate_to(place.offset, why)
        except Exception as error:
            self._failed(followed, error)
        else:
            self._return(followed)

    async def _leader_offset(self, followed: Followed, timestamp: int) -> int:
        partition = followed.partition

        def build(schema: Schema) -> Any:
            asked = schema.ListOffsetsPartition(
                partition_index=partition.index, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
            )
            topic = schema.ListOffsetsTopic(name=partition.topic, partitions=(asked,))
            return schema.ListOffsetsRequest(
                replica_id=self._me.node_id, isolation_level=0, topics=(topic,), timeout=ms(LIST_OFFSETS_TIMEOUT_MS)
            )

        answer = await self._peers.ask(self.broker_id, ApiKey.LIST_OFFSETS, build)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code), "the leader does not say where its log begins and ends")
        return int(found.offset)
