"""Connect's schemas, as its JsonConverter writes them, and Spark's types.

A schema here is the JSON object of Connect: `{"type": "struct", "fields": […], "optional": false}`. Its logical types
have a name: Decimal is bytes, Date and Time are int32, Timestamp is int64. Names that Spark has no type for are kept in
the metadata of a column, so that they are written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import types as t

Schema = dict[str, Any]

SCHEMA_DOC = "connect.doc"
SCHEMA_PARAMETERS = "connect.parameters"
_LOGICAL = "org.apache.kafka.connect.data."
DECIMAL, DATE, TIME, TIMESTAMP = (f"{_LOGICAL}{name}" for name in ("Decimal", "Date", "Time", "Timestamp"))
DECIMAL_DIGITS_MAX = 38
# Spark's names → Connect's.
_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "void": "string",  # a column that is always null
}
_SPARKS = {connects: sparks for sparks, connects in _PRIMITIVES.items() if sparks != "void"}
_LOGICALS = {
    "date": {"type": "int32", "name": DATE, "version": 1},
    "timestamp": {"type": "int64", "name": TIMESTAMP, "version": 1},
    "timestamp_ntz": {"type": "int64", "name": TIMESTAMP, "version": 1},
    "time": {"type": "int32", "name": TIME, "version": 1},
}
_WIDER = ("int8", "int16", "int32", "int64", "float", "double")
_METADATA = {"name": SCHEMA_NAME, "version": SCHEMA_VERSION, "doc": SCHEMA_DOC, "parameters": SCHEMA_PARAMETERS}


def schema_of(kind: t.DataType, *, is_optional: bool, metadata: Mapping[str, Any] | None = None) -> Schema:
    """The schema of a Spark type, with its keys in Connect's order. `metadata` is that of its column."""
    from pyspark.sql import types as t

    name = kind.typeName()
    shape: Schema = {}
    if isinstance(kind, t.StructType):
        fields = [
            schema_of(one.dataType, is_optional=one.nullable, metadata=one.metadata) | {"field": one.name}
            for one in kind.fields
        ]
        shape = {"type": "struct", "fields": fields}
    elif isinstance(kind, t.ArrayType):
        shape = {"type": "array", "items": schema_of(kind.elementType, is_optional=kind.containsNull)}
    elif isinstance(kind, t.MapType):
        keys = schema_of(kind.keyType, is_optional=False)
        shape = {"type": "map", "keys": keys, "values": schema_of(kind.valueType, is_optional=kind.valueContainsNull)}
    elif isinstance(kind, t.DecimalType):
        shape = {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": {"scale": str(kind.scale)}}
    elif name.split("(")[0] in _LOGICALS:
        shape = dict(_LOGICALS[name.split("(")[0]])
    elif isinstance(kind, t.CharType | t.VarcharType):
        shape = {"type": "string"}
    elif name in _PRIMITIVES:
        shape = {"type": _PRIMITIVES[name]}
    else:
        raise ConfigError(f"a column of type {kind.simpleString()} has no Connect schema: cast it to another type")
    said = {word: metadata[key] for word, key in _METADATA.items() if metadata and key in metadata}
    shape |= said
    order = ("type", "items", "keys", "values", "fields")
    head = {word: shape[word] for word in order if word in shape}
    return head | {"optional": is_optional} | {word: shape[word] for word in _METADATA if word in shape}


def is_schema(value: Any) -> bool:
    """Whether this is a schema of Connect, and not a field of the user's that has the same name."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    kind = value["type"]
    if kind == "struct":
        fields = value.get("fields")
        return isinstance(fields, list) and all(is_schema(one) and isinstance(one.get("field"), str) for one in fields)
    if kind == "array":
        return is_schema(value.get("items"))
    if kind == "map":
        return is_schema(value.get("keys")) and is_schema(value.get("values"))
    return kind in _SPARKS


def merged(one: Schema, other: Schema) -> Schema:
    """A schema for values of both: all fields of structs, the wider number; text where nothing else fits."""
    is_optional = _is_optional(one) or _is_optional(other)
    if _same(one, other):
        return one | {"optional": is_optional}
    kinds = one["type"], other["type"]
    if kinds == ("struct", "struct"):
        return one | {"fields": _merged_fields(one["fields"], other["fields"]), "optional": is_optional}
    if kinds == ("array", "array"):
        return {"type": "array", "items": merged(one["items"], other["items"]), "optional": is_optional}
    if kinds == ("map", "map") and _same(one["keys"], other["keys"]):
        values = merged(one["values"], other["values"])
        return {"type": "map", "keys": one["keys"], "values": values, "optional": is_optional}
    if {*kinds} <= {*_WIDER} and "name" not in one | other:
        return {"type": max(kinds, key=_WIDER.index), "optional": is_optional}
    return {"type": "string", "optional": is_optional}


def _merged_fields(ones: list[Schema], others: list[Schema]) -> list[Schema]:
    by_name = {field["field"]: field for field in others}
    mine = {field["field"] for field in ones}
    both = [
        merged(field, by_name[field["field"]]) | {"field": field["field"]}
        if field["field"] in by_name
        else field | {"optional": True}
        for field in ones
    ]
    return both + [field | {"optional": True} for field in others if field["field"] not in mine]


def _same(one: Schema, other: Schema) -> bool:
    ignored = ("optional", "field", "default", "doc")
    return {key: value for key, value in one.items() if key not in ignored} == {
        key: value for key, value in other.items() if key not in ignored
    }


def _is_optional(schema: Schema) -> bool:
    return bool(schema.get("optional", False))


def logical_name(schema: Schema) -> str | None:
    """Of Connect's own logical types that have a type in Spark; None for others."""
    name = schema.get("name")
    return name if name in (DECIMAL, DATE, TIMESTAMP) else None


def decimal_scale(schema: Schema) -> int:
    return int(schema.get("parameters", {}).get("scale", 0))


def metadata_of(schema: Schema) -> dict[str, Any]:
    """What a column keeps of a schema besides its type."""
    if logical_name(schema) is not None:
        return {}
    return {key: schema[word] for word, key in _METADATA.items() if schema.get(word) is not None}


def json_type(schema: Schema, *, is_numeric: bool = False) -> t.DataType:
    """The Spark type of the JSON that Connect writes for a schema: numbers for dates, text for bytes.

    `is_numeric`: decimals are numbers.
    """
    from pyspark.sql import types as t

    kind = schema["type"]
    if kind == "struct":
        return t.StructType(
            [
                t.StructField(one["field"], json_type(one, is_numeric=is_numeric), metadata=metadata_of(one))
                for one in schema["fields"]
            ]
        )
    if kind == "array":
        return t.ArrayType(json_type(schema["items"], is_numeric=is_numeric))
    if kind == "map":
        return t.MapType(t.StringType(), json_type(schema["values"], is_numeric=is_numeric))
    if is_numeric and logical_name(schema) == DECIMAL:
        return t.DecimalType(DECIMAL_DIGITS_MAX, decimal_scale(schema))
    types = {
        "boolean": t.BooleanType(),
        "int8": t.ByteType(),
        "int16": t.ShortType(),
        "int32": t.IntegerType(),
        "int64": t.LongType(),
        "float": t.FloatType(),
        "double": t.DoubleType(),
    }
    return types.get(kind, t.StringType())


def needs_conversion(schema: Schema) -> bool:
    """Whether a value differs from its JSON: bytes, decimals, dates and timestamps do."""
    inner = [*schema.get("fields", ()), *(schema[word] for word in ("items", "values") if word in schema)]
    return schema["type"] == "bytes" or logical_name(schema) is not None or any(map(needs_conversion, inner))
