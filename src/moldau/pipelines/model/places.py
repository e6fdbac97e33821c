"""Where something stands in a file, and what is wrong there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Line and column count from 1. Pipelines made in Python have no places."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Placed(dict[str, Any]):
    """A mapping of a file that knows where its keys stand, for messages about its content."""

    __slots__ = ("places",)

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, Place]) -> None:
        super().__init__(values)
        self.places = places


def place_of(mapping: object, key: str, otherwise: Place | None) -> Place | None:
    """Where a key stands, if the mapping knows."""
    return mapping.places.get(key, otherwise) if isinstance(mapping, Placed) else otherwise


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
