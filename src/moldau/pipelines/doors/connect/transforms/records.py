"""Records as transforms see them: the key and the value of a row, and what a transform changes in it.

A transform does not change a DataFrame, it says what the new columns are (`Change`). One place, `applied`, makes the
next DataFrame of it, also where a predicate limits the transform to some of the records. Since the records of a
micro-batch have one Spark schema, a column that only some records have changed gets a type that holds both: structs
get the fields of both, null where a record has none. Types that have no such union, for example a struct beside a
number, are an error that says so.

What a value does wrong (`failing`) is only known when a record is there: Connect fails the record, and a predicate may
leave it out. So these are errors of rows, not of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from moldau.errors import RecordFormatError
from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME, SCHEMALESS, Frames

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

TIME = "org.apache.kafka.connect.data.Time"
"""The name of a schema whose INT is milliseconds after midnight. Dates, timestamps and decimals are types of Spark."""

Predicate = Callable[[], "Column"]


@dataclass(frozen=True)
class New:
    """A new column; its metadata is the old one's unless it is given."""

    column: Column
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Change:
    columns: Mapping[str, New] = field(default_factory=dict)
    keep: Column | None = None  # records for which it is not true are dropped


Transform = Callable[["Records"], Change]


@dataclass(frozen=True)
class Records:
    frame: DataFrame

    def part(self, name: str) -> Part:
        return Part(name, self.frame.schema[name])

    def has(self, name: str) -> bool:
        return name in self.frame.columns


@dataclass(frozen=True)
class Part:
    """A column of records, or a field in it."""

    name: str
    schema: StructField
    parent: Part | None = None

    @cached_property
    def column(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return self.parent.column.getField(self.name) if self.parent else F.col(self.name)

    @property
    def type(self) -> DataType:
        return self.schema.dataType

    @property
    def type_name(self) -> str:
        return self.type.typeName()

    @property
    def is_struct(self) -> bool:
        return self.type_name == "struct"

    @property
    def is_map(self) -> bool:
        return self.type_name == "map"

    @property
    def is_void(self) -> bool:
        """No record has a value: tombstones only, or no keys."""
        return self.type_name == "void"

    @property
    def value_type(self) -> DataType:
        """Of a map."""
        return self.type.valueType  # type: ignore[attr-defined, no-any-return]

    @property
    def is_schemaless(self) -> bool:
        return self.is_map or bool(self.schema.metadata.get(SCHEMALESS))

    @property
    def is_time(self) -> bool:
        return bool(self.schema.metadata.get(SCHEMA_NAME) == TIME)

    @cached_property
    def fields(self) -> Mapping[str, Part]:
        """Of a struct, in order; of anything else, none."""
        if not self.is_struct:
            return {}
        return {each.name: Part(each.name, each, self) for each in self.type.fields}  # type: ignore[attr-defined]

    def kept(self, name: str | None = None) -> Column:
        """This field for the new struct."""
        return named(self.required(self.column), name or self.name, self.schema.metadata)

    def required(self, column: Column) -> Column:
        """`column`, and never null if this field is not.

        A field of a nullable struct is nullable for Spark, also where the struct is known not to be null.
        """
        return column if self.schema.nullable else never_null(column, self.type)

    def of_struct(self, columns: Iterable[Column]) -> Column:
        """A struct of these fields, null where this is null."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.when(self.column.isNotNull(), F.struct(*columns))

    def failing(self, message: str, target: DataType | str | None = None) -> Column:
        """Null of a type, by default this one's, where this is null; any other value fails with the message."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.when(self.column.isNotNull(), raised(message)).cast(target or self.type)

    def unless_null(self, column: Column, message: str) -> Column:
        """`column`; but where this is null, it fails with the message."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.when(self.column.isNull(), raised(message)).otherwise(column)

    def wrong_type(self, purpose: str) -> str:
        """Connect's words for a value that is neither a struct nor a map."""
        if self.is_schemaless:
            return f"Only Map objects supported in absence of schema for [{purpose}], found: {self.type_name}"
        return f"Only Struct objects supported for [{purpose}], found: {self.type_name}"

    def null_is_wrong(self, purpose: str) -> str:
        kind = "Struct objects supported" if self.is_struct else "Map objects supported in absence of schema"
        return f"Only {kind} for [{purpose}], found: null"


def in_map(part: Part, key: str) -> Part:
    """The value of a key in a map, as a field of it."""
    from pyspark.sql.types import StructField

    return Part(key, StructField(key, part.value_type), part)


def bound(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use` of a value that is computed once, however often it is used."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.transform(F.array(value), use)[0]


def raised(message: str | Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.raise_error(F.lit(message) if isinstance(message, str) else message)


def named(column: Column, name: str, metadata: Mapping[str, Any] | None = None) -> Column:
    return column.alias(name, metadata=dict(metadata)) if metadata else column.alias(name)


_ZEROS = {
    "byte": "0",
    "short": "0",
    "integer": "0",
    "long": "0",
    "float": "0",
    "double": "0",
    "decimal": "0",
    "boolean": "false",
    "string": "''",
    "date": "date_from_unix_date(0)",
    "timestamp": "timestamp_millis(0)",
    "array": "array()",
    "map": "map()",
}


def zero(kind: DataType) -> Column | None:
    """The value that says least; None for types that have no such value."""
    from pyspark.sql import functions as F  # noqa: N812

    text = _ZEROS.get(kind.typeName())
    return None if text is None else F.expr(text).cast(kind)


def never_null(column: Column, kind: DataType | str) -> Column:
    """For Spark's analysis of a column that is never null anyway."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DataType

    least = zero(DataType.fromDDL(kind) if isinstance(kind, str) else kind)
    return column if least is None else F.coalesce(column, least)


def put(entries: Column, values: Mapping[str, Column]) -> Column:
    """A map with these entries added or replaced."""
    from pyspark.sql import functions as F  # noqa: N812

    others = F.map_filter(entries, lambda key, _: ~key.isin(*values))
    return F.map_concat(others, *(F.create_map(F.lit(key), value) for key, value in values.items()))


def header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def with_headers(added: Sequence[Column]) -> Column:
    """The record's headers and these; a header may be there several times."""
    from pyspark.sql import functions as F  # noqa: N812

    none = F.array().cast("array<struct<key: string, value: binary>>")
    return F.concat(F.coalesce(F.col("headers"), none), F.array(*added))


def steps(transform: Transform, predicate: Predicate | None = None, negate: bool = False) -> Frames:
    """A transform as a step of a pipeline, for the records that meet the predicate."""

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        if predicate is None:
            return applied(frame, transform(Records(frame)), None)
        met = F.coalesce(predicate(), F.lit(False))
        return applied(frame, transform(Records(frame)), ~met if negate else met)

    return step


def applied(frame: DataFrame, change: Change, condition: Column | None) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    def column(name: str) -> Column:
        new = change.columns.get(name)
        if new is None:
            return F.col(f"`{name}`")
        metadata = frame.schema[name].metadata if new.metadata is None else new.metadata
        value = new.column if condition is None else _either(frame, name, condition, new.column)
        return named(value, name, metadata)

    if change.keep is not None:
        kept = F.coalesce(change.keep, F.lit(False))
        frame = frame.filter(kept if condition is None else ~condition | kept)
    return frame.select(*map(column, frame.columns)) if change.columns else frame


def _either(frame: DataFrame, name: str, condition: Column, new: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    old_type, new_type = frame.schema[name].dataType, frame.select(new.alias(name)).schema[name].dataType
    both = union(old_type, new_type)
    if both is None:
        raise RecordFormatError(
            f"A transform with a predicate changes the {name} of some records from {old_type.simpleString()} to "
            f"{new_type.simpleString()}, and the records of a micro-batch need one type. Apply it to all records, or "
            "use a connector for each of the two kinds of records."
        )
    changed, unchanged = conformed(new, new_type, both), conformed(F.col(name), old_type, both)
    return F.when(condition, changed).otherwise(unchanged)


_WIDER = ("byte", "short", "integer", "long", "float", "double")


def union(one: DataType, other: DataType) -> DataType | None:
    """A type for the values of both; None if there is none."""
    from pyspark.sql.types import StringType, StructField, StructType

    names = one.typeName(), other.typeName()
    if one == other or "void" in names:
        return other if names[0] == "void" else one
    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {each.name: each for each in one.fields}
        for each in other.fields:
            known = fields.get(each.name)
            both = union(known.dataType, each.dataType) if known else each.dataType
            if both is None:
                return None
            nullable = known is None or known.nullable or each.nullable
            fields[each.name] = StructField(each.name, both, nullable, each.metadata)
        return StructType([*fields.values()])
    if all(name in _WIDER for name in names):
        return max(one, other, key=lambda each: _WIDER.index(each.typeName()))
    if "string" in names and not {"struct", "map", "array", "binary"} & {*names}:
        return StringType()
    return None


def conformed(column: Column, kind: DataType, target: DataType) -> Column:
    """A value as one of the union's type: the fields of structs by name, which a cast does by position."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    if kind == target:
        return column
    if not isinstance(kind, StructType) or not isinstance(target, StructType):
        return column.cast(target)
    known = {each.name: each.dataType for each in kind.fields}

    def value(wanted: StructField) -> Column:
        if wanted.name not in known:
            return F.lit(None).cast(wanted.dataType)
        return conformed(column.getField(wanted.name), known[wanted.name], wanted.dataType)

    fields = [named(value(each), each.name, each.metadata) for each in target.fields]
    return F.when(column.isNotNull(), F.struct(*fields))
