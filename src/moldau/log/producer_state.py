"""What a partition remembers of idempotent and transactional producers, and its snapshot file.

Per producer id: its epoch, its last five batches (by sequence range, to tell a retry from new data) and the
first offset of its open transaction. Per partition: which transactions are open, hence up to where committed
data reaches.

    sequence rules   same epoch: the next sequence; 2^31-1 is followed by 0; a new epoch begins at 0;
                     a producer nobody remembers may begin anywhere (its records may have been deleted)
    transactions     data opens one; a control marker (commit or abort) ends it

`<offset>.snapshot` is Kafka's format, version 1: version, CRC32C of the rest, entries. It holds the last
batch of each producer only; `replay.py` finds the others in the log when a retry asks for one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from moldau.errors import CorruptFileError, DuplicateSequenceError, ErrorCode, KafkaError
from moldau.log.segments.txn_index import AbortedTxn
from moldau.wire.batch import NO_SEQUENCE, BatchHeader, ControlType, decode_control_record, decode_records

BATCHES_KEPT = 5  # Kafka's limit on requests in flight of an idempotent producer
NO_EPOCH = -1
NO_OFFSET = -1
_SEQUENCE_MASK = 0x7FFFFFFF

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_TXN_FIRST_OFFSET = struct.Struct(">q")  # the last field of an entry
_NEGATIVE = 0x80  # the first byte of a number below zero, or larger


class AppendOrigin(IntEnum):
    """The origin of a batch that a leader appends: those of a coordinator are checked less than those of a client."""

    CLIENT = 0
    COORDINATOR = 1


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @classmethod
    def of(cls, header: BatchHeader, base_offset: int) -> BatchMetadata:
        delta = header.last_offset_delta
        return cls(header.last_sequence, base_offset + delta, delta, header.max_timestamp)

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


_NO_BATCH = BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, -1)


class EndTxnMarker(NamedTuple):
    is_abort: bool
    coordinator_epoch: int


def read_marker(batch: bytes | bytearray | memoryview, header: BatchHeader) -> EndTxnMarker | None:
    """The commit or abort marker in a control batch; None for an empty one, or another kind of record."""
    if not header.count:
        return None
    control = decode_control_record(decode_records(batch, 0, header)[0])
    if control.type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return EndTxnMarker(control.type == ControlType.ABORT, control.coordinator_epoch)


class ProducerEntry:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_partial",
        "last_timestamp_ms",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp_ms = -1
        self.txn_first_offset = NO_OFFSET
        self.batches: list[BatchMetadata] = []
        self.is_partial = False  # from a snapshot: the log may hold batches before these

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerState:
    __slots__ = ("_ongoing", "_unreplicated", "end_offset", "expiration_ms", "producers", "snapshot_offset")

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset -> producer id, in order of offsets
        # First offset -> offset of the marker, for those that ended above the high watermark.
        self._unreplicated: dict[int, int] = {}
        self.end_offset = 0
        self.snapshot_offset = -1

    # -- checks before an append

    def check(self, header: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        """Raises unless the batch continues what its producer wrote; DuplicateSequenceError for a retry."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, header)
        elif header.producer_epoch < entry.epoch:
            raise _fenced(entry, header)
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction that the batch is not part of",
            )

    @staticmethod
    def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
        sequence = header.base_sequence
        if header.producer_epoch == entry.epoch:
            expected = (entry.last_sequence + 1) & _SEQUENCE_MASK
            if sequence == expected:
                return
            duplicate = entry.duplicate_of(sequence, header.last_sequence)
            if duplicate is not None:
                raise DuplicateSequenceError(duplicate.first_offset, duplicate.last_offset, duplicate.timestamp_ms)
        elif header.producer_epoch < entry.epoch:
            raise _fenced(entry, header)
        else:
            expected = 0
            if sequence == 0 or entry.epoch == NO_EPOCH:
                return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {sequence}, expected {expected}",
        )

    def check_marker(self, header: BatchHeader, marker: EndTxnMarker) -> None:
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            raise _fenced(entry, header)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch} for producer {header.producer_id}: "
                f"epoch {entry.coordinator_epoch} was already seen",
            )

    # -- after an append

    def append(self, header: BatchHeader, base_offset: int) -> None:
        """Remembers a data batch that is in the log at `base_offset`."""
        producer_id = header.producer_id
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        if header.producer_epoch != entry.epoch:
            entry.set_epoch(header.producer_epoch)
        batches = entry.batches
        if len(batches) == BATCHES_KEPT:
            del batches[0]
        batches.append(BatchMetadata.of(header, base_offset))
        entry.last_timestamp_ms = header.max_timestamp
        if header.is_transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id

    def aborted_by(self, header: BatchHeader, marker: EndTxnMarker, offset: int) -> AbortedTxn | None:
        """What a marker at `offset` adds to the transaction index: nothing, unless it aborts something."""
        entry = self.producers.get(header.producer_id)
        if not marker.is_abort or entry is None or entry.txn_first_offset < 0:
            return None
        others = (first for first, producer_id in self._ongoing.items() if producer_id != header.producer_id)
        return AbortedTxn(header.producer_id, entry.txn_first_offset, offset, next(others, offset + 1))

    def append_marker(self, header: BatchHeader, marker: EndTxnMarker, offset: int) -> None:
        """Ends the producer's transaction, if it has one here."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_id)
        if entry.txn_first_offset >= 0:
            self._ongoing.pop(entry.txn_first_offset, None)
            self._unreplicated[entry.txn_first_offset] = offset
            entry.txn_first_offset = NO_OFFSET
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp

    def epoch_of(self, producer_id: int) -> int:
        """The newest epoch of the producer in this log; -1 if it is not remembered."""
        entry = self.producers.get(producer_id)
        return NO_EPOCH if entry is None else entry.epoch

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """The newest coordinator epoch in a marker of the producer; -1 if there is none."""
        entry = self.producers.get(producer_id)
        return NO_EPOCH if entry is None else entry.coordinator_epoch

    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or ended by a marker that is not replicated yet."""
        if not self._ongoing and not self._unreplicated:
            return None
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            ended = min(self._unreplicated)
            return ended if first is None else min(first, ended)
        return first

    @property
    def has_transactions(self) -> bool:
        return bool(self._ongoing or self._unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker is below it have ended for every reader."""
        replicated = [first for first, marker in self._unreplicated.items() if marker < high_watermark]
        for first_offset in replicated:
            del self._unreplicated[first_offset]

    def remove_expired(self, now_ms: int) -> None:
        """Forgets producers that were silent too long; one with an open transaction is kept."""
        expired = [entry.producer_id for entry in self.producers.values() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self.producers[producer_id]

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_first_offset < 0 and now_ms - entry.last_timestamp_ms >= self.expiration_ms

    # -- snapshots

    def load(self, entries: Iterable[ProducerEntry], offset: int, now_ms: int) -> None:
        """Takes over a snapshot that describes the log up to `offset`."""
        self.clear(offset)
        self.producers.update({entry.producer_id: entry for entry in entries if not self._is_expired(entry, now_ms)})
        for entry in sorted(self.producers.values(), key=attrgetter("txn_first_offset")):
            if entry.txn_first_offset >= 0:
                self._ongoing[entry.txn_first_offset] = entry.producer_id
        self.snapshot_offset = offset

    def clear(self, end_offset: int) -> None:
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.end_offset = end_offset
        self.snapshot_offset = -1

    def encode(self) -> bytes:
        body = bytearray(len(self.producers).to_bytes(4, "big"))
        for entry in self.producers.values():
            batch = entry.batches[-1] if entry.batches else _NO_BATCH
            body += _SNAPSHOT_ENTRY.pack(
                entry.producer_id, entry.epoch, batch.last_sequence, batch.last_offset, batch.offset_delta,
                entry.last_timestamp_ms, entry.coordinator_epoch, entry.txn_first_offset,
            )  # fmt: skip
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body


def _check_snapshot(data: bytes) -> None:
    """CorruptFileError unless version, CRC and length are right."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptFileError(f"{len(data)} bytes are too few for a snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptFileError(f"unknown snapshot version {version}")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptFileError(f"CRC mismatch (stored crc = {crc})")
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptFileError(f"{len(data)} bytes do not hold {count} entries")


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    _check_snapshot(data)
    entries = []
    for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch, txn = fields
        entry = ProducerEntry(producer_id)
        entry.epoch = epoch
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp_ms = timestamp_ms
        entry.txn_first_offset = txn
        if last_offset >= 0:
            entry.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp_ms))
            entry.is_partial = True
        entries.append(entry)
    return entries


def without_transactions(snapshot: bytes) -> bytes:
    """The same producers, none with an open transaction. Done on the bytes: there may be very many of them."""
    _check_snapshot(snapshot)
    first = _SNAPSHOT_HEAD.size + _SNAPSHOT_ENTRY.size - _TXN_FIRST_OFFSET.size
    signs = snapshot[first :: _SNAPSHOT_ENTRY.size]
    if min(signs, default=_NEGATIVE) >= _NEGATIVE:
        return snapshot
    data = bytearray(snapshot)
    for number, sign in enumerate(signs):
        if sign < _NEGATIVE:
            _TXN_FIRST_OFFSET.pack_into(data, first + number * _SNAPSHOT_ENTRY.size, NO_OFFSET)
    struct.pack_into(">I", data, _CRC_END - 4, crc32c(memoryview(data)[_CRC_END:]))
    return bytes(data)


def _fenced(entry: ProducerEntry, header: BatchHeader) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {header.producer_epoch} of producer {header.producer_id} is older than {entry.epoch}, "
        "the last one seen",
    )
