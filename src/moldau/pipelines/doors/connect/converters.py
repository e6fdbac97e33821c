"""Converters: key and value between bytes and columns.

`decode(frame, column)` replaces a column of bytes by what they stand for, and says in the column `ERROR` of which
records it cannot. `encode(frame, column)` is the way back. A null stays null.

JSON has its schema from the records: Connect's envelope `{"schema": …, "payload": …}` brings it, and for plain JSON it
is inferred from the micro-batch. Both are read whatever `schemas.enable` says, which decides what is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.json_columns import from_json_value, to_json_value
from moldau.pipelines.doors.connect.plugins import SCHEMALESS, Plugin, PluginKind
from moldau.pipelines.doors.connect.schemas import Schema, is_schema, json_type, merged, metadata_of, schema_of
from moldau.pipelines.doors.connect.tolerance import with_error
from moldau.pipelines.model.kinds import BOOLEAN, Kind, choice, whole
from moldau.pipelines.model.options import Option, OptionTable, Value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import types as t

_STORAGE = "org.apache.kafka.connect.storage."
_CONVERTERS = "org.apache.kafka.connect.converters."
_ENVELOPE = '{"schema":'
_PAYLOAD = ',"payload":'
_NO_SCHEMA = f"{_ENVELOPE}null"
_OPEN = '{"v":'  # values are read and written as a field, since only objects can be
_PARSED = "__parsed"
_BROKEN = "__broken"


class Converter(Protocol):
    def decode(self, frame: DataFrame, column: str) -> DataFrame: ...

    def encode(self, frame: DataFrame, column: str) -> DataFrame: ...


class StringConverter:
    def decode(self, frame: DataFrame, column: str) -> DataFrame:
        return frame.withColumn(column, frame[column].cast("string"))

    def encode(self, frame: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql import types as t

        kind = frame.schema[column].dataType
        is_nested = isinstance(kind, t.StructType | t.ArrayType | t.MapType)
        text = F.to_json(frame[column]) if is_nested else frame[column].cast("string")
        return frame.withColumn(column, text.cast("binary"))


class ByteArrayConverter:
    def decode(self, frame: DataFrame, column: str) -> DataFrame:
        return frame

    def encode(self, frame: DataFrame, column: str) -> DataFrame:
        kind = frame.schema[column].dataType.simpleString()
        if kind not in ("binary", "void"):
            raise ConfigError(f"ByteArrayConverter: the {column} of the records is {kind}, not bytes: choose another")
        return frame.withColumn(column, frame[column].cast("binary"))


class NumberConverter:
    """Whole numbers and booleans as Kafka's serializers write them: big-endian, of a fixed width."""

    def __init__(self, type_name: str, width: int, _: Mapping[str, Value]) -> None:
        self._type = type_name
        self._width = width

    def decode(self, frame: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        digits = F.hex(frame[column])
        fill = F.when(digits.rlike("^[89A-F]"), F.lpad(digits, 16, "F")).otherwise(F.lpad(digits, 16, "0"))
        fits = F.length(frame[column]) == self._width
        number = F.when(fits, F.conv(fill, 16, -10).cast("bigint").cast(self._type))
        marked = with_error(frame, column, ~fits, f"expected {self._width} bytes for {self._type}")
        return marked.withColumn(column, number)

    def encode(self, frame: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        number = frame[column].cast(self._type).cast("bigint")
        digits = F.right(F.lpad(F.hex(number), 16, "0"), F.lit(2 * self._width))
        return frame.withColumn(column, F.unhex(digits))


class JsonConverter:
    def __init__(self, values: Mapping[str, Value]) -> None:
        self._has_schemas = values["schemas.enable"]
        self._is_numeric = values["decimal.format"] == "NUMERIC"

    def encode(self, frame: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        field = frame.schema[column]
        if field.dataType.typeName() == "void":
            return frame.withColumn(column, F.lit(None).cast("binary"))
        value = to_json_value(frame[column], field.dataType, is_numeric=self._is_numeric)
        is_schemaless = bool(field.metadata.get(SCHEMALESS))
        text = F.to_json(F.struct(value.alias("v")), {"ignoreNullFields": str(is_schemaless).lower()})
        if not self._has_schemas:
            written = F.substring(text, len(_OPEN) + 1, F.length(text) - len(_OPEN) - 1)
        else:
            schema = (
                None
                if is_schemaless
                else schema_of(field.dataType, is_optional=field.nullable, metadata=field.metadata)
            )
            head = _ENVELOPE + json.dumps(schema, separators=(",", ":"), ensure_ascii=False) + _PAYLOAD
            written = F.concat(F.lit(head), F.substring(text, len(_OPEN) + 1, F.length(text)))
        return frame.withColumn(column, F.when(frame[column].isNotNull(), written.cast("binary")))

    def decode(self, frame: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql import types as t

        text = _canonical(frame[column].cast("string"))
        schemas = _schemas(frame, text)
        schema = reduce(merged, schemas.values()) if schemas else {"type": "string", "optional": True}
        head = F.substring_index(text, _PAYLOAD, 1)
        payload = F.substring(text, F.length(head) + len(_PAYLOAD) + 1, F.length(text))
        is_envelope = head.isin([*filter(None, schemas), _NO_SCHEMA])
        wrapped = F.when(is_envelope, F.concat(F.lit(_OPEN), payload)).otherwise(
            F.concat(F.lit(_OPEN), text, F.lit("}"))
        )
        shape = t.StructType().add("v", json_type(schema, is_numeric=self._is_numeric)).add(_BROKEN, t.StringType())
        parsed = frame.withColumn(
            _PARSED, F.from_json(wrapped, shape, {"columnNameOfCorruptRecord": _BROKEN, "mode": "PERMISSIVE"})
        )
        marked = with_error(parsed, column, F.col(f"{_PARSED}.{_BROKEN}").isNotNull(), "not JSON that fits its schema")
        value = from_json_value(F.col(f"{_PARSED}.v"), schema, is_numeric=self._is_numeric)
        metadata = metadata_of(schema) if {*schemas} - {""} else {SCHEMALESS: True}
        return marked.withColumn(column, value.alias(column, metadata=metadata)).drop(_PARSED)


def _canonical(text: Column) -> Column:
    """Envelopes as Connect writes them: other programs put blanks between, or the payload first."""
    from pyspark.sql import functions as F  # noqa: N812

    is_connects = text.startswith(_ENVELOPE) & text.contains(_PAYLOAD)
    may_be = text.contains('"schema"') & text.contains('"payload"')
    is_envelope = F.sort_array(F.json_object_keys(text)) == F.array(F.lit("payload"), F.lit("schema"))
    read = F.from_json(text, "schema VARIANT, payload VARIANT")
    written = F.to_json(read, {"ignoreNullFields": "false"})
    return F.when(is_connects | ~may_be, text).when(is_envelope, written).otherwise(text)


def _schemas(frame: DataFrame, text: Column) -> dict[str, Schema]:
    """The schemas of a micro-batch: of envelopes by how their text begins; by "" what plain JSON was inferred to be."""
    from pyspark.sql import functions as F  # noqa: N812

    looks_enveloped = text.startswith(_ENVELOPE) & text.contains(_PAYLOAD)
    heads = F.when(looks_enveloped, F.substring_index(text, _PAYLOAD, 1))
    plain = F.when(~looks_enveloped, text)
    found, inferred = frame.select(F.collect_set(heads), _inferred(plain)).collect()[0]
    schemas = {head: schema for head in sorted(found) if (schema := _schema_in(head)) is not None}
    inferences = [inferred]
    for head in {*found} - {*schemas}:  # without a schema, or with a field of that name
        payload = F.substring(text, len(head) + len(_PAYLOAD) + 1, F.length(text))
        without_end = F.regexp_replace(payload, r"\}\s*$", "")
        rest = F.when(heads == head, without_end if head == _NO_SCHEMA else text)
        inferences.append(frame.select(_inferred(rest)).collect()[0][0])
    plain_schemas = [schema for each in inferences if (schema := inferred_schema(each)) is not None]
    return schemas | ({"": reduce(merged, plain_schemas)} if plain_schemas else {})


def _inferred(text: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.schema_of_variant_agg(F.try_parse_json(text))


def _schema_in(head: str) -> Schema | None:
    """The schema of an envelope that begins like this."""
    try:
        schema = json.loads(head + "}")["schema"]
    except (ValueError, RecursionError):
        return None
    return schema if is_schema(schema) else None


def inferred_schema(text: str) -> Schema | None:
    """Of what Spark says about variants, such as `OBJECT<a: BIGINT>`; None if there was no value.

    Numbers with a fraction are doubles, as Connect reads them. What differs from record to record is text.
    """
    from moldau.spark.formats.ddl import parse_type

    if text == "VOID":
        return None
    ddl = re.sub(r"\bOBJECT<", "STRUCT<", text)
    ddl = re.sub(r"\b(?:VARIANT|VOID)\b(?!`?:)", "STRING", ddl)  # types, not names of fields
    return schema_of(_settled(parse_type(ddl)), is_optional=True)


def _settled(kind: t.DataType) -> t.DataType:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType) and kind.fields:
        return t.StructType([t.StructField(one.name, _settled(one.dataType)) for one in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_settled(kind.elementType))
    if isinstance(kind, t.DecimalType):
        return t.DoubleType()
    return kind if isinstance(kind, t.LongType | t.DoubleType | t.FloatType | t.BooleanType) else t.StringType()


def _later(_: Mapping[str, Value]) -> Converter:
    raise ConfigError(
        "AvroConverter needs a schema registry, which comes in a later version: use JsonConverter, StringConverter or "
        "ByteArrayConverter"
    )


_JSON_OPTIONS = OptionTable.of(
    Option("schemas.enable", "Write each record with its schema. Both forms are read.", BOOLEAN, default=True),
    Option("schemas.cache.size", "Has no effect here.", whole(0), default=1000),
    Option(
        "decimal.format",
        "Decimals as base64 of their bytes, or as numbers.",
        Kind("BASE64 or NUMERIC", lambda value: choice("BASE64", "NUMERIC").convert(str(value).upper())),
        default="BASE64",
    ),
    Option("replace.null.with.default", "Has no effect here: nulls stay nulls.", BOOLEAN, default=True),
)
_ENCODING = OptionTable.of(
    Option("converter.encoding", "Character set of the text.", choice("UTF8", "UTF-8", "utf-8", "utf8"), default="UTF8")
)
_NUMBERS = {"Integer": ("int", 4), "Long": ("bigint", 8), "Short": ("smallint", 2), "Boolean": ("boolean", 1)}


def _converter(
    name: str, build: Callable[[Mapping[str, Value]], Converter], options: OptionTable | None = None
) -> Plugin:
    return Plugin((name,), PluginKind.CONVERTER, options or OptionTable(), build)


PLUGINS: tuple[Plugin, ...] = (
    _converter("org.apache.kafka.connect.json.JsonConverter", JsonConverter, _JSON_OPTIONS),
    _converter(f"{_STORAGE}StringConverter", lambda _: StringConverter(), _ENCODING),
    _converter(f"{_CONVERTERS}ByteArrayConverter", lambda _: ByteArrayConverter()),
    *(
        _converter(f"{_CONVERTERS}{name}Converter", partial(NumberConverter, *number))
        for name, number in _NUMBERS.items()
    ),
    _converter("io.confluent.connect.avro.AvroConverter", _later),
    # Values of headers are bytes from end to end, whatever they stand for.
    *(
        Plugin((name,), PluginKind.HEADER_CONVERTER)
        for name in (
            f"{_STORAGE}SimpleHeaderConverter",
            f"{_STORAGE}StringConverter",
            f"{_CONVERTERS}ByteArrayConverter",
            "org.apache.kafka.connect.json.JsonConverter",
        )
    ),
)
