"""Where something stands in a file, and what is wrong there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Line and column count from 1. Pipelines made in Python have no places."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a pipeline: what, where, and what to do about it, in one sentence or two."""

    message: str
    place: Place | None = None
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        kind = "" if self.severity is Severity.ERROR else "warning: "
        return f"{where}{kind}{self.message}"
