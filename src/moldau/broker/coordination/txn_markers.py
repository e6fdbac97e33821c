"""Transaction markers: they end a transaction in the partitions that it wrote to.

`MarkerWriter` receives the decision of a transaction shard once it is durable in `__transaction_state`. It writes the
markers, on other brokers with `WriteTxnMarkers`, and reports them to the shard. If it is interrupted (a disk error, a
new leader, a crash) the shard asks again for all markers that were not reported as written.

A marker counts as written when it is as durable as the decision: committed, and flushed if the topic asks for it. It
has the coordinator's epoch, and a partition that has seen a newer coordinator of the producer rejects it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from moldau.broker.background import Spawn
from moldau.broker.cluster.outbox import Outbox
from moldau.broker.cluster.peers import Peers
from moldau.broker.coordination.context import CoordinatorContext
from moldau.broker.coordination.coordinator_shell import CoordinatorShell, StepNotStartedError
from moldau.broker.coordination.remote_transactions import RemoteTransactions
from moldau.broker.replicas.partition import Partition
from moldau.clocks import Clock
from moldau.coordinators.transactions.shard import Markers, TransactionShard
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_VERSION_MIN, Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin
from moldau.wire.apis import ApiKey
from moldau.wire.batch import ControlType, encode_end_txn_marker
from moldau.wire.messages import Schema
from moldau.wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

INLINE_MAX = 100
"""Markers written in one go, a few milliseconds. More take turns with other work."""
ASK_TIMEOUT_S = 10.0
"""A broker that does not answer for so long may lead nothing any more: the metadata says who is asked next."""
REPORT_RETRY_S = 0.5

_RETRY_MESSAGE = "cannot write a transaction marker to %s-%d, will retry: %s"

_Written = dict[TopicPartition, "Awaitable[Any] | None"]
"""Partitions that have their marker, each with what has to happen until it is safe."""


class Groups(Protocol):
    """The coordinator of groups, whose offsets can be part of a transaction."""

    topic: str

    def marker_written(self, partition: int, producer_id: int, committed: bool) -> None: ...


class LocalMarkers:
    """Markers in partitions of this broker."""

    def __init__(self, wall_clock: Clock, remote_transactions: RemoteTransactions, groups: Groups) -> None:
        self._wall_clock = wall_clock
        self._remote_transactions = remote_transactions
        self._groups = groups

    def write(
        self, partition: Partition, producer: Identity, *, committed: bool, version: int, coordinator_epoch: int
    ) -> None:
        """Ends the producer's transaction in one partition."""
        partition.check_leads()
        # With the raised epoch of version 2, a marker is the first thing that a partition sees of it.
        if (
            version >= EPOCH_BUMP_VERSION_MIN
            and partition.log.producers.epoch_of(producer.producer_id) >= producer.epoch
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"{partition.log.name} has epoch {producer.epoch} already"
            )
        now_ms = self._wall_clock()
        marker = encode_end_txn_marker(
            ControlType.COMMIT if committed else ControlType.ABORT,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=now_ms,
        )
        partition.append(memoryview(bytearray(marker)), now_ms, AppendOrigin.COORDINATOR, required_acks=-1)
        self._remote_transactions.marker_written(partition, producer, version)
        if partition.topic == self._groups.topic:
            self._groups.marker_written(partition.index, producer.producer_id, committed)


class _Remote(NamedTuple):
    """Markers of one transaction for the partitions of one broker."""

    markers: Markers
    partitions: Sequence[TopicPartition]
    coordinator_epoch: int


class RemoteMarkers:
    """To the leaders on other brokers: one request at a time to each, with the markers of many transactions."""

    def __init__(self, peers: Peers, spawn: Spawn) -> None:
        self._peers = peers
        self._outbox: Outbox[_Remote, Collection[TopicPartition]] = Outbox(spawn, self._send)

    async def write(
        self, broker_id: int, markers: Markers, partitions: Sequence[TopicPartition], coordinator_epoch: int
    ) -> Collection[TopicPartition]:
        """Which of the partitions have their marker now."""
        try:
            return await self._outbox.put(broker_id, _Remote(markers, sorted(partitions), coordinator_epoch))
        except KafkaError as error:
            logger.warning(
                "cannot write transaction markers through broker %d, will retry: %s", broker_id, error.message
            )
            return ()

    async def _send(self, broker_id: int, items: Sequence[_Remote]) -> list[Collection[TopicPartition] | KafkaError]:
        def build(schema: Schema) -> Any:
            return schema.WriteTxnMarkersRequest(markers=tuple(_packed(schema, one) for one in items))

        peer = self._peers.broker(broker_id, "markers")
        answer = await peer.ask(ApiKey.WRITE_TXN_MARKERS, build, timeout_s=ASK_TIMEOUT_S)
        return [_accepted(result) for result in answer.markers]


def _packed(schema: Schema, one: _Remote) -> Any:
    return schema.WritableTxnMarker(
        producer_id=one.markers.producer.producer_id,
        producer_epoch=one.markers.producer.epoch,
        transaction_result=one.markers.committed,
        topics=tuple(
            schema.WritableTxnMarkerTopic(name=name, partition_indexes=tuple(index for _, index in places))
            for name, places in groupby(one.partitions, key=itemgetter(0))
        ),
        coordinator_epoch=one.coordinator_epoch,
        transaction_version=one.markers.version,
    )


def _accepted(result: Any) -> list[TopicPartition]:
    accepted = []
    for topic in result.topics:
        for one in topic.partitions:
            # The epoch is known there: it has this marker since an earlier try.
            if one.error_code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
                accepted.append(TopicPartition(topic.name, one.partition_index))
            else:
                code = ErrorCode(one.error_code).name
                logger.warning(_RETRY_MESSAGE, topic.name, one.partition_index, code)
    return accepted


class MarkerWriter:
    """The waiter to whom one shard of transactions gives its markers."""

    def __init__(
        self,
        context: CoordinatorContext,
        partition: int,
        transactions: CoordinatorShell[TransactionShard],
        local_markers: LocalMarkers,
        remote_markers: RemoteMarkers,
    ) -> None:
        self._context = context
        self._partition = partition
        self._transactions = transactions
        self._local_markers = local_markers
        self._remote_markers = remote_markers

    def arrive(self, markers: Markers) -> None:
        by_leader = self._by_leader(markers.partitions)
        here = by_leader.pop(self._context.local.node_id, [])
        gone = by_leader.pop(None, [])
        if by_leader or len(here) > INLINE_MAX:
            self._context.spawn(self._write_everywhere(markers, gone, here, by_leader))
            return
        written = self._write(markers, here)
        if any(written.values()):
            self._context.spawn(self._report_when_safe(markers, gone, written))
        else:
            self._report(markers, {*gone, *written})

    def fail(self, error: Exception) -> None:
        """The decision is not safe: its shard is loaded again, and finds in its log whether it was made."""

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int | None, list[TopicPartition]]:
        """None for those whose topic is gone, and their open transactions with it."""
        by_leader: defaultdict[int | None, list[TopicPartition]] = defaultdict(list)
        for where in partitions:
            topic = self._context.metadata.image.topics.get(where[0])
            partition = None if topic is None else topic.partition(where[1])
            by_leader[None if partition is None else partition.leader].append(where)
        return by_leader

    @property
    def _is_current(self) -> bool:
        """A shard that was loaded again has a new writer. The old one must not write or report anything: the
        transaction may be over, and the next one of the same producer open."""
        return any(shard.marker_writer is self for _, shard in self._transactions.shards())

    async def _write_everywhere(
        self,
        markers: Markers,
        gone: Sequence[TopicPartition],
        here: Sequence[TopicPartition],
        elsewhere: Mapping[int | None, Sequence[TopicPartition]],
    ) -> None:
        epoch = self._context.find_partition(self._transactions.topic, None, self._partition).leader_epoch
        asking = [
            self._remote_markers.write(leader, markers, partitions, epoch)
            for leader, partitions in elsewhere.items()
            if leader in self._context.metadata.live_brokers
        ]
        remote = asyncio.gather(*asking)
        written: _Written = {}
        async for where in self._context.turns.each(here):
            if not self._is_current:
                break
            written |= self._write(markers, [where])
        accepted = [where for answer in await remote for where in answer]
        await self._report_when_safe(markers, (*gone, *accepted), written)

    async def _report_when_safe(self, markers: Markers, done: Collection[TopicPartition], written: _Written) -> None:
        """A decision may be forgotten as done only when its markers are as safe as it is."""
        waits = {where: wait for where, wait in written.items() if wait is not None}
        outcomes = await asyncio.gather(*waits.values(), return_exceptions=True)
        failed = {
            where for where, error in zip(waits, outcomes, strict=True) if error is not None and _has_failed(error)
        }
        self._report(markers, {*done, *written} - failed)

    def _report(self, markers: Markers, written: Collection[TopicPartition]) -> None:
        if not self._is_current:
            return
        try:
            self._transactions.run(
                self._partition, lambda shard, now_ms: shard.markers_written(markers, written, now_ms)
            )
        except StepNotStartedError:
            self._context.loop.call_later(REPORT_RETRY_S, self._report, markers, written)
        except KafkaError as error:
            # The shard goes away; where it comes back, it asks for the markers again.
            logger.warning("cannot record that a transaction is complete, will retry", extra={"why": error.message})

    def _write(self, markers: Markers, partitions: Sequence[TopicPartition]) -> _Written:
        """Writes the markers of this broker's partitions; returns the partitions that have theirs now."""
        written: _Written = {}
        decisions = self._context.find_partition(self._transactions.topic, None, self._partition)
        for where in partitions:
            try:
                partition = self._context.find_partition(where[0], None, where[1])
                self._write_one(markers, partition, decisions.leader_epoch)
            except KafkaError as error:
                logger.error(_RETRY_MESSAGE, *where, error.message)
            else:
                flush_messages = min(partition.log.config.flush_messages, decisions.log.config.flush_messages)
                written[where] = self._context.group_commit.safe(partition, flush_messages)
        return written

    def _write_one(self, markers: Markers, partition: Partition, coordinator_epoch: int) -> None:
        if not self._context.local.config.is_clustered:
            # No other broker can have decided otherwise: a higher epoch is from outside, and must not leave the
            # transaction open.
            known_epoch = partition.log.producers.coordinator_epoch_of(markers.producer.producer_id)
            coordinator_epoch = max(coordinator_epoch, known_epoch)
        try:
            self._local_markers.write(
                partition,
                markers.producer,
                committed=markers.committed,
                version=markers.version,
                coordinator_epoch=coordinator_epoch,
            )
        except KafkaError as error:
            # It has this marker since before a crash, or a newer one from outside.
            if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
                raise


def _has_failed(outcome: object) -> bool:
    """What a wait gave: several of them a list, one of them nothing."""
    return isinstance(outcome, BaseException)
