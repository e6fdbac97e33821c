"""Columns of made-up values, each a function of seed, column and row number, computed in bulk.

The random numbers are those of SplitMix64 with the row number as its counter: no state is carried from row to row, so
any range of rows can be made by any task, at any time, with the same result.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.connectors.generator import HINTS
from moldau.pipelines.model.options import Given
from moldau.spark.formats.columns import arrow_type

Numbers = npt.NDArray[np.uint64]
_GAMMA, _MIX_1, _MIX_2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_CLASSES = {
    "#": b"0123456789",
    "@": b"abcdefghijklmnopqrstuvwxyz",
    "%": b"0123456789abcdef",
}
_INTEGERS: Mapping[type[t.DataType], tuple[type[np.signedinteger[Any]], int]] = {
    t.ByteType: (np.int8, 100),
    t.ShortType: (np.int16, 1000),
    t.IntegerType: (np.int32, 1000),
    t.LongType: (np.int64, 1000),
}
_DAY_US = 86_400_000_000
_ARRAY_SIZE = 3
# Limits on what a file can ask of a task's memory, for each row.
_ARRAY_SIZE_MAX = 1000
_PATTERN_MAX = 1000
_NULLS = 0x5555555555555555  # which values are null is independent of the values


@dataclass(frozen=True)
class Rows:
    """Which rows to make: their numbers, and the time of each in microseconds."""

    numbers: Numbers
    times_us: npt.NDArray[np.int64]

    @classmethod
    def of(cls, start: int, end: int, first: int = 0, first_us: float = 0, step_us: float = 1) -> Rows:
        """Rows [start, end). Time goes by steps from row `first`, wherever this range starts."""
        steps = np.arange(start - first, end - first)
        return cls(np.arange(start, end, dtype=np.uint64), (first_us + steps * step_us).astype(np.int64))

    def random(self, seed: int) -> Numbers:
        """64 random bits for each row."""
        x = (self.numbers + np.uint64(1)) * _GAMMA + np.uint64(seed)
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        return x ^ (x >> np.uint64(31))

    def uniform(self, seed: int) -> npt.NDArray[np.float64]:
        """From 0 to below 1."""
        return (self.random(seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


Hints = Mapping[str, Any]
Column = Callable[[Rows], pa.Array]
Maker = Callable[[t.DataType, Hints, int, str], Column]


def columns(schema: t.StructType, hints: Hints, seed: int, owner: str = "") -> dict[str, Column]:
    """A function for each column. Raises ConfigError for hints that do not fit."""
    for name in hints:
        if name not in schema.names:
            meant = nearest(name, schema.names)
            hint = f"did you mean '{meant}'?" if meant else f"there are {', '.join(schema.names)}"
            raise ConfigError(f"fields: the schema has no column '{owner}{name}': {hint}")
    return {field.name: _column(field, hints.get(field.name, {}), seed, owner) for field in schema}


def _column(field: t.StructField, hints: Hints, seed: int, owner: str) -> Column:
    name, kind = f"{owner}{field.name}", field.dataType
    given = {hint: Given(value) for hint, value in hints.items()}
    problem = next(iter(HINTS.check(given, f"fields: {name}", None)), None)
    if problem:
        raise ConfigError(problem.message)
    values = HINTS.values(given)
    allowed, make = _MAKERS.get(type(kind), (None, None))
    if "choices" in values:
        allowed, make = ("choices", "weights"), _choices
    if allowed is None or make is None:
        raise ConfigError(f"column {name}: a generator cannot make {kind.simpleString()}")
    for hint in values:
        if hint not in (*allowed, "nulls"):
            raise ConfigError(f"fields: {name} is {kind.simpleString()}: '{hint}' does not apply to it")
    # Of the name, not the position: a column keeps its values when others come and go.
    own_seed = zlib.crc32(name.encode()) << 32 | zlib.crc32(b"%d" % seed)
    try:
        made = make(kind, values, own_seed, f"{name}.")
        made(Rows.of(0, 2))  # limits that do not fit the type show up here, not in a task
    except (ValueError, OverflowError, ArithmeticError, pa.ArrowException) as error:
        raise ConfigError(f"fields: {name} ({kind.simpleString()}): {error}") from error
    share = values.get("nulls", 0.0)
    return _with_nulls(made, share, own_seed ^ _NULLS) if share else made


def _with_nulls(made: Column, share: float, seed: int) -> Column:
    def make(rows: Rows) -> pa.Array:
        values = made(rows)
        is_null = pa.array(rows.uniform(seed) < share)
        return pc.if_else(is_null, pa.scalar(None, values.type), values)

    return make


def _choices(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    choices = pa.array(hints["choices"])
    choices = choices.cast(arrow_type(kind)) if not pa.types.is_nested(choices.type) else choices
    weights = np.cumsum(hints.get("weights") or [1] * len(choices), dtype=np.float64)
    if len(weights) != len(choices):
        raise ValueError("there must be as many weights as choices")
    bounds = weights / weights[-1]
    return lambda rows: choices.take(pa.array(np.searchsorted(bounds, rows.uniform(seed), side="right")))


def _integers(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    dtype, usual_max = _INTEGERS[type(kind)]
    limits = np.iinfo(dtype)
    if "sequence" in hints:
        first = np.uint64(hints["sequence"])
        return lambda rows: pa.array((rows.numbers + first).astype(dtype))
    least, most = int(hints.get("min", 0)), int(hints.get("max", max(usual_max, hints.get("min", 0))))
    if not limits.min <= least <= most <= limits.max:
        raise ValueError(f"expected {limits.min} <= min <= max <= {limits.max}, not {least} and {most}")
    span = most - least + 1
    if span >= 2**53:  # beyond what a double tells apart
        return lambda rows: pa.array((rows.random(seed) % np.uint64(span)).astype(np.int64) + np.int64(least))
    return lambda rows: pa.array(((rows.uniform(seed) * span).astype(np.int64) + least).astype(dtype))


def _floats(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    least = float(hints.get("min", 0))
    span = float(hints.get("max", max(1.0, least))) - least
    if span < 0:
        raise ValueError("min is above max")
    target = arrow_type(kind)
    return lambda rows: pa.array(rows.uniform(seed) * span + least).cast(target, safe=False)


def _decimals(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    target = arrow_type(kind)
    scale = 10**target.scale
    top = min(100, 10 ** (target.precision - target.scale) - 1)
    least, most = (round(float(hints.get(word, usual)) * scale) for word, usual in (("min", 0), ("max", top)))
    if not -(2**53) < least <= most < 2**53:
        raise ValueError("min is above max, or there are more digits than a generator makes (15)")
    whole = pa.decimal128(19, 0)
    factor = pa.scalar(Decimal(1).scaleb(-target.scale), pa.decimal128(max(target.scale, 1), target.scale))

    def make(rows: Rows) -> pa.Array:
        units = (rows.uniform(seed) * (most - least + 1)).astype(np.int64) + least
        return pc.multiply(pa.array(units).cast(whole), factor).cast(target)

    return make


def _booleans(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    share = hints.get("share", 0.5)
    return lambda rows: pa.array(rows.uniform(seed) < share)


def _texts(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    pattern = hints.get("pattern", f"{name.rstrip('.').rpartition('.')[2]}-###")
    if not 0 < len(pattern) <= _PATTERN_MAX:
        raise ValueError(f"expected a pattern of 1 to {_PATTERN_MAX} characters")
    parts = [_CLASSES.get(sign) for sign in pattern]
    template = np.frombuffer(pattern.encode(), np.uint8)
    # Where the letters to replace are, in bytes.
    places = np.cumsum([0, *(len(sign.encode()) for sign in pattern)])[:-1]
    slots = [(int(place), np.frombuffer(part, np.uint8)) for place, part in zip(places, parts, strict=True) if part]

    def make(rows: Rows) -> pa.Array:
        text = np.tile(template, (len(rows.numbers), 1))
        for number, (place, letters) in enumerate(slots):
            text[:, place] = letters[(rows.uniform(seed + number) * len(letters)).astype(np.int64)]
        offsets = np.arange(len(rows.numbers) + 1, dtype=np.int32) * np.int32(len(template))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(arrow_type(kind), len(rows.numbers), buffers)

    return make


def _times(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    late_us = hints.get("late", 0) * 1000
    target = arrow_type(kind)

    def make(rows: Rows) -> pa.Array:
        times = rows.times_us - (rows.uniform(seed) * late_us).astype(np.int64) if late_us else rows.times_us
        if isinstance(kind, t.DateType):
            return pa.array((times // _DAY_US).astype(np.int32)).cast(target)
        return pa.array(times).cast(target)

    return make


def _structs(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    assert isinstance(kind, t.StructType)
    made = columns(kind, hints.get("fields", {}), seed & 0xFFFFFFFF, name)
    target = arrow_type(kind)
    return lambda rows: pa.StructArray.from_arrays([column(rows) for column in made.values()], fields=list(target))


def _arrays(kind: t.DataType, hints: Hints, seed: int, name: str) -> Column:
    assert isinstance(kind, t.ArrayType)
    most = hints.get("size", _ARRAY_SIZE)
    if most > _ARRAY_SIZE_MAX:
        raise ValueError(f"size: expected at most {_ARRAY_SIZE_MAX}")
    item = _column(t.StructField("items", kind.elementType), hints.get("items", {}), seed & 0xFFFFFFFF, name)
    target = arrow_type(kind)

    def make(rows: Rows) -> pa.Array:
        sizes = (rows.uniform(seed) * (most + 1)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        numbers = np.repeat(rows.numbers, sizes) * np.uint64(max(most, 1)) + within.astype(np.uint64)
        items = item(Rows(numbers, np.repeat(rows.times_us, sizes)))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, type=target)

    return make


_MAKERS: Mapping[type[t.DataType], tuple[tuple[str, ...], Maker]] = {
    **dict.fromkeys(_INTEGERS, (("min", "max", "sequence"), _integers)),
    **dict.fromkeys((t.FloatType, t.DoubleType), (("min", "max"), _floats)),
    t.DecimalType: (("min", "max"), _decimals),
    t.BooleanType: (("share",), _booleans),
    **dict.fromkeys((t.StringType, t.BinaryType), (("pattern",), _texts)),
    **dict.fromkeys((t.TimestampType, t.TimestampNTZType, t.DateType), (("late",), _times)),
    t.StructType: (("fields",), _structs),
    t.ArrayType: (("items", "size"), _arrays),
}
