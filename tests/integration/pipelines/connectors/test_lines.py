"""Lines of files in and out, with real files and a real Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.model.pipeline import Step
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.parts import copy, forget_commit, problems, read_batch, run, start
from tests.integration.spark.topics import frame
from tests.integration.waiting import eventually

TO_LINES = {"connector": "lines", "path": "out/copy.jsonl"}


def written(folder: Path) -> list[dict[str, Any]]:
    file = folder / "out/copy.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_file_is_tailed_through_rotation_and_truncation(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    pipeline = copy(tmp_path, {"connector": "lines", "path": "app.log"}, TO_LINES, settings={"trigger": "0 seconds"})
    query = start(spark, pipeline)
    try:
        log.write_bytes(b"one\ntw\xff")
        eventually(lambda: len(written(tmp_path)) == 1, "the first line")
        with open(log, "ab") as file:
            file.write(b"\nthree\n")
        log.rename(tmp_path / "app.log.1")
        log.write_text("four\n")
        eventually(lambda: len(written(tmp_path)) == 4, "lines of the renamed and of the new file")
        os.truncate(log, 0)
        log.write_text("5\n")
        eventually(lambda: len(written(tmp_path)) == 5, "the line after the truncation")
    finally:
        query.stop()
    rows = written(tmp_path)
    assert [row["value"] for row in rows] == ["one", "tw�", "three", "four", "5"]
    assert [row["position"] for row in rows] == [0, 4, 8, 0, 0]
    assert {Path(row["file"]).name for row in rows[3:]} == {"app.log"}


def test_json_lines_are_rows_and_bad_ones_go_to_the_dead_letters(
    spark: SparkSession, tmp_path: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    letters = new_topic()
    (tmp_path / "a.log").write_text('{"page": "/a", "ms": 3}\n\n{"page": 1\n{"page": "/b"}\n')
    source = {"connector": "lines", "path": "*.log", "format": "json", "metadata": "position"}
    schema = {"schema": "page STRING, ms INT"}
    settings = {"dead letters": letters, "kafka.bootstrap.servers": bootstrap}
    run(spark, copy(tmp_path, source | schema, TO_LINES, settings=settings))
    assert written(tmp_path) == [
        {"page": "/a", "ms": 3, "position": 0},
        {"page": "/b", "ms": None, "position": 36},
    ]
    (letter,) = frame(spark, bootstrap, subscribe=letters, includeHeaders="true").collect()
    headers = {header.key: bytes(header.value).decode() for header in letter.headers}
    assert bytes(letter.value) == b'{"page": 1'
    assert headers["__connect.errors.topic"] == str(tmp_path / "a.log")
    assert headers["__connect.errors.offset"] == "25"
    (tmp_path / "a.log").write_text('{"page": "/a", "ms": 3}\nlast')
    assert read_batch(spark, copy(tmp_path, {"connector": "lines", "path": "a.log"}, TO_LINES)).count() == 2
    (tmp_path / "a.log").write_text('{"page": "/a", "ms": 3}\n')
    inferred = read_batch(spark, copy(tmp_path, source, TO_LINES))
    assert inferred.schema.simpleString() == "struct<ms:bigint,page:string,position:bigint>"


def test_appended_lines_are_there_once_however_often_a_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.log").write_text("".join(f"{number}\n" for number in range(1000)))
    pipeline = copy(
        tmp_path,
        {"connector": "lines", "path": "in.log", "maxBytesPerTrigger": 1000},
        TO_LINES,
        Step("values", sql="SELECT value FROM rows", inputs=("rows",)),
    )
    run(spark, pipeline)
    commits = tmp_path / "checkpoints/copy/out/commits"
    out = tmp_path / "out/copy.jsonl"
    whole = out.read_bytes()
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (journals,) = (tmp_path / "out").glob(".copy.jsonl.*")

    forget_commit(commits, last)  # killed after all was appended
    run(spark, pipeline)
    assert out.read_bytes() == whole
    forget_commit(commits, last)  # killed while the journal was written, after some of it was appended, before any was
    begin = whole.rindex(b"\n", 0, -50) + 1
    for size in (begin, begin + 7):
        (journals / f"{last}-done").unlink(missing_ok=True)
        os.truncate(out, size)
        journal = journals / f"{last}-{out.stat().st_ino}-{begin}"
        journal.write_bytes(whole[begin:])
        run(spark, pipeline)
        assert out.read_bytes() == whole
        forget_commit(commits, last)
    assert [json.loads(line)["value"] for line in whole.splitlines()] == [str(number) for number in range(1000)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'path'"),
        (
            {"path": "a", "format": "json", "metadata": "offset"},
            "metadata 'offset': expected one or more of file, position",
        ),
        ({"path": "a", "metadata": "file"}, "lines of text have the columns value, file, position"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems("lines", **options))
