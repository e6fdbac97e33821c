"""Infers a Spark type from a sample of JSON values, much like Spark's own JSON source.

Integers are bigint, or decimal(38,0) if they do not fit; other numbers are double. A field with both numbers and
strings is a string. Objects become structs of all fields in the sample, sorted by name. A field that is always null,
or an object without fields, is a string, because any value can be read as one. Timestamps remain strings.

Spark's rules differ in two points: its decimals are as long as those of the sample, which the next record may exceed,
and it omits objects without fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from typing import Any

from pyspark.sql import types as t

from moldau.spark.formats.ddl import DEPTH_MAX

_LONG_MAX = 2**63 - 1
_DECIMAL_38 = t.DecimalType(38, 0)
# More fields than anybody lists in a schema. Beyond this, keys are data, and the type should be `map<string, …>`.
_FIELDS_MAX = 2000


def infer_type(values: Iterable[bytes | None]) -> t.DataType | None:
    """Return None if no value has a type. Values that are not JSON are ignored; they become bad records later."""
    seen: t.DataType = t.NullType()
    for value in values:
        if value is not None:
            try:
                seen = _merged(seen, _type_of(json.loads(value), 0))
            except (ValueError, RecursionError):
                continue
    return None if isinstance(seen, t.NullType) else _settled(seen)


def _type_of(value: Any, depth: int) -> t.DataType:
    if depth > DEPTH_MAX:
        raise ValueError("too deep")
    if isinstance(value, dict):
        if len(value) > _FIELDS_MAX:
            raise ValueError("too many fields")
        "".join(value).encode()  # raises for a name with an unpaired surrogate
        fields = [t.StructField(name, _type_of(item, depth + 1)) for name, item in sorted(value.items())]
        return t.StructType(fields)
    if isinstance(value, list):
        nothing: t.DataType = t.NullType()
        return t.ArrayType(reduce(_merged, (_type_of(item, depth + 1) for item in value), nothing))
    return _atom_of(value)


def _atom_of(value: Any) -> t.DataType:
    if value is None:
        return t.NullType()
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        if -_LONG_MAX - 1 <= value <= _LONG_MAX:
            return t.LongType()
        return _DECIMAL_38 if abs(value) < 10**38 else t.DoubleType()
    return t.DoubleType() if isinstance(value, float) else t.StringType()


_WIDER: tuple[t.DataType, ...] = (t.LongType(), _DECIMAL_38, t.DoubleType())


def _merged(one: t.DataType, other: t.DataType) -> t.DataType:
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        return _merged_structs(one, other)
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_merged(one.elementType, other.elementType))
    if one in _WIDER and other in _WIDER:
        return max(one, other, key=_WIDER.index)
    return t.StringType()


def _merged_structs(one: t.StructType, other: t.StructType) -> t.StructType:
    kinds = {field.name: field.dataType for field in one}
    for field in other:
        kinds[field.name] = _merged(kinds.get(field.name, t.NullType()), field.dataType)
    if len(kinds) > _FIELDS_MAX:
        raise ValueError("too many fields")
    return t.StructType([t.StructField(name, kinds[name]) for name in sorted(kinds)])


def _settled(kind: t.DataType) -> t.DataType:
    """Replace null types and empty structs, which Spark columns cannot have."""
    if isinstance(kind, t.StructType) and kind.fields:
        return t.StructType([t.StructField(field.name, _settled(field.dataType)) for field in kind])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_settled(kind.elementType))
    return t.StringType() if isinstance(kind, t.NullType | t.StructType) else kind
