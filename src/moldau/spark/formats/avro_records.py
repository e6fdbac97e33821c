"""Encodes columns directly as Avro records, in one compiled pass over the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.spark.columns.jit import address_of, copy, kernel
from moldau.spark.columns.kernels import Bytes, Int32s, Int64s
from moldau.spark.formats.avro_plan import BITS, BYTES, FIXED, LONG, MILLIS, NULLABLE, STRUCT, Column, FlatPlan, Slots

_VARINT_BYTES_MAX = 10
# Arrow counts the bytes of a column in 32 bits.
_RECORDS_BYTES_MAX = 2**31 - 1


def write_flat(plan: FlatPlan, typed: pa.Array) -> pa.Array | None:
    """Return binary records, or None if a row does not fit the schema or cannot be written in this way."""
    texts: list[Bytes] = []
    rows = Slots.empty(np.zeros(0, np.uint8), plan.slots, len(typed))
    try:
        _fill(rows, texts, plan.column, typed, np.ones(len(typed), np.bool_))
    except (pa.ArrowException, KeyError):
        return None
    data = np.concatenate(texts) if texts else rows.data
    # Most of it is never written, so it takes no physical memory.
    room = len(data) + len(typed) * len(plan.steps) * _VARINT_BYTES_MAX
    if room > _RECORDS_BYTES_MAX:
        return None
    out, offsets = np.empty(room, np.uint8), np.zeros(len(typed) + 1, np.int32)
    null = typed.is_null().to_numpy(zero_copy_only=False)
    if _write(data, plan.steps, rows.values, rows.sizes, null, out, offsets) < len(typed):
        return None
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]].copy())]
    written = pa.Array.from_buffers(pa.binary(), len(typed), buffers, 0)
    return pc.if_else(typed.is_valid(), written, None) if typed.null_count else written


@kernel("i8(Array(u1, 1, 'C'), i8[:,::1], i8[:,::1], i8[:,::1], Array(b1, 1, 'C', readonly=True), u1[::1], i4[::1])")
def _write(  # noqa: PLR0917
    data: Bytes, steps: Int64s, values: Int64s, sizes: Int64s, null: Bytes, out: Bytes, offsets: Int32s
) -> int:
    """Return the number of rows written before the first that does not fit."""
    pos = 0
    for row in range(len(null)):
        at = len(steps) if null[row] else 0
        while at < len(steps):
            op, slot, least, most = steps[at, 0], steps[at, 1], steps[at, 2], steps[at, 3]
            at += 1
            value, size = values[slot, row], sizes[slot, row]
            number = value
            if op == NULLABLE:
                number = least if size < 0 else 1 - least
                at += most if size < 0 else 0
            elif size < 0 or (op in (LONG, MILLIS) and not least <= value <= most) or (op == FIXED and size != least):
                return row
            elif op == BYTES:
                number = size
            if op >= BYTES:
                left = (number << 1) ^ (number >> 63)
                while left & ~0x7F:
                    out[pos] = np.uint8(left & 0x7F | 0x80)
                    left = (left >> 7) & 0x01FF_FFFF_FFFF_FFFF
                    pos += 1
                out[pos] = np.uint8(left)
                pos += 1
            if op in (BYTES, FIXED):
                copy(address_of(out) + pos, address_of(data) + value, size)
                pos += size
            elif op == BITS:
                for index in range(least):
                    out[pos + index] = np.uint8((value >> (8 * index)) & 0xFF)
                pos += least
        offsets[row + 1] = pos
    return len(null)


def _fill(rows: Slots, texts: list[Bytes], column: Column, array: pa.Array, inside: Bytes) -> None:
    """Fill the slot of a column. A row is null where an enclosing struct is null (`inside` is false)."""
    valid = array.is_valid().to_numpy(zero_copy_only=False) & inside
    if column.op == STRUCT:
        rows.sizes[column.slot] = np.where(valid, 0, -1)
        if not pa.types.is_struct(array.type) or set(array.type.names) != {name for name, _ in column.fields}:
            raise KeyError(column.fields)
        for name, inner in column.fields:
            _fill(rows, texts, inner, array.field(array.type.get_field_index(name)), valid)
        return
    assert column.type is not None
    if column.op in (BYTES, FIXED):
        _fill_texts(rows, texts, column, array.cast(column.type).cast(pa.binary()), valid)
        return
    if column.symbols:
        array = pc.index_in(array, pa.array(column.symbols, array.type))
        valid &= array.is_valid().to_numpy(zero_copy_only=False)
        numbers = array
    elif pa.types.is_boolean(column.type):
        numbers = array.cast(pa.int8())
    else:
        wide = array.cast(column.type)
        numbers = wide.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    rows.values[column.slot] = values // 1000 if column.op == MILLIS else values
    rows.sizes[column.slot] = np.where(valid, 0, -1)


def _fill_texts(rows: Slots, texts: list[Bytes], column: Column, array: pa.Array, valid: Bytes) -> None:
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    rows.values[column.slot] = bounds[:-1] + sum(map(len, texts))
    rows.sizes[column.slot] = np.where(valid, np.diff(bounds), -1)
    texts.append(np.frombuffer(data or b"", np.uint8))
