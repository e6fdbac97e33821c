"""One line of standard input as one record: Kafka's LineMessageReader and its properties, on bytes.

parse.headers=true and parse.key=true   h1:v1,h2:v2<TAB>key<TAB>value
parse.key=true                          key<TAB>value
neither                                 value
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moldau.errors import CommandError, ConfigError

_KNOWN = frozenset(
    {
        "parse.key", "key.separator", "parse.headers", "headers.delimiter", "headers.separator",
        "headers.key.separator", "ignore.error", "null.marker", "topic",
    }
)  # fmt: skip


_DISTINCT = (
    ("headers.delimiter", "headers.separator"),
    ("headers.delimiter", "headers.key.separator"),
    ("headers.separator", "headers.key.separator"),
    ("null.marker", "key.separator"),
    ("null.marker", "headers.separator"),
    ("null.marker", "headers.delimiter"),
    ("null.marker", "headers.key.separator"),
)


class LineRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    def __init__(self, props: Mapping[str, str]) -> None:
        unknown = sorted(props.keys() - _KNOWN)
        if unknown:
            raise ConfigError(f"unknown reader property {unknown[0]}; known: {', '.join(sorted(_KNOWN))}")
        self._parse_key = _is_true(props, "parse.key")
        self._parse_headers = _is_true(props, "parse.headers")
        self._ignore_error = _is_true(props, "ignore.error")
        self._key_separator = _separator(props, "key.separator", "\t")
        self._headers_delimiter = _separator(props, "headers.delimiter", "\t")
        self._headers_separator = _separator(props, "headers.separator", ",")
        self._headers_key_separator = _separator(props, "headers.key.separator", ":")
        marker = props.get("null.marker")
        self._null_marker = None if marker is None else marker.encode()
        self._line_number = 0
        for name, other in _DISTINCT:
            if self._part(name) == self._part(other):
                raise ConfigError(f"{name} and {other} may not be equal")

    def _part(self, name: str) -> bytes | None:
        part: bytes | None = getattr(self, "_" + name.replace(".", "_"))
        return part

    def parse(self, line: bytes) -> LineRecord:
        """The record of one line, given without its line end."""
        self._line_number += 1
        headers, rest = self._cut(self._parse_headers, line, self._headers_delimiter, "headers delimiter")
        key, value = self._cut(self._parse_key, rest, self._key_separator, "key separator")
        return LineRecord(
            None if key == self._null_marker else key,
            None if value == self._null_marker else value,
            [] if headers in (None, b"", self._null_marker) else self._split_headers(headers or b""),
        )

    def _cut(self, enabled: bool, line: bytes, separator: bytes, what: str) -> tuple[bytes | None, bytes]:
        if not enabled:
            return None, line
        before, found, after = line.partition(separator)
        if found:
            return before, after
        if self._ignore_error:
            return None, line
        text = line.decode(errors="replace")
        raise CommandError(f"No {what} found on line number {self._line_number}: '{text}'")

    def _split_headers(self, text: bytes) -> list[tuple[str, bytes | None]]:
        pairs = text.split(self._headers_separator)
        while pairs and not pairs[-1]:
            del pairs[-1]
        return [self._header(pair) for pair in pairs]

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        key, found, value = pair.partition(self._headers_key_separator)
        name = key.decode(errors="replace")
        if not found:
            if self._ignore_error:
                return name, None
            raise CommandError(f"No header key separator found in pair '{name}' on line number {self._line_number}")
        if key == self._null_marker:
            raise CommandError(f"Header keys should not be equal to the null marker '{name}'")
        return name, None if value == self._null_marker else value


def _is_true(props: Mapping[str, str], name: str) -> bool:
    return props.get(name, "false").strip().lower() == "true"


def _separator(props: Mapping[str, str], name: str, default: str) -> bytes:
    text = props.get(name, default)
    if not text:
        raise ConfigError(f"{name} may not be empty")
    return text.encode()
