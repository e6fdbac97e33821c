"""Which sinks share a query, now and after the file has changed."""

from __future__ import annotations

from pathlib import Path

from moldau.pipelines import Pipeline, console, directory, lines, topic
from moldau.pipelines.engine.checkpoints.checkpoint import Checkpoint
from moldau.pipelines.engine.checkpoints.reset import plan_reset
from moldau.pipelines.engine.checkpoints.sharing import RecordedQuery, read_recorded_queries, record_sinks
from moldau.pipelines.engine.queries import Settings, plan_queries

COUNTS = "SELECT page, count(*) AS views FROM clicks GROUP BY page"
BASE = Pipeline("p").source(topic("clicks")).step(COUNTS, name="counts").step("SELECT * FROM clicks", name="copies")


def planned(pipeline: Pipeline, **earlier: RecordedQuery) -> dict[str, list[str]]:
    return {plan.name: [sink.name for sink in plan.sinks] for plan in plan_queries(pipeline.model, earlier)}


def with_sinks(*names: str, mode: str = "append") -> Pipeline:
    pipeline = BASE
    for name in names:
        pipeline = pipeline.to(topic(name), view="counts", mode=mode)
    return pipeline


def earlier(*sinks: str, is_shared: bool = False) -> RecordedQuery:
    return RecordedQuery(frozenset(sinks), is_shared)


def test_sinks_of_a_stateful_view_and_mode_share_a_query() -> None:
    pipeline = with_sinks("a", "b").to(topic("c"), view="counts", mode="update").to(console(), view="counts")
    pipeline = pipeline.to(lines("d.txt"), view="counts", name="d").to(directory("e"), view="counts", name="e")
    assert planned(pipeline) == {"a": ["a", "b", "d", "e"], "c": ["c"], "console": ["console"]}


def test_sinks_of_a_view_without_state_have_a_query_each() -> None:
    pipeline = BASE.to(topic("a"), view="copies").to(topic("b"), view="copies").to(topic("c"), view="clicks")
    assert planned(pipeline) == {"a": ["a"], "b": ["b"], "c": ["c"]}


def test_a_shared_query_keeps_its_name_when_sinks_come_and_go() -> None:
    shared = earlier("a", "b", is_shared=True)
    assert planned(with_sinks("new", "b", "a"), a=shared) == {"a": ["new", "b", "a"]}
    assert planned(with_sinks("b"), a=shared) == {"a": ["b"]}
    (alone,) = plan_queries(with_sinks("b").model, {"a": shared})
    assert alone.is_shared


def test_a_sink_joins_one_that_was_alone_only_if_that_wrote_in_the_same_way() -> None:
    assert planned(with_sinks("new", "a", mode="update"), a=earlier("a")) == {"a": ["new", "a"]}
    assert planned(with_sinks("new", "a"), a=earlier("a")) == {"new": ["new"], "a": ["a"]}


def test_sinks_that_have_had_queries_of_their_own_keep_them() -> None:
    apart = {"a": earlier("a"), "b": earlier("b")}
    assert planned(with_sinks("a", "b", "new"), **apart) == {"a": ["a"], "b": ["b"], "new": ["new"]}
    assert planned(with_sinks("a", "b", "new", mode="update"), **apart) == {"a": ["a", "new"], "b": ["b"]}


def test_members_are_read_from_checkpoints(tmp_path: Path) -> None:
    assert read_recorded_queries(str(tmp_path / "none")) == {}
    record_sinks(str(tmp_path / "a"), with_sinks("a", "b").model.sinks)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metadata").write_text("{}")
    (tmp_path / "never_started").mkdir()
    record_sinks(str(tmp_path / "d.20260101"), with_sinks("d", "e").model.sinks)  # put aside by `reset`
    assert read_recorded_queries(str(tmp_path)) == {"a": earlier("a", "b", is_shared=True), "c": earlier("c")}


def test_after_a_reset_a_query_keeps_its_sinks(tmp_path: Path) -> None:
    pipeline = with_sinks("b", "a", mode="update").settings(checkpoint=str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / "p" / name).mkdir(parents=True)
        (tmp_path / "p" / name / "metadata").write_text("{}")
    (plan,) = [plan for plan in plan_queries(pipeline.model) if plan.name == "b"]
    plan_reset(plan, Settings.of(pipeline.model), "earliest").apply()
    # Without a note of whose it is, b would join the query of a, which is elsewhere in the topic.
    assert {plan.name: len(plan.sinks) for plan in plan_queries(pipeline.model)} == {"b": 1, "a": 1}
    assert Checkpoint(plan, Settings.of(pipeline.model)).starts == {"clicks": "earliest"}
