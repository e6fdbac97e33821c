"""Types of PostgreSQL: what each is in Spark, in Arrow and in JSON. Values arrive as PostgreSQL prints them.

What is not listed is text: enumerations, arrays, ranges, UUIDs, intervals, times, network addresses. A value that the
type in Spark cannot hold is null: infinite dates and timestamps, those before year 1 or after 9999, and NaN as a
decimal.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted  # much faster than json.dumps
from typing import Any

import pyarrow as pa

from moldau.errors import RecordFormatError
from moldau.pipelines.connectors.change_capture.pgoutput import Column

__all__ = ["PgType", "column_array", "numeric_limits", "quoted", "type_of"]

_NUMERIC = 1700
_DECIMAL_DIGITS_MAX = 38  # Spark's
_COMMON_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!.* BC$).*")


@dataclass(frozen=True)
class PgType:
    spark: str
    arrow: pa.DataType
    json: Callable[[str], str]  # the text of a JSON value
    parse: Callable[[str], Any] | None = None  # where Arrow cannot read the text itself


def _number(text: str) -> str:
    return text if text[-1].isdigit() else f'"{text}"'  # NaN, Infinity


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _dated(text: str) -> str | None:
    return text if _COMMON_DATE.fullmatch(text) else None


def _finite(text: str) -> str | None:
    return text if text[-1].isdigit() else None


_TEXT = PgType("STRING", pa.string(), quoted)
_FLOAT = PgType("FLOAT", pa.float32(), _number)
_BY_OID: Mapping[int, PgType] = {
    16: PgType("BOOLEAN", pa.bool_(), lambda text: "true" if text == "t" else "false", lambda text: text == "t"),
    17: PgType("BINARY", pa.binary(), lambda text: f'"{base64.b64encode(_bytes(text)).decode()}"', _bytes),
    20: PgType("BIGINT", pa.int64(), str),
    21: PgType("SMALLINT", pa.int16(), str),
    23: PgType("INT", pa.int32(), str),
    26: PgType("BIGINT", pa.int64(), str),  # oid
    114: PgType("STRING", pa.string(), str),  # json: as it is
    3802: PgType("STRING", pa.string(), str),  # jsonb
    700: _FLOAT,
    701: PgType("DOUBLE", pa.float64(), _number),
    1082: PgType("DATE", pa.date32(), lambda text: f'"{text}"', _dated),
    1114: PgType("TIMESTAMP_NTZ", pa.timestamp("us"), lambda text: f'"{text.replace(" ", "T", 1)}"', _dated),
    1184: PgType(
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        lambda text: f'"{text.replace(" ", "T", 1).replace("+00", "Z", 1)}"',
        _dated,
    ),
}


def type_of(column: Column) -> PgType:
    if column.type_oid != _NUMERIC:
        return _BY_OID.get(column.type_oid, _TEXT)
    digits, scale = numeric_limits(column)
    if not 0 < digits <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
        return PgType("STRING", pa.string(), _number)
    return PgType(f"DECIMAL({digits},{scale})", pa.decimal128(digits, scale), _number, _finite)


def numeric_limits(column: Column) -> tuple[int, int]:
    """Digits in all and after the point of a NUMERIC; (0, 0) if it has no limits."""
    if column.type_modifier < 4:
        return 0, 0
    packed = column.type_modifier - 4
    scale = packed & 0x7FF
    return (packed >> 16) & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def column_array(column: Column, target: pa.DataType, texts: Sequence[str | None]) -> pa.Array:
    """Values of one column in a type of Arrow, which is its own unless the user's schema says otherwise."""
    own = type_of(column)
    try:
        if own.parse is None or (pa.types.is_string(target) and not pa.types.is_boolean(own.arrow)):
            return pa.array(texts, pa.string()).cast(target)
        parsed = [None if text is None else own.parse(text) for text in texts]
        if own.parse in (_dated, _finite):
            return pa.array(parsed, pa.string()).cast(target)
        return pa.array(parsed, own.arrow).cast(target)
    except (pa.ArrowException, ValueError) as error:
        raise RecordFormatError(
            f"column {column.name} has values that do not fit {target}: {error}. Has its type changed? Restart the "
            "pipeline to read it as it is now"
        ) from error
