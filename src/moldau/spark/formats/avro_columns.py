"""Avro records straight into columns: a schema becomes a list of steps, a kernel walks them for every record.

For records of numbers, texts, enums, nullable fields and records within them, which most topics hold. Arrays, maps,
decimals and other unions have no steps: `flat_plan` gives None, and fastavro reads such values one by one. It also
reads what the kernel finds bad, to have a reason for it.

Every column has a slot, two rows of numbers: its values (of texts, their places in the data) and its sizes (of what
is no text 0), and what is null has a size of -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.spark.columns import kernels
from moldau.spark.columns.jit import byte_at, helper, kernel
from moldau.spark.columns.kernels import Bytes, Int64s, varint
from moldau.spark.formats.avro_schema import Schema

# A step: what to do, for which slot, and two numbers: the least and the largest value of a number; the size of what
# has a fixed one; of a nullable field the number of the branch that is null, and how many steps to leave out then.
_STRUCT, _BITS, _FIXED, _BYTES, _LONG, _MILLIS, _NULLABLE = range(7)
_LONG_MAX = 2**63 - 1
_MILLIS_MAX = _LONG_MAX // 1000

# What to do, the two numbers, the type.
_LEAVES: dict[str, tuple[int, int, int, pa.DataType]] = {
    "boolean": (_BITS, 1, 0, pa.bool_()),
    "int": (_LONG, -(2**31), 2**31 - 1, pa.int32()),
    "long": (_LONG, -_LONG_MAX - 1, _LONG_MAX, pa.int64()),
    "float": (_BITS, 4, 0, pa.float32()),
    "double": (_BITS, 8, 0, pa.float64()),
    "string": (_BYTES, 0, 0, pa.string()),
    "bytes": (_BYTES, 0, 0, pa.binary()),
    "date": (_LONG, -(2**31), 2**31 - 1, pa.date32()),
    "timestamp-millis": (_MILLIS, -_MILLIS_MAX, _MILLIS_MAX, pa.timestamp("us", "UTC")),
    "timestamp-micros": (_LONG, -_LONG_MAX - 1, _LONG_MAX, pa.timestamp("us", "UTC")),
    "local-timestamp-millis": (_MILLIS, -_MILLIS_MAX, _MILLIS_MAX, pa.timestamp("us")),
    "local-timestamp-micros": (_LONG, -_LONG_MAX - 1, _LONG_MAX, pa.timestamp("us")),
}


@helper
def _bits(pos: int, size: int) -> int:
    value = 0
    for index in range(size):
        value |= byte_at(pos + index) << (8 * index)
    return value


@kernel("void(Array(u1, 1, 'C', readonly=True), i8[::1], i8[:,::1], i8[:,::1], i8[:,::1], b1[::1])")
def _read(data: Bytes, bounds: Int64s, steps: Int64s, values: Int64s, sizes: Int64s, bad: Any) -> None:  # noqa: PLR0917
    """Row r lies between `bounds[r]` and `bounds[r + 1]`; it is bad unless its last step ends where it ends."""
    address = data.ctypes.data
    for row in range(len(bounds) - 1):
        pos, end = address + bounds[row], address + bounds[row + 1]
        at = 0
        while at < len(steps) and pos <= end:
            op, slot, least, most = steps[at, 0], steps[at, 1], steps[at, 2], steps[at, 3]
            at += 1
            value = 0
            size = least if op < _BYTES else 0
            if op >= _BYTES:
                value, pos = varint(pos, end)
            if op == _BYTES:
                size = value
            # A varint that was cut off lies behind the end, so that no size fits.
            if not 0 <= size <= end - pos or (op in (_LONG, _MILLIS) and not least <= value <= most):
                pos = end + 1
            elif op == _NULLABLE:
                at += most if value == least else 0
                pos = pos if value in (0, 1) else end + 1
            else:
                is_text = op in (_BYTES, _FIXED)
                if op == _BITS:
                    value = _bits(pos, size)
                elif op == _MILLIS:
                    value *= 1000
                values[slot, row] = pos - address if is_text else value
                sizes[slot, row] = size if is_text else 0
                pos += size
        bad[row] = pos != end


class Slots(NamedTuple):
    """What the kernel found."""

    data: Bytes
    values: Int64s
    sizes: Int64s


Build = Callable[[Slots], pa.Array]


class FlatPlan(NamedTuple):
    steps: Int64s
    slots: int
    build: Build

    def read(self, raw: pa.Array) -> tuple[pa.Array, Any]:
        """All values, and which rows are bad or null: what stands there means nothing. ArrowInvalid: bad UTF-8."""
        _, offsets, data = raw.buffers()
        bounds = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
        found = Slots(
            np.frombuffer(data or b"", np.uint8),
            np.zeros((self.slots, len(raw)), np.int64),
            np.full((self.slots, len(raw)), -1, np.int64),
        )
        bad = np.zeros(len(raw), np.bool_)
        _read(found.data, bounds, self.steps, found.values, found.sizes, bad)
        found.sizes[:, bad] = -1
        return self.build(found), bad


def flat_plan(schema: Schema) -> FlatPlan | None:
    planner = _Planner()
    try:
        build = planner.plan(schema)
    except _NoStepsError:
        return None
    return FlatPlan(np.array(planner.steps, np.int64), planner.slots, build)


class _NoStepsError(Exception):
    """A type that is read one by one."""


class _Planner:
    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int]] = []
        self.slots = 0
        self._named: dict[str, Schema] = {}

    def plan(self, schema: Schema) -> Build:
        """Append the steps for a value of this schema; how to make its column afterwards."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            schema = self._named.get(schema.rpartition(".")[2], {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.plan(kind)
        if "name" in schema:
            self._named[schema["name"].rpartition(".")[2]] = schema
        if kind == "record":
            return self._record(schema)
        logical = schema.get("logicalType")
        if kind == "enum":
            return self._leaf(_LONG, 0, len(schema["symbols"]) - 1, _enum(schema["symbols"]))
        if kind == "fixed" and logical is None:
            return self._leaf(_FIXED, schema["size"], 0, _texts(pa.binary()))
        name = kind if logical is None else logical
        if name not in _LEAVES:
            raise _NoStepsError
        op, least, most, arrow = _LEAVES[name]
        return self._leaf(op, least, most, _texts(arrow) if op == _BYTES else _numbers(arrow))

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _leaf(self, op: int, least: int, most: int, column: Callable[[Slots, int], pa.Array]) -> Build:
        slot = self._slot()
        self.steps.append((op, slot, least, most))
        return lambda found: column(found, slot)

    def _union(self, branches: list[Schema]) -> Build:
        if len(branches) != 2 or "null" not in branches:
            raise _NoStepsError
        null = branches.index("null")
        place = len(self.steps)
        self.steps.append((_NULLABLE, 0, null, 0))
        build = self.plan(branches[1 - null])
        self.steps[place] = (_NULLABLE, 0, null, len(self.steps) - place - 1)
        return build

    def _record(self, schema: Schema) -> Build:
        slot = self._slot()
        self.steps.append((_STRUCT, slot, 0, 0))
        fields = [(field["name"], self.plan(field["type"])) for field in schema["fields"]]

        def build(found: Slots) -> pa.Array:
            columns = [column(found) for _, column in fields]
            null = pa.array(found.sizes[slot] < 0)
            return pa.StructArray.from_arrays(columns, names=[name for name, _ in fields], mask=null)

        return build


def _numbers(kind: pa.DataType) -> Callable[[Slots, int], pa.Array]:
    def column(found: Slots, slot: int) -> pa.Array:
        values = found.values[slot]
        null = found.sizes[slot] < 0
        if pa.types.is_boolean(kind):
            return pa.array(values != 0, mask=null)
        if kind.bit_width == 32:
            values = values.astype(np.int32)
        return pa.array(values, mask=null).view(kind)

    return column


def _enum(symbols: list[str]) -> Callable[[Slots, int], pa.Array]:
    def column(found: Slots, slot: int) -> pa.Array:
        indices = pa.array(found.values[slot], mask=found.sizes[slot] < 0)
        return pa.DictionaryArray.from_arrays(indices, pa.array(symbols, pa.string())).dictionary_decode()

    return column


def _texts(kind: pa.DataType) -> Callable[[Slots, int], pa.Array]:
    def column(found: Slots, slot: int) -> pa.Array:
        sizes = found.sizes[slot]
        offsets = np.empty(len(sizes) + 1, np.int32)
        nulls = kernels.lay_out(sizes, offsets)
        out = np.empty(offsets[-1], np.uint8)
        kernels.gather(found.data, found.values[slot], offsets, out)
        bitmap = np.zeros((len(sizes) + 7) // 8, np.uint8)
        kernels.mark_valid(sizes, bitmap)
        buffers = [pa.py_buffer(bitmap), pa.py_buffer(offsets), pa.py_buffer(out)]
        array = pa.Array.from_buffers(kind, len(sizes), buffers, nulls)
        array.validate(full=True)
        return array

    return column
