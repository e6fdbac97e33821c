"""Random Spark types with values of them, for tests of formats: `typed_rows()` gives (type, rows)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import types as t

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))

_ATOMS: dict[t.DataType, st.SearchStrategy[Any]] = {
    t.BooleanType(): st.booleans(),
    t.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    t.LongType(): st.integers(-(2**63), 2**63 - 1),
    t.DoubleType(): st.floats(allow_nan=False),
    t.StringType(): _TEXT,
    t.BinaryType(): st.binary(max_size=12),
    t.DateType(): st.dates(),
    t.TimestampType(): _TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    t.TimestampNTZType(): _TIMES,
    t.DecimalType(12, 3): st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: Decimal(number).scaleb(-3)),
}


def _types(children: st.SearchStrategy[t.DataType], maps: bool) -> st.SearchStrategy[t.DataType]:
    arrays = children.map(t.ArrayType)
    return (
        arrays | _structs(children) | (children.map(lambda kind: t.MapType(t.StringType(), kind)) if maps else arrays)
    )


def _structs(children: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
    def named(kinds: list[t.DataType]) -> t.StructType:
        return t.StructType([t.StructField(f"f{index}", kind) for index, kind in enumerate(kinds)])

    return st.lists(children, min_size=1, max_size=4).map(named)


def _values(kind: t.DataType) -> st.SearchStrategy[Any]:
    if isinstance(kind, t.StructType):
        plain: st.SearchStrategy[Any] = st.fixed_dictionaries({f.name: _values(f.dataType) for f in kind})
    elif isinstance(kind, t.ArrayType):
        plain = st.lists(_values(kind.elementType), max_size=3)
    elif isinstance(kind, t.MapType):
        items = st.dictionaries(_TEXT, _values(kind.valueType), max_size=3)
        plain = items.map(lambda found: list(found.items()))
    else:
        plain = _ATOMS[kind]
    return st.none() | plain


def typed_rows(*, maps: bool = True) -> st.SearchStrategy[tuple[t.StructType, list[Any]]]:
    kinds = st.recursive(st.sampled_from(list(_ATOMS)), lambda inner: _types(inner, maps), max_leaves=6)
    return _structs(kinds).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(_values(kind), max_size=40)))
