"""The page on connectors: its files pass lint, and its functions and its connector run as printed."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.doors.yaml_file import load_pipeline, read_pipeline
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.places import Severity
from tests.integration.pipelines.parts import forget_commit, run

EXAMPLE = Path(__file__).parents[4] / "examples/pipelines/own_connector"
PAGE = (EXAMPLE.parents[2] / "docs/pipelines-connectors.md").read_text()
BLOCKS = re.findall(r"^```(\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(FUNCTIONS, CONNECTOR, CHECKED) = (code for language, code in BLOCKS if language == "python")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    yield tmp_path / "example"
    sys.modules.pop("sqlite_tables", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path / "example")]


def test_rows_go_from_table_to_table_once(spark: SparkSession, folder: Path) -> None:
    pipeline = load_pipeline(folder / "large_orders.yaml")
    pipeline = replace(pipeline, settings={**pipeline.settings, "trigger": Given("available now")})
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INT, total REAL)")
        database.execute("CREATE TABLE large_orders (id INT, total REAL)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [(1, 50.0), (2, 150.0), (3, 250.0)])
    run(spark, pipeline)
    commits = folder / "checkpoints/large_orders/large_orders/commits"
    forget_commit(commits, 0)  # killed after the batch was written
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("INSERT INTO orders VALUES (4, 350.0)")
    run(spark, pipeline)
    with sqlite3.connect(folder / "shop.db") as database:
        assert database.execute("SELECT id FROM large_orders ORDER BY id").fetchall() == [(2,), (3,), (4,)]


def test_the_connector_of_the_page_is_the_example() -> None:
    example = (EXAMPLE / "sqlite_tables.py").read_text()
    assert example.partition('"""\n\n')[2] == CONNECTOR


def test_the_functions_of_the_page_run_as_printed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (code for language, code in BLOCKS if language == "yaml" and "connector: python" in code)
    (tmp_path / "orders.yaml").write_text(f"{file}settings: {{trigger: available now}}\n")
    (tmp_path / "shop.py").write_text(FUNCTIONS)
    (tmp_path / "orders.jsonl").write_text('{"id": 1, "total": 2.5}\n{"id": 2, "total": 4.0}\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    run(spark, load_pipeline(tmp_path / "orders.yaml"))
    sys.modules.pop("shop")
    assert json.loads((tmp_path / "stored-0.json").read_text()) == [{"id": 1, "total": 2.5}, {"id": 2, "total": 4.0}]


def test_the_check_of_the_page_says_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("csv_files.py").write_text(CHECKED)
    text = "sources:\n  people:\n    connector: csv_files:CsvFile\n    file: {}\n"
    Path("people.yaml").write_text(text.format("people.txt"))
    (printed,) = (code for language, code in BLOCKS if language == "text")
    assert [f"{problem}\n" for problem in read_pipeline("people.yaml")[1]] == [printed]
    Path("people.yaml").write_text(text.format("people.csv"))
    assert [problem.severity for problem in read_pipeline("people.yaml")[1]] == [Severity.WARNING]
    sys.modules.pop("csv_files")


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "yaml"])
def test_files_of_the_page_have_no_problems(code: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FUNCTIONS)
    (tmp_path / "some.yaml").write_text(code)
    _, problems = read_pipeline(tmp_path / "some.yaml")
    assert [str(problem) for problem in problems if problem.severity is Severity.ERROR] == []
