from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.properties import format_properties, parse_properties
from moldau.errors import ConfigError

# Java strings are UTF-16, where a lone surrogate is no character.
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(texts, texts))
def test_what_is_formatted_is_read_back(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert text.isascii()
    assert parse_properties(text) == properties


@given(st.text())
def test_any_text_is_read_or_refused_for_its_escapes(text: str) -> None:
    if "\\" in text:
        with contextlib.suppress(ConfigError):
            parse_properties(text)
    else:
        assert all(isinstance(value, str) for value in parse_properties(text).values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\t:  b=c", {"a": "b=c"}),
        ("   a=b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("# comment\n! comment\n\n  # comment\na=b", {"a": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one,\\\n   two,\\\n\tthree", {"a": "one,two,three"}),
        ("a=one\\\n# still the value", {"a": "one# still the value"}),
        ("a=ends with a backslash\\\\\nb=2", {"a": "ends with a backslash\\", "b": "2"}),
        ("a=last line\\", {"a": "last line"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=größe", {"a": "größe"}),
        ("path=C:\\\\kafka", {"path": "C:\\kafka"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\u"])
def test_a_malformed_escape_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="uXXXX"):
        parse_properties(text)
