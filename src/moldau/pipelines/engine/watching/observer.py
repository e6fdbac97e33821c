"""What pipelines do, for those who watch: the state and the progress of each query, about once a second.

    supervisor.add_listener(observer := Observer())
    observer.add_show(view.show)

A snapshot is immutable, so the live view, metrics and state files may use it in their own threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moldau.clocks import Clock, monotonic_ms, wall_clock_ms
from moldau.errors import MoldauError
from moldau.pipelines.engine.bad_records.dead_letters import SUFFIX
from moldau.pipelines.engine.queries import source_values
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State
from moldau.pipelines.engine.watching.lag import LagReader, Topics, topics_of
from moldau.pipelines.engine.watching.letters import LetterReader
from moldau.pipelines.engine.watching.progress import ProgressTracker, QueryProgress
from moldau.pipelines.model.pipeline import Action
from moldau.pipelines.model.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

STALE_MS = 2_000
"""A query without progress for this long is idle, in a long batch, or waits for its trigger."""
_UP_TO_DATE = ("Waiting for data to arrive", "Getting offsets from", "Initializing sources")  # Spark's status: idle


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    pipeline: str
    query: str
    state: State = State.STARTING
    reason: str = ""  # why it is RETRYING or FAILED
    attempt: int = 0  # the try that is due or runs; while RETRYING
    next_try_ms: int | None = None  # wall clock; while RETRYING, if it is due
    restarts: int = 0
    progress: QueryProgress = field(default_factory=QueryProgress)

    @property
    def name(self) -> str:
        return self.pipeline if self.pipeline == self.query else f"{self.pipeline}.{self.query}"

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "query": self.query,
            "state": str(self.state),
            "reason": self.reason,
            "attempt": self.attempt,
            "next_try_ms": self.next_try_ms,
            "restarts": self.restarts,
            **self.progress.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    time_ms: int  # wall clock
    queries: tuple[QuerySnapshot, ...]

    def to_json(self) -> dict[str, Any]:
        return {"time_ms": self.time_ms, "queries": [query.to_json() for query in self.queries]}


class Observer(Listener):
    """Takes a snapshot at each poll of the supervisor and passes it on."""

    def __init__(self, clock: Clock = monotonic_ms, wall_clock: Clock = wall_clock_ms) -> None:
        self._shows: list[Callable[[Snapshot], None]] = []
        self._clock, self._wall_clock = clock, wall_clock
        self._watched: dict[int, _Watched] = {}  # by identity of the query
        self._not_understood: set[int] = set()  # queries, by identity; told once
        self._lags = LagReader(clock)
        self._letters = LetterReader(clock)
        self.latest = Snapshot(wall_clock(), ())

    def add_show(self, show: Callable[[Snapshot], None]) -> None:
        """It gets each snapshot, in the supervisor's thread."""
        self._shows.append(show)

    def facts(self, query: RunningQuery) -> dict[str, Any]:
        """The progress of a query when it was last polled."""
        for each in self.latest.queries:
            if (each.pipeline, each.query) == (query.pipeline, query.name):
                return {"progress": each.progress.to_json()}
        return {"progress": None}

    def polled(self, queries: Sequence[RunningQuery]) -> None:
        self._letters.look({query.pipeline: query.plan.pipeline for query in queries}.values())
        self._show(queries)

    def _show(self, queries: Sequence[RunningQuery]) -> None:
        self.latest = Snapshot(self._wall_clock(), tuple(self._observe_safely(query) for query in queries))
        for show in self._shows:
            show(self.latest)

    def ended(self, queries: Sequence[RunningQuery]) -> None:
        self._letters.look({query.pipeline: query.plan.pipeline for query in queries}.values(), is_last=True)
        self._show(queries)
        self._lags.close()
        self._letters.close()

    def _observe_safely(self, query: RunningQuery) -> QuerySnapshot:
        """Progress that cannot be understood must not hide what other queries do."""
        try:
            return self._observe(query)
        except Exception:
            if id(query) not in self._not_understood:
                self._not_understood.add(id(query))
                logger.exception("internal error: the progress of query %s is not shown (please report it)", query)
            return QuerySnapshot(
                query.pipeline, query.name, query.state, query.reason, query.attempt, query.next_try_ms, query.restarts
            )

    def _observe(self, query: RunningQuery) -> QuerySnapshot:
        watched = self._watched.get(id(query))
        if watched is None:
            watched = self._watched[id(query)] = _watch(query)
        now, wall = self._clock(), self._wall_clock()
        tracker = watched.tracker
        is_new = query.progress is not None and tracker.is_new(query.progress)
        tracker.add(_new_progress(query, tracker) if is_new else (), now, wall)
        lag = self._lags.lag(
            query, watched.topics, tracker.positions, tracker.ends, is_stale=_is_stale(query, now - tracker.changed_ms)
        )
        return QuerySnapshot(
            pipeline=query.pipeline,
            query=query.name,
            state=query.state,
            reason=query.reason,
            attempt=query.attempt,
            next_try_ms=query.next_try_ms,
            restarts=query.restarts,
            progress=self._with_letters(query, tracker.poll(now, wall, lag.records, lag.oldest_ms)),
        )

    def _with_letters(self, query: RunningQuery, progress: QueryProgress) -> QueryProgress:
        """Those of expectations are counted as rows that failed, by the queries that would have written them."""
        found = self._letters.found(query.pipeline, query.name)
        if not found.letters or query.name.endswith(SUFFIX):
            return progress
        return replace(progress, dead_letters=progress.dead_letters + found.letters, last_dead_letter=found.last)


@dataclass
class _Watched:
    query: RunningQuery  # kept, so that its identity stays its own
    tracker: ProgressTracker
    topics: tuple[Topics, ...]


def _watch(query: RunningQuery) -> _Watched:
    plan, pipeline = query.plan, query.plan.pipeline
    needed = pipeline.needed_by(plan.view)
    letters = [each.name for each in pipeline.expectations if each.view in needed and each.action is Action.DEAD_LETTER]
    try:
        options = [source_values(pipeline, source) for source in plan.sources]
        topics = topics_of(plan, query.settings)
    except MoldauError:  # the query fails for the same reason, and the supervisor says so
        options, topics = [], ()
    watermarks = [mark for each in options if isinstance(mark := each.get("watermark"), Watermark)]
    return _Watched(query, ProgressTracker(plan.mode, watermarks, letters), topics)


def _new_progress(query: RunningQuery, tracker: ProgressTracker) -> list[Mapping[str, Any]]:
    """All batches since the last poll, the oldest first: several may have ended."""
    last = query.progress or {}
    try:
        return _recent(query.query, tracker) if query.query is not None else [last]
    except Exception:  # whatever Py4J raises when the JVM is gone
        logger.debug("cannot read the recent progress of %s", query, exc_info=True)
        return [last]


def _recent(query: StreamingQuery, tracker: ProgressTracker) -> list[Mapping[str, Any]]:
    """`query.recentProgress` reads a hundred; this reads those that are new."""
    java_query = getattr(query, "_jsq", None)
    if java_query is None:  # Spark Connect
        return list(query.recentProgress)
    recent, found = java_query.recentProgress(), []
    for index in range(len(recent) - 1, -1, -1):
        progress = json.loads(recent[index].json())
        if not tracker.is_new(progress):
            break
        found.append(progress)
    return found[::-1]


def _is_stale(query: RunningQuery, age_ms: int) -> bool:
    """Whether topics may have got records since the last progress that no batch has read."""
    if query.state is not State.RUNNING or query.query is None:
        return query.state not in (State.STOPPED, State.FINISHED)
    if age_ms < STALE_MS:
        return False
    try:
        return not query.query.status["message"].startswith(_UP_TO_DATE)
    except Exception:  # the JVM is gone; the supervisor will say so
        return False
