"""An Avro schema as a list of steps that a kernel runs for every record, and the columns that it reads or fills.

There are steps for numbers, strings, enums, nullable fields and nested records, which is what most topics contain.
For schemas with arrays, maps, decimals or other unions `flat_plan` returns None, and fastavro converts the values one
by one. It also reads the values that a kernel finds bad, to get a reason.

Each column has a slot with two rows of numbers: values (for strings, their positions in the data) and sizes (0 for
anything but strings). The size of null is -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.spark.formats.avro_schema import Schema

if TYPE_CHECKING:
    from moldau.spark.columns.kernels import Bytes, Int64s

# A step is an operation, a slot and two numbers. The two are the smallest and largest value of a number; the size of a
# fixed-size value; or, for a nullable field, the index of the null branch and the number of steps to skip if null.
STRUCT, BITS, FIXED, BYTES, LONG, MILLIS, NULLABLE = range(7)
_LONG_MAX = 2**63 - 1
_MILLIS_MAX = _LONG_MAX // 1000

# The operation, its two numbers, the Arrow type.
_LEAVES: dict[str, tuple[int, int, int, pa.DataType]] = {
    "boolean": (BITS, 1, 0, pa.bool_()),
    "int": (LONG, -(2**31), 2**31 - 1, pa.int32()),
    "long": (LONG, -_LONG_MAX - 1, _LONG_MAX, pa.int64()),
    "float": (BITS, 4, 0, pa.float32()),
    "double": (BITS, 8, 0, pa.float64()),
    "string": (BYTES, 0, 0, pa.string()),
    "bytes": (BYTES, 0, 0, pa.binary()),
    "date": (LONG, -(2**31), 2**31 - 1, pa.date32()),
    "timestamp-millis": (MILLIS, -_MILLIS_MAX, _MILLIS_MAX, pa.timestamp("us", "UTC")),
    "timestamp-micros": (LONG, -_LONG_MAX - 1, _LONG_MAX, pa.timestamp("us", "UTC")),
    "local-timestamp-millis": (MILLIS, -_MILLIS_MAX, _MILLIS_MAX, pa.timestamp("us")),
    "local-timestamp-micros": (LONG, -_LONG_MAX - 1, _LONG_MAX, pa.timestamp("us")),
}


class Column(NamedTuple):
    slot: int
    op: int
    type: pa.DataType | None = None  # None: a struct of `fields`
    symbols: tuple[str, ...] = ()  # of an enum
    fields: tuple[tuple[str, Column], ...] = ()


class Slots(NamedTuple):
    data: Bytes
    values: Int64s
    sizes: Int64s

    @classmethod
    def empty(cls, data: Bytes, slots: int, rows: int) -> Slots:
        return cls(data, np.zeros((slots, rows), np.int64), np.full((slots, rows), -1, np.int64))


class FlatPlan(NamedTuple):
    steps: Int64s
    slots: int
    column: Column


def flat_plan(schema: Schema) -> FlatPlan | None:
    planner = _Planner()
    try:
        column = planner.plan(schema)
    except _NoStepsError:
        return None
    return FlatPlan(np.array(planner.steps, np.int64), planner.slots, column)


class _NoStepsError(Exception):
    """The schema has a type that is read and written one by one."""


class _Planner:
    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int]] = []
        self.slots = 0
        self._named: dict[str, Schema] = {}

    def plan(self, schema: Schema) -> Column:
        """Append the steps for a value of this schema."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.plan(kind)
        if "name" in schema:
            self._named[schema["name"]] = schema
        if kind == "record":
            column = self._step(STRUCT, 0, 0, None)
            return column._replace(
                fields=tuple((field["name"], self.plan(field["type"])) for field in schema["fields"])
            )
        logical = schema.get("logicalType")
        if kind == "enum":
            symbols = tuple(schema["symbols"])
            return self._step(LONG, 0, len(symbols) - 1, pa.string())._replace(symbols=symbols)
        if kind == "fixed" and logical is None:
            return self._step(FIXED, schema["size"], 0, pa.binary())
        name = kind if logical is None else logical
        if name not in _LEAVES:
            raise _NoStepsError
        return self._step(*_LEAVES[name])

    def _step(self, op: int, least: int, most: int, kind: pa.DataType | None) -> Column:
        slot = self.slots
        self.slots += 1
        self.steps.append((op, slot, least, most))
        return Column(slot, op, kind)

    def _union(self, branches: list[Schema]) -> Column:
        if len(branches) != 2 or "null" not in branches:
            raise _NoStepsError
        null = branches.index("null")
        place = len(self.steps)
        self.steps.append((NULLABLE, self.slots, null, 0))
        column = self.plan(branches[1 - null])
        self.steps[place] = (NULLABLE, column.slot, null, len(self.steps) - place - 1)
        return column
