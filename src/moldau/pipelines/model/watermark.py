"""A watermark: which column has the event time, how late rows may be, and when a quiet source is flushed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from moldau.pipelines.model.kinds import duration_ms

_TEXT = re.compile(r"\s*([A-Za-z_][\w.]*)\s+(.+)")
_EXPECTED = 'expected a column and a duration, such as "at 10 minutes"'
IDLE_MS = 30_000


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay_ms: int
    # After this long without rows, event time moves on with the clock, so that open windows are emitted.
    # None: only rows move it.
    idle_ms: int | None = IDLE_MS

    @classmethod
    def parse(cls, value: object) -> Watermark:
        """Of text, "at 10 minutes", or of a mapping: {column: at, delay: 10 minutes, idle: 1 minute} (or never)."""
        if isinstance(value, Watermark):
            return value
        if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
            return cls(match[1], duration_ms(match[2]))
        if isinstance(value, Mapping):
            if value.keys() - {"column", "delay", "idle"} or not isinstance(value.get("column"), str):
                raise ValueError(f"{_EXPECTED}, or a mapping with column, delay and idle")
            idle = value.get("idle", timedelta(milliseconds=IDLE_MS))
            delay = duration_ms(value.get("delay", "0 seconds"))
            return cls(value["column"], delay, None if idle == "never" else duration_ms(idle))
        raise ValueError(_EXPECTED)
