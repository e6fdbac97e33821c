"""Decodes record batches to Arrow columns, only those that were requested.

Each round takes up to `rows_max` records. `scan` checks them and finds their fields, `gather` copies the fields of a
column into one buffer. Only a position is kept between rounds, so a response of any size needs the memory of one Arrow
batch. Arrow's 32-bit offsets are enough, because a round reads from one buffer, which is smaller.

Header names are strings in Spark but bytes in Kafka. Invalid UTF-8 in them becomes U+FFFD, as in the Java client. The
headers of a record without any are null, not an empty array, as in Spark's own source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from moldau.errors import CorruptRecordError
from moldau.spark.columns import kernels
from moldau.spark.columns.batches import Plain
from moldau.spark.columns.kernels import Bytes, Int64s

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

# The columns of Spark's own Kafka source, with the types that Spark's `to_arrow_schema` gives them.
RAW_FIELDS: dict[str, pa.Field] = {
    field.name: field
    for field in (
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    )
}

_FIXED = {
    "offset": (kernels.OFFSET, np.int64),
    "timestamp": (kernels.TIMESTAMP, np.int64),
    "timestampType": (kernels.TIMESTAMP_TYPE, np.int32),
}
_BYTES = {"key": (kernels.KEY, kernels.KEY_SIZE), "value": (kernels.VALUE, kernels.VALUE_SIZE)}

# An Arrow batch ends with the record that reaches this size, so large records make batches of fewer rows.
BATCH_BYTES_MAX = 16 * 1024 * 1024


class Decoder:
    """Decodes the batches of one partition; not thread-safe."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str], rows_max: int) -> None:
        self.schema = pa.schema([RAW_FIELDS[column] for column in columns])
        self._constants = {
            "topic": pa.repeat(pa.scalar(topic, pa.string()), rows_max),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows_max),
        }
        self._records = np.empty((kernels.RECORDS_ROWS, rows_max), np.int64)

    def decode(self, batches: Plain, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records with offsets in [`first`, `end`)."""
        data, table = batches
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        while state[kernels.BATCH] < table.shape[1]:
            found = kernels.scan(data, table, state, first, end, BATCH_BYTES_MAX, self._records)
            if found < 0:
                number, base_offset = state[kernels.RECORD], table[kernels.BASE_OFFSET, state[kernels.BATCH]]
                raise CorruptRecordError(f"record {number} of the batch at offset {base_offset} is malformed")
            if found:
                arrays = [self._column(field, data, found) for field in self.schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, field: pa.Field, data: Bytes, rows: int) -> pa.Array:
        if field.name in self._constants:
            return self._constants[field.name].slice(0, rows)
        if field.name in _FIXED:
            row, numbers = _FIXED[field.name]
            buffer = pa.py_buffer(self._records[row, :rows].astype(numbers))
            return pa.Array.from_buffers(field.type, rows, [None, buffer])
        if field.name in _BYTES:
            place, size = _BYTES[field.name]
            return _gathered(field.type, data, self._records[place, :rows], self._records[size, :rows])
        return self._headers(data, rows)

    def _headers(self, data: Bytes, rows: int) -> pa.Array:
        kind = RAW_FIELDS["headers"].type
        counts = self._records[kernels.HEADERS_COUNT, :rows]
        total = int(counts.sum())
        if total == 0:
            return pa.nulls(rows, kind)
        ends = np.zeros(rows + 1, np.int32)
        fields = np.empty((4, total), np.int64)
        whole = kernels.scan_headers(data, self._records, rows, ends, fields)
        if whole < rows:
            raise CorruptRecordError(f"the headers at offset {self._records[kernels.OFFSET, whole]} are malformed")
        names = _as_text(_gathered(pa.string(), data, fields[0], fields[1]))
        values = _gathered(pa.binary(), data, fields[2], fields[3])
        structs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        buffers = [_validity(counts - 1), pa.py_buffer(ends)]
        return pa.Array.from_buffers(kind, rows, buffers, int((counts == 0).sum()), children=[structs])


def _gathered(kind: pa.DataType, data: Bytes, places: Int64s, sizes: Int64s) -> pa.Array:
    offsets = np.empty(len(sizes) + 1, np.int32)
    nulls = kernels.lay_out(sizes, offsets)
    out = np.empty(offsets[-1], np.uint8)
    kernels.gather(data, places, offsets, out)
    validity = _validity(sizes) if nulls else None
    return pa.Array.from_buffers(kind, len(sizes), [validity, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)


def _validity(sizes: Int64s) -> pa.Buffer:
    bitmap = np.zeros((len(sizes) + 7) // 8, np.uint8)
    kernels.mark_valid(sizes, bitmap)
    return pa.py_buffer(bitmap)


def _as_text(names: pa.Array) -> pa.Array:
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:  # at least one is not UTF-8
        return pa.array([name.as_py().decode(errors="replace") for name in names.view(pa.binary())], pa.string())
    return names
