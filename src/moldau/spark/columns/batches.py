"""The batches of a Fetch response: which of them a reader sees, and their records uncompressed.

There is a little Python code per batch and none per record; a producer with default settings makes a batch of every
16 KB. The checks are those of Kafka's own consumer: the format, the CRC (if requested) and, for `read_committed`, the
aborted transactions that the response lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from moldau.errors import CorruptRecordError, ErrorCode, KafkaError
from moldau.spark.columns.kernels import (
    ATTRIBUTES,
    BASE_OFFSET,
    END,
    LAST_OFFSET,
    MAGIC,
    POSITION,
    PRODUCER_ID,
    SIZE,
    START,
    TABLE_ROWS,
    Bytes,
    Int64s,
    index_batches,
)
from moldau.wire import batch as wire
from moldau.wire import batch_layout as layout
from moldau.wire.compression import Codec, decompress

_NO_TABLE = np.empty((TABLE_ROWS, 0), np.int64)

# Decompressed batches are decoded together, because each call has a fixed cost, but only up to this size: a few
# megabytes of well compressed records can expand to more than the memory of a worker.
PLAIN_BYTES_MAX = 16 * 1024 * 1024


class Plain(NamedTuple):
    """Batches whose records are uncompressed in `data`, between START and END of the table."""

    data: Bytes
    table: Int64s


def index(data: Bytes) -> Int64s:
    """Return the table of the complete batches, one column each. A response may end within a batch."""
    table = np.empty((TABLE_ROWS, index_batches(data, _NO_TABLE)), np.int64)
    index_batches(data, table)
    if table.shape[1]:
        magic, size, offset = (int(table[row, -1]) for row in (MAGIC, SIZE, BASE_OFFSET))
        if magic in (0, 1):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"the records at offset {offset} have message format {magic}, from before Kafka 0.11, which is not "
                "read here: copy the topic with a consumer and a producer of Kafka 3",
            )
        if magic != layout.MAGIC or size < layout.HEADER_SIZE:
            raise CorruptRecordError(f"the batch at offset {offset} has magic {magic} and {size} bytes")
    return table


def check_crcs(data: Bytes, table: Int64s) -> None:
    view = data.data
    stored = _stored_crcs(data, table[POSITION])
    starts, ends = (table[POSITION] + layout.ATTRIBUTES_AT).tolist(), table[END].tolist()
    for number, crc in enumerate(stored):
        if crc32c(view[starts[number] : ends[number]]) != crc:
            raise CorruptRecordError(f"the batch at offset {table[BASE_OFFSET, number]} fails its CRC")


def _stored_crcs(data: Bytes, positions: Int64s) -> list[int]:
    places = (positions + layout.CRC_AT)[:, None] + np.arange(4)
    crcs: list[int] = data[places].view(">u4").ravel().tolist()
    return crcs


def visible(data: Bytes, table: Int64s, aborted: Sequence[tuple[int, int]], first: int, end: int) -> Int64s:
    """Return the data batches with offsets in [`first`, `end`) that do not belong to `aborted` transactions.

    `aborted` has pairs of producer id and first offset, as a Fetch response lists them for `read_committed`.
    """
    attributes = table[ATTRIBUTES]
    wanted = (table[LAST_OFFSET] >= first) & (table[BASE_OFFSET] < end) & (attributes & layout.CONTROL == 0)
    if aborted:
        wanted &= ~_aborted_batches(data, table, aborted)
    return table if wanted.all() else np.ascontiguousarray(table[:, wanted])


def _aborted_batches(data: Bytes, table: Int64s, aborted: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """As in Kafka, a transaction's batches are aborted from its first offset to its producer's abort marker."""
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    producers: set[int] = set()
    found = np.zeros(table.shape[1], np.bool_)
    for number in np.flatnonzero(table[ATTRIBUTES] & layout.TRANSACTIONAL).tolist():
        while waiting and waiting[-1][1] <= table[LAST_OFFSET, number]:
            producers.add(waiting.pop()[0])
        producer = int(table[PRODUCER_ID, number])
        if table[ATTRIBUTES, number] & layout.CONTROL:
            if producer in producers and _is_abort_marker(data, int(table[POSITION, number])):
                producers.remove(producer)
        else:
            found[number] = producer in producers
    return found


def _is_abort_marker(data: Bytes, position: int) -> bool:
    view = data.data
    records = wire.decode_records(view, position, wire.read_header(view, position))
    # Compaction may remove the marker and keep its empty batch for the producer's state.
    return bool(records) and wire.decode_control_record(records[0]).type == wire.ControlType.ABORT


def plain(data: Bytes, table: Int64s) -> Iterator[Plain]:
    """Yield the same batches uncompressed: all at once if none is compressed, else about PLAIN_BYTES_MAX at a time."""
    codecs = table[ATTRIBUTES] & layout.CODEC_MASK
    if not codecs.any():
        yield Plain(data, table)
        return
    view = data.data
    parts: list[bytes | memoryview] = []
    size = first = 0
    table = table.copy()
    for number, codec in enumerate(codecs.tolist()):
        part = _plain_records(view[table[START, number] : table[END, number]], codec, int(table[BASE_OFFSET, number]))
        table[START, number] = size
        size += len(part)
        table[END, number] = size
        parts.append(part)
        if size >= PLAIN_BYTES_MAX:
            yield Plain(np.frombuffer(b"".join(parts), np.uint8), np.ascontiguousarray(table[:, first : number + 1]))
            parts = []
            size, first = 0, number + 1
    if parts:
        yield Plain(np.frombuffer(b"".join(parts), np.uint8), np.ascontiguousarray(table[:, first:]))


def _plain_records(records: memoryview, codec: int, offset: int) -> bytes | memoryview:
    if codec == Codec.NONE:
        return records
    if codec > Codec.ZSTD:
        raise CorruptRecordError(f"the batch at offset {offset} has an unknown compression type, {codec}")
    try:
        return decompress(Codec(codec), records, wire.UNCOMPRESSED_BYTES_MAX)
    except KafkaError as error:
        raise CorruptRecordError(f"the batch at offset {offset}: {error.message}") from error
