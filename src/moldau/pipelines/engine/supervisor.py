"""Keeps the queries of pipelines running: starts them, watches them, restarts those that fail, ends them.

    STARTING ──▶ RUNNING ◀─▶ RETRYING                    a query that fails is restarted, after a delay that doubles
        │           ├──────▶ FINISHED                    `available now`: all there was has been processed
        │           └──────▶ STOPPED                     `stop()`
        └──────▶ FAILED                                  no restart would help, or `available now` failed five times

One thread polls all queries, because one Python callback per micro-batch and query costs more. Starts, and what
listeners do before a start and for a batch that fails again and again, may take long: each runs in a thread of its own.
What else should happen to queries (progress, checkpoint identity, dead letters) is added by listeners.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.clocks import Clock, monotonic_ms, wall_clock_ms
from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.engine.checkpoints.sharing import read_recorded_queries
from moldau.pipelines.engine.ending import end_after_batch, has_nothing_new, is_over
from moldau.pipelines.engine.internals import WAITING, jvm_process
from moldau.pipelines.engine.queries import QueryPlan, Settings, plan_queries, start_query
from moldau.pipelines.engine.reasons import is_external, is_lasting, reason_of
from moldau.pipelines.model.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

FIRST_DELAY_MS = 1_000
AVAILABLE_NOW_FAILURES = 5  # in a row: whoever waits for the end of such a run is not kept waiting for ever
POISON_FAILURES = 3  # of the same batch, before it is searched for the records at fault
_POLL_S = 0.2
_CALM_POLL_S = 0.5  # a look at a query costs a quarter of a millisecond of CPU, and there may be dozens
_START_TURN_S = 20.0  # a start that takes longer, or hangs, no longer keeps others from starting
_START_GRACE_MS = 30_000  # a query that is still starting so long after it was asked to stop is given up
_PROGRESS_MS = 1_000  # asking for progress costs about a millisecond of CPU


class State(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"  # batches complete, or the sources are reachable and empty
    RETRYING = "RETRYING"  # failed; waits for its next try, or tries
    FAILED = "FAILED"  # needs a person
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"  # `available now`, and all was processed

    @property
    def is_end(self) -> bool:
        return self in (State.FAILED, State.STOPPED, State.FINISHED)


@dataclass(eq=False)
class RunningQuery:
    """A query under supervision. Written by the supervisor alone; everyone may read it."""

    plan: QueryPlan
    settings: Settings
    state: State = State.STARTING
    reason: str = ""  # one sentence: why it is RETRYING or FAILED
    query: StreamingQuery | None = None  # the last one that was started
    restarts: int = 0
    attempt: int = 0  # while RETRYING: the number of the try that is due or runs; 1 for the first after a failure
    next_try_ms: int | None = None  # wall clock; while it waits for that
    since_ms: int = 0  # wall clock: when it got into this state
    failures: int = 0  # of the same batch; those that have nothing to do with its records are not counted
    progress: Mapping[str, Any] | None = None  # Spark's, of the last batch

    @property
    def pipeline(self) -> str:
        return self.plan.pipeline.name

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def checkpoint(self) -> str:
        return self.settings.checkpoint(self.plan.pipeline, self.plan.name)

    def __str__(self) -> str:
        return self.pipeline if self.pipeline == self.name else f"{self.pipeline}.{self.name}"


class Listener:
    """What else happens to queries. Override what you need. Errors are logged, unless the method says otherwise."""

    def before_start(self, spark: SparkSession, query: RunningQuery) -> None:
        """Before each start and restart. A ConfigError fails the query for good; any other error is retried."""

    def admitted(self, spark: SparkSession, query: RunningQuery) -> None:
        """Likewise, but after all checks: its checkpoint fits, and it starts now."""

    def before_batch(self, query: RunningQuery, batch_id: int) -> None:
        """Before a micro-batch is written, also before it is written again. An error fails the query.

        A query costs more with it (`foreachBatch`), so it is called only where a listener overrides it.
        """

    def changed(self, query: RunningQuery) -> None:
        """It has entered another state."""

    def failed_again(self, spark: SparkSession, query: RunningQuery, reason: str) -> bool:
        """The same batch failed three times (then six, twelve, …). True: the cause is removed, restart now."""
        return False

    def polled(self, queries: Sequence[RunningQuery]) -> None:
        """About once a second, and when all have ended."""

    def ended(self, queries: Sequence[RunningQuery]) -> None:
        """All of them have."""


class Supervisor:
    """The queries of these pipelines, in one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Iterable[Pipeline],
        listeners: Sequence[Listener] = (),
        *,
        start: Callable[..., StreamingQuery] = start_query,
        clock: Clock = monotonic_ms,
    ) -> None:
        """Raises ConfigError if the settings of a pipeline cannot be resolved."""
        self._spark = spark
        self._listeners = list(listeners)
        self._clock = clock
        self._starting = threading.Semaphore(os.cpu_count() or 1)
        self._watched = [
            _Watched(RunningQuery(plan, settings))
            for pipeline in pipelines
            for settings in [Settings.of(pipeline)]
            for plan in plan_queries(pipeline, read_recorded_queries(settings.checkpoint(pipeline), spark))
        ]
        self._start_query = start
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moldau-supervisor", daemon=True)
        self._polled_ms = 0
        self._jvm = jvm_process(spark)

    @property
    def queries(self) -> tuple[RunningQuery, ...]:
        return tuple(watched.query for watched in self._watched)

    def add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def start(self) -> None:
        """Returns at once; queries start in the background."""
        self._thread.start()

    def stop(self, pipeline: str | None = None, *, now: bool = False) -> None:
        """End each query (of this pipeline) after the batch it is in, or at once. Returns immediately."""
        chosen = [watched for watched in self._watched if pipeline in (None, watched.query.pipeline)]
        for watched in chosen:
            watched.is_stopping = True
            grace_end_ms = self._clock() + (0 if now else _START_GRACE_MS)
            watched.grace_end_ms = min(grace_end_ms, watched.grace_end_ms or grace_end_ms)
        for watched in chosen if now else ():
            _stop(watched.query)
        self._wake.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until every query has ended. False if some have not when the time is up."""
        return self._ended.wait(timeout_s)

    # What follows runs in the supervisor's thread.

    def _run(self) -> None:
        while True:
            self.tick()
            if all(watched.is_over for watched in self._watched):
                break
            self._wake.wait(_CALM_POLL_S if self._is_calm() else _POLL_S)
            self._wake.clear()
        self._tell(lambda listener: listener.polled(self.queries))
        self._tell(lambda listener: listener.ended(self.queries))
        self._ended.set()

    def _is_calm(self) -> bool:
        """Nothing starts, waits or ends, so it is enough to look less often."""
        return all(watched.is_calm for watched in self._watched)

    def tick(self) -> None:
        """Look at each query once. Called by the supervisor's thread, and by tests in place of it."""
        now = self._clock()
        if self._jvm is not None and self._jvm.poll() is not None:
            self._lost_jvm()
        is_progress_due = now - self._polled_ms >= _PROGRESS_MS
        for watched in self._watched:
            try:
                self._look_at(watched, now, is_progress_due=is_progress_due)
            except Exception as error:
                # The JVM may be gone. Whatever it is, other queries are still looked after.
                logger.debug("cannot look at query %s", watched.query, exc_info=True)
                self._failed(watched, error, now)
        if is_progress_due:
            self._polled_ms = now
            self._tell(lambda listener: listener.polled(self.queries))

    def _lost_jvm(self) -> None:
        """This process cannot have another session. Whoever started it can restart it."""
        for watched in self._watched:
            if not watched.is_over:
                state = State.STOPPED if watched.is_stopping else State.FAILED
                self._enter(watched.query, state, "Spark's JVM has ended: start the pipeline again")

    def _look_at(self, watched: _Watched, now: int, *, is_progress_due: bool) -> None:
        query = watched.query
        if query.state.is_end:
            return
        if watched.job is not None and not watched.job.is_done:
            is_given_up = watched.is_stopping and now >= (watched.grace_end_ms or now)
            if is_given_up and not watched.job.is_search and watched.job.abandon():
                self._enter(query, State.STOPPED, "it was still starting")
            return
        if watched.job is not None:
            job, watched.job = watched.job, None
            self._job_done(watched, job, now)
        elif watched.is_start_due or query.query is None:
            self._start_when_due(watched, now)
        else:
            self._poll(watched, query.query, now, is_progress_due=is_progress_due)

    def _start_when_due(self, watched: _Watched, now: int) -> None:
        if watched.is_stopping:
            self._enter(watched.query, State.STOPPED, watched.query.reason)
        elif now >= watched.due_ms:
            watched.is_start_due = False
            watched.query.next_try_ms = None
            watched.query.restarts += watched.query.state is State.RETRYING
            self._enter(watched.query, watched.query.state, watched.query.reason)
            watched.job = _Job(lambda: self._start_one(watched.query))

    def _start_one(self, query: RunningQuery) -> StreamingQuery:
        with _turn(self._starting):
            if query.state.is_end:
                raise MoldauError("it was stopped before its start")
            for listener in self._listeners:
                listener.before_start(self._spark, query)
            start = self._start_query
            if watchers := [one for one in self._listeners if type(one).before_batch is not Listener.before_batch]:
                start = partial(start, before_batch=lambda batch_id: _announce(watchers, query, batch_id))
            return start(self._spark, query.plan, query.settings, lambda: self._admitted(query))

    def _admitted(self, query: RunningQuery) -> None:
        for listener in self._listeners:
            listener.admitted(self._spark, query)

    def _job_done(self, watched: _Watched, job: _Job, now: int) -> None:
        if job.is_search and job.error is not None and not isinstance(job.error, ConfigError):
            logger.warning("query %s: the records at fault were not found: %s", watched.query, reason_of(job.error))
        elif job.error is not None:
            self._failed(watched, job.error, now)
        elif job.is_search:
            if job.result:
                watched.due_ms, watched.delays, watched.query.failures = now, 0, 0
        else:
            watched.query.query, watched.query.progress = job.result, None
            if watched.is_stopping:
                end_after_batch(job.result)

    def _poll(self, watched: _Watched, spark_query: StreamingQuery, now: int, *, is_progress_due: bool) -> None:
        query = watched.query
        if watched.is_stopping and not watched.is_ending:
            watched.is_ending = True
            end_after_batch(spark_query)
        if is_over(spark_query):
            self._note_progress(watched, spark_query)
            error = spark_query.exception()
            if error is not None and not watched.is_stopping:
                self._failed(watched, error, now)
            else:
                is_asked = watched.is_stopping or not query.settings.is_available_now
                self._enter(query, State.STOPPED if is_asked else State.FINISHED)
        elif is_progress_due or query.state is not State.RUNNING:
            self._note_progress(watched, spark_query)

    def _note_progress(self, watched: _Watched, spark_query: StreamingQuery) -> None:
        query = watched.query
        progress: Mapping[str, Any] | None = spark_query.lastProgress
        if query.state is not State.RUNNING and (progress is not None or _has_asked_sources(spark_query)):
            watched.delays = query.failures = 0
            self._enter(query, State.RUNNING)
        if progress is not None and progress != query.progress:
            query.progress, query.failures = progress, 0

    def _failed(self, watched: _Watched, error: BaseException, now: int) -> None:
        query, reason = watched.query, reason_of(error)
        logger.debug("query %s failed", query, exc_info=error)
        if watched.is_stopping:
            self._enter(query, State.STOPPED, reason)
            return
        if isinstance(error, ConfigError) or is_lasting(error):
            self._enter(query, State.FAILED, reason)
            return
        if query.settings.is_available_now and watched.delays + 1 >= AVAILABLE_NOW_FAILURES:
            self._enter(query, State.FAILED, f"failed {AVAILABLE_NOW_FAILURES} times in a row: {reason}")
            return
        delay_ms = watched.next_delay_ms()
        watched.due_ms, watched.is_start_due = now + delay_ms, True
        query.attempt, query.next_try_ms = watched.delays, wall_clock_ms() + delay_ms
        self._enter(query, State.RETRYING, reason)
        if query.query is not None and not is_external(error):
            query.failures += 1
            if _is_search_due(query.failures):
                watched.job = _Job(lambda: self._search(query, reason), is_search=True)

    def _search(self, query: RunningQuery, reason: str) -> bool:
        return any(listener.failed_again(self._spark, query, reason) for listener in self._listeners)

    def _enter(self, query: RunningQuery, state: State, reason: str = "") -> None:
        if state is not State.RETRYING:
            query.attempt, query.next_try_ms = 0, None
        is_same = query.state is state and query.reason == reason
        query.reason, query.state = reason, state
        if not is_same or not query.since_ms:
            query.since_ms = wall_clock_ms()
            self._tell(lambda listener: listener.changed(query))

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception:
                logger.exception("internal error in %s (please report it)", type(listener).__name__)


class _Job:
    """A start, or a search for bad records, in a thread of its own. A daemon: it may hang when the process ends."""

    def __init__(self, work: Callable[[], Any], *, is_search: bool = False) -> None:
        self.is_search = is_search
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._lock = threading.Lock()
        self._is_finished = self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def abandon(self) -> bool:
        """Nobody waits for this start any longer: should it return, its query is stopped. False: it is done."""
        with self._lock:
            self._is_abandoned = not self._is_finished
            return self._is_abandoned

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # also SystemExit of a user's module
            self.error = error
        with self._lock:
            self._is_finished = True
        if self._is_abandoned and self.result is not None:
            self.result.stop()


@contextmanager
def _turn(turns: threading.Semaphore) -> Iterator[None]:
    """One of the starts that run at the same time, for a while."""
    is_returned = threading.Lock()

    def give_back() -> None:
        if is_returned.acquire(blocking=False):
            turns.release()

    turns.acquire()
    timer = threading.Timer(_START_TURN_S, give_back)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        give_back()


@dataclass(eq=False)
class _Watched:
    """What only the supervisor has to know about a query."""

    query: RunningQuery
    job: _Job | None = None
    is_start_due: bool = True  # at due_ms
    due_ms: int = 0  # by the monotonic clock
    delays: int = 0  # failures in a row
    is_stopping: bool = False  # set by `stop`
    grace_end_ms: int | None = None  # set by `stop`: when a start that has not ended is given up
    is_ending: bool = False  # Spark knows

    @property
    def is_over(self) -> bool:
        return self.query.state.is_end

    @property
    def is_calm(self) -> bool:
        is_brief = self.query.settings.is_available_now
        return self.is_over or (self.query.state is State.RUNNING and not self.is_stopping and not is_brief)

    def next_delay_ms(self) -> int:
        """1 s, then twice as long for each failure in a row."""
        delay_ms = FIRST_DELAY_MS << min(self.delays, 30)
        self.delays += 1
        return min(delay_ms, int(self.query.settings.values["restart delay max"]))


def _announce(listeners: Iterable[Listener], query: RunningQuery, batch_id: int) -> None:
    for listener in listeners:
        listener.before_batch(query, batch_id)


def _is_search_due(failures: int) -> bool:
    """After 3, 6, 12, … failures: a search reads the batch again and again."""
    return failures % POISON_FAILURES == 0 and (failures // POISON_FAILURES).bit_count() == 1


def _has_asked_sources(query: StreamingQuery) -> bool:
    return query.status["message"] in WAITING or has_nothing_new(query)


def _stop(query: RunningQuery) -> None:
    try:
        if query.query is not None:
            query.query.stop()
    except Exception:
        logger.debug("cannot stop query %s", query, exc_info=True)
