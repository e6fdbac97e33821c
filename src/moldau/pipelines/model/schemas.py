"""The columns of a schema in Spark's DDL, read without Spark: `page STRING, at TIMESTAMP, tags ARRAY<STRING>`.

Spark has the last word about types; this finds typing errors early and tells lint which columns a source has.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from moldau.config.keys import nearest

_TOKEN = re.compile(r"\s*(?:('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(`(?:[^`]|``)+`|\w+)|([<>(),:]))")
_DEPTH_MAX = 50
_TYPES = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double"),
    *("decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp"),
    *("timestamp_ltz", "timestamp_ntz", "interval", "variant", "void", "geometry", "geography"),
    *("array", "map", "struct"),
)
_NESTED = {"array": 1, "map": 2}


class Column(NamedTuple):
    name: str
    type: str  # the first word, in lower case: `array` for ARRAY<STRING>


def schema_columns(text: str) -> tuple[Column, ...]:
    """Raises ValueError with what is wrong, and where, if it is not a list of columns."""
    return _Parser(text).columns(end=None)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._at = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"cannot read the schema at '{text[at : at + 20].strip()}'")
            self._tokens.append(found.group(found.lastindex or 0))
            at = found.end()

    def columns(self, end: str | None, depth: int = 0) -> tuple[Column, ...]:
        found: list[Column] = []
        while True:
            name = self._next("a column's name")
            if not re.match(r"[`\w]", name):
                raise ValueError(f"expected a column's name, found '{name}'")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if any(name.lower() == other.name.lower() for other in found):
                raise ValueError(f"duplicate column '{name}'")
            if self._peek() == ":":
                self._at += 1
            found.append(Column(name, self._type(f"the type of column '{name}'", depth)))
            self._skip_to(",", end)
            if self._peek() != ",":
                return tuple(found)
            self._at += 1

    def _type(self, what: str, depth: int) -> str:
        if depth > _DEPTH_MAX:
            raise ValueError(f"types are nested more than {_DEPTH_MAX} deep")
        word = self._next(what).lower()
        if not re.match(r"\w", word):
            raise ValueError(f"{what} is missing before '{word}'")
        if word not in _TYPES:
            meant = nearest(word, _TYPES)
            raise ValueError(f"unknown type '{word}'" + (f": did you mean {meant.upper()}?" if meant else ""))
        if word in _NESTED:
            self._expect("<")
            for number in range(_NESTED[word]):
                if number:
                    self._expect(",")
                self._type(f"a type in {word.upper()}<…>", depth + 1)
            self._expect(">")
        elif word == "struct":
            self._expect("<")
            if self._peek() != ">":
                self.columns(">", depth + 1)
            self._expect(">")
        elif self._peek() == "(":
            while self._next("')'") != ")":
                pass
        return word

    def _skip_to(self, *ends: str | None) -> None:
        """Past NOT NULL, COMMENT 'text', DEFAULT … and the words of intervals."""
        while (token := self._peek()) is not None and token not in ends:
            if not re.match(r"\w|['\"]", token):
                raise ValueError(f"did not expect '{token}'")
            self._at += 1

    def _expect(self, sign: str) -> None:
        found = self._next(f"'{sign}'")
        if found != sign:
            raise ValueError(f"expected '{sign}', found '{found}'")

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> str:
        if self._at >= len(self._tokens):
            raise ValueError(f"{what} is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]
