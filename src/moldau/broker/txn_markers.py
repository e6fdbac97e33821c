"""Markers: how a transaction's end comes into the partitions that it wrote to.

`MarkerWriter` takes the decisions of the transaction shards, as any waiter takes its reply, when they are safe in
`__transaction_state`. Marker by marker it makes them true, then tells the shard. Whatever stops it half-way (a disk
that refuses, the death of the broker) only delays the rest: the shard asks again for what is not reported as written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from moldau.broker.partition import Partition
from moldau.coordinators.transactions.shard import Markers
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_SINCE, Identity, TopicPartition
from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.wire.batch import ControlType, encode_end_txn_marker

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

AT_ONCE_MAX = 100
"""Markers written in one go, a few milliseconds; then the loop serves others first."""

_NOTHING_TO_END = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the topic is gone, and its open transactions with it
        ErrorCode.INVALID_PRODUCER_EPOCH,  # it has this marker since before a crash, or a newer one from outside
    }
)


def write_marker(
    node: BrokerNode, partition: Partition, producer: Identity, *, committed: bool, version: int, coordinator_epoch: int
) -> None:
    """Ends the producer's transaction in one partition."""
    # With the raised epoch of version 2, a marker is the first thing that a partition sees of it.
    if version >= EPOCH_BUMP_SINCE and partition.log.producers.epoch_of(producer.producer_id) >= producer.epoch:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f"{partition.log.name} knows epoch {producer.epoch} already")
    now_ms = node.clock()
    marker = encode_end_txn_marker(
        ControlType.COMMIT if committed else ControlType.ABORT,
        coordinator_epoch=coordinator_epoch,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        timestamp_ms=now_ms,
    )
    partition.append(memoryview(bytearray(marker)), now_ms, AppendOrigin.COORDINATOR)
    if partition.topic == node.groups.topic:
        node.groups.marker_written(partition.index, producer.producer_id, committed)


async def flush_all(node: BrokerNode, logs: Iterable[PartitionLog]) -> set[PartitionLog]:
    """Which of the logs could not be flushed."""
    logs = tuple(logs)
    outcomes = await asyncio.gather(*map(node.group_commit.flushed, logs), return_exceptions=True)
    return {log for log, error in zip(logs, outcomes, strict=True) if error is not None}


class MarkerWriter:
    """The waiter to whom one shard of transactions gives its markers."""

    def __init__(self, node: BrokerNode, partition: int) -> None:
        self._node = node
        self._partition = partition

    def arrive(self, markers: Markers) -> None:
        if len(markers.partitions) > AT_ONCE_MAX:
            self._node.spawn(self._write_in_turns(markers))
            return
        written = self._write(markers, markers.partitions)
        if any(written.values()):
            self._node.spawn(self._flush_and_report(markers, written))
        else:
            self._report(markers, written)

    def fail(self, error: Exception) -> None:
        """The decision is not safe: its shard is loaded again, and finds in its log whether it was made."""

    @property
    def _is_current(self) -> bool:
        """A shard that was loaded again has a new writer. Whatever the old one still had to do or to tell must not
        happen: the transaction may be over, and the next one of the same producer open."""
        return any(shard.marker_writer is self for _, shard in self._node.transactions.shards())

    async def _write_in_turns(self, markers: Markers) -> None:
        written: dict[TopicPartition, PartitionLog | None] = {}
        for start in range(0, len(markers.partitions), AT_ONCE_MAX):
            if not self._is_current:
                return
            written |= self._write(markers, markers.partitions[start : start + AT_ONCE_MAX])
            await asyncio.sleep(0)
        await self._flush_and_report(markers, written)

    async def _flush_and_report(self, markers: Markers, written: dict[TopicPartition, PartitionLog | None]) -> None:
        """A decision may be forgotten as done only when its markers are as safe as it is."""
        failed = await flush_all(self._node, (log for log in written.values() if log is not None))
        self._report(markers, {where for where, log in written.items() if log not in failed})

    def _report(self, markers: Markers, written: Collection[TopicPartition]) -> None:
        if not self._is_current:
            return
        try:
            self._node.transactions.run(
                self._partition, lambda shard, now_ms: shard.markers_written(markers, written, now_ms)
            )
        except KafkaError as error:
            # The shard goes away; where it comes back, it asks for the markers again.
            log.warning("a transaction's end was not recorded", extra={"why": error.message})

    def _write(
        self, markers: Markers, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, PartitionLog | None]:
        """Those that have their marker now, each with its log if that has to be flushed."""
        written: dict[TopicPartition, PartitionLog | None] = {}
        decisions = self._node.find_partition(self._node.transactions.topic, None, self._partition)
        for where in partitions:
            try:
                partition = self._node.find_partition(where[0], None, where[1])
                write_marker(
                    self._node,
                    partition,
                    markers.producer,
                    committed=markers.committed,
                    version=markers.version,
                    # No other broker can have decided otherwise: a higher one is from outside, and must not leave
                    # the transaction open.
                    coordinator_epoch=max(
                        decisions.leader_epoch,
                        partition.log.producers.coordinator_epoch_of(markers.producer.producer_id),
                    ),
                )
            except KafkaError as error:
                if error.code not in _NOTHING_TO_END:
                    log.error("no marker for %s-%d: %s; it is tried again", *where, error.message)
                    continue
                written[where] = None
            else:
                data = partition.log
                flush_messages = min(data.config.flush_messages, decisions.log.config.flush_messages)
                written[where] = data if data.unflushed_messages >= flush_messages else None
        return written
