"""What the observer shows of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.queries import Settings, plan_queries
from moldau.pipelines.engine.supervisor import RunningQuery, State
from moldau.pipelines.engine.watching.observer import Observer
from tests.unit.pipelines.progresses import batch


def query_with(progress: dict[str, Any], folder: Path, name: str) -> RunningQuery:
    file = folder / f"{name}.yaml"
    file.write_text("sources: {made: {connector: generator, schema: i INT}}\nsinks: {shown: {connector: console}}\n")
    pipeline = load_pipeline(file)
    (plan,) = plan_queries(pipeline)
    return RunningQuery(plan, Settings.of(pipeline), state=State.RUNNING, progress=progress)


def test_progress_that_cannot_be_understood_does_not_hide_other_queries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = query_with(batch(0, 5, eventTime={"max": "no time at all"}), tmp_path, "odd")
    good = query_with(batch(0, 7), tmp_path, "good")
    observer = Observer()
    for _ in range(3):
        observer.polled([odd, good])
    shown = {each.pipeline: each for each in observer.latest.queries}
    assert (shown["odd"].state, shown["good"].progress.rows_in) == (State.RUNNING, 7)
    assert [record.message for record in caplog.records] == [
        "internal error: the progress of query odd.shown is not shown (please report it)"
    ]
