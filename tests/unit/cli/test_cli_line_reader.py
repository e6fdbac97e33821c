"""Lines of standard input become the records Kafka's own reader would make of them."""

from __future__ import annotations

import pytest

from moldau.cli.records.line_reader import LineReader
from moldau.errors import CommandError, ConfigError


def _parse(line: bytes, **props: str) -> tuple[object, ...]:
    return tuple(LineReader({name.replace("_", "."): value for name, value in props.items()}).parse(line))


def test_a_line_is_a_value() -> None:
    assert _parse(b"a\tb") == (None, b"a\tb", [])


def test_an_empty_line_is_an_empty_value() -> None:
    assert _parse(b"") == (None, b"", [])


def test_bytes_that_are_no_text_pass_unharmed() -> None:
    assert _parse(b"\xff\x00:\xfe", parse_key="true", key_separator=":") == (b"\xff\x00", b"\xfe", [])


def test_keys_end_at_the_first_separator() -> None:
    assert _parse(b"k\tv\tw", parse_key="true") == (b"k", b"v\tw", [])
    assert _parse(b"k::v", parse_key="TRUE ", key_separator="::") == (b"k", b"v", [])


def test_headers_come_first() -> None:
    line = b"h1:v1,h2:v2\tkey\tvalue"
    assert _parse(line, parse_key="true", parse_headers="true") == (
        b"key",
        b"value",
        [("h1", b"v1"), ("h2", b"v2")],
    )


def test_headers_have_separators_of_their_own() -> None:
    props = {"headers_delimiter": "|", "headers_separator": "&", "headers_key_separator": "="}
    assert _parse(b"a=1&b=|v", parse_headers="true", **props) == (None, b"v", [("a", b"1"), ("b", b"")])


def test_no_headers_is_an_empty_part() -> None:
    assert _parse(b"\tvalue", parse_headers="true") == (None, b"value", [])


def test_the_null_marker_is_null_wherever_it_stands() -> None:
    props = {"parse_key": "true", "parse_headers": "true", "null_marker": "NULL"}
    assert _parse(b"NULL\tNULL\tNULL", **props) == (None, None, [])
    assert _parse(b"h:NULL\tk\tv", **props) == (b"k", b"v", [("h", None)])


def test_a_missing_key_names_its_line() -> None:
    reader = LineReader({"parse.key": "true"})
    reader.parse(b"k\tv")
    with pytest.raises(CommandError, match="No key separator found on line number 2: 'nokey'"):
        reader.parse(b"nokey")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"h:1", "No headers delimiter"),
        (b"h\tv", "No header key separator found in pair 'h'"),
        (b"N:1\tv", "null marker"),
    ],
)
def test_bad_headers_name_their_line(line: bytes, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        _parse(line, parse_headers="true", null_marker="N")


def test_ignored_errors_make_the_best_of_the_line() -> None:
    assert _parse(b"nokey", parse_key="true", ignore_error="true") == (None, b"nokey", [])
    assert _parse(b"h\tv", parse_headers="true", ignore_error="true") == (None, b"v", [("h", None)])


@pytest.mark.parametrize(
    "props",
    [
        {"headers.delimiter": ","},
        {"headers.delimiter": ":"},
        {"headers.separator": ":"},
        {"null.marker": "\t"},
        {"null.marker": ","},
        {"null.marker": ":"},
        {"null.marker": "|", "key.separator": "|"},
    ],
)
def test_separators_that_cannot_be_told_apart_are_refused(props: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="may not be equal"):
        LineReader(props)


def test_an_unknown_property_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"parse\.keys"):
        LineReader({"parse.keys": "true"})
    with pytest.raises(ConfigError, match="may not be empty"):
        LineReader({"key.separator": ""})
