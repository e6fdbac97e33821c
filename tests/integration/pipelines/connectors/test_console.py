"""Rows on the screen: lines of JSON in a pipe, a table in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipelines.parts import copy, run

ROWS = {
    "connector": "generator",
    "schema": "id BIGINT, page STRING",
    "rows": 30,
    "fields": {"id": {"sequence": 0}, "page": {"choices": ["/\x1b[31m[red]" + "x" * 300]}},
}


def test_lines_in_a_pipe_tables_in_a_terminal(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(spark, copy(tmp_path / "lines", ROWS, {"connector": "console"}))
    shown = capsys.readouterr()
    assert [json.loads(line)["id"] for line in shown.out.splitlines()] == list(range(20))
    assert "out, batch 0: only the first 20 rows are shown" in shown.err
    run(spark, copy(tmp_path / "table", ROWS, {"connector": "console", "format": "table", "rows": 3}))
    table = capsys.readouterr().out
    assert "out, batch 0 (first 3 rows)" in table
    assert "\x1b" not in table
    assert "[red]" in table  # nothing in it is markup
    assert table.count("u001b") == 3
