"""Decodes Avro records directly into columns, in one compiled pass over their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from moldau.spark.columns import kernels
from moldau.spark.columns.jit import address_of, byte_at, helper, kernel
from moldau.spark.columns.kernels import Bytes, Int64s, varint
from moldau.spark.formats.avro_plan import BITS, BYTES, FIXED, LONG, MILLIS, NULLABLE, Column, FlatPlan, Slots


def read_flat(plan: FlatPlan, raw: pa.Array) -> tuple[pa.Array, Any]:
    """Return the values and which rows are bad or null; their values are null.

    Raises ArrowInvalid if a string is not UTF-8.
    """
    _, offsets, data = raw.buffers()
    bounds = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    found = Slots.empty(np.frombuffer(data or b"", np.uint8), plan.slots, len(raw))
    bad = np.zeros(len(raw), np.bool_)
    _read(found.data, bounds, plan.steps, found.values, found.sizes, bad)
    found.sizes[:, bad] = -1
    return _array(found, plan.column), bad


@helper
def _bits(pos: int, size: int) -> int:
    value = 0
    for index in range(size):
        value |= byte_at(pos + index) << (8 * index)
    return value


@kernel("void(Array(u1, 1, 'C', readonly=True), i8[::1], i8[:,::1], i8[:,::1], i8[:,::1], b1[::1])")
def _read(data: Bytes, bounds: Int64s, steps: Int64s, values: Int64s, sizes: Int64s, bad: Any) -> None:  # noqa: PLR0917
    """Row r is between `bounds[r]` and `bounds[r + 1]`. It is bad unless its last step ends exactly at its end."""
    address = address_of(data)
    for row in range(len(bounds) - 1):
        pos, end = address + bounds[row], address + bounds[row + 1]
        at = 0
        while at < len(steps) and pos <= end:
            op, slot, least, most = steps[at, 0], steps[at, 1], steps[at, 2], steps[at, 3]
            at += 1
            value = 0
            size = least if op < BYTES else 0
            if op >= BYTES:
                value, pos = varint(pos, end)
            if op == BYTES:
                size = value
            # After a truncated varint, `pos` is past the end, so no size fits.
            if not 0 <= size <= end - pos or (op in (LONG, MILLIS) and not least <= value <= most):
                pos = end + 1
            elif op == NULLABLE:
                at += most if value == least else 0
                pos = pos if value in (0, 1) else end + 1
            else:
                is_text = op in (BYTES, FIXED)
                if op == BITS:
                    value = _bits(pos, size)
                elif op == MILLIS:
                    value *= 1000
                values[slot, row] = pos - address if is_text else value
                sizes[slot, row] = size if is_text else 0
                pos += size
        bad[row] = pos != end


def _array(found: Slots, column: Column) -> pa.Array:
    values, null = found.values[column.slot], found.sizes[column.slot] < 0
    if column.type is None:
        names = [name for name, _ in column.fields]
        arrays = [_array(found, inner) for _, inner in column.fields]
        return pa.StructArray.from_arrays(arrays, names=names, mask=pa.array(null))
    if column.symbols:
        symbols = pa.array(column.symbols, pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(values, mask=null), symbols).dictionary_decode()
    if column.op in (BYTES, FIXED):
        return _texts(found, column)
    if pa.types.is_boolean(column.type):
        return pa.array(values != 0, mask=null)
    return pa.array(values.astype(np.int32) if column.type.bit_width == 32 else values, mask=null).view(column.type)


def _texts(found: Slots, column: Column) -> pa.Array:
    sizes = found.sizes[column.slot]
    offsets = np.empty(len(sizes) + 1, np.int32)
    nulls = kernels.lay_out(sizes, offsets)
    out = np.empty(offsets[-1], np.uint8)
    kernels.gather(found.data, found.values[column.slot], offsets, out)
    bitmap = np.zeros((len(sizes) + 7) // 8, np.uint8)
    kernels.mark_valid(sizes, bitmap)
    buffers = [pa.py_buffer(bitmap), pa.py_buffer(offsets), pa.py_buffer(out)]
    array = pa.Array.from_buffers(column.type, len(sizes), buffers, nulls)
    array.validate(full=True)
    return array
