"""Listeners that act before each micro-batch is written, and queries that have none."""

from __future__ import annotations

from typing import Any, cast

from moldau.pipelines.engine.supervisor import Listener, RunningQuery, Supervisor
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source
from tests.integration.waiting import eventually

PIPELINE = Pipeline("copy", sources=(Source("a", "topic"),), sinks=(Sink("out", "a", "topic"),))


class Watcher(Listener):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def before_batch(self, query: RunningQuery, batch_id: int) -> None:
        self.seen.append((query.name, batch_id))


def started_with(*listeners: Listener) -> dict[str, Any]:
    """What a query is started with beyond its plan."""
    calls: list[dict[str, Any]] = []

    def start(*_: object, **more: Any) -> Any:
        calls.append(more)
        raise RuntimeError("not today")

    supervisor = Supervisor(cast(Any, None), [PIPELINE], listeners, start=start)
    supervisor.tick()
    eventually(lambda: calls, "it was started")
    return calls[0]


def test_a_watcher_is_told_of_each_batch() -> None:
    watcher = Watcher()
    started_with(Listener(), watcher)["before_batch"](7)
    assert watcher.seen == [("out", 7)]


def test_a_query_that_nobody_watches_is_started_as_before() -> None:
    assert started_with(Listener()) == {}
