"""Paths to fields, with the cases of Apache Kafka's own tests."""

from __future__ import annotations

import pytest

from moldau.pipelines.doors.connect.transforms.field_paths import steps_of
from moldau.pipelines.doors.connect.transforms.java_dates import Token, tokens


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("", ()),
        (".bar.", ("", "bar", "")),
        ("..baz", ("", "", "baz")),
        ("foobarbaz", ("foobarbaz",)),
        ("foo.bar.baz", ("foo", "bar", "baz")),
        ("foo`bar`baz", ("foo`bar`baz",)),
        ("`foo.bar.baz`", ("foo.bar.baz",)),
        ("foo.`bar.baz`", ("foo", "bar.baz")),
        ("`foo.bar`.baz", ("foo.bar", "baz")),
        ("foo.`bar`.baz", ("foo", "bar", "baz")),
        ("foo.``bar.baz`", ("foo", "`bar.baz")),
        ("foo.`bar.baz``", ("foo", "bar.baz`")),
        ("foo.`ba`r.baz`", ("foo", "ba`r.baz")),
        ("foo.ba`r.baz", ("foo", "ba`r", "baz")),
        ("foo.``bar``.baz", ("foo", "`bar`", "baz")),
        ("``foo.bar.baz``", ("`foo.bar.baz`",)),
        ("foo.`bar\\`.baz`", ("foo", "bar`.baz")),
        ("foo.`bar.`baz`", ("foo", "bar.`baz")),
        ("foo.`bar\\`.`baz`", ("foo", "bar`.`baz")),
        ("foo.`bar\\\\`.\\`baz`", ("foo", "bar\\`.\\`baz")),
    ],
)
def test_steps_of_a_path(path: str, steps: tuple[str, ...]) -> None:
    assert steps_of(path, "V2") == steps
    assert steps_of(path, "V1") == (path,)


@pytest.mark.parametrize(
    ("path", "position"), [("`foo.bar.baz", 0), ("foo.`bar.baz", 4), ("foo.bar.`baz", 8), ("foo.bar.`baz\\`", 8)]
)
def test_an_open_backtick_is_named(path: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"before backtick at position {position} to escape it"):
        steps_of(path, "V2")


def test_a_date_pattern_is_letters_and_text() -> None:
    assert tokens("yyyy'T'H 'o''clock'''") == (
        Token("y", "yyyy"),
        Token("", "T"),
        Token("H", "H"),
        Token("", " "),
        Token("", "o'clock'"),
    )
