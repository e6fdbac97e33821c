"""Producer state from what is on disk: the newest usable snapshot, then the batches written after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moldau.disk import Disk, read_file
from moldau.errors import CorruptFileError, ErrorCode, KafkaError
from moldau.log.files import SNAPSHOT_SUFFIX, file_name
from moldau.log.producer_state import (
    BATCHES_KEPT,
    AppendOrigin,
    BatchMetadata,
    ProducerEntry,
    ProducerState,
    decode_snapshot,
    read_marker,
)
from moldau.log.segment import Segment, scan
from moldau.log.txn_index import AbortedTxn
from moldau.wire.batch import BatchHeader

logger = logging.getLogger(__name__)

# How far back a producer's batches are looked for: what is in flight when a broker stops lies at the very end.
_REFILL_BYTES = 1 << 20


def rebuild_producer_state(
    state: ProducerState,
    segments: Sequence[Segment],
    directory: str,
    snapshots: list[int],
    upto_offset: int,
    *,
    disk: Disk,
    now_ms: int,
) -> None:
    """Makes `state` what it was when the log ended at `upto_offset`.

    Of `snapshots` the newest that can be read is used; one that cannot is deleted, and taken off the list.
    """
    state.clear(segments[0].base_offset)
    while candidates := [offset for offset in snapshots if offset <= upto_offset]:
        offset = max(candidates)
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            state.load(decode_snapshot(read_file(disk, path)), offset, now_ms)
            break
        except (CorruptFileError, FileNotFoundError) as error:
            logger.warning("cannot use producer snapshot %s: %s", path, error)
            disk.remove(path)
            snapshots.remove(offset)
    if state.end_offset < upto_offset:
        _replay(state, segments, upto_offset)


def _replay(state: ProducerState, segments: Sequence[Segment], upto_offset: int) -> None:
    """Reads the batches in [end of the state, upto)."""
    for number, segment in enumerate(segments):
        if segment.base_offset >= upto_offset:
            break
        if number + 1 < len(segments) and segments[number + 1].base_offset <= state.end_offset:
            continue
        try:
            for _, header, batch in segment.batches_from(max(segment.base_offset, state.end_offset)):
                if header.base_offset >= upto_offset:
                    break
                replay_batch(state, header, batch)
        except KafkaError as error:
            # Damage below the recovery point: readers will meet it, the rest of the log can be served.
            logger.error("%s: %s; its later producers are not remembered", segment.path, error.message)
    state.end_offset = upto_offset


def replay_batch(
    state: ProducerState, header: BatchHeader, batch: bytes | memoryview, aborted_txns: list[AbortedTxn] | None = None
) -> None:
    """Takes a batch from the log into the state; a transaction that it aborts is added to `aborted_txns`."""
    if header.producer_id >= 0:
        if not header.is_control:
            state.append(header, header.base_offset)
        elif (marker := read_marker(batch, header)) is not None:
            aborted = state.aborted_by(header, marker, header.base_offset)
            if aborted is not None and aborted_txns is not None:
                aborted_txns.append(aborted)
            state.append_marker(header, marker, header.base_offset)
    state.end_offset = header.next_offset


def check_producer(
    state: ProducerState, segments: Sequence[Segment], header: BatchHeader, origin: AppendOrigin
) -> None:
    """`ProducerState.check`, which knows of one batch each after a restart: before it refuses, the log is asked."""
    try:
        state.check(header, origin)
    except KafkaError as error:
        entry = state.producers.get(header.producer_id)
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or entry is None or not entry.is_partial:
            raise
        entry.is_partial = False
        try:
            _refill(entry, segments)
        except (KafkaError, OSError) as failure:
            logger.warning("cannot look for older batches of producer %d: %s", entry.producer_id, failure)
        state.check(header, origin)


def _refill(entry: ProducerEntry, segments: Sequence[Segment]) -> None:
    """Finds the batches of the producer's epoch that precede those it is known by."""
    if not entry.batches:
        return
    known_from = entry.batches[0].first_offset
    missing = BATCHES_KEPT - len(entry.batches)
    older: list[BatchMetadata] = []
    budget = _REFILL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= known_from:
            continue
        if budget <= 0 or len(older) >= missing:
            break
        end = segment.position_of(known_from)
        start = segment.offset_index.last_position_upto(max(0, end - budget))
        older[:0] = [
            BatchMetadata.of(header, header.base_offset)
            for _, header, _ in scan(segment.open(), start, end)
            if (header.producer_id, header.producer_epoch) == (entry.producer_id, entry.epoch) and not header.is_control
        ]
        budget -= end - start
    entry.batches[:0] = older[max(0, len(older) - missing) :]
