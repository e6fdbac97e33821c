"""The example of a connector of one's own: it passes lint, and reads and writes a real database exactly once."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.model.options import Given
from tests.integration.pipelines.parts import run

EXAMPLE = Path(__file__).parents[4] / "examples/pipelines/own_connector"


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
    for name in ("0", ".0.crc"):
        (commits / name).unlink()  # killed after the batch was written
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("INSERT INTO orders VALUES (4, 350.0)")
    run(spark, pipeline)
    with sqlite3.connect(folder / "shop.db") as database:
        assert database.execute("SELECT id FROM large_orders ORDER BY id").fetchall() == [(2,), (3,), (4,)]


def test_the_page_shows_the_example_as_it_is() -> None:
    example = (EXAMPLE / "sqlite_tables.py").read_text()
    assert example[example.index("class Sqlite") :] in (EXAMPLE.parents[2] / "docs/pipelines-connectors.md").read_text()
