"""docs/pipelines-python.md is one program, which prints what it states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines-python.md").read_text()
BLOCKS = re.findall(r"^```(\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(200)
def test_the_page_runs_as_printed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {language for language, _ in BLOCKS} == {"python"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(tmp_path / "state"))
    names: dict[str, object] = {"__name__": "page"}
    for _, code in BLOCKS:
        exec(code, names)
        stated = re.findall(r"# → (.*)", code)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line] == stated or not stated
    names["pipeline"].check()  # type: ignore[attr-defined]
