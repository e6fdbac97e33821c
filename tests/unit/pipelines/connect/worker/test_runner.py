"""A runner with scripted runs: what is defined runs, what changes restarts, and the status topic says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine.run import Run
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Sink
from moldau.pipelines.worker import records
from moldau.pipelines.worker.records import Definition, Kind, Record, Status, Target
from moldau.pipelines.worker.runner import Engine, Runner
from moldau.pipelines.worker.state_topics import FencedError
from tests.unit.pipelines.connect.worker.memory import MemoryTopics


class ScriptedRun:
    """As much of a run as a runner uses."""

    def __init__(self, pipelines: Sequence[Pipeline], *, spark: object, listeners: Sequence[Any]) -> None:
        (self.pipeline,) = pipelines
        self.listeners = listeners
        self.queries = [SimpleNamespace(name="out", state=State.STARTING, reason="")]
        self.is_asked = self.is_over = False

    def start(self) -> None:
        self.queries[0].state = State.RUNNING

    def stop(self, *, now: bool = False) -> None:
        self.is_asked = True
        self.is_over |= now

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.is_over

    def fail(self, reason: str) -> None:
        self.queries[0].state, self.queries[0].reason, self.is_over = State.FAILED, reason, True


class Bench:
    def __init__(self) -> None:
        self.topics = MemoryTopics()
        self.runs: list[ScriptedRun] = []
        self.refusal: str | None = None
        self.fenced = 0
        self.engine = Engine(lambda: cast(Any, None), self._build, None, cast(Any, self._start))
        self.runner = Runner(self.topics, self.engine, "host:1", self._be_fenced)

    def _build(self, definition: Definition, folder: str) -> Pipeline:
        if self.refusal:
            raise ConfigError(self.refusal)
        sink = Sink("out", "lines", "topic", options={"topic": Given("t")})
        return Pipeline(definition.name, sinks=(sink,), folder=Path(folder))

    def _start(self, *arguments: Any, **more: Any) -> Run:
        self.runs.append(ScriptedRun(*arguments, **more))
        return cast(Run, self.runs[-1])

    def _be_fenced(self) -> None:
        self.fenced += 1

    def define(self, target: Target | None = None, **properties: str) -> None:
        definition = Definition("lines", Kind.CONNECTOR, properties)
        self.topics.write(records.definition_records(definition, target))
        self.runner.look()

    def want(self, target: Target) -> None:
        self.topics.write([records.target_record("lines", target)])
        self.runner.look()

    def end_run(self) -> None:
        self.runs[-1].is_over = True
        self.runner.look()

    @property
    def state(self) -> str:
        return self.topics.state.statuses["lines"].state

    @property
    def tasks(self) -> list[str]:
        return [status.state for status in self.topics.state.task_statuses.get("lines", {}).values()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for run in bench.runs:
        run.is_over = True
    bench.runner.close(now=True)


def test_a_new_connector_runs_and_its_tasks_and_topics_are_known(bench: Bench) -> None:
    bench.define(file="x")
    assert (bench.state, bench.tasks) == ("RUNNING", ["RUNNING"])
    assert bench.topics.state.tasks("lines") == [{"task.class": "moldau.query", "query": "out"}]
    assert list(bench.topics.state.topics["lines"]) == ["t"]


def test_a_changed_configuration_waits_for_the_batch_and_then_runs(bench: Bench) -> None:
    bench.define(file="x")
    bench.define(file="y")
    assert bench.runs[0].is_asked
    assert len(bench.runs) == 1
    bench.end_run()
    assert [run.is_asked for run in bench.runs] == [True, False]
    assert bench.state == "RUNNING"


def test_a_paused_connector_keeps_its_tasks_and_a_stopped_one_does_not(bench: Bench) -> None:
    bench.define()
    bench.want(Target.PAUSED)
    bench.end_run()
    assert (bench.state, bench.tasks, bench.runner.is_idle("lines")) == ("PAUSED", ["PAUSED"], True)
    bench.want(Target.STOPPED)
    assert (bench.state, bench.tasks, bench.topics.state.tasks("lines")) == ("STOPPED", [], [])
    bench.want(Target.STARTED)
    assert (bench.state, bench.tasks, len(bench.runs)) == ("RUNNING", ["RUNNING"], 2)


def test_a_stopped_connector_is_idle_only_after_its_batch(bench: Bench) -> None:
    bench.define()
    bench.want(Target.STOPPED)
    assert not bench.runner.is_idle("lines")
    bench.end_run()
    assert bench.runner.is_idle("lines")


def test_a_connector_that_was_created_stopped_does_not_run(bench: Bench) -> None:
    bench.define(Target.STOPPED)
    assert (bench.state, bench.runs) == ("STOPPED", [])


def test_a_deleted_connector_ends_and_comes_back_when_it_is_created_again(bench: Bench) -> None:
    bench.define()
    bench.topics.write(records.removal_records(Definition("lines", Kind.CONNECTOR, {}), bench.topics.state))
    bench.runner.look()
    assert bench.runs[0].is_asked
    bench.end_run()
    bench.define()
    assert len(bench.runs) == 2


def test_restart_starts_anew_and_only_failed_leaves_alone_what_runs(bench: Bench) -> None:
    bench.define()
    bench.runner.restart("lines", only_failed=True)
    bench.runner.look()
    assert not bench.runs[0].is_asked
    bench.runs[0].fail("no such table")
    bench.runner.look()
    assert bench.topics.state.task_statuses["lines"][0].trace == "no such table"
    assert len(bench.runs) == 1
    bench.runner.restart("lines", only_failed=True)
    for _ in range(3):
        bench.runner.look()
    assert (len(bench.runs), bench.tasks) == (2, ["RUNNING"])


def test_what_cannot_become_a_pipeline_fails_with_the_reason_and_a_new_configuration_is_tried(bench: Bench) -> None:
    bench.refusal = "there is no connector Fil"
    bench.define(file="x")
    bench.runner.look()
    status = bench.topics.state.statuses["lines"]
    assert (status.state, status.trace, bench.tasks) == ("FAILED", "there is no connector Fil", [])
    assert "there is no connector Fil" in bench.runner.log("lines")[0]
    bench.refusal = None
    bench.define(file="y")
    assert bench.state == "RUNNING"


def test_a_status_that_was_written_too_late_is_removed(bench: Bench) -> None:
    bench.topics.write([records.status_record("gone", Status("RUNNING", "w"), task) for task in (None, 0)])
    bench.runner.look()
    assert "gone" not in bench.topics.state.statuses
    assert not bench.topics.state.task_statuses["gone"]


def test_a_look_without_changes_writes_nothing(bench: Bench) -> None:
    bench.define()
    written = len(bench.topics.written)
    bench.runner.look()
    assert len(bench.topics.written) == written


def test_a_batch_is_not_written_by_a_worker_that_was_replaced(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.define()

    def refuse(_: Sequence[Record], *, is_read: bool = True) -> None:
        raise FencedError("another worker is active")

    query = SimpleNamespace(checkpoint=str(tmp_path), pipeline="lines", name="out")
    watcher = next(each for each in bench.runs[0].listeners if hasattr(each, "_is_shared"))
    monkeypatch.setattr(bench.topics, "write", refuse)
    with pytest.raises(FencedError):
        watcher.before_batch(query, 3)
    assert bench.fenced == 1


def test_a_new_worker_starts_with_a_higher_generation() -> None:
    bench = Bench()
    bench.define()
    first = bench.topics.state.statuses["lines"].generation
    second = Runner(
        bench.topics, Engine(lambda: cast(Any, None), bench._build, None, cast(Any, bench._start)), "host:2"
    )
    second.look()
    assert bench.topics.state.statuses["lines"].generation == first + 1
    for run in bench.runs:
        run.is_over = True
    second.close(now=True)
    bench.runner.close(now=True)
