"""SQLite's values as those of Arrow's columns, and back: it has no types for time, and rows may differ in type."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from moldau.errors import RecordFormatError

_EPOCH = datetime.datetime(1970, 1, 1)
_EXACT = decimal.Context(prec=50)


def arrow_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    convert = next(make(field.type) for is_kind, make in _CONVERTERS if is_kind(field.type))
    try:
        return pa.array([None if value is None else convert(value) for value in values], field.type)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise RecordFormatError(
            f"column {field.name} has a value that is not {field.type}: {error}. A `query` with CAST can convert it"
        ) from error


def sqlite_values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return [None if value is None else _time_text(value) for value in values]
    return values


def _moment(value: Any) -> datetime.datetime:
    """Text as SQLite's functions make it, or milliseconds, as SQLite's JDBC driver writes them."""
    if isinstance(value, int | float):
        return _EPOCH + datetime.timedelta(milliseconds=value)
    moment = datetime.datetime.fromisoformat(value)
    return moment.astimezone(datetime.UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _exact(kind: pa.DataType) -> Callable[[Any], decimal.Decimal]:
    step = decimal.Decimal(1).scaleb(-kind.scale)
    return lambda value: decimal.Decimal(str(value)).quantize(step, context=_EXACT)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _always(convert: Callable[[Any], Any]) -> Callable[[pa.DataType], Callable[[Any], Any]]:
    return lambda _: convert


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Callable[[Any], Any]]], ...] = (
    (pa.types.is_boolean, _always(bool)),
    (pa.types.is_integer, _always(int)),
    (pa.types.is_floating, _always(float)),
    (pa.types.is_decimal, _exact),
    (pa.types.is_timestamp, _always(_moment)),
    (pa.types.is_date, _always(lambda value: _moment(value).date())),
    (pa.types.is_binary, _always(_bytes)),
    (lambda _: True, _always(_text)),
)


def _time_text(value: datetime.date) -> str:
    if not isinstance(value, datetime.datetime):
        return value.isoformat()
    moment = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
    return moment.isoformat(" ", "microseconds" if moment.microsecond else "seconds")
