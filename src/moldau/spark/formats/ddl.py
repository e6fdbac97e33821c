"""Parses Spark's DDL types without Spark's JVM, which a Python source cannot reach on the driver.

    schema := type | column ("," column)*          a INT, b STRUCT<c: STRING> NOT NULL COMMENT 'x'
    column := name [":"] type ["NOT NULL"] ["COMMENT" text]
    type   := atom | DECIMAL(p, s) | ARRAY<type> | MAP<type, type> | STRUCT<column, …>

It also parses the JSON of `df.schema.json()`. Everything is nullable, as in Spark's file sources, because external data
guarantees nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pyspark.sql import types as t

from moldau.errors import ConfigError

# Deeper than any schema that people write, shallower than Python's stack.
DEPTH_MAX = 50

_TEXT = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\""
_TOKEN = re.compile(rf"\s*(?:(?P<text>{_TEXT})|(?P<name>`(?:[^`]|``)+`|\w+)|(?P<sign>[<>(),:]))")

_ATOMS: dict[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
}


def parse_type(text: str) -> t.DataType:
    """Parse a schema as DDL or JSON. Raises ValueError with the reason."""
    if text.lstrip().startswith("{"):
        return nullable(t.StructType.fromJson(json.loads(text)))
    tokens = _tokens(text)
    try:
        return nullable(_Parser(tokens).schema())
    except IndexError:
        raise ValueError("the schema ends too early") from None


def schema_option(name: str, text: str) -> t.DataType:
    try:
        return parse_type(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"option {name}: {error}; expected like 'id BIGINT, tags ARRAY<STRING>'") from error


def nullable(kind: t.DataType) -> t.DataType:
    """Return the same type with everything in it nullable."""
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, nullable(field.dataType)) for field in kind])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def _tokens(text: str) -> list[str]:
    tokens = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"cannot read the schema at '{text[at : at + 20]}'")
        tokens.append(found.group(found.lastgroup or 0))
        at = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def schema(self) -> t.DataType:
        # `a INT` is a column, `INT` and `ARRAY<INT>` are types. The second token tells them apart.
        one_type = len(self._tokens) == 1 or self._tokens[1] in ("<", "(")
        kind = self._type() if one_type else self._columns(end=None)
        if self._at < len(self._tokens):
            raise ValueError(f"did not expect '{self._tokens[self._at]}'")
        return kind

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at].lower() if self._at < len(self._tokens) else ""

    def _expect(self, sign: str) -> None:
        found = self._next()
        if found != sign:
            raise ValueError(f"expected '{sign}', found '{found}'")

    def _columns(self, end: str | None) -> t.StructType:
        fields: list[t.StructField] = []
        while end is None or self._peek() != end:
            if fields:
                self._expect(",")
            fields.append(self._column())
            if end is None and self._at == len(self._tokens):
                break
        return t.StructType(fields)

    def _column(self) -> t.StructField:
        name = self._next()
        if not re.match(r"[`\w]", name):
            raise ValueError(f"expected a name, found '{name}'")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if self._peek() == ":":
            self._next()
        kind = self._type()
        if self._peek() == "not":
            self._next()
            if self._next().lower() != "null":
                raise ValueError("expected NULL after NOT")
        if self._peek() == "comment":
            self._next()
            self._next()
        return t.StructField(name, kind)

    def _type(self) -> t.DataType:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"types are nested more than {DEPTH_MAX} deep")
        word = self._next().lower()
        kind = self._nested(word) if word in ("array", "map", "struct") else self._atom(word)
        self._depth -= 1
        return kind

    def _nested(self, word: str) -> t.DataType:
        self._expect("<")
        kind: t.DataType
        if word == "array":
            kind = t.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            kind = t.MapType(key, self._type())
        else:
            kind = self._columns(end=">")
        self._expect(">")
        return kind

    def _atom(self, word: str) -> t.DataType:
        if word in _ATOMS:
            return _ATOMS[word]()
        if word not in ("decimal", "dec", "numeric"):
            raise ValueError(f"unknown type '{word}'")
        digits = [10, 0]  # Spark's default
        if self._peek() == "(":
            self._next()
            digits[0] = int(self._next())
            if self._peek() == ",":
                self._next()
                digits[1] = int(self._next())
            self._expect(")")
        if not 0 < digits[0] <= 38 or not 0 <= digits[1] <= digits[0]:
            raise ValueError(
                f"decimal({digits[0]}, {digits[1]}): at most 38 digits, and no more of them behind the point"
            )
        return t.DecimalType(*digits)
