"""Whether a produced batch continues what its producer wrote before; part of every idempotent append."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import BATCHES_KEPT, AppendOrigin, BatchMetadata, ProducerEntry, ProducerState
from moldau.log.segments.segment import Segment, scan
from moldau.wire.batch import BatchHeader

logger = logging.getLogger(__name__)

# How far back a producer's batches are looked for: what is in flight when a broker stops lies at the very end.
_REFILL_BYTES = 1 << 20


def check_producer(
    state: ProducerState, segments: Sequence[Segment], header: BatchHeader, origin: AppendOrigin
) -> None:
    """`ProducerState.check`. After a restart that knows one batch per producer, so the log is read before a refusal."""
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
    """Finds the batches of the producer's epoch that precede the known ones."""
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
