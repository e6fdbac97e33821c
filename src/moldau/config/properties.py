"""Java `.properties` text: parsing and formatting, with the rules of java.util.Properties.

Comments (`#`, `!`), `key=value`, `key:value` and `key value`, backslash continuation, and the escapes
`\\t \\n \\r \\f \\uXXXX`. Files are not opened here: pass the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from moldau.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_ENDS = re.compile("\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    """Every property of `text`; where a key comes twice the last one wins, as in Java."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        end, start = _split(line)
        properties[_unescape(line[:end])] = _unescape(line[start:])
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Text that `parse_properties` (and Java) reads back to the same mapping; plain ASCII."""
    return "".join(f"{_escape(name, key=True)}={_escape(value)}\n" for name, value in properties.items())


def as_property(value: object) -> str:
    """A value of Python as text in a properties file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _logical_lines(text: str) -> Iterator[str]:
    pending: str | None = None
    for raw in _LINE_ENDS.split(text):
        line = raw.lstrip(_BLANKS)
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            pending = None
            if line:
                yield line
    if pending:
        yield pending


def _split(line: str) -> tuple[int, int]:
    """Where the key ends, and where the value starts."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    end = min(position, len(line))
    start = end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return end, start


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            units.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise ConfigError(f"Malformed \\uXXXX escape in properties: \\u{digits}")
            units.append(chr(int(digits, 16)))
            position += 4
        else:
            units.append(_ESCAPES.get(escaped, escaped))
    # Java strings are UTF-16: a character beyond the basic plane is written as two \u escapes.
    return "".join(units).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, key: bool = False) -> str:
    out = []
    for index, character in enumerate(text):
        if character in "\\=:#!" or (character == " " and (key or index == 0)):
            out.append("\\" + character)
        elif character in "\t\n\r\f":
            out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(out)
