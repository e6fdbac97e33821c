"""Column expressions between values and the JSON that Connect's JsonConverter writes and reads.

Connect writes dates and timestamps as numbers since 1970, bytes as base64, and decimals as the base64 of their unscaled
number (big-endian two's complement, as short as it gets) or as numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.schemas import (
    DATE,
    DECIMAL,
    DECIMAL_DIGITS_MAX,
    Schema,
    decimal_scale,
    logical_name,
    metadata_of,
    needs_conversion,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as t

_LONG_DIGITS = 18
_LIMB = 1 << 48  # a decimal of 38 digits is three such parts
_LIMB_DIGITS = 12
# A leading byte is superfluous if the next one has the same sign.
_SHORTEST = r"^(?:(?:00(?=[0-7]))+|(?:FF(?=[89A-F]))+)"


def to_json_value(value: Column, kind: t.DataType, *, is_numeric: bool) -> Column:
    """A value as `to_json` shall write it. `is_numeric`: decimals are numbers."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as t

    if not _differs(kind, is_numeric=is_numeric):
        return value
    if isinstance(kind, t.StructType):
        fields = [
            to_json_value(value[one.name], one.dataType, is_numeric=is_numeric).alias(one.name) for one in kind.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, t.ArrayType):
        return F.transform(value, lambda item: to_json_value(item, kind.elementType, is_numeric=is_numeric))
    if isinstance(kind, t.MapType):
        return F.transform_values(value, lambda _, item: to_json_value(item, kind.valueType, is_numeric=is_numeric))
    return _atom(value, kind)


def _atom(value: Column, kind: t.DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as t

    if isinstance(kind, t.TimestampType):
        return F.unix_millis(value)
    if isinstance(kind, t.TimestampNTZType):
        return F.timestamp_diff("MILLISECOND", F.lit("1970-01-01").cast("timestamp_ntz"), value)
    if isinstance(kind, t.DateType):
        return F.unix_date(value)
    if isinstance(kind, t.DecimalType):
        return F.base64(_unscaled(value, kind.precision))
    return F.time_diff(F.lit("MILLISECOND"), F.lit("00:00:00").cast("time"), value).cast("int")


def _differs(kind: t.DataType, *, is_numeric: bool) -> bool:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return any(_differs(one.dataType, is_numeric=is_numeric) for one in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _differs(kind.elementType, is_numeric=is_numeric)
    if isinstance(kind, t.MapType):
        return _differs(kind.valueType, is_numeric=is_numeric)
    if isinstance(kind, t.DecimalType):
        return not is_numeric
    return isinstance(kind, t.TimestampType | t.TimestampNTZType | t.DateType) or kind.typeName().startswith("time(")


def from_json_value(value: Column, schema: Schema, *, is_numeric: bool) -> Column:
    """What a value of `json_type(schema)` stands for."""
    from pyspark.sql import functions as F  # noqa: N812

    if not needs_conversion(schema):
        return value
    name = logical_name(schema)
    if name == DECIMAL:
        return value if is_numeric else _scaled(F.unbase64(value), decimal_scale(schema))
    if name is not None:
        return F.date_from_unix_date(value) if name == DATE else F.timestamp_millis(value)
    if schema["type"] == "bytes":
        return F.unbase64(value)
    if schema["type"] == "struct":
        fields = [
            from_json_value(value[one["field"]], one, is_numeric=is_numeric).alias(
                one["field"], metadata=metadata_of(one)
            )
            for one in schema["fields"]
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if schema["type"] == "array":
        return F.transform(value, lambda item: from_json_value(item, schema["items"], is_numeric=is_numeric))
    return F.transform_values(value, lambda _, item: from_json_value(item, schema["values"], is_numeric=is_numeric))


def _unscaled(value: Column, precision: int) -> Column:
    """The bytes of java.math.BigInteger."""
    from pyspark.sql import functions as F  # noqa: N812

    number = F.replace(value.cast("string"), F.lit("."), F.lit(""))
    if precision <= _LONG_DIGITS:
        digits = F.lpad(F.hex(number.cast("bigint")), 16, "0")
    else:
        wide = f"decimal({DECIMAL_DIGITS_MAX},0)"
        rest = number.cast(wide)
        low = F.pmod(rest, F.lit(_LIMB))
        rest = ((rest - low) / F.lit(_LIMB)).cast(wide)
        middle = F.pmod(rest, F.lit(_LIMB))
        high = ((rest - middle) / F.lit(_LIMB)).cast("bigint")
        limbs = [F.lpad(F.hex(limb.cast("bigint")), _LIMB_DIGITS, "0") for limb in (middle, low)]
        digits = F.concat(F.lpad(F.hex(high), 16, "0"), *limbs)
    return F.unhex(F.regexp_replace(digits, _SHORTEST, ""))


def _scaled(data: Column, scale: int) -> Column:
    """The decimal of these bytes; null if it has too many digits."""
    from pyspark.sql import functions as F  # noqa: N812

    digits = F.hex(data)
    is_negative = F.substring(digits, 1, 1).rlike("[89A-F]")
    width = 16 + 2 * _LIMB_DIGITS
    full = F.when(is_negative, F.lpad(digits, width, "F")).otherwise(F.lpad(digits, width, "0"))
    wide = f"decimal({DECIMAL_DIGITS_MAX},0)"

    def limb(start: int, length: int, base: int) -> Column:
        return F.conv(F.substring(full, start, length), 16, base).cast(wide)

    high = limb(1, 16, -10)
    number = (high * F.lit(_LIMB) + limb(17, _LIMB_DIGITS, 10)) * F.lit(_LIMB) + limb(29, _LIMB_DIGITS, 10)
    text = F.concat(number.cast(wide).cast("string"), F.lit(f"E-{scale}"))
    return F.when(F.length(digits) <= width, text).try_cast(f"decimal({DECIMAL_DIGITS_MAX},{scale})")
