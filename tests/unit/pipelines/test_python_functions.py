"""The parameters of a function are read from the text of its module."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.python_functions import view_parameters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("def in_package(a): ...")
    (tmp_path / "package" / "steps.py").write_text("def join(a, b, /, spark, limit=1, *, more=None): ...")
    (tmp_path / "broken.py").write_text("def join(a:\n")
    (tmp_path / "latin.py").write_bytes(b"# \xff")
    (tmp_path / "steps.py").write_text(
        "import nothing_of_this_name\n\n"
        "@decorated\ndef marked(a): ...\n\n"
        "def each(a, *rest): ...\n\n"
        "def keyword(a, *, b): ...\n\n"
        "class Steps:\n    def method(self, a): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("target", "parameters"),
    [
        ("steps:marked", ("a",)),
        ("package:in_package", ("a",)),
        ("package.steps:join", ("a", "b", "spark")),
        ("textwrap:dedent", ("text",)),
        ("json.decoder:JSONObject", ("s_and_end", "strict", "scan_once", "object_hook", "object_pairs_hook")),
    ],
)
def test_parameters_without_defaults_are_views(folder: Path, target: str, parameters: tuple[str, ...]) -> None:
    assert view_parameters(target, folder) == parameters


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("steps", "expected module:function"),
        ("steps:", "expected module:function"),
        (":marked", "expected module:function"),
        ("../steps:marked", "expected module:function"),
        ("steps:method", "steps.py has no function 'method'"),
        ("steps:markd", "did you mean 'marked'?"),
        ("steps:each", "name each view as a parameter of its own"),
        ("steps:keyword", "name each view as a parameter of its own"),
        ("broken:join", "broken.py:1:"),
        ("latin:join", "cannot read"),
        ("package.none:join", "there is no module 'package.none' in"),
        ("nothing_of_this_name:join", "there is no module 'nothing_of_this_name' in"),
        ("sys:exit", "there is no module 'sys' in"),
    ],
)
def test_what_cannot_be_read_is_told(folder: Path, target: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        view_parameters(target, folder)
    assert reason in str(raised.value)
