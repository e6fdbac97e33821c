"""The types of options: how a value is checked and converted, and what it is in JSON Schema.

A value that contains a reference (`${env:NAME}`) is unknown until the pipeline starts: it passes every check here, and
is checked again when it is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from moldau.pipelines.model.sql_names import expression_mistake

_REFERENCE = re.compile(r"\$\{[a-z]+:")
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_UNITS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "second": 1_000,
    "min": 60_000,
    "m": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}


def has_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.search(value) is not None


@dataclass(frozen=True)
class Kind:
    name: str  # as the reference page calls it
    convert: Callable[[Any], Any]  # raises ValueError with what is expected
    schema: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema

    def wrong(self, value: object) -> str | None:
        """What was expected instead of this value; None if it is right."""
        if has_reference(value):
            return None
        try:
            self.convert(value)
        except ValueError as error:
            return str(error)
        return None


def duration_ms(value: object) -> int:
    """Milliseconds of "10 seconds", "1 minute", "500 ms" or a timedelta."""
    if isinstance(value, timedelta):
        return int(value.total_seconds() * 1000)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    unit = match[2].lower() if match else ""
    factor = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError('expected a duration, such as "10 seconds" or "1 minute"')
    return int(float(match[1]) * factor)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("expected text")


def _expression(value: object) -> str:
    text = _text(value)
    mistake = expression_mistake(text)
    if mistake is not None:
        raise ValueError(mistake.message)
    return text


def _whole(least: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"expected a whole number, {least} or more")
        return value

    return convert


def _number(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    return float(value)


def _flag(value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _texts(value: object) -> tuple[str, ...]:
    """A list, or text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item.strip() for item in items):
        raise ValueError("expected one name or a list of names")
    return tuple(item.strip() for item in items)


def _any_mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping of names to values")
    return value


def choice(*allowed: str) -> Kind:
    def convert(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"expected {_listed(allowed)}")
        return str(value)

    return Kind(_listed(allowed), convert, {"enum": list(allowed)})


def names_of(*allowed: str, hidden: str = "") -> Kind:
    """Some of these names, as a list or with commas between; `hidden` is one that only the engine uses."""

    def convert(value: object) -> tuple[str, ...]:
        names = _texts(value)
        if not {*names} <= {*allowed, hidden}:
            raise ValueError(f"expected one or more of {', '.join(allowed)}")
        return names

    return Kind("names", convert, {"type": ["string", "array"], "items": {"enum": list(allowed)}})


def whole(least: int = 0) -> Kind:
    return Kind("whole number", _whole(least), {"type": ["integer", "string"]})


def _listed(words: Iterable[str]) -> str:
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


TEXT = Kind("text", _text, {"type": ["string", "number", "boolean"]})
NUMBER = Kind("number", _number, {"type": ["number", "string"]})
BOOLEAN = Kind("true or false", _flag, {"type": ["boolean", "string"]})
DURATION = Kind("duration", duration_ms, {"type": "string"})
NAMES = Kind("names", _texts, {"type": ["string", "array"], "items": {"type": "string"}})
MAPPING = Kind("mapping", _any_mapping, {"type": "object"})
SQL = Kind("SQL", _expression, {"type": ["string", "number", "boolean"]})
"""An expression. Spark checks it when the pipeline is built."""
