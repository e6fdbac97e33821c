"""Regular expressions of subscriptions: Python's `re` agrees wherever it is safe to ask it."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.errors import ErrorCode, InvalidRegexError, KafkaError
from moldau.wire.re2 import MAX_PATTERN_CHARS, Regex, compile_regex

_ATOMS = [
    "a",
    "b",
    "c",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\.",
    "1",
    "(?:ab)",
    "(a|b)",
    "(?:a|bc|)",
    "[a-c1]",
    "^",
    "$",
]
_REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"]


@st.composite
def patterns(draw: st.DrawFn, repeats: tuple[str, ...] = ("", "*", "+", "{1,2}")) -> str:
    """A repeated group holds no other repeated group: Python's matcher takes minutes for some of those."""
    pieces = draw(st.lists(st.tuples(st.sampled_from(_ATOMS), st.sampled_from(_REPEATS)), max_size=5))
    text = "".join(atom + ("" if atom in "^$" else repeat) for atom, repeat in pieces)
    has_alternative: bool = draw(st.booleans())
    if repeats and has_alternative:
        text += "|" + draw(patterns(repeats=()))
    return f"({text}){draw(st.sampled_from(repeats or ('',)))}" if draw(st.booleans()) else text


@settings(deadline=None)  # Python is what may be slow here
@given(patterns(), st.lists(st.text("abc1.-_", max_size=6), max_size=10))
@example("(?:a|bc|)*", ["", "a", "bca", "b"])
@example("a$|^b", ["a", "b", "ab"])
def test_the_same_names_match_as_with_python(pattern: str, names: list[str]) -> None:
    expected = {name for name in names if re.fullmatch(pattern, name)}
    assert Regex(pattern).filter(names) == expected


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"orders-.*", {"orders-1", "orders-"}),
        (r"(?i)ORDERS-\d+", {"orders-1"}),
        (r"(?i:ORDERS)-\d+", {"orders-1"}),
        (r"\Qa.b\E", {"a.b"}),
        (r"[[:alpha:]]+", {"payments"}),
        (r"[^[:alpha:]]+", set()),
        (r"\Apay\w+\z", {"payments"}),
        (r"(?P<what>orders|payments).*", {"orders-1", "orders-", "payments"}),
        (r"\x61[.]\x{62}", {"a.b"}),
        (r"\Qorders-1\E*", {"orders-1", "orders-"}),
        (r"\p{Ll}+\PL[\pN]", {"orders-1"}),
        (r"\p{^Greek}+\p{Latin}{3}", {"payments"}),
        (r"", set()),
    ],
)
def test_re2_syntax_is_understood(pattern: str, names: set[str]) -> None:
    assert compile_regex(pattern).filter(["orders-1", "orders-", "payments", "a.b"]) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "*a",
        "a**",
        "[a",
        "[b-a]",
        "a{2,1}",
        "a{1001}",
        r"(a)\1",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?x)a",
        "\\",
        r"\p",
        r"\bfoo",
        r"\8",
        r"\C",
        r"\x{110000}",
        "((((a{9}){9}){9}){9}){9}",
        "(" * 200 + ")" * 200,
        "a" * (MAX_PATTERN_CHARS + 1),
    ],
)
def test_what_is_no_re2_expression_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        compile_regex(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(a|a)*b", "(a*)*b", "a*" * 50 + "b", "(a|aa)+$b", "((a?){30}a{30})+c"])
def test_no_pattern_keeps_the_loop_busy(pattern: str) -> None:
    names = ["a" * length for length in range(1, 250)]
    began = time.perf_counter()
    assert not compile_regex(pattern).filter(names)
    assert time.perf_counter() - began < 1.0


def test_a_pattern_that_would_is_stopped() -> None:
    chance = random.Random(1)
    regex = compile_regex(".*a[ab]{150}c")
    names = ["".join(chance.choices("ab", k=200)) for _ in range(9_999)]
    began = time.perf_counter()
    with pytest.raises(InvalidRegexError):
        regex.filter(names)
    assert time.perf_counter() - began < 5


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_an_expression_or_refused(pattern: str) -> None:
    with contextlib.suppress(InvalidRegexError):
        Regex(pattern).filter(["orders", "payments-1"])
