"""Protobuf values: one message each, read with a descriptor set (`protoc --include_imports --descriptor_set_out`).

Types are those of Spark's own `from_protobuf`, with two differences: unsigned integers have a type that can hold all
their values (bigint, decimal(20,0)), and a field without presence that is not in the message has its default value, as
Protobuf specifies, instead of null. Enums are strings with the name; timestamps and durations are Spark's types.

Protobuf skips unknown fields, and a field whose type has changed is unknown, so it appears to be missing. A record
is bad if its bytes are not a message, a string is not UTF-8, a required field is missing or a time is out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as t

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats.columns import (
    ColumnOptions,
    ColumnReader,
    ColumnWriter,
    Decoded,
    Sample,
    array_of,
    arrow_type,
    reason,
)

_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
# The first second of the year 1 and the last of 9999: the range of Protobuf and Spark.
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799

_ATOMS: dict[int, t.DataType] = {
    FieldDescriptor.TYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.TYPE_FLOAT: t.FloatType(),
    FieldDescriptor.TYPE_INT32: t.IntegerType(),
    FieldDescriptor.TYPE_SINT32: t.IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: t.IntegerType(),
    FieldDescriptor.TYPE_UINT32: t.LongType(),
    FieldDescriptor.TYPE_FIXED32: t.LongType(),
    FieldDescriptor.TYPE_INT64: t.LongType(),
    FieldDescriptor.TYPE_SINT64: t.LongType(),
    FieldDescriptor.TYPE_SFIXED64: t.LongType(),
    FieldDescriptor.TYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: t.DecimalType(20, 0),
    FieldDescriptor.TYPE_BOOL: t.BooleanType(),
    FieldDescriptor.TYPE_STRING: t.StringType(),
    FieldDescriptor.TYPE_BYTES: t.BinaryType(),
    FieldDescriptor.TYPE_ENUM: t.StringType(),
}

Convert = Callable[[Any], Any]


def reader(options: ColumnOptions, sample: Sample, given: t.DataType | None) -> ColumnReader:
    return ProtobufReader(*_message_options(options))


def writer(options: ColumnOptions, spark_type: t.DataType) -> ColumnWriter:
    descriptors, name = _message_options(options)
    known = message_class(descriptors, name).DESCRIPTOR.fields_by_name
    if not isinstance(spark_type, t.StructType):
        raise ConfigError(f"column {options.column} is {spark_type.simpleString()}: a message is written from a struct")
    for field in spark_type:
        if field.name not in known:
            raise ConfigError(f"column {options.column} has a field {field.name}, message {name} has none")
    return ProtobufWriter(descriptors, name)


def _message_options(options: ColumnOptions) -> tuple[bytes, str]:
    descriptors = options.file("descriptor", "the path of what protoc --descriptor_set_out wrote")
    name = options.required("message", "the full name of the message, like com.example.PageView")
    try:
        _spark_type(message_class(descriptors, name).DESCRIPTOR, ())
    except (KeyError, TypeError, ValueError, DecodeError) as error:
        raise ConfigError(f"message {name} of option {options.named('descriptor')}: {reason(error)}") from error
    return descriptors, name


@lru_cache(maxsize=16)
def message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


class ProtobufReader:
    def __init__(self, descriptors: bytes, name: str) -> None:
        self._descriptors = descriptors
        self._name = name
        self.spark_type = _spark_type(message_class(descriptors, name).DESCRIPTOR, ())

    def decode(self, raw: pa.Array) -> Decoded:
        kind = message_class(self._descriptors, self._name)
        parse = kind.FromString
        convert = _row_of(kind.DESCRIPTOR)
        reasons: dict[int, str] = {}
        rows: list[Any] = []
        for row, value in enumerate(raw.to_pylist()):
            try:
                rows.append(None if value is None else convert(parse(value)))
            except (DecodeError, ValueError) as error:
                rows.append(None)
                reasons[row] = reason(f"no message {self._name}: {error}")
        return Decoded(array_of(rows, arrow_type(self.spark_type), reasons), reasons)


class ProtobufWriter:
    def __init__(self, descriptors: bytes, name: str) -> None:
        self._descriptors = descriptors
        self._name = name

    def encode(self, typed: pa.Array) -> pa.Array:
        kind = message_class(self._descriptors, self._name)
        rows = typed.to_pylist(maps_as_pydicts="strict")
        try:
            texts = [None if row is None else kind(**_set_fields(row)).SerializeToString() for row in rows]
        except Exception as error:
            raise RecordFormatError(f"a row does not fit message {self._name}: {reason(error)}") from error
        return pa.array(texts, pa.binary())


def _set_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _set_fields(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, Decimal) else value


def _spark_type(message: Descriptor, outer: tuple[str, ...]) -> t.StructType:
    if message.full_name in outer:
        raise ValueError(f"{message.full_name} contains itself, which no Spark type does")
    inside = (*outer, message.full_name)
    fields = [t.StructField(field.name, _field_type(field, inside)) for field in message.fields]
    if not fields:
        raise ValueError(f"{message.full_name} has no fields")
    return t.StructType(fields)


def _field_type(field: FieldDescriptor, inside: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(_field_type(entry["key"], inside), _field_type(entry["value"], inside))
    kind = _single_type(field, inside)
    return t.ArrayType(kind) if field.is_repeated else kind


def _single_type(field: FieldDescriptor, inside: tuple[str, ...]) -> t.DataType:
    if field.message_type is None:
        return _ATOMS[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return t.TimestampType()
    if field.message_type.full_name == _DURATION:
        return t.DayTimeIntervalType()
    return _spark_type(field.message_type, inside)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _row_of(message: Descriptor) -> Convert:
    """Return a function from a parsed message to what `pyarrow.array` accepts for its struct."""
    required = [field.name for field in message.fields if field.is_required]
    always = [(field.name, _value_of(field)) for field in message.fields if not field.has_presence]
    maybe = [(field.name, _value_of(field)) for field in message.fields if field.has_presence]

    def convert(value: Any) -> dict[str, Any]:
        row = {name: getattr(value, name) if one is None else one(getattr(value, name)) for name, one in always}
        for name, one in maybe:
            if value.HasField(name):
                row[name] = getattr(value, name) if one is None else one(getattr(value, name))
        for name in required:
            if name not in row:
                raise ValueError(f"required field {name} is missing")
        return row

    return convert


def _value_of(field: FieldDescriptor) -> Convert | None:
    """Return a function that converts a field's value for Arrow; None if it needs no conversion."""
    one = _single_value(field.message_type.fields_by_name["value"] if _is_map(field) else field)
    if not field.is_repeated:
        return one
    if one is None:
        return dict if _is_map(field) else list
    if _is_map(field):
        return lambda items: {key: one(item) for key, item in items.items()}
    return lambda items: [one(item) for item in items]


def _single_value(field: FieldDescriptor) -> Convert | None:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return None
    if field.message_type.full_name in (_TIMESTAMP, _DURATION):
        return _microseconds
    return _row_of(field.message_type)


def _microseconds(time: Any) -> int:
    if not _SECONDS_MIN <= time.seconds <= _SECONDS_MAX:
        raise ValueError(f"{time.seconds} seconds are beyond the year 9999")
    return int(time.seconds * 1_000_000 + time.nanos // 1000)
