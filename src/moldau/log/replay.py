"""Producer state from what is on disk: the newest usable snapshot, then the batches written after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moldau.errors import KafkaError
from moldau.log.files import SNAPSHOT_SUFFIX, file_name, read_file, remove_file
from moldau.log.producer_state import CorruptSnapshotError, ProducerState, decode_snapshot, read_marker
from moldau.log.segment import Segment
from moldau.log.txn_index import TxnIndex
from moldau.wire.batch import BatchHeader

logger = logging.getLogger(__name__)


def rebuild_producer_state(
    state: ProducerState,
    segments: Sequence[Segment],
    directory: str,
    snapshots: list[int],
    upto_offset: int,
    *,
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
            state.load(decode_snapshot(read_file(path)), offset, now_ms)
            break
        except (CorruptSnapshotError, FileNotFoundError) as error:
            logger.warning("cannot use producer snapshot %s: %s", path, error)
            remove_file(path)
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
    state: ProducerState, header: BatchHeader, batch: bytes | memoryview, txn_index: TxnIndex | None = None
) -> None:
    """Takes a batch from the log into the state; with `txn_index`, an abort is written there again."""
    if header.producer_id >= 0:
        if not header.is_control:
            state.append(header, header.base_offset)
        elif (marker := read_marker(batch, header)) is not None:
            aborted = state.aborted_by(header, marker, header.base_offset)
            if aborted is not None and txn_index is not None:
                txn_index.append(aborted)
            state.append_marker(header, marker, header.base_offset)
    state.end_offset = header.next_offset
