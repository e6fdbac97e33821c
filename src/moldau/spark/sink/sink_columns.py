"""The columns of a sink: those of Spark's Kafka sink, and `timestamp`.

They are checked on the driver, before any task starts. `row_sink` writes the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.errors import ConfigError

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMN_TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


def check_columns(schema: StructType, topic: str | None) -> None:
    if "value" not in schema.names:
        raise ConfigError(f"no column 'value' to write: the DataFrame has {', '.join(schema.names)}")
    if topic is None and "topic" not in schema.names:
        raise ConfigError("no topic to write to: add .option(\"topic\", …), or a column 'topic'")
    for field in schema:
        allowed = COLUMN_TYPES.get(field.name)
        if allowed and not any(_same(field.dataType, wanted) for wanted in allowed):
            names = " or ".join(wanted.simpleString() for wanted in allowed)
            advice = "cast it, or set value.format" if field.name == "value" else "cast it, or drop it"
            raise ConfigError(f"column '{field.name}' is {field.dataType.simpleString()}, not {names}: {advice}")


def _same(given: DataType, wanted: DataType) -> bool:
    """Whether they differ in nullability or collation at most, which does not matter here."""
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _same(given.elementType, wanted.elementType)
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return given.names == wanted.names and all(map(_same, _types(given), _types(wanted)))
    return type(given) is type(wanted)


def _types(struct: StructType) -> Iterator[DataType]:
    return (field.dataType for field in struct)
