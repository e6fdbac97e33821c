"""Directories in and out, in every format; a batch that is repeated at any point changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from moldau.errors import ConfigError
from moldau.pipelines.connectors.writers.hadoop_files import HadoopFiles
from moldau.pipelines.model.pipeline import Step
from tests.integration.pipelines.parts import copy, problems, read_batch, run

SCHEMA = "id BIGINT, page STRING, price DECIMAL(10, 2), ok BOOLEAN, at TIMESTAMP"
ROWS: dict[str, Any] = {
    "connector": "generator",
    "schema": SCHEMA,
    "rows": 100,
    "numPartitions": 3,
    "fields": {"id": {"sequence": 0}, "page": {"choices": ["/", "/cart:x y", None]}},
}


def visible(directory: Path) -> list[Path]:
    """As any reader sees it."""
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
    )


@pytest.mark.parametrize("format_name", ["json", "csv", "parquet", "avro"])
def test_rows_go_out_and_come_in_again(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    sink = {"connector": "directory", "path": "there", "format": format_name, "files": 2}
    header = {"header": True} if format_name == "csv" else {}
    run(spark, copy(tmp_path / "out", ROWS, sink | header))
    files = visible(tmp_path / "out/there")
    assert [file.name.rpartition("-")[0].rpartition("-")[2] for file in files] == ["000000000"] * 2
    back = {"connector": "directory", "path": "../out/there", "format": format_name, "schema": SCHEMA, **header}
    run(spark, copy(tmp_path / "back", back | {"metadata": "file"}, {"connector": "directory", "path": "all"}))
    rows = spark.read.parquet(str(tmp_path / "back/all")).orderBy("id").collect()
    assert [row.id for row in rows] == list(range(100))
    assert {row.page for row in rows} == {"/", "/cart:x y", None}
    assert rows[0].price is not None
    assert rows[0].file.endswith(f".{format_name}") or ".snappy" in rows[0].file
    inferred = {name: value for name, value in back.items() if name != "schema"}
    frame = read_batch(spark, copy(tmp_path / "back", inferred, sink))
    assert (set(frame.columns), frame.count()) == ({"id", "page", "price", "ok", "at"}, 100)


def test_text_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("a 1\nb:c 2\n\na 3\n")
    step = Step("split", sql="SELECT split(value, ' ')[0] AS page, value FROM rows WHERE value > ''", inputs=("rows",))
    source = {"connector": "directory", "path": "in", "format": "text"}
    for format_name in ("text", "avro"):
        sink = {"connector": "directory", "path": format_name, "format": format_name, "partition by": "page"}
        run(spark, copy(tmp_path, source, sink, step, settings={"checkpoint": f"of-{format_name}"}))
        folders = {file.parent.name for file in visible(tmp_path / format_name)}
        assert folders == {"page=a", "page=b%3Ac"}
    (avro,) = (tmp_path / "avro/page=a").glob("*.avro")
    with open(avro, "rb") as file:
        assert list(fastavro.reader(file)) == [{"value": "a 1"}, {"value": "a 3"}]
    assert sorted(row.page for row in spark.read.text(str(tmp_path / "text")).collect()) == ["a", "a", "b:c"]


def test_a_batch_that_is_repeated_at_any_point_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"connector": "directory", "path": "in", "format": "json", "schema": "id INT", "maxFilesPerTrigger": 1}
    sink = {"connector": "directory", "path": "out", "format": "json"}
    pipeline = copy(tmp_path, source, sink)
    (tmp_path / "in").mkdir()
    calls = {"exists": 0, "create": 0, "delete": 0, "rename": 0, "below": 0}
    fail_at = [0]

    def counting(name: str, method: Any) -> Any:
        def call(self: HadoopFiles, *arguments: Any) -> Any:
            calls[name] += 1
            if sum(calls.values()) == fail_at[0]:
                raise RuntimeError("killed here")
            return method(self, *arguments)

        return call

    for name in calls:
        monkeypatch.setattr(HadoopFiles, name, counting(name, getattr(HadoopFiles, name)))
    failures = 0
    for point in range(1, 12):
        (tmp_path / f"in/{point}.json").write_text(f'{{"id": {point}}}\n')
        calls.update(dict.fromkeys(calls, 0))
        fail_at[0] = point
        try:
            run(spark, pipeline)
        except StreamingQueryException:
            failures += 1
            fail_at[0] = 0
            before = visible(tmp_path / "out")
            run(spark, pipeline)
            assert set(before) <= set(visible(tmp_path / "out"))  # nothing that a reader saw is taken back
        assert sorted(row.id for row in spark.read.json(str(tmp_path / "out")).collect()) == list(range(1, point + 1))
    assert failures >= 8
    assert len(list((tmp_path / "out/_moldau").glob("*/*.done"))) == 1


def test_a_bad_record_stops_the_query_unless_the_mode_says_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\n{"id": \n')
    source = {"connector": "directory", "path": "in", "format": "json", "schema": "id INT"}
    with pytest.raises(StreamingQueryException):
        run(spark, copy(tmp_path, source, {"connector": "directory", "path": "out"}))
    assert visible(tmp_path / "out") == []
    run(spark, copy(tmp_path, source | {"mode": "DROPMALFORMED"}, {"connector": "directory", "path": "out"}))
    assert [row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [1]
    shutil.rmtree(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"no file in .* to infer the schema from"):
        read_batch(
            spark, copy(tmp_path, {"connector": "directory", "path": "in", "format": "avro"}, {"connector": "x"})
        )
    assert "needs a sourceArchiveDir" in "".join(problems("directory", path="a", format="csv", cleanSource="archive"))
