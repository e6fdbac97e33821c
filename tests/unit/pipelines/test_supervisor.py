"""When queries are started, restarted and given up, with scripted queries and a clock of the test's."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine import supervisor
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State, Supervisor
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source
from tests.integration.waiting import eventually


class Scripted:
    """As much of Spark's query as the supervisor uses."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: Mapping[str, Any] | None = None
        self.status = {"message": "Processing new data", "isTriggerActive": True}
        self.error: Exception | None = None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def fail(self, text: str = "it broke") -> None:
        self.error, self.isActive = RuntimeError(text), False

    def complete(self, batch: int) -> None:
        self.lastProgress = {"batchId": batch}


class Bench:
    """A supervisor with its parts in the test's hands."""

    def __init__(self, *names: str, settings: Mapping[str, object] | None = None, listener: Listener | None = None):
        self.now_ms = 1_000_000
        self.started: dict[str, list[Scripted]] = {name: [] for name in names}
        self.refuse: dict[str, Exception] = {}
        self.hang: dict[str, threading.Event] = {}
        self.hanging: set[str] = set()
        pipelines = [
            Pipeline(
                name,
                sources=(Source("clicks", "topic"),),
                sinks=(Sink(name, "clicks", "topic"),),
                settings={key: Given(value) for key, value in (settings or {}).items()},
            )
            for name in names
        ]
        self.supervisor = Supervisor(
            cast(Any, None),
            pipelines,
            [listener] if listener else [],
            start=cast(Any, self._start),
            clock=lambda: self.now_ms,
        )

    def _start(self, _: object, plan: Any, __: object, ___: object) -> Scripted:
        if plan.name in self.hang:
            self.hanging.add(plan.name)
            self.hang[plan.name].wait()
        if plan.name in self.refuse:
            raise self.refuse[plan.name]
        self.started[plan.name].append(Scripted())
        return self.started[plan.name][-1]

    def query(self, name: str) -> RunningQuery:
        return next(query for query in self.supervisor.queries if query.name == name)

    def tick(self, after_ms: int = 1_000) -> None:
        self.now_ms += after_ms
        self.supervisor.tick()

    def until(self, is_so: Callable[[], object], what: str) -> None:
        def ticked() -> object:
            self.tick(0)
            return is_so()

        eventually(ticked, what)

    def until_started(self, name: str, times: int) -> Scripted:
        self.until(lambda: len(self.started[name]) == times and self.query(name).query is not None, f"start {times}")
        self.until(lambda: self.query(name).query is cast(Any, self.started[name][-1]), "the start is noticed")
        return self.started[name][-1]


def test_a_query_that_fails_is_restarted_after_delays_that_double_to_the_longest() -> None:
    bench = Bench("counts", settings={"restart delay max": "10 seconds"})
    delays = []
    for times in range(1, 8):
        bench.until_started("counts", times).fail()
        bench.tick()
        query = bench.query("counts")
        assert (query.state, query.reason, query.restarts) == (State.RETRYING, "it broke", times - 1)
        bench.until(lambda: bench.supervisor._watched[0].job is None, "no search is under way")
        delays.append(bench.supervisor._watched[0].due_ms - bench.now_ms)
        bench.tick(delays[-1])
    assert delays == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]


def test_a_completed_batch_makes_it_running_and_resets_the_delay() -> None:
    bench = Bench("counts")
    bench.until_started("counts", 1).fail()
    bench.tick()
    bench.tick(1_000)
    second = bench.until_started("counts", 2)
    query = bench.query("counts")
    assert (query.state, query.reason, query.attempt, query.next_try_ms) == (State.RETRYING, "it broke", 1, None)
    second.complete(0)
    bench.tick()
    assert (bench.query("counts").state, bench.query("counts").reason) == (State.RUNNING, "")
    second.fail()
    bench.tick()
    assert bench.supervisor._watched[0].due_ms - bench.now_ms == 1_000


def test_an_empty_source_that_answers_is_running() -> None:
    bench = Bench("counts")
    bench.until_started("counts", 1).status = {"message": "Waiting for data to arrive", "isTriggerActive": False}
    bench.tick()
    assert bench.query("counts").state is State.RUNNING


def test_one_that_fails_for_good_leaves_others_alone() -> None:
    bench = Bench("counts", "copies")
    bench.refuse["counts"] = ConfigError("no such column")
    bench.until_started("copies", 1).complete(0)
    bench.until(lambda: bench.query("counts").state is State.FAILED, "counts is given up")
    bench.tick(100_000)
    assert bench.query("counts").reason == "no such column"
    assert bench.query("copies").state is State.RUNNING


def test_available_now_ends_finished_and_a_stop_ends_stopped() -> None:
    bench = Bench("counts", settings={"trigger": "available now"})
    bench.until_started("counts", 1).isActive = False
    bench.tick()
    assert bench.query("counts").state is State.FINISHED

    bench = Bench("counts")
    bench.until_started("counts", 1).complete(0)
    bench.supervisor.stop()
    bench.tick()
    assert bench.query("counts").state is State.STOPPED


def test_available_now_fails_after_five_failures_in_a_row() -> None:
    bench = Bench("counts", settings={"trigger": "available now"})
    bench.until_started("counts", 1).fail()
    bench.tick()
    bench.tick(1_000)
    bench.until_started("counts", 2).complete(0)
    bench.tick()
    for times in range(2, 7):
        assert bench.query("counts").state is not State.FAILED
        bench.until_started("counts", times).fail()
        bench.tick()
        bench.until(lambda: bench.supervisor._watched[0].job is None, "no search is under way")
        bench.tick(60_000)
    query = bench.query("counts")
    assert (query.state, query.reason) == (State.FAILED, "failed 5 times in a row: it broke")


def test_one_that_waits_for_its_next_try_stops_at_once() -> None:
    bench = Bench("counts")
    bench.until_started("counts", 1).fail()
    bench.tick()
    bench.supervisor.stop()
    bench.tick(0)
    assert (bench.query("counts").state, bench.query("counts").reason) == (State.STOPPED, "it broke")


class Searcher(Listener):
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.finds = False

    def failed_again(self, spark: Any, query: RunningQuery, reason: str) -> bool:
        self.asked.append(query.failures)
        return self.finds


def test_a_batch_that_fails_three_times_is_searched_and_restarted_at_once_if_that_helped() -> None:
    searcher = Searcher()
    bench = Bench("counts", listener=searcher)
    for times in range(1, 7):
        searcher.finds = times == 6
        bench.until_started("counts", times).fail()
        bench.tick()
        bench.until(lambda: bench.supervisor._watched[0].job is None, "no search is under way")
        if times < 6:
            bench.tick(60_000)
    assert searcher.asked == [3, 6]
    bench.until_started("counts", 7)
    assert bench.query("counts").failures == 0


def test_a_broker_that_is_away_is_not_searched_for_bad_records() -> None:
    searcher = Searcher()
    bench = Bench("counts", listener=searcher)
    for times in range(1, 5):
        bench.until_started("counts", times).fail("No broker could be reached")
        bench.tick()
        delay_ms = bench.supervisor._watched[0].due_ms - bench.now_ms
        assert delay_ms == 1_000 << (times - 1)
        bench.tick(delay_ms)
    assert searcher.asked == []


def test_a_listener_that_fails_stops_nothing() -> None:
    class Wrong(Listener):
        def changed(self, query: RunningQuery) -> None:
            raise ValueError("a mistake")

    bench = Bench("counts", listener=Wrong())
    bench.until_started("counts", 1).complete(0)
    bench.tick()
    assert bench.query("counts").state is State.RUNNING


def test_a_start_that_hangs_holds_up_neither_other_starts_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_START_TURN_S", 0.01)
    names = [f"hangs{number}" for number in range(os.cpu_count() or 1)]
    bench = Bench(*names, "counts")
    goes_on = threading.Event()
    bench.hang = dict.fromkeys(names, goes_on)
    bench.until_started("counts", 1).complete(0)
    bench.tick()
    assert bench.query("counts").state is State.RUNNING
    eventually(lambda: bench.hanging == {*names}, "all other starts hang")

    bench.supervisor.stop(names[0], now=True)
    bench.supervisor.stop()
    bench.tick(1_000)
    assert [bench.query(name).state for name in names[:2]] == [State.STOPPED, State.STARTING][: len(names)]
    bench.tick(30_000)
    assert {bench.query(name).state for name in names} == {State.STOPPED}
    goes_on.set()  # what starts after all is stopped
    eventually(lambda: all(bench.started[name] and not bench.started[name][0].isActive for name in names), "stopped")


def test_queries_fail_when_the_jvm_of_spark_has_ended() -> None:
    bench = Bench("counts", "stopping")
    bench.until_started("counts", 1)
    bench.supervisor.stop("stopping")
    bench.supervisor._jvm = subprocess.Popen(["true"])
    bench.supervisor._jvm.wait()
    bench.tick()
    assert (bench.query("counts").state, bench.query("stopping").state) == (State.FAILED, State.STOPPED)
    assert bench.query("counts").reason == "Spark's JVM has ended: start the pipeline again"
