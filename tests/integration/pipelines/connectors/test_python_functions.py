"""Python functions as source and sink, from a module that only the pipeline's folder has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from moldau.errors import ConfigError
from moldau.pipelines.model.pipeline import Step
from tests.integration.pipelines.parts import copy, problems, read_batch, run

MODULE = '''
import json
from pathlib import Path
from {name}_helper import FOLDER

def fetch(cursor):
    """Numbers up to what the file says."""
    last = int((FOLDER / "last").read_text())
    for number in range((cursor or 0) + 1, last + 1):
        yield {{"id": number, "name": f"n{{number}}"}}, number

def store(rows, batch_id):
    with open(FOLDER / "out", "a") as out:
        out.write(json.dumps([batch_id, [row["id"] for row in rows]]) + "\\n")
    if (FOLDER / "fail").exists():
        (FOLDER / "fail").unlink()
        raise RuntimeError("stored, and failed after that")
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    name = f"numbers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    (tmp_path / f"{name}_helper.py").write_text(f"from pathlib import Path\nFOLDER = Path({str(tmp_path)!r})\n")
    yield name
    sys.path.remove(str(tmp_path))
    del sys.modules[name], sys.modules[f"{name}_helper"]


def stored(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def test_a_generator_with_a_cursor_is_read_on_and_a_batch_is_repeated_with_the_same_rows(
    spark: SparkSession, tmp_path: Path, module: str
) -> None:
    source = {
        "connector": "python",
        "function": f"{module}:fetch",
        "schema": "id INT, name STRING",
        "maxRowsPerTrigger": 4,
    }
    pipeline = copy(tmp_path, source, {"connector": "python", "function": f"{module}:store"})
    (tmp_path / "last").write_text("6")
    run(spark, pipeline)
    (tmp_path / "last").write_text("8")
    (tmp_path / "fail").touch()
    with pytest.raises(StreamingQueryException, match="stored, and failed after that"):
        run(spark, pipeline)
    (tmp_path / "last").write_text("9")
    run(spark, pipeline)
    assert stored(tmp_path) == [[0, [1, 2, 3, 4]], [1, [5, 6]], [2, [7, 8]], [2, [7, 8]], [3, [9]]]
    assert read_batch(spark, pipeline).collect()[0].name == "n1"


def test_a_function_that_forgets_its_rows_is_found_out(spark: SparkSession, tmp_path: Path, module: str) -> None:
    source = {"connector": "python", "function": f"{module}:fetch", "schema": "id INT, name STRING"}
    pipeline = copy(tmp_path, source, {"connector": "python", "function": f"{module}:store"})
    (tmp_path / "last").write_text("6")
    (tmp_path / "fail").touch()
    with pytest.raises(StreamingQueryException):
        run(spark, pipeline)
    (tmp_path / "last").write_text("5")
    with pytest.raises(StreamingQueryException, match="other rows than before for the same cursor"):
        run(spark, pipeline)


def test_functions_of_the_program_itself_and_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    def words(cursor: int | None) -> Iterator[Any]:
        yield from () if cursor else [({"wrod": "a"}, 1)]

    found: list[int] = []

    def store(rows: DataFrame) -> None:
        found.append(rows.count())

    sink = {"connector": "python", "function": store, "rows": "dataframe"}
    rows = {"connector": "generator", "schema": "id BIGINT", "rows": 7}
    run(spark, copy(tmp_path / "a", rows, sink))
    assert found == [7]
    with pytest.raises(StreamingQueryException, match="no column 'wrod': did you mean 'word'"):
        run(spark, copy(tmp_path / "b", {"connector": "python", "function": words, "schema": "word STRING"}, sink))
    with pytest.raises(StreamingQueryException, match="more than 3 rows"):
        run(spark, copy(tmp_path / "c", rows, {"connector": "python", "function": print, "max rows": 3}))
    with pytest.raises(ConfigError, match="cannot import module 'no_such_module'"):
        run(spark, copy(tmp_path / "d", rows, {"connector": "python", "function": "no_such_module:f"}))
    assert "expected `module:function`" in "".join(problems("python", function="f", schema="a INT"))


def test_a_step_may_use_functions_of_the_folder_in_workers(spark: SparkSession, tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(
        f"from {module}_helper import FOLDER\n"
        "from pyspark.sql import functions as F\n"
        "def mark(rows):\n"
        "    return rows.select(F.udf(lambda id: FOLDER.name, useArrow=False)('id').alias('value'))\n"
    )
    step = Step("marked", python=f"{module}:mark", inputs=("rows",))
    rows = {"connector": "generator", "schema": "id BIGINT", "rows": 2}
    run(spark, copy(tmp_path, rows, {"connector": "lines", "path": "out", "format": "text"}, step))
    assert (tmp_path / "out").read_text().split() == [tmp_path.name] * 2
