"""Java's SimpleDateFormat as column expressions, in UTC and the English locale, as Connect's transforms use it.

Spark's own patterns look alike but are not: fractions instead of milliseconds for `S`, no `Y` or `u`, values of exactly
the width of the pattern, and the session's time zone. So a pattern is read here, letter by letter.

Texts are read as SimpleDateFormat does: `MM` also reads "7", unless digits follow directly; what follows a match is
ignored; a year of two digits is within 80 years before and 20 years after now. Differences: a day or hour that does not
exist (the 32nd) does not match instead of counting on, and zones are UTC, GMT and offsets.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from moldau.clocks import wall_clock_ms
from moldau.pipelines.doors.connect.transforms.records import bound

if TYPE_CHECKING:
    from pyspark.sql import Column

DAY_MS = 86_400_000
_LETTERS = "GyYMLwWDdFEuaHkKhmsSzZX"
_TEXTS = "GEazZX"  # letters that are never digits; months are both


@dataclass(frozen=True)
class Token:
    letter: str  # empty for literal text
    text: str  # the letters, or the literal

    @property
    def width(self) -> int:
        return len(self.text)

    @property
    def is_digits(self) -> bool:
        return bool(self.letter) and self.letter not in _TEXTS and not (self.letter in "ML" and self.width > 2)


def tokens(pattern: str) -> tuple[Token, ...]:
    """Raises ValueError, in Java's words, for a pattern that is none."""
    return tuple(_tokens(pattern))


def _tokens(pattern: str) -> Iterator[Token]:
    for match in re.finditer(r"''|'((?:[^']|'')*)'|([A-Za-z])\2*|(')|([^A-Za-z']+)", pattern):
        quoted, letter, open_quote, plain = match.groups()
        if open_quote:
            raise ValueError("Unterminated quote")
        if letter and letter not in _LETTERS:
            raise ValueError(f"Illegal pattern character '{letter}'")
        if letter == "X" and len(match[0]) > 3:
            raise ValueError(f"invalid ISO 8601 format: length={len(match[0])}")
        if letter:
            yield Token(letter, match[0])
        else:
            yield Token("", plain or (quoted or "'").replace("''", "'"))


# Formatting


@dataclass(frozen=True)
class _Instant:
    date: Column
    ms: Column  # of the day

    def part(self, unit_ms: int, count: int) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.pmod(F.floor(self.ms / unit_ms), F.lit(count))

    @property
    def saturday(self) -> Column:
        """The last day of the week, whose year is the week's: what Java's calendar has in the US."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.date_add(self.date, 7 - F.dayofweek(self.date))

    @property
    def hour(self) -> Column:
        return self.part(3_600_000, 24)

    @property
    def hour_of_12(self) -> Column:
        return self.part(3_600_000, 12)


def _twelve_for_zero(hour: Column, twelve: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(hour == 0, twelve).otherwise(hour)


def _numbers() -> Mapping[str, Callable[[_Instant], Column]]:
    from pyspark.sql import functions as F  # noqa: N812

    return {
        "y": lambda at: F.year(at.date),
        "Y": lambda at: F.year(at.saturday),
        "M": lambda at: F.month(at.date),
        "L": lambda at: F.month(at.date),
        "w": lambda at: F.floor((F.dayofyear(at.saturday) - 1) / 7) + 1,
        "W": lambda at: F.floor((F.dayofmonth(at.date) + F.dayofweek(F.trunc(at.date, "month")) - 2) / 7) + 1,
        "D": lambda at: F.dayofyear(at.date),
        "d": lambda at: F.dayofmonth(at.date),
        "F": lambda at: F.floor((F.dayofmonth(at.date) - 1) / 7) + 1,
        "u": lambda at: F.weekday(at.date) + 1,
        "H": lambda at: at.hour,
        "k": lambda at: _twelve_for_zero(at.hour, 24),
        "K": lambda at: at.hour_of_12,
        "h": lambda at: _twelve_for_zero(at.hour_of_12, 12),
        "m": lambda at: at.part(60_000, 60),
        "s": lambda at: at.part(1_000, 60),
        "S": lambda at: at.part(1, 1_000),
    }


_UTC_TEXTS = {"z": "UTC", "Z": "+0000", "X": "Z", "G": "AD"}


def _formatted(token: Token, at: _Instant) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if not token.letter:
        return F.lit(token.text)
    if token.letter in _UTC_TEXTS:
        is_long = token.letter == "z" and token.width > 3
        return F.lit("Coordinated Universal Time" if is_long else _UTC_TEXTS[token.letter])
    if token.letter == "a":
        return F.when(at.hour < 12, "AM").otherwise("PM")
    if token.letter == "E" or not token.is_digits:
        return F.date_format(at.date, token.letter * (4 if token.width > 3 else 3))
    number = _numbers()[token.letter](at)
    if token.letter in "yY":
        number = F.pmod(number, F.lit(100)) if token.width == 2 else number
    return F.format_string(f"%0{token.width}d", number.cast("bigint"))


def formatted(millis: Column, pattern: str) -> Column:
    """The text of a time in milliseconds since 1970."""
    from pyspark.sql import functions as F  # noqa: N812

    def text(value: Column) -> Column:
        days = F.floor(value.cast("decimal(20,0)") / DAY_MS).cast("int")
        at = _Instant(F.date_from_unix_date(days), F.pmod(value, F.lit(DAY_MS)))
        return F.when(value.isNotNull(), F.concat(*(_formatted(token, at) for token in tokens(pattern))))

    return bound(millis, text)


# Reading

_MONTHS = {calendar.month_abbr[number].upper(): number for number in range(1, 13)}
_TEXT_PATTERNS = {
    "M": "(?i)(" + "|".join(f"{calendar.month_name[n]}|{calendar.month_abbr[n]}" for n in range(1, 13)) + ")(?-i)",
    "E": r"(\p{Alpha}+)",
    "G": r"(\p{Alpha}+)",
    "a": "(?i)(AM|PM)(?-i)",
    "z": r"(UTC|GMT(?:[+-]\d{1,2}:\d{2})?|Z|[+-]\d{4})",
    "Z": r"([+-]\d{4}|UTC|GMT(?:[+-]\d{1,2}:\d{2})?)",
    "X": r"(Z|[+-]\d{2}(?::?\d{2})?)",
}


def _expected(pattern: tuple[Token, ...]) -> str:
    """A regular expression with a group for each letter."""

    def part(index: int, token: Token) -> str:
        if not token.letter:
            return re.sub(r"([^A-Za-z0-9])", r"\\\1", token.text)
        if not token.is_digits:
            return _TEXT_PATTERNS["M" if token.letter == "L" else token.letter]
        is_adjacent = index + 1 < len(pattern) and pattern[index + 1].is_digits
        return rf"(\d{{{token.width}}})" if is_adjacent else r"(\d+)"

    return "^" + "".join(part(index, token) for index, token in enumerate(pattern))


def parsed(text: Column, pattern: str) -> Column:
    """Milliseconds since 1970 of a text, null if it does not match the pattern."""
    from pyspark.sql import functions as F  # noqa: N812

    read = tokens(pattern)
    letters = [token for token in read if token.letter]
    expected = f"(?s){_expected(read)}.*"
    found = "\u0001".join(f"${index + 1}" for index in range(len(letters)))
    groups = F.split(F.regexp_replace(text, expected, F.lit(found)), "\u0001", -1)

    def millis(groups: Column) -> Column:
        by_letter = {token.letter.replace("L", "M"): (token, groups[index]) for index, token in enumerate(letters)}
        return _millis(by_letter, datetime.fromtimestamp(wall_clock_ms() / 1000, UTC).year)

    return F.when(text.rlike(expected), bound(groups, millis))


_Groups = Mapping[str, tuple[Token, "Column"]]


def _number(groups: _Groups, letter: str, otherwise: int = 0) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return groups[letter][1].try_cast("bigint") if letter in groups else F.lit(otherwise).cast("bigint")


def _millis(groups: _Groups, this_year: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    year = _number(groups, "y" if "y" in groups else "Y", 1970)
    if "y" in groups and groups["y"][0].width <= 2:
        year = _whole_year(groups["y"][1], year, this_year)
    date = F.try_to_date(F.format_string("%04d-%02d-%02d", year, _month(groups), _number(groups, "d", 1)), "yyyy-MM-dd")
    days = F.unix_date(date).cast("bigint")
    if "D" in groups and not {"M", "d"} & {*groups}:
        days = days + _number(groups, "D", 1) - 1
    minutes = _hour(groups) * 60 + _number(groups, "m")
    zone = next((groups[letter][1] for letter in "XZz" if letter in groups), None)
    of_day = minutes * 60_000 + _number(groups, "s") * 1_000 + _number(groups, "S")
    return days * DAY_MS + of_day - (F.lit(0) if zone is None else _offset_ms(zone))


def _month(groups: _Groups) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if "M" not in groups or groups["M"][0].is_digits:
        return _number(groups, "M", 1)
    names = F.create_map(*(F.lit(each) for pair in _MONTHS.items() for each in pair))
    return names[F.upper(F.substring(groups["M"][1], 1, 3))].cast("bigint")


def _whole_year(digits: Column, year: Column, this_year: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    first = this_year - 80
    return F.when(F.length(digits) == 2, first + F.pmod(year - first, F.lit(100))).otherwise(year)


def _hour(groups: _Groups) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    letter = next((each for each in "HkhK" if each in groups), "H")
    if letter == "H":
        return _number(groups, "H")
    hour = F.pmod(_number(groups, letter), F.lit(24 if letter == "k" else 12))
    if letter == "k" or "a" not in groups:
        return hour
    return hour + F.when(F.upper(groups["a"][1]) == "PM", 12).otherwise(0)


def _offset_ms(zone: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    def group(index: int) -> Column:
        digits = F.regexp_extract(zone, r"([+-])(\d{1,2}):?(\d{2})?", index)
        return F.coalesce(digits.try_cast("bigint"), F.lit(0))

    sign = F.when(zone.contains("-"), -1).otherwise(1)
    return sign * (group(2) * 3_600_000 + group(3) * 60_000)
