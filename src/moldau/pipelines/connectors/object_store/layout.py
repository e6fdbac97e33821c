"""Where an object goes: its folder, from the columns of its rows or from their time, and its name.

With names of offsets, objects lie as Kafka Connect's S3 sink stores them:

    <topic>/<folder>/<topic>+<partition>+<first offset>.<extension>

where the folder is `partition=<n>`, `<column>=<value>/…`, or the time in the `path format`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOW = "now"
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"  # as Spark and Hive name the folder of nulls
HOURLY = "'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH"
_OFFSET_DIGITS = 10
# Text in quotes ('' is a quote), a run of one letter, or anything else.
_TOKEN = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z']+)")
_DAY_S = 86_400
_DATE_FIELDS = {"y": "year", "Y": "year", "M": "month", "d": "day", "D": "doy"}
_TIME_FIELDS = {"H": (3_600, 24), "m": (60, 60), "s": (1, 60)}  # seconds, and how many there are


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Field:
    letter: str
    digits: int


def parse_path_format(pattern: str) -> tuple[Text | Field, ...]:
    """The parts of a pattern of Java's or Joda's. Raises ValueError for letters that have no number."""
    parts: list[Text | Field] = []
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise ValueError(f"a quote in {pattern} has no end")
        quoted, letters, letter, other = match.groups()
        if letters:
            if letter not in (*_DATE_FIELDS, *_TIME_FIELDS) or (letter == "M" and len(letters) > 2):
                raise ValueError(
                    f"'{letters}' in a path format: expected YYYY, MM, dd, DDD, HH, mm or ss, and other text in quotes"
                )
            parts.append(Field(letter, len(letters)))
        else:
            parts.append(Text(other or quoted.replace("''", "'") or "'"))
        position = match.end()
    return tuple(parts)


@dataclass(frozen=True)
class Layout:
    has_offsets: bool  # objects are named by topic, partition and offset
    value: str = ""  # the column that is written; empty: all
    partition_by: tuple[str, ...] = ()  # columns of what is written
    time: str = ""  # SQL expression, or `now`
    path_format: str = HOURLY
    time_zone: str = "UTC"
    duration_ms: int = 0  # the time of day is rounded down to it

    def folder(self, rows: DataFrame, batch_s: Callable[[], int]) -> Column:
        """`batch_s`: when the micro-batch began, in seconds, the same if it is repeated."""
        from pyspark.sql import functions as F  # noqa: N812

        parts = [F.col("topic")] if self.has_offsets else []
        parts += [_field_folder(name, self._written(rows, name)) for name in self.partition_by]
        if self.time:
            parts.append(self._time_folder(rows, batch_s))
        if self.has_offsets and len(parts) == 1:
            parts.append(F.concat(F.lit("partition="), F.col("partition").cast("string")))
        return F.concat_ws("/", *parts)

    def _written(self, rows: DataFrame, name: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(f"{self.value}.{name}") if self.value else F.col(name)

    def _time_folder(self, rows: DataFrame, batch_s: Callable[[], int]) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        seconds = F.lit(batch_s()) if self.time == NOW else _seconds(rows, self.time)
        # In a time zone of its own, not in that of the session: a repeated batch may run on another machine.
        epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
        at = epoch + F.make_dt_interval(secs=seconds.cast("decimal(18,6)"))
        local = F.convert_timezone(F.lit("UTC"), F.lit(self.time_zone), at)
        path = F.concat(*(self._path_part(part, local) for part in parse_path_format(self.path_format)))
        message = f"the time of a row ({self.time}) is null or is no time"
        return F.coalesce(path, F.raise_error(F.lit(message)).cast("string"))

    def _path_part(self, part: Text | Field, local: Column) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if isinstance(part, Text):
            return F.lit(part.text)
        if part.letter in _DATE_FIELDS:
            number = F.extract(F.lit(_DATE_FIELDS[part.letter]), local)
            if part.letter in "yY" and part.digits == 2:
                number = number % 100
        else:
            step = max(self.duration_ms // 1000, 1) if self.duration_ms < _DAY_S * 1000 else _DAY_S
            seconds = F.hour(local) * 3_600 + F.minute(local) * 60 + F.second(local)
            size, count = _TIME_FIELDS[part.letter]
            number = F.floor(F.floor(seconds / step) * step / size) % count
        text = number.cast("int").cast("string")
        return F.when(F.length(text) < part.digits, F.lpad(text, part.digits, "0")).otherwise(text)


def _field_folder(name: str, column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    value = F.coalesce(column.cast("string"), F.lit(NULL_VALUE))
    return F.concat(F.lit(f"{name}="), F.replace(value, F.lit("/"), F.lit("%2F")))


def _seconds(rows: DataFrame, expression: str) -> Column:
    """Seconds since 1970 of a timestamp, of milliseconds, or of text as in ISO 8601."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    column = F.expr(expression)
    kind = rows.select(column).schema[0].dataType
    if isinstance(kind, NumericType):
        return F.floor(column / 1000)
    if isinstance(kind, StringType | TimestampType | TimestampNTZType | DateType):
        return F.unix_seconds(F.try_to_timestamp(column) if isinstance(kind, StringType) else column.cast("timestamp"))
    raise ConfigError(f"partition time: {expression} is {kind.simpleString()}: expected a time, milliseconds or text")


def object_name(topic: str, partition: int, start: int) -> str:
    return f"{topic}+{partition}+{start:0{_OFFSET_DIGITS}d}"


def time_zone_mistake(name: str) -> str | None:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"unknown time zone {name}: expected one as UTC or Europe/Prague"
    return None


PATH_FORMATS: Mapping[str, str] = {"hour": HOURLY, "day": HOURLY.rpartition("/")[0]}
"""Words for the formats that most people want."""
