"""Reading Spark's checkpoints, and the table of changes, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine.checkpoints.changes import Verdict, changes
from moldau.pipelines.engine.checkpoints.checkpoint import Record
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog
from moldau.pipelines.engine.checkpoints.folders import LocalFolder
from moldau.pipelines.engine.checkpoints.identity import Identity, Operator, Part

COUNT = Operator("aggregation", ("string",), ("string?", "long"), "count(1)")
QUERY = Identity("p", "q", "append", {"a": Part("topic", {"topic": "x"})}, {"q": Part("topic", {"topic": "y"})})


def _batch(folder: Path, number: int, *lines: str, is_finished: bool = True, version: str = "v2") -> None:
    metadata = json.dumps({"batchWatermarkMs": number, "batchTimestampMs": 1000 + number, "conf": {"c": "1"}})
    for log in ("offsets", "commits"):
        (folder / log).mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join([version, metadata, *lines]))
    if is_finished:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":77}')


def test_offsets_are_read_by_the_names_of_sources(tmp_path: Path) -> None:
    assert CheckpointLog(LocalFolder(str(tmp_path))).last_batch is None
    _batch(tmp_path, 9, 'a:{"x": {"0": 9}}')
    _batch(tmp_path, 10, 'a:{"x": {"0": 12}}', "b:-", is_finished=False)
    last = CheckpointLog(LocalFolder(str(tmp_path))).last_batch
    assert last is not None
    assert (last.batch_id, last.is_finished, last.watermark_ms, last.timestamp_ms) == (10, False, 77, 1010)
    assert dict(last.offsets) == {"a": '{"x": {"0": 12}}'}
    assert dict(last.positions) == {"a": '{"x": {"0": 9}}'}


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    _batch(tmp_path, 0, "{}", version="garbage")
    with pytest.raises(ConfigError, match="offsets/0 is not an offset log of Spark"):
        _ = CheckpointLog(LocalFolder(str(tmp_path))).last_batch
    with pytest.raises(ConfigError, match="is damaged"):
        Record.parse("{", "moldau.json")
    with pytest.raises(ConfigError, match="newer moldau"):
        Record.parse('{"version": 2}', "moldau.json")


def test_what_is_written_down_is_read_again() -> None:
    record = Record(_grouped(("a.page",), essential="Inner"), {"q": 3}, {"a": "earliest"})
    assert Record.parse(record.to_text(), "moldau.json").to_text() == record.to_text()


@pytest.mark.parametrize(
    ("old", "new", "verdicts"),
    [
        (QUERY, QUERY, ""),
        (QUERY, replace(QUERY, sources={"b": Part("topic", {"topic": "x"})}), "kept kept"),
        (QUERY, replace(QUERY, sources={"a": Part("topic", {"topic": "z"})}), "refused"),
        (QUERY, replace(QUERY, sources={"a": Part("topic", {"subscribe": "x,z"})}), "kept"),
        (QUERY, replace(QUERY, sources={"a": Part("lines", {"path": "x"})}), "refused"),
        (QUERY, replace(QUERY, sinks={"q": Part("console")}), "kept"),
        (QUERY, replace(QUERY, mode="update"), "kept"),
        (QUERY, replace(QUERY, operators=(COUNT,)), "refused"),
        (replace(QUERY, operators=(COUNT,)), replace(QUERY, operators=(replace(COUNT, keys=("int",)),)), "refused"),
        (replace(QUERY, operators=(COUNT,)), replace(QUERY, operators=(replace(COUNT, values=("long",)),)), "refused"),
        (replace(QUERY, operators=(COUNT,)), replace(QUERY, operators=(replace(COUNT, detail="sum"),)), "kept"),
    ],
)
def test_each_change_is_kept_or_refused(old: Identity, new: Identity, verdicts: str) -> None:
    found = changes(old, new, Path(), {}, {})
    assert " ".join(change.verdict for change in found) == verdicts
    assert all(bool(change.ways_out) == (change.verdict is Verdict.REFUSED) for change in found)


def _grouped(*definitions: tuple[str, ...], sources: str = "a", essential: str = "") -> Identity:
    operator = replace(COUNT, definitions=definitions, essential=essential)
    return replace(QUERY, operators=(operator,), sources=dict.fromkeys(sources.split(), QUERY.sources["a"]))


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        (_grouped(("a.page",)), _grouped(("a.page",)), False),
        (_grouped(("a.page",)), _grouped(("a.user",)), True),
        (_grouped(("a.page",)), _grouped(("a.page",), ("a.user",)), True),
        (_grouped(("a.page",)), _grouped(("a.page", "b.url"), sources="a b"), False),
        (_grouped(("a.page", "b.page"), sources="a b"), _grouped(("b.page",), sources="b"), False),
        (_grouped(("a.page",), sources="a b"), _grouped(("b.page",), sources="a b"), True),
        (_grouped(("upper(a.page)",)), _grouped(("upper(b.page)",), sources="b"), False),
        (_grouped(("upper(a.page)",)), _grouped(("upper(b.user)",), sources="b"), True),
        (_grouped(("a.page",), essential="Inner"), _grouped(("a.page",), essential="LeftOuter"), True),
        (_grouped(), _grouped(("a.page",)), False),
    ],
)
def test_other_keys_are_refused_but_not_other_names_and_branches(
    old: Identity, new: Identity, is_refused: bool
) -> None:
    assert any(change.verdict is Verdict.REFUSED for change in changes(old, new, Path(), {}, {})) == is_refused


def test_a_renamed_source_is_read_again_and_says_so() -> None:
    new = replace(QUERY, sources={"b": Part("topic", {"topic": "x"})})
    assert "It reads what a read, again from its start" in changes(QUERY, new, Path(), {}, {})[0].text


def test_settings_of_the_checkpoint_stay() -> None:
    name = "spark.sql.shuffle.partitions"
    (change,) = changes(QUERY, QUERY, Path(), {name: "1"}, {name: "3", "spark.other": "x"})
    assert change.text == f"{name} stays 1: the checkpoint was made with it. 3 takes effect after a reset"
