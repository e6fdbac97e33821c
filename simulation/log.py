"""A replica's log on a fake disk: what a `Partition` needs of a `PartitionLog`, without files.

Every batch is one entry, at one offset. A process that dies leaves everything it wrote; a machine that dies leaves what
was flushed and some of the rest. Producer state, epoch cache and the rules of the high watermark are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from moldau.config.topic import TopicConfig
from moldau.disk import OS_DISK
from moldau.errors import ErrorCode, KafkaError
from moldau.log.epoch_cache import EpochCache
from moldau.log.partition_log import AppendInfo, PartitionLog
from moldau.log.producer_state import AppendOrigin, EndTxnMarker, ProducerState
from moldau.log.txn_index import AbortedTxn
from moldau.wire.batch import BatchHeader

TopicPartition = tuple[str, int]

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_NEVER_MS = 2**60
# The real rules of high watermark and last stable offset.
_MOVE_HIGH_WATERMARK: Any = PartitionLog.high_watermark.fset  # type: ignore[attr-defined]


class Batch(NamedTuple):
    """What somebody wants appended."""

    payload: Any
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False
    marker: EndTxnMarker | None = None

    def header(self, offset: int, leader_epoch: int, now_ms: int) -> BatchHeader:
        attributes = _TRANSACTIONAL * self.is_transactional | _CONTROL * (self.marker is not None)
        return BatchHeader(
            offset, 0, leader_epoch, 2, 0, attributes, 0, now_ms, now_ms,
            self.producer_id, self.producer_epoch, self.sequence, 1,
        )  # fmt: skip


class Entry(NamedTuple):
    header: BatchHeader
    batch: Batch

    @property
    def payload(self) -> Any:
        return self.batch.payload

    def __str__(self) -> str:
        return f"{self.header.base_offset}@{self.header.leader_epoch}:{self.batch.payload}"


class _Epochs(EpochCache):
    """Without its file: what is on this disk is a copy, taken when the machine dies."""

    __slots__ = ()

    def _write(self, entries: list[tuple[int, int]]) -> None:
        pass


class Log:
    def __init__(self, where: TopicPartition, config: TopicConfig, broker_id: int, touched: list[Log]) -> None:
        self.where = where
        self.config = config
        self.broker_id = broker_id
        self.entries: list[Entry] = []
        self.agreed = 0
        """So many entries are those that the cluster committed: the checker counts on."""
        self.is_touched = False
        self._touched = touched
        """Those at which the checker has to look."""
        self.flushed_offset = self.checkpoint = 0
        self.epochs = _Epochs(OS_DISK, Path())
        self.single_replica = self.is_flush_due = False
        self.log_start_offset = self.log_end_offset = 0
        self._recover()

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        _MOVE_HIGH_WATERMARK(self, offset)
        self._touch()

    @property
    def durable_end_offset(self) -> int:
        return self.log_end_offset

    @property
    def name(self) -> str:
        return f"{self.where[0]}-{self.where[1]}"

    def _touch(self) -> None:
        if not self.is_touched:
            self.is_touched = True
            self._touched.append(self)

    def _recover(self) -> None:
        """Everything that is in memory only, from what is on disk."""
        self.log_end_offset = len(self.entries)
        self._replay_producers()
        self._high_watermark = self.last_stable_offset = 0
        self.high_watermark = self.checkpoint
        self._touch()

    def _replay_producers(self) -> None:
        self.producers = ProducerState(_NEVER_MS)
        self.aborted: list[AbortedTxn] = []
        for entry in self.entries:
            self._remember(entry)

    # -- appending

    def append(
        self, records: Batch, *, leader_epoch: int, now_ms: int, origin: AppendOrigin, is_prepared: bool = False
    ) -> AppendInfo:
        offset = self.log_end_offset
        header = records.header(offset, leader_epoch, now_ms)
        if header.producer_id >= 0:
            if records.marker is not None:
                self.producers.check_marker(header, records.marker)
            else:
                self.producers.check(header, origin)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, offset)
        self._add(Entry(header, records))
        return AppendInfo(offset, offset, -1, 0, 1)

    def append_as_follower(self, records: Sequence[Entry], *, now_ms: int, leader_epoch: int, contiguous: bool) -> int:
        for entry in records:
            if entry.header.leader_epoch > leader_epoch:
                break
            if entry.header.base_offset < self.log_end_offset:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.name} ends at {self.log_end_offset}")
            assert entry.header.base_offset == self.log_end_offset, "a leader sends without gaps"
            if entry.header.leader_epoch != self.epochs.latest:
                self.epochs.assign(entry.header.leader_epoch, self.log_end_offset)
            self._add(entry)
        return self.log_end_offset

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.log_end_offset += 1
        self._remember(entry)
        if self.single_replica:
            self.high_watermark = self.log_end_offset
        self._touch()

    def _remember(self, entry: Entry) -> None:
        header, marker = entry.header, entry.batch.marker
        if header.producer_id < 0:
            return
        if marker is None:
            self.producers.append(header, header.base_offset)
            return
        aborted = self.producers.aborted_by(header, marker, header.base_offset)
        if aborted is not None:
            self.aborted.append(aborted)
        self.producers.append_marker(header, marker, header.base_offset)

    # -- cutting

    def truncate_to(self, offset: int) -> bool:
        self.epochs.truncate_from_end(min(offset, self.log_end_offset))
        if offset >= self.log_end_offset:
            return False
        self._cut(offset)
        self._replay_producers()
        self.log_end_offset = offset
        self.high_watermark = self.high_watermark
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        assert offset == 0, "nothing is ever deleted from the beginning"
        self.truncate_to(0)

    def _cut(self, offset: int) -> None:
        del self.entries[offset:]
        self.agreed = min(self.agreed, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self._touch()

    def delete_records(self, before_offset: int) -> None:
        """Nothing is deleted here."""

    # -- reading

    def read(self, offset: int, upto_offset: int, max_count: int) -> list[Entry]:
        return self.entries[offset : min(upto_offset, offset + max_count)]

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def is_aborted(self, entry: Entry) -> bool:
        header = entry.header
        return header.is_transactional and any(
            txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset < txn.last_offset
            for txn in self.aborted
        )

    # -- the disk

    def flush(self) -> None:
        self.flushed_offset = self.log_end_offset
        self.checkpoint = self.high_watermark

    def survive_process(self) -> None:
        self._recover()

    def survive_machine(self, random: Random) -> bool:
        """True when something is lost."""
        kept = random.randint(self.flushed_offset, self.log_end_offset)
        is_lost = kept < self.log_end_offset
        if is_lost:
            self.epochs.truncate_from_end(kept)
            self._cut(kept)
        self._recover()
        return is_lost
