"""Java's conversions between numbers, truth values and text as column expressions, as `Cast` needs them.

Numbers wrap around when they become smaller ones, and floating point numbers end at the largest whole number: what
Java's `(byte) x` does, where Spark's cast fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.transforms.java_dates import DAY_MS, formatted
from moldau.pipelines.doors.connect.transforms.records import Part, raised

if TYPE_CHECKING:
    from pyspark.sql import Column

TYPES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}
"""What `Cast` can cast to, as types of Spark."""
OTHER_TYPES = ("bytes", "array", "map", "struct")

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_INTEGERS = ("byte", "short", "integer", "long")


def cast(part: Part, target: str) -> Column:
    """A value as Connect's type `target`; null stays null."""
    kind = part.type_name
    if part.is_void:
        return part.column.cast(TYPES[target])
    if target == "string":
        return _text(part, kind)
    if kind == "string":
        return _from_text(part.column, target)
    number = _number(part, kind)
    if number is None:
        message = f"Cast transformation does not support casting from {kind.upper()} to {target}"
        return part.failing(message, TYPES[target])
    if target == "boolean":
        return part.column if kind == "boolean" else _whole(number, kind, 64) != 0
    return _whole(number, kind, _BITS[target]).cast(TYPES[target]) if target in _BITS else number.cast(TYPES[target])


def _number(part: Part, kind: str) -> Column | None:
    from pyspark.sql import functions as F  # noqa: N812

    if kind in (*_INTEGERS, "float", "double", "decimal"):
        return part.column
    if kind == "boolean":
        return part.column.cast("int")
    if kind == "date":
        return F.unix_date(part.column)
    return F.unix_millis(part.column) if kind == "timestamp" else None


def _whole(number: Column, kind: str, bits: int) -> Column:
    """A BIGINT that fits into so many bits."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind in ("float", "double"):
        # As Java: first to an INT or BIGINT, where it ends; then bits are cut off.
        largest = 2 ** (max(bits, 32) - 1) - 1
        number = (
            F.when(F.isnan(number), F.lit(0).cast("bigint"))
            .when(number >= F.lit(float(largest)), F.lit(largest).cast("bigint"))
            .when(number <= F.lit(-float(largest) - 1), F.lit(-largest - 1).cast("bigint"))
            .otherwise(number.cast("bigint"))
        )
    wide = number.cast("bigint")
    return wide if bits == 64 else F.shiftright(F.shiftleft(wide, 64 - bits), 64 - bits)


def _from_text(text: Column, target: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if target == "boolean":
        return F.lower(text) == "true"
    value = text.try_cast(TYPES[target])
    if target in _BITS:
        value = F.when(text.rlike(r"\A[+-]?\d+\z"), value)
    message = F.concat(F.lit("Value ("), text, F.lit(") was out of range for requested data type"))
    return F.coalesce(value, F.when(text.isNotNull(), raised(message)).cast(TYPES[target]))


def _text(part: Part, kind: str) -> Column:
    """As Java's toString; times as Connect's `Values` writes them, which drops a time of midnight."""
    from pyspark.sql import functions as F  # noqa: N812

    value = part.column
    if kind in ("array", "map", "struct"):
        return part.failing(f"Cast transformation does not support casting from {kind.upper()} to string", "string")
    if kind == "binary":
        return F.base64(value)
    if kind == "date":
        return formatted(F.unix_date(value).cast("bigint") * DAY_MS, "yyyy-MM-dd")
    if part.is_time:
        return formatted(value.cast("bigint"), "HH:mm:ss.SSS'Z'")
    if kind == "timestamp":
        millis = F.unix_millis(value)
        time = F.when(F.pmod(millis, F.lit(DAY_MS)) != 0, formatted(millis, "'T'HH:mm:ss.SSS'Z'"))
        return F.when((millis >= 0) & (millis < DAY_MS), formatted(millis, "HH:mm:ss.SSS'Z'")).otherwise(
            F.concat(formatted(millis, "yyyy-MM-dd"), F.coalesce(time, F.lit("")))
        )
    return value.cast("string")


def header_text(part: Part) -> Column:
    """A value as the bytes that Connect's SimpleHeaderConverter makes of it; structs and lists are JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = part.type_name
    if kind in ("array", "map", "struct"):
        return F.to_json(part.column, {"ignoreNullFields": "false"})
    return part.column.cast("string") if part.is_void else _text(part, kind)
