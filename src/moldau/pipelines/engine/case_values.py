"""Values of tests: what stands in a file, what Spark returns, and when the two are the same.

A value of a file is converted by the type of its column, so a time is text, and a whole number is good for any number
type. Spark gets and returns JSON, in which all of its types have a form.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from moldau.config.keys import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Of `to_json`: no column is left out, and times have their zone."""


def converted(value: Any, kind: DataType, zone: tzinfo) -> Any:
    """A value of a file as a value of this type. Times without a zone are in `zone`.

    Raises ValueError with the path of the value, and what was expected.
    """
    return _convert(value, kind, zone, _from_file)


def converted_rows(texts: list[str], schema: StructType, zone: tzinfo) -> list[dict[str, Any]]:
    """Rows as `to_json` with JSON_OPTIONS wrote them."""
    rows = (json.loads(text, parse_float=Decimal) for text in texts)
    return [_convert(row, schema, zone, _from_spark) for row in rows]


def as_json(value: Any) -> str:
    """A converted row as JSON, for `from_json`."""
    return json.dumps(value, default=_json_form)


def is_same(expected: Any, actual: Any) -> bool:
    """Fields that are not expected are not compared. Floating-point numbers may differ by rounding."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(is_same(value, actual.get(name)) for name, value in expected.items())
    if isinstance(expected, list):
        return isinstance(actual, list) and len(expected) == len(actual) and all(map(is_same, expected, actual))
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, rel_tol=1e-9) or (math.isnan(expected) and math.isnan(actual))
    return bool(expected == actual)


def shown(value: Any) -> str:
    """A value as one would write it in a file."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {shown(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, datetime):
        is_utc = value.tzinfo is not None and not value.utcoffset()
        return (value.replace(tzinfo=None) if is_utc else value).isoformat(" ").removesuffix(".000000")
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(value, ensure_ascii=False) if value is None or isinstance(value, bool) else str(value)


def _convert(value: Any, kind: DataType, zone: tzinfo, scalar: Callable[[Any, str, tzinfo], Any]) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if value is None:
        return None
    if isinstance(kind, StructType):
        return _convert_struct(value, kind, zone, scalar)
    if isinstance(kind, ArrayType):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r}: expected a list")
        return [_convert(item, kind.elementType, zone, scalar) for item in value]
    if isinstance(kind, MapType):
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r}: expected a mapping")
        return {str(name): _convert(item, kind.valueType, zone, scalar) for name, item in value.items()}
    return scalar(value, kind.typeName(), zone)


def _convert_struct(
    value: Any, kind: StructType, zone: tzinfo, scalar: Callable[[Any, str, tzinfo], Any]
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r}: expected a mapping of columns to values")
    known = {field.name.lower(): field for field in kind.fields}
    row = {}
    for name, item in value.items():
        field = known.get(str(name).lower())
        if field is None:
            meant = nearest(str(name), [each.name for each in kind.fields])
            hint = f"did you mean '{meant}'?" if meant else f"there are {', '.join(kind.fieldNames())}"
            raise ValueError(f"there is no column '{name}': {hint}")
        try:
            row[field.name] = _convert(item, field.dataType, zone, scalar)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return row


def _from_spark(value: Any, kind: str, zone: tzinfo) -> Any:
    return base64.b64decode(value) if kind == "binary" else _from_file(value, kind, zone)


def _from_file(value: Any, kind: str, zone: tzinfo) -> Any:
    convert, expected = _SCALARS.get(kind, (None, ""))
    if convert is None:
        return value
    try:
        return convert(value, zone)
    except (ValueError, TypeError, InvalidOperation):
        raise ValueError(f"{value!r}: expected {expected}") from None


def _text(value: Any, _zone: tzinfo) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | Decimal | date):
        raise TypeError
    return str(value)


def _bytes(value: Any, zone: tzinfo) -> bytes:
    return value if isinstance(value, bytes) else _text(value, zone).encode()


def _boolean(value: Any, _zone: tzinfo) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole(value: Any, _zone: tzinfo) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _float(value: Any, _zone: tzinfo) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _decimal(value: Any, _zone: tzinfo) -> Decimal:
    if isinstance(value, bool):
        raise TypeError
    return Decimal(str(value))


def _date(value: Any, _zone: tzinfo) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(value)


def _local_time(value: Any, _zone: tzinfo) -> datetime:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return found.replace(tzinfo=None)


def _time(value: Any, zone: tzinfo) -> datetime:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)


_SCALARS: Mapping[str, tuple[Callable[[Any, tzinfo], Any], str]] = {
    "string": (_text, "text"),
    "binary": (_bytes, "text"),
    "boolean": (_boolean, "true or false"),
    **dict.fromkeys(("byte", "short", "integer", "long"), (_whole, "a whole number")),
    **dict.fromkeys(("float", "double"), (_float, "a number")),
    "decimal": (_decimal, "a number"),
    "date": (_date, "a date, such as 2026-01-31"),
    "timestamp": (_time, "a time, such as 2026-01-31 12:00:00"),
    "timestamp_ntz": (_local_time, "a time, such as 2026-01-31 12:00:00"),
}


def _json_form(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
