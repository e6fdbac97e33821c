"""The transforms of fields of a key or a value.

A struct is Connect's Struct, a Spark map its Map without a schema. The values of a Spark map have one type, so a value
that a transform puts there becomes one of that type. `replace.null.with.default` has no effect, since fields of Spark
have no defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME, SCHEMA_VERSION, SCHEMALESS
from moldau.pipelines.doors.connect.transforms.casts import TYPES, cast
from moldau.pipelines.doors.connect.transforms.field_paths import steps_of
from moldau.pipelines.doors.connect.transforms.records import (
    Change,
    New,
    Part,
    Records,
    Transform,
    in_map,
    named,
    never_null,
    put,
    raised,
)
from moldau.pipelines.model.options import Value

if TYPE_CHECKING:
    from pyspark.sql import Column

Values = Mapping[str, Value]


def of_part(on: str, change: Callable[[Part, Records], New | None]) -> Transform:
    """A transform of the key or the value only."""

    def transform(records: Records) -> Change:
        new = change(records.part(on), records)
        return Change() if new is None else Change({on: new})

    return transform


def with_entries(part: Part, purpose: str, entries: Callable[[], Mapping[str, Column]]) -> New | None:
    """A map with new entries; any other type but null is wrong."""
    from pyspark.sql import functions as F  # noqa: N812

    if part.is_void:
        return None
    if not part.is_map:
        return New(part.failing(part.wrong_type(purpose)))
    return New(F.when(part.column.isNotNull(), put(part.column, entries())))


def without_schema_name(part: Part) -> dict[str, object]:
    """The metadata of a column whose value is of another schema now."""
    return {SCHEMALESS: True} if part.schema.metadata.get(SCHEMALESS) else {}


def cast_spec(spec: Iterable[str]) -> tuple[str | None, dict[str, str]]:
    """The type for the whole value, and those of fields."""
    pairs = [[part.strip() for part in each.split(":")] for each in spec]
    whole = next((pair[0].lower() for pair in pairs if len(pair) == 1), None)
    return whole, {pair[0]: pair[1].lower() for pair in pairs if len(pair) == 2}


def cast_field(values: Values, on: str) -> Transform:
    whole, casts = cast_spec(values["spec"])

    def field(part: Part) -> Column:
        if part.name not in casts:
            return part.kept()
        value, kind = cast(part, casts[part.name]), TYPES[casts[part.name]]
        return (value if part.schema.nullable else never_null(value, kind)).alias(part.name)

    def entry(part: Part, name: str) -> Column:
        return cast(in_map(part, name), casts[name]).cast(part.value_type)

    def change(part: Part, _: Records) -> New | None:
        if whole is not None:
            return New(cast(part, whole), {})
        if part.is_struct:
            return New(part.of_struct(map(field, part.fields.values())))
        return with_entries(part, "cast types", lambda: {name: entry(part, name) for name in casts})

    return of_part(on, change)


def extract_field(values: Values, on: str) -> Transform:
    path = values["field"]
    steps = steps_of(path, values["field.syntax.version"])

    def change(part: Part, _: Records) -> New | None:
        if part.is_void:
            return None
        if not part.is_struct and not part.is_map:
            return New(part.failing(part.wrong_type("field extraction")))
        found = part
        for step in steps:
            inner = in_map(found, step) if found.is_map else found.fields.get(step)
            if inner is None:
                is_map = part.is_schemaless
                return New(part.failing(f"Unknown field: {path}", "string") if not is_map else _nothing(), {})
            found = inner
        return New(found.column, found.schema.metadata)

    return of_part(on, change)


def _nothing() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(None).cast("string")


def flatten(values: Values, on: str) -> Transform:
    delimiter = values["delimiter"]

    def leaves(part: Part, prefix: str, *, optional: bool) -> Iterator[Column]:
        for field in part.fields.values():
            name, is_optional = prefix + field.name, optional or field.schema.nullable
            if field.is_struct:
                yield from leaves(field, name + delimiter, optional=is_optional)
            elif field.is_map and not part.is_schemaless:
                message = f"Flatten transformation does not support MAP for record with schemas (for field {name})."
                yield named(field.failing(message), name)
            else:
                value = field.column if is_optional else field.required(field.column)
                yield named(value, name, field.schema.metadata)

    def change(part: Part, _: Records) -> New | None:
        if part.is_struct:
            return New(part.of_struct(leaves(part, "", optional=False)))
        return with_entries(part, "flattening", dict) if not part.is_map else New(_flat_map(part, delimiter))

    return of_part(on, change)


def _flat_map(part: Part, delimiter: str) -> Column:
    """Maps in a map: their keys are joined, level by level."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import MapType

    column, kind = part.column, part.value_type
    while isinstance(kind, MapType):
        joined = F.transform(
            F.map_entries(column),
            lambda outer: F.transform(
                F.map_entries(outer["value"]),
                lambda inner: F.struct(
                    F.concat(outer["key"], F.lit(delimiter), inner["key"]).alias("key"), inner["value"].alias("value")
                ),
            ),
        )
        # A null in place of an inner map would be an entry of the other type: it is left out.
        column, kind = F.map_from_entries(F.flatten(F.array_compact(joined))), kind.valueType
    return column


def hoist_field(values: Values, on: str) -> Transform:
    from_name = values["field"]

    def change(part: Part, _: Records) -> New:
        from pyspark.sql import functions as F  # noqa: N812

        field = named(part.column.cast("string") if part.is_void else part.column, from_name, part.schema.metadata)
        return New(F.struct(field), without_schema_name(part))

    return of_part(on, change)


_INSERTED = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
"""Attributes of records that `InsertField` can insert."""


def insert_field(values: Values, on: str) -> Transform:
    specs = {key: values[f"{key}.field"] for key in (*_INSERTED, "static") if values.get(f"{key}.field")}

    def value(key: str, part: Part, records: Records) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if key == "static":
            return F.lit(values["static.value"])
        if not records.has(key):
            message = "Only SinkRecord supported for [field insertion], found: SourceRecord"
            return raised(message).cast(_INSERTED[key])
        column = F.col(key)
        return F.unix_millis(column) if key == "timestamp" and part.is_schemaless else column

    def field(key: str, part: Part, records: Records) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        column, name = value(key, part, records), specs[key].rstrip("?!")
        if not specs[key].endswith("!"):
            column = F.when(part.column.isNotNull(), column)  # optional, also where the record always has it
        else:
            message = f'Invalid value: null used for required field: "{name}"'
            checked = F.when(column.isNull(), raised(message)).otherwise(column)
            kind = "bigint" if key == "timestamp" and part.is_schemaless else _INSERTED.get(key, "string")
            column = never_null(checked.cast(kind), kind)
        return column.alias(name)

    def change(part: Part, records: Records) -> New | None:
        names = {spec.rstrip("?!") for spec in specs.values()}
        if part.is_map:
            entries = {specs[key].rstrip("?!"): value(key, part, records).cast(part.value_type) for key in specs}
            return with_entries(part, "field insertion", lambda: entries)
        if not part.is_struct:
            return with_entries(part, "field insertion", dict)
        known = names & {*part.fields}
        if known and not part.is_schemaless:
            return New(part.failing(f"Cannot create field because of field name duplication {min(known)}"))
        kept = [each.kept() for each in part.fields.values() if each.name not in names]
        return New(part.of_struct([*kept, *(field(key, part, records) for key in specs)]))

    return of_part(on, change)


def renames_of(pairs: Iterable[str]) -> dict[str, str]:
    return {old: new for old, _, new in (pair.partition(":") for pair in pairs)}


def replace_field(values: Values, on: str) -> Transform:
    exclude = {*values["exclude"], *values.get("blacklist", ())}
    include = {*values["include"], *values.get("whitelist", ())}
    renames = renames_of(values["renames"])

    def is_kept(name: str) -> bool:
        return name not in exclude and (not include or name in include)

    def renamed_map(part: Part) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        column = part.column
        if exclude:
            column = F.map_filter(column, lambda key, _: ~key.isin(*exclude))
        if include:
            column = F.map_filter(column, lambda key, _: key.isin(*include))
        if not renames:
            return column
        new_names = F.create_map(*(F.lit(each) for pair in renames.items() for each in pair))
        return F.transform_keys(column, lambda key, _: F.coalesce(new_names[key], key))

    def change(part: Part, _: Records) -> New | None:
        if part.is_map:
            return New(renamed_map(part))
        if not part.is_struct:
            return with_entries(part, "field replacement", dict)
        kept = [each for each in part.fields.values() if is_kept(each.name)]
        names = [renames.get(each.name, each.name) for each in kept]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            return New(part.failing(f"Cannot create field because of field name duplication {twice}"))
        return New(part.of_struct(each.kept(name) for each, name in zip(kept, names, strict=True)))

    return of_part(on, change)


def set_schema_metadata(values: Values, on: str) -> Transform:
    given = {SCHEMA_NAME: values.get("schema.name"), SCHEMA_VERSION: values.get("schema.version")}
    metadata = {key: value for key, value in given.items() if value is not None}

    def change(part: Part, _: Records) -> New | None:
        if part.is_void:
            return None
        if part.is_schemaless:
            return New(part.failing("Schema required for [updating schema metadata]"))
        return New(part.column, {**part.schema.metadata, **metadata})

    return of_part(on, change)


def value_to_key(values: Values, _: str) -> Transform:
    names: tuple[str, ...] = values["fields"]
    purpose = "copying fields from value to key"

    def key(value: Part) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if value.is_map:
            return F.create_map(*(each for name in names for each in (F.lit(name), value.column[name])))
        if not value.is_struct:
            return value.failing(value.wrong_type(purpose), "string")
        unknown = next((name for name in names if name not in value.fields), None)
        if unknown is not None and not value.is_schemaless:
            return value.failing(f"Field does not exist: {unknown}", "string")
        found = {name: value.fields.get(name) for name in names}
        return F.struct(*(part.kept() if part else _nothing().alias(name) for name, part in found.items()))

    def transform(records: Records) -> Change:
        value = records.part("value")
        column = value.unless_null(key(value), value.null_is_wrong(purpose))
        return Change({"key": New(column, without_schema_name(value))})

    return transform
