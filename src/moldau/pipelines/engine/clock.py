"""A quiet source still flushes: event time moves on with the clock, so that open windows are emitted.

Spark moves the watermark when rows come. Without rows the last windows, sessions and joins would wait forever. So when
a source was reachable and had nothing new for `Watermark.idle_ms`, its watermark grows as time passes, and Spark emits
what it passes in batches without rows.

    watermark of a source = the last one its rows gave it + the time since then
    watermark of a query  = the least of its sources; a quiet source that never had a row does not count

Nothing is added to the query for that: the watermark is set in Spark's tracker (internals of Spark, by py4j).
Spark writes it to its offset log with the batch that uses it, so a repeated batch has the same one. Pipelines without
state do not pay at all, and those with state only while there is some: then a batch about every `idle_ms`, less often
the longer the source is quiet.

Rows that come back after a pause are late only if they are older than the delay of the watermark, as always: in the
first batch that has a new watermark Spark drops rows by the one before.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.clocks import Clock, monotonic_ms, wall_clock_ms
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog, LoggedBatch
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.internals import WAITING, items, stream_execution
from moldau.pipelines.engine.queries import QueryPlan, source_values
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State
from moldau.pipelines.engine.watching.progress import rows_in_state
from moldau.pipelines.model.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

# Between two batches is a pause: a twentieth of the time that the source has been quiet, from idle_ms to 5 minutes.
_STEP_PART = 20
_STEP_MS_MAX = 300_000
_LOCK_S = 5  # Spark holds the lock while it asks the sources for new rows; when it takes longer, one is away
_IN_A_BATCH = ("Processing new data", "No new data but cleaning up state")


def move_watermark(query: StreamingQuery, target: Callable[[bool], int | None]) -> int | None:
    """Set the watermark for the next batch, which Spark then runs, with or without rows. It never goes back.

    `target` is asked when Spark can take it, and told whether a batch is running. Waits for Spark, which may be asking
    a source for new rows. Returns the new watermark, or None if it was not moved.
    """
    from pyspark import SparkContext

    execution = stream_execution(query)
    last = execution.lastExecution()
    if last is None:
        return None  # only after a batch of its own does Spark look at the watermark
    jvm: Any = SparkContext._jvm
    lock, tracker = execution.awaitProgressLock(), execution.watermarkTracker()
    if not lock.tryLock(_LOCK_S, jvm.java.util.concurrent.TimeUnit.SECONDS):
        return None  # the source does not answer
    try:
        message = query.status["message"]
        is_in_batch = message in _IN_A_BATCH
        watermark_ms = target(is_in_batch) if is_in_batch or message in WAITING else None
        if watermark_ms is None or watermark_ms <= tracker.currentWatermark():
            return None
        if not is_in_batch:
            # Spark has already computed what the next batch would be with the old watermark.
            last.watermarkPropagator().purge(execution.getLatestExecutionContext().batchId())
        tracker.setWatermark(watermark_ms)
        return watermark_ms
    finally:
        lock.unlock()


class QuietSources(Listener):
    """Moves the watermarks of running queries whose sources are quiet."""

    def __init__(self, clock: Clock = monotonic_ms, wall_clock: Clock = wall_clock_ms) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._quiet: dict[RunningQuery, _QueryClock | None] = {}
        self._last_batches: dict[RunningQuery, LoggedBatch] = {}

    def admitted(self, spark: SparkSession, query: RunningQuery) -> None:
        self._quiet.pop(query, None)
        log = CheckpointLog(open_folder(query.checkpoint, spark))
        last = log.last_batch
        if last is None or not log.has_state or not idle_watermarks(query.plan):
            return
        self._last_batches[query] = last
        log.add_empty_batch(spark)

    def polled(self, queries: Sequence[RunningQuery]) -> None:
        for query in queries:
            if query.state is not State.RUNNING or query.query is None or query.progress is None:
                continue
            if not rows_in_state(query.progress) or query.settings.is_available_now:
                continue
            try:
                self._tick(query, query.query, query.progress)
            except Exception:
                self._give_up(query)

    def _tick(self, query: RunningQuery, spark_query: StreamingQuery, progress: Mapping[str, Any]) -> None:
        now = self._clock()
        if query not in self._quiet:
            last = self._last_batches.pop(query, None)
            paused_ms = max(self._wall_clock() - last.timestamp_ms, 0) if last else 0
            self._quiet[query] = _QueryClock.of(query, spark_query, now - paused_ms, last.offsets if last else {})
        clock = self._quiet[query]
        if clock is not None and clock.is_due(progress, now):
            # It may have to wait, and others must not wait for it.
            threading.Thread(target=self._move, args=(query, spark_query, clock), daemon=True).start()

    def _move(self, query: RunningQuery, spark_query: StreamingQuery, clock: _QueryClock) -> None:
        try:
            moved = clock.move(spark_query, self._clock)
        except Exception:
            if spark_query.isActive:
                self._give_up(query)
            return
        if moved is not None:
            logger.debug("query %s is quiet: its watermark moves to %d", query, moved)

    def _give_up(self, query: RunningQuery) -> None:
        logger.warning("query %s: its watermark cannot move with the clock", query, exc_info=True)
        self._quiet[query] = None


@dataclass
class _Source:
    name: str
    description: str  # by which Spark's progress calls it
    watermark: Watermark | None
    hold_ms: int  # how long rows may be there before Spark reads them
    since_ms: int  # when the last row came
    end: Any  # offset
    quiet_from_ms: int | None = None  # since then it was reachable and had nothing new

    def is_quiet(self, now: int) -> bool:
        idle_ms = self.watermark.idle_ms if self.watermark else None
        if idle_ms is None or self.quiet_from_ms is None:
            return False
        return now - self.quiet_from_ms >= idle_ms + self.hold_ms


@dataclass
class _QueryClock:
    """When the sources of one query last had rows, and what its watermark is by now."""

    sources: list[_Source]
    operators: Mapping[str, str]  # id of a watermark in Spark's plan → source
    first_watermark_ms: int  # when the query started
    batch_id: int = -1
    batch_ms: int = 0  # when it was first seen
    moved_ms: int = 0
    is_moving: bool = False

    @classmethod
    def of(
        cls, query: RunningQuery, spark_query: StreamingQuery, since_ms: int, ends: Mapping[str, str]
    ) -> _QueryClock | None:
        """`ends` were the offsets at `since_ms`. None if no clock is wanted, or Spark is out of reach."""
        watermarks = idle_watermarks(query.plan)
        if not watermarks or not _is_reachable(spark_query):
            return None
        execution = stream_execution(spark_query)
        trigger_ms = query.settings.values.get("trigger") or 0
        sources = []
        for source in query.plan.sources:
            options = source_values(query.plan.pipeline, source)
            hold_ms = trigger_ms + connector(source.connector, query.plan.pipeline.folder).hold_ms(options)
            found = execution.sourceIdMap().get(source.name)
            if found.isDefined():
                description, watermark = found.get().toString(), options.get("watermark")
                end = _offset(ends.get(source.name))
                sources.append(_Source(source.name, description, watermark, hold_ms, since_ms, end=end))
        operators = _watermark_operators(execution, [source.name for source in sources])
        return cls(sources, operators, execution.watermarkTracker().currentWatermark())

    def is_due(self, progress: Mapping[str, Any], now: int) -> bool:
        self._note(progress, now)
        quiet = [source for source in self.sources if source.is_quiet(now)]
        return bool(quiet) and not self.is_moving and now >= self._next_move_ms(quiet, now)

    def move(self, spark_query: StreamingQuery, clock: Clock) -> int | None:
        """The new watermark, if it was moved."""
        self.is_moving = True
        try:
            moved = move_watermark(
                spark_query,
                # While a batch runs, nobody asks the sources whether they have new rows.
                lambda is_in_batch: self._target(_marks(spark_query), self.batch_ms if is_in_batch else clock()),
            )
            self.moved_ms = clock()
            return moved
        finally:
            self.is_moving = False

    def _note(self, progress: Mapping[str, Any], now: int) -> None:
        ends = {source["description"]: _offset(source.get("endOffset")) for source in progress.get("sources", ())}
        for source in self.sources:
            if source.end != (end := ends.get(source.description)):
                source.end, source.since_ms, source.quiet_from_ms = end, now, now
            source.quiet_from_ms = now if source.quiet_from_ms is None else source.quiet_from_ms
        if progress.get("batchId") != self.batch_id:
            self.batch_id, self.batch_ms = progress.get("batchId", -1), now

    def _next_move_ms(self, quiet: Sequence[_Source], now: int) -> int:
        step_ms = min(
            max(source.watermark.idle_ms or 0, min((now - source.since_ms) // _STEP_PART, _STEP_MS_MAX))
            for source in quiet
            if source.watermark
        )
        return self.moved_ms + step_ms if self.moved_ms else now

    def _target(self, marks: Mapping[str, int | None], now: int) -> int | None:
        by_name = {source.name: source for source in self.sources}
        found = []
        for operator, mark in marks.items():
            source = by_name.get(self.operators.get(operator, ""))
            base = max(mark or 0, self.first_watermark_ms)
            is_quiet = source is not None and source.is_quiet(now)
            if source is not None and is_quiet and base:
                found.append(base + max(now - source.since_ms - source.hold_ms, 0))
            elif not is_quiet:
                found.append(base)
        return min(found, default=None)


def idle_watermarks(plan: QueryPlan) -> dict[str, Watermark]:
    """By source, those that move with the clock."""
    options = {source.name: source_values(plan.pipeline, source) for source in plan.sources}
    marks = {name: values.get("watermark") for name, values in options.items()}
    return {name: mark for name, mark in marks.items() if isinstance(mark, Watermark) and mark.idle_ms is not None}


def _is_reachable(query: StreamingQuery) -> bool:
    """The lock belongs to a thread of Java, so each thread here must have one of its own there."""
    from pyspark import SparkContext

    return hasattr(query, "_jsq") and type(SparkContext._gateway).__name__ == "ClientServer"


def _marks(query: StreamingQuery) -> dict[str, int | None]:
    """The watermark that its rows gave each operator, by the operator's id."""
    found = stream_execution(query).watermarkTracker().watermarkMap()
    return {str(pair._1()): pair._2().get() if pair._2().isDefined() else None for pair in items(found)}


def _watermark_operators(execution: Any, names: Sequence[str]) -> dict[str, str]:
    """The source that each watermark of Spark's plan belongs to; a watermark over several belongs to none."""
    found: dict[str, str] = {}

    def walk(node: Any) -> set[str]:
        kind = node.getClass().getSimpleName()
        if kind == "StreamingDataSourceV2ScanRelation":
            return _names(node.relation().sourceIdentifyingName())
        if kind == "StreamingExecutionRelation":
            return _names(node.sourceIdentifyingName())
        below = set[str]().union(*(walk(child) for child in items(node.children())))
        if kind == "EventTimeWatermark" and len(below) == 1:
            found[str(node.nodeId())] = next(iter(below))
        return below

    if len(names) > 1:
        walk(execution.logicalPlan())
        return found
    marks = execution.watermarkTracker().watermarkMap()
    return {str(pair._1()): names[0] for pair in items(marks)} if names else {}


def _offset(value: Any) -> Any:
    """Spark's progress has offsets as text."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def _names(identifying: Any) -> set[str]:
    name = identifying.nameOpt()
    return {name.get()} if name.isDefined() else set()
