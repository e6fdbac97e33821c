"""Reads JSON values one by one: the slow and lenient path for records that Arrow's parser rejects.

Arrow reads blocks of values and accepts one notation per type. The records of a rejected block come here, where each
becomes a value or gets a reason. The rules are those of Spark's `from_json`: a string column accepts any JSON as text,
the last of duplicate names is used, decimals are rounded, and integers as timestamps are seconds. There are two
differences: a timestamp without a zone is UTC, and a record with one bad field is bad as a whole.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any

from pyspark.sql import types as t

from moldau.errors import ConfigError

Convert = Callable[[Any], Any]

_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_DATE = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T].*)?\s*")
_EPOCH = datetime(1970, 1, 1)
_SHOWN_CHARS = 60


class _Float(str):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


_decoder = json.JSONDecoder(parse_float=_Float)


def reader(kind: t.DataType) -> Callable[[bytes], Any]:
    """Return a function from a record to what `pyarrow.array` accepts; it raises ValueError with the reason."""
    convert = converter(kind)

    def read(value: bytes) -> Any:
        try:
            return convert(_decoder.decode(value.decode()))
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        except RecursionError:
            raise ValueError("objects and arrays are nested too deeply") from None

    return read


def converter(kind: t.DataType) -> Convert:
    plain = _converter(kind)
    return lambda value: None if value is None else plain(value)


def _converter(kind: t.DataType) -> Convert:
    if isinstance(kind, t.StructType):
        return _struct(kind)
    if isinstance(kind, t.ArrayType):
        return _array(kind)
    if isinstance(kind, t.MapType):
        return _map(kind)
    if isinstance(kind, t.DecimalType):
        return _decimal(kind)
    if type(kind) in _BITS:
        return _integer(kind)
    plain = _ATOMS.get(type(kind))
    if plain is None:
        raise ConfigError(f"type {kind.simpleString()} cannot be read from JSON: read it as a string and cast it")
    return plain


def _bad(expected: str, value: Any) -> ValueError:
    text = json_text(value)
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return ValueError(f"expected {expected}, found {shown}")


def _struct(kind: t.StructType) -> Convert:
    fields = [(field.name, converter(field.dataType)) for field in kind]
    expected = "an object"

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _bad(expected, value)
        row = {}
        for name, plain in fields:
            try:
                row[name] = plain(value.get(name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return row

    return convert


def _array(kind: t.ArrayType) -> Convert:
    plain = converter(kind.elementType)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _bad("an array", value)
        return [plain(item) for item in value]

    return convert


def _map(kind: t.MapType) -> Convert:
    if not isinstance(kind.keyType, t.StringType):
        raise ConfigError(f"type {kind.simpleString()} cannot be read from JSON: its keys are strings")
    plain = converter(kind.valueType)

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _bad("an object", value)
        return [(_text(name), plain(item)) for name, item in value.items()]

    return convert


def _decimal(kind: t.DecimalType) -> Convert:
    context = Context(prec=kind.precision, rounding=ROUND_HALF_UP)
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, str | int) and not isinstance(value, bool):
            try:
                return Decimal(value).quantize(unit, context=context)
            except DecimalException:
                pass
        raise _bad(kind.simpleString(), value)

    return convert


def _integer(kind: t.DataType) -> Convert:
    limit = 1 << (_BITS[type(kind)] - 1)
    expected = kind.simpleString()

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise _bad(expected, value)
        return value

    return convert


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json_text(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("an unpaired surrogate is not a character") from None
    return text


def json_text(value: Any) -> str:
    """Return the JSON of a decoded value, with numbers as they were written."""
    if isinstance(value, _Float):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad("boolean", value)
    return value


_NO_NUMBERS = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}


def _double(value: Any) -> float:
    number = isinstance(value, _Float | int | float) and not isinstance(value, bool)
    if not number and not (isinstance(value, str) and value in _NO_NUMBERS):
        raise _bad("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise _bad("double", value) from None


def _binary(value: Any) -> bytes:
    if isinstance(value, str) and not isinstance(value, _Float):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise _bad("base64", value)


def _date(value: Any) -> date:
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if found:
        try:
            return date(*map(int, found.groups()))
        except ValueError:
            pass
    raise _bad("a date like 2020-12-31", value)


def _timestamp_ntz(value: Any) -> datetime:
    """Parse a timestamp and convert it to UTC."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH + timedelta(seconds=value)
        if isinstance(value, str):
            time = datetime.fromisoformat(value.strip())
            return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError):
        pass
    raise _bad("a timestamp like 2020-12-31T23:59:59Z", value)


def _timestamp(value: Any) -> datetime:
    return _timestamp_ntz(value).replace(tzinfo=UTC)


_ATOMS: dict[type[t.DataType], Convert] = {
    t.StringType: _text,
    t.BooleanType: _boolean,
    t.FloatType: _double,
    t.DoubleType: _double,
    t.BinaryType: _binary,
    t.DateType: _date,
    t.TimestampType: _timestamp,
    t.TimestampNTZType: _timestamp_ntz,
}
