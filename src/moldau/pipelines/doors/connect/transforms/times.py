"""TimestampConverter and TimestampRouter: times as text, numbers, dates and timestamps, always in UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME
from moldau.pipelines.doors.connect.transforms.fields import Values, of_part, with_entries
from moldau.pipelines.doors.connect.transforms.java_dates import DAY_MS, formatted, parsed
from moldau.pipelines.doors.connect.transforms.records import (
    TIME,
    Change,
    New,
    Part,
    Records,
    Transform,
    in_map,
    named,
    never_null,
    raised,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

PER_MILLISECOND = {"nanoseconds": 1_000_000, "microseconds": 1_000, "milliseconds": 1}
TARGETS = {"string": "string", "unix": "bigint", "Date": "date", "Time": "int", "Timestamp": "timestamp"}


def timestamp_converter(values: Values, on: str) -> Transform:
    name, target = values["field"], values["target.type"]
    metadata = {SCHEMA_NAME: TIME} if target == "Time" else {}

    def converted(part: Part) -> Column:
        return _of_millis(_millis(part, values), values).cast(TARGETS[target])

    def field(part: Part) -> Column:
        if part.name != name:
            return part.kept()
        column = converted(part) if part.schema.nullable else never_null(converted(part), TARGETS[target])
        return named(column, part.name, metadata)

    def entry(part: Part) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        column = converted(in_map(part, name))
        if target == "Date" and part.value_type.typeName() == "timestamp":  # midnight in UTC, not in the session's zone
            return F.timestamp_millis(F.unix_date(column).cast("bigint") * DAY_MS)
        return column.cast(part.value_type)

    def change(part: Part, _: Records) -> New | None:
        if not name:
            return New(converted(part), metadata)
        if part.is_struct:
            return New(part.of_struct(map(field, part.fields.values())))
        return with_entries(part, "converting timestamp formats", lambda: {name: entry(part)})

    return of_part(on, change)


def _millis(part: Part, values: Values) -> Column:
    """Milliseconds since 1970, as Java's Date has them: finer ones are cut off."""
    from pyspark.sql import functions as F  # noqa: N812

    kind, value = part.type_name, part.column
    if kind in ("timestamp", "timestamp_ntz"):
        return F.unix_millis(value)
    if kind == "date":
        return F.unix_date(value).cast("bigint") * DAY_MS
    if part.is_void or part.is_time:
        return value.cast("bigint")
    if kind == "string":
        return _read(value, values.get("format", ""))
    if kind != "long":
        return part.failing(f"Schema {kind} does not correspond to a known timestamp type format", "bigint")
    if values["unix.precision"] == "seconds":
        return value * 1_000
    return F.call_function("div", value, F.lit(PER_MILLISECOND[values["unix.precision"]]))


def _read(text: Column, pattern: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    message = F.concat(
        F.lit("Could not parse timestamp: value ("), text, F.lit(f") does not match pattern ({pattern})")
    )
    millis = parsed(text, pattern) if pattern.strip() else F.lit(None).cast("bigint")
    return F.coalesce(millis, F.when(text.isNotNull(), raised(message)).cast("bigint"))


def _of_millis(millis: Column, values: Values) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    target, precision = values["target.type"], values["unix.precision"]
    if target == "string":
        return formatted(millis, values["format"])
    if target == "unix":
        return (
            F.call_function("div", millis, F.lit(1_000))
            if precision == "seconds"
            else (millis * PER_MILLISECOND[precision])
        )
    if target == "Timestamp":
        return F.timestamp_millis(millis)
    if target == "Time":
        return F.pmod(millis, F.lit(DAY_MS))
    return F.date_from_unix_date(F.floor(millis.cast("decimal(20,0)") / DAY_MS).cast("int"))


def timestamp_router(values: Values, _: str) -> Transform:
    def transform(records: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        timestamp = F.unix_millis("timestamp")
        missing = raised("Timestamp missing on record").cast("string")
        text = F.when(timestamp.isNull(), missing).otherwise(formatted(timestamp, values["timestamp.format"]))
        topic = F.replace(F.lit(values["topic.format"]), F.lit("${topic}"), F.col("topic"))
        return Change({"topic": New(F.replace(topic, F.lit("${timestamp}"), text))})

    return transform
