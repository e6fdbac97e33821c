"""Reading Spark's checkpoints, and the table of changes, without Spark."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines import Pipeline, topic
from moldau.pipelines.engine.checkpoints.changes import Change, Verdict, changes
from moldau.pipelines.engine.checkpoints.checkpoint import MoldauFile
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog
from moldau.pipelines.engine.checkpoints.folders import LocalFolder
from moldau.pipelines.engine.checkpoints.identity import Identity, Operator, Part
from moldau.pipelines.engine.dry_run import records_at_risk
from moldau.pipelines.engine.queries import Settings, plan_queries

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
        MoldauFile.parse("{", "moldau.json")
    with pytest.raises(ConfigError, match="newer moldau"):
        MoldauFile.parse('{"version": 2}', "moldau.json")


def test_what_is_written_down_is_read_again() -> None:
    file = MoldauFile(_grouped(("a.page",), essential="Inner"), {"q": 3}, {"a": "earliest"}, "salt")
    assert MoldauFile.parse(file.to_text(), "moldau.json").to_text() == file.to_text()


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


@pytest.mark.parametrize(
    ("source", "is_offered"),
    [
        (Part("topic", {"topic": "x"}), True),
        (Part("topic", {"topic": "z"}), False),
        (Part("topic", {"subscribe": "x,z"}), False),
        (Part("lines", {"path": "x"}), False),
    ],
)
def test_committed_offsets_are_a_way_out_only_where_they_are_valid(source: Part, is_offered: bool) -> None:
    found = changes(QUERY, replace(QUERY, sources={"a": source}, operators=(COUNT,)), Path(), {}, {})
    ways = [way for change in found for way in change.ways_out]
    assert any("--to earliest" in way for way in ways)
    assert any("--to committed" in way for way in ways) == is_offered


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


def test_other_texts_are_told() -> None:
    texts = {"step s": {"": "1"}, "step t": {"": "1"}, "sink q": {"key": "1"}, "expectation e (dead-letter)": {"": "1"}}
    old = replace(QUERY, texts=texts)
    changed = {"step s": {"": "2"}, "step u": {"": "1"}, "sink q": {"tombstone": "1"}, "source new": {"schema": "1"}}
    new = replace(QUERY, texts=changed)
    said = [change.text.partition(", from")[0] for change in changes(old, new, Path(), {}, {})]
    assert said == [
        "expectation e (dead-letter) is gone",
        "sink q: key, tombstone has changed",
        "step s has changed",
        "step t is gone",
        "step u is new",
    ]
    assert changes(QUERY, new, Path(), {}, {}) == ()


@pytest.mark.parametrize(
    ("offset", "words"), [(9, "at the same offsets of a"), (12, '"0": 12.* not .*"0": 9.* at risk')]
)
def test_a_changed_condition_is_a_risk_if_its_dead_letters_are_elsewhere(
    tmp_path: Path, offset: int, words: str
) -> None:
    pipeline = (
        Pipeline("p")
        .source(topic("x", name="a"))
        .expect("true", view="a", action="dead-letter", name="e")
        .to(topic("out"))
        .settings(checkpoint=str(tmp_path), dead_letters="dead")
        .model
    )
    for query, position in (("out", 9), ("a-dead-letters", offset)):
        (tmp_path / "p" / query).mkdir(parents=True)
        _batch(tmp_path / "p" / query, 1, f'a:{{"x": {{"0": {position}}}, "(id of x) 1": {{}}}}')
    plan, settings = plan_queries(pipeline, {})[0], Settings.of(pipeline)
    last = CheckpointLog(LocalFolder(str(tmp_path / "p" / "out"))).last_batch
    assert last is not None
    (note,) = records_at_risk(plan, settings, last, [Change("", owner="expectation e (dead-letter)")], None)
    assert re.search(words, note), note
    assert list(records_at_risk(plan, settings, last, [Change("", owner="step s")], None)) == []


def test_a_reference_is_kept_as_a_hash_with_a_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p").source(topic("${env:NAME_OF_TOPIC}", name="a")).to(topic("out")).model
    (plan,) = plan_queries(pipeline, {})

    def kept(value: str, salt: str) -> str:
        monkeypatch.setenv("NAME_OF_TOPIC", value)
        return str(Identity.of(plan, (), salt).to_json())

    assert kept("orders", "one") == kept("orders", "one") != kept("orders", "two")
    assert kept("orders", "one") != kept("clicks", "one")
    assert "orders" not in kept("orders", "one")


def test_a_renamed_source_is_read_again_and_says_so() -> None:
    new = replace(QUERY, sources={"b": Part("topic", {"topic": "x"})})
    assert "It reads what a read, again from its start" in changes(QUERY, new, Path(), {}, {})[0].text


def test_settings_of_the_checkpoint_stay() -> None:
    name = "spark.sql.shuffle.partitions"
    (change,) = changes(QUERY, QUERY, Path(), {name: "1"}, {name: "3", "spark.other": "x"})
    assert change.text == f"{name} stays 1: the checkpoint was made with it. 3 takes effect after a reset"
