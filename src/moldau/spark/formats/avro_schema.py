"""Converts Avro schemas to Spark types and back, by the rules of Spark's own Avro source.

A union of null and one type is that type; of int and long, long; of float and double, double. Any other union is a
struct of `member0`, `member1`, … of which one is not null. Enums and UUIDs are strings, and fixed is binary. Times of
day and nanosecond timestamps remain integers. Recursive types have no Spark type.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as t

Schema = Any  # parsed JSON: a name, a list (a union) or an object

_ATOMS: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "enum": t.StringType(),
}
_LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}
_DECIMALS = (("bytes", "decimal"), ("fixed", "decimal"))
_AVRO: dict[type[t.DataType], Schema] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "string",
    t.BinaryType: "bytes",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def load_schema(text: str) -> Schema:
    """Parse a schema: with full names, and without logical types that Spark does not have. Raises ValueError."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        schema = parse_schema(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, SchemaParseException, UnknownType) as error:
        raise ValueError(f"not an Avro schema: {error!r}") from error
    return _plain(schema)


def _plain(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _plain(schema[name]) for name in ("type", "items", "values") if name in schema}
    if "fields" in schema:
        parts["fields"] = [_plain(field) for field in schema["fields"]]
    known = (parts["type"], schema.get("logicalType")) in (*_LOGICAL, *_DECIMALS)
    # fastavro adds names with two underscores to a schema that it has parsed. They are not part of it.
    left_out = [name for name in schema if name.startswith("__") or (name == "logicalType" and not known)]
    return {name: part for name, part in (schema | parts).items() if name not in left_out}


def spark_type(schema: Schema) -> t.DataType:
    """Return the Spark type of a schema. Raises ValueError if there is none."""
    return _Types().of(schema)


def union_members(branches: list[Schema]) -> list[Schema]:
    """Return the branches of a union that become members of a struct; none if the union is a single Spark type."""
    others = [branch for branch in branches if branch != "null"]
    one_type = len(others) < 2 or {type_name(b) for b in others} in ({"int", "long"}, {"float", "double"})
    return [] if one_type else others


def type_name(schema: Schema) -> str:
    name = schema["type"] if isinstance(schema, dict) else schema
    return name if isinstance(name, str) else ""


class _Types:
    """Converts one schema. Named types can be referred to by name after their definition."""

    def __init__(self) -> None:
        self._named: dict[str, t.DataType | None] = {}  # None while it is being defined

    def of(self, schema: Schema) -> t.DataType:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._by_name(schema)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema)
        if kind == "array":
            return t.ArrayType(self.of(schema["items"]))
        if kind == "map":
            return t.MapType(t.StringType(), self.of(schema["values"]))
        return _logical(schema) or self.of(kind)

    def _by_name(self, name: str) -> t.DataType:
        if name in _ATOMS:
            return _ATOMS[name]
        if name == "null":
            raise ValueError("type null alone has no Spark type")
        found = self._named[name]
        if found is None:
            raise ValueError(f"type {name} contains itself, which no Spark type does")
        return found

    def _definition(self, schema: Schema) -> t.DataType:
        name = schema["name"]
        self._named[name] = None
        if schema["type"] in ("record", "error"):
            fields = [t.StructField(field["name"], self.of(field["type"])) for field in schema["fields"]]
            if not fields:
                raise ValueError(f"record {name} has no fields")
            kind: t.DataType = t.StructType(fields)
        else:
            kind = _logical(schema) or _ATOMS[schema["type"]]
        self._named[name] = kind
        return kind

    def _union(self, branches: list[Schema]) -> t.DataType:
        kinds = [self.of(branch) for branch in branches if branch != "null"]
        if union_members(branches):
            return t.StructType([t.StructField(f"member{index}", kind) for index, kind in enumerate(kinds)])
        if not kinds:
            raise ValueError("a union of null alone has no Spark type")
        wide = [kind for kind in kinds if isinstance(kind, t.LongType | t.DoubleType)]
        return (wide or kinds)[0]


def _logical(schema: Schema) -> t.DataType | None:
    logical = schema.get("logicalType")
    if logical == "decimal":
        precision = schema.get("precision", 0)
        if not 0 < precision <= 38:
            raise ValueError(f"a decimal of {precision} digits: Spark's have at most 38")
        return t.DecimalType(precision, schema.get("scale", 0))
    return _LOGICAL.get((schema["type"], logical))


def avro_schema(kind: t.DataType, name: str) -> Schema:
    """Return the schema that Spark's `to_avro` uses, with every field nullable. Raises ValueError if there is none."""
    if isinstance(kind, t.StructType):
        fields = [
            {"name": field.name, "type": ["null", avro_schema(field.dataType, f"{name}.{field.name}")], "default": None}
            for field in kind
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": ["null", avro_schema(kind.elementType, name)]}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return {"type": "map", "values": ["null", avro_schema(kind.valueType, name)]}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = _AVRO.get(type(kind))
    if found is None:
        raise ValueError(f"type {kind.simpleString()} cannot be written as Avro: cast it")
    return found
