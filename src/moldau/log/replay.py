"""Producer state from what is on disk: the newest usable snapshot, then the batches written after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moldau.errors import CorruptFileError, KafkaError
from moldau.log.producer_state import ProducerState, decode_snapshot, read_marker
from moldau.log.segments.segment import Segment
from moldau.log.segments.txn_index import AbortedTxn
from moldau.log.snapshots import ProducerSnapshots
from moldau.wire.batch import BatchHeader

logger = logging.getLogger(__name__)


def rebuild_producer_state(
    state: ProducerState, segments: Sequence[Segment], snapshots: ProducerSnapshots, upto_offset: int, *, now_ms: int
) -> None:
    """Makes `state` what it was when the log ended at `upto_offset`.

    The newest snapshot that can be read is used; those that cannot are deleted.
    """
    state.clear(segments[0].base_offset)
    while (offset := snapshots.newest_upto(upto_offset)) is not None:
        try:
            state.load(decode_snapshot(snapshots.read(offset)), offset, now_ms)
            break
        except (CorruptFileError, FileNotFoundError) as error:
            logger.warning("cannot use producer snapshot %s: %s", snapshots.path(offset), error)
            snapshots.delete({offset})
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
            # Damage below the recovery point: readers get an error there, the rest of the log can be served.
            logger.error("%s: %s; producers after that are not restored", segment.path, error.message)
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
