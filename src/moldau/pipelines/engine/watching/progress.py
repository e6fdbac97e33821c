"""What a running query does, as numbers: from Spark's progress of each batch to one `QueryProgress`.

`ProgressTracker` adds up the batches of a query, over its restarts. It does no I/O and reads no clock, so it can be
tested with written-down progress. `observer` polls the queries and asks brokers about lag.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from moldau.pipelines.engine.expectations import failed_counts
from moldau.pipelines.engine.queries import OUTPUT
from moldau.pipelines.model.watermark import Watermark
from moldau.spark.source.query_progress import progress_of
from moldau.wire.topic_partition import TopicPartition

HISTORY_MAX = 60
"""Points of a sparkline: a minute, at a poll a second."""
RATE_MS = 5_000
"""Rates are over at least this long: a batch more or less should not matter."""
_POLLS_MAX = 1_000
"""Remembered for the rates of batches that take minutes."""
_QUIET_MS = 10_000
"""Without output for this long, a query says what it waits for."""
_AHEAD_MS = 3_600_000
"""Producers' clocks differ by less."""
_CYCLE_MS = 146_097 * 86_400_000
"""400 years."""
_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_399_000
"""What `datetime` can show in any time zone: without the first and the last day."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A query at one moment. Counts are since the pipeline was started; None: not known."""

    batch_id: int | None = None
    batch_ms: int = 0  # how long the last batch took
    rows_in: int = 0
    rows_out: int | None = 0  # None: the sink does not say
    rows_in_per_second: float = 0.0
    rows_out_per_second: float | None = 0.0
    lag: int | None = None  # records that are there and not yet read; None for sources that are not topics
    lag_seconds: float | None = None  # the age of the oldest of them
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0  # dropped by stateful operators, because the watermark had passed; at least as many
    watermark_ms: int | None = None
    event_time_ms: int | None = None  # the latest that was seen
    failed_expectations: Mapping[str, int] = field(default_factory=dict)  # rows, by the expectation's name
    dead_letters: int = 0  # records that could not be read or processed, and rows that failed such expectations
    last_dead_letter: str = ""  # why the newest record of them is one
    last_output_ms: int | None = None  # when a batch with output ended; wall clock
    waiting: str = ""  # why there is no output, if there is none
    history: tuple[float, ...] = ()  # rows in per second, the newest last

    def to_json(self) -> dict[str, Any]:
        """Without the history."""
        return {name: value for name, value in asdict(self).items() if name != "history"}


class ProgressTracker:
    """Adds up one query's batches."""

    def __init__(
        self, mode: str = "append", watermarks: Iterable[Watermark] = (), dead_letter_expectations: Iterable[str] = ()
    ) -> None:
        self._mode = mode
        self._watermarks = tuple(watermarks)
        self._dead_letter_expectations = frozenset(dead_letter_expectations)
        self._seen: tuple[object, ...] = ()  # identifies the last progress
        self._last: Mapping[str, Any] = {}
        self._rows_in, self._rows_out = 0, 0
        self._counts_output = True
        self._failed: Counter[str] = Counter()
        self._late_rows = 0
        self._event_time_ms: int | None = None
        self._last_output_ms: int | None = None
        self._started_ms: int | None = None
        self._totals: deque[tuple[int, int, int]] = deque(maxlen=_POLLS_MAX)  # monotonic ms, rows in, rows out
        self._history: deque[float] = deque(maxlen=HISTORY_MAX)
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.changed_ms = 0  # when the last new progress came; monotonic

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The first offset of each partition that no completed batch has read."""
        return self._positions

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Where partitions ended when the last batch was planned."""
        return self._ends

    def is_new(self, progress: Mapping[str, Any]) -> bool:
        return _identity(progress) != self._seen

    def add(self, progresses: Iterable[Mapping[str, Any]], now_ms: int, wall_ms: int) -> None:
        """Progress since the last call, the oldest first; what was seen before is left out."""
        fresh = list(progresses)
        known = [index for index, progress in enumerate(fresh) if not self.is_new(progress)]
        for progress in fresh[known[-1] + 1 if known else 0 :]:
            self._add(progress, wall_ms)
            self.changed_ms = now_ms
        self._totals.append((now_ms, self._rows_in, self._rows_out))

    def _add(self, progress: Mapping[str, Any], wall_ms: int) -> None:
        self._seen, self._last = _identity(progress), progress
        self._rows_in += progress.get("numInputRows") or 0
        self._failed.update(failed_counts(progress))
        self._late_rows += sum(each.get("numRowsDroppedByWatermark") or 0 for each in progress["stateOperators"])
        latest = _timestamp_ms((progress.get("eventTime") or {}).get("max"))
        if latest is not None:
            self._event_time_ms = max(latest, self._event_time_ms or latest)
        written = _rows_written(progress)
        self._counts_output = written is not None or not progress.get("numInputRows")
        if written:
            self._rows_out += written
            self._last_output_ms = wall_ms
        where = progress_of("", progress).partitions
        self._positions = {TopicPartition(each.topic, each.partition): each.end for each in where}
        self._ends = {
            TopicPartition(each.topic, each.partition): each.latest for each in where if each.latest is not None
        }

    def poll(
        self, now_ms: int, wall_ms: int, lag: int | None = None, oldest_unread_ms: int | None = None
    ) -> QueryProgress:
        """The query now. Each call adds a point to the history."""
        self._started_ms = wall_ms if self._started_ms is None else self._started_ms
        rate_in, rate_out = self._rates(now_ms)
        self._history.append(rate_in)
        operators = self._last.get("stateOperators") or ()
        return QueryProgress(
            batch_id=self._last.get("batchId"),
            batch_ms=self._last.get("batchDuration") or 0,
            rows_in=self._rows_in,
            rows_out=self._rows_out if self._counts_output else None,
            rows_in_per_second=rate_in,
            rows_out_per_second=rate_out if self._counts_output else None,
            lag=lag,
            lag_seconds=None if oldest_unread_ms is None else max(wall_ms - oldest_unread_ms, 0) / 1000,
            state_rows=rows_in_state(self._last),
            state_bytes=sum(each.get("memoryUsedBytes") or 0 for each in operators),
            late_rows=self._late_rows,
            watermark_ms=self._watermark_ms,
            event_time_ms=self._event_time_ms,
            failed_expectations=dict(self._failed),
            dead_letters=sum(self._failed[name] for name in self._dead_letter_expectations),
            last_output_ms=self._last_output_ms,
            waiting=self._waiting(wall_ms),
            history=tuple(self._history),
        )

    @property
    def _watermark_ms(self) -> int | None:
        """None at Spark's start value, 1970."""
        return _timestamp_ms((self._last.get("eventTime") or {}).get("watermark")) or None

    def _rates(self, now_ms: int) -> tuple[float, float]:
        """Rows a second over the last seconds; over the last two batches, if these take longer."""
        since = now_ms - max(RATE_MS, 2 * (self._last.get("batchDuration") or 0))
        while len(self._totals) > 1 and self._totals[1][0] <= since:
            self._totals.popleft()
        if not self._totals or now_ms <= self._totals[0][0]:
            return 0.0, 0.0
        began_ms, rows_in, rows_out = self._totals[0]
        seconds = (now_ms - began_ms) / 1000
        return (self._rows_in - rows_in) / seconds, (self._rows_out - rows_out) / seconds

    def _waiting(self, wall_ms: int) -> str:
        """Computed from what Spark reports; empty if there was output lately, or it is not known."""
        since = self._last_output_ms if self._last_output_ms is not None else self._started_ms
        if not self._counts_output or not self._last or since is None or wall_ms - since < _QUIET_MS:
            return ""
        head = f"no output since {clock_time(since, wall_ms)}" if self._last_output_ms is not None else "no output yet"
        if not self._rows_in:
            return f"{head}: no rows have come in"
        if not self._last.get("stateOperators"):
            return "" if self._rows_out else f"{head}: none of {self._rows_in:,} rows passed the steps"
        if self._mode != "append" or not self._watermarks:
            return ""
        if (self._watermark_ms or 0) > wall_ms + _AHEAD_MS:
            return (
                f"{head}: the watermark is {clock_time(self._watermark_ms or 0, wall_ms)}, ahead of the clock, because "
                "an event had a later time. Rows with earlier times are too late and are dropped. Keep such events out "
                "with an expectation of the source (drop or dead-letter), then drop the state: reset --to committed"
            )
        if self._event_time_ms is None:
            columns = " or ".join(sorted({each.column for each in self._watermarks}))
            return f"{head}: no row has an event time in {columns}, so there is no watermark"
        if self._watermark_ms is None:
            return f"{head}: the watermark is set when the first batch is done"
        late = f"rows may be {max(each.delay_ms for each in self._watermarks) / 1000:g} s late"
        idle_ms = [each.idle_ms for each in self._watermarks if each.idle_ms is not None]
        if len(idle_ms) == len(self._watermarks):
            late += f", and after {max(idle_ms) / 1000:g} s without rows the clock closes windows"
        return (
            f"{head}: the watermark is {clock_time(self._watermark_ms, wall_ms)}; windows that end later are open, up "
            f"to that of {clock_time(self._event_time_ms, wall_ms)}, the latest event ({late})"
        )


def clock_time(time_ms: int, now_ms: int) -> str:
    """In local time; with the date if it is not today's."""
    if not _FIRST_MS <= time_ms <= _LAST_MS:
        return "a time before the year 1" if time_ms < 0 else "the end of the year 9999 or later"
    time, now = datetime.fromtimestamp(time_ms / 1000), datetime.fromtimestamp(now_ms / 1000)
    return f"{time:%H:%M:%S}" if time.date() == now.date() else f"{time:%Y-%m-%d %H:%M:%S}"


def rows_in_state(progress: Mapping[str, Any]) -> int:
    """That stateful operators keep after a batch."""
    return sum(operator.get("numRowsTotal") or 0 for operator in progress.get("stateOperators") or ())


def _identity(progress: Mapping[str, Any]) -> tuple[object, ...]:
    return str(progress.get("runId")), progress["batchId"], progress["timestamp"]


def _rows_written(progress: Mapping[str, Any]) -> int | None:
    """Spark's count, or what a sink by foreachBatch observed; None if neither is there."""
    written = (progress.get("sink") or {}).get("numOutputRows", -1)
    if written is not None and written >= 0:
        return int(written)
    observed = (progress.get("observedMetrics") or {}).get(OUTPUT)
    return None if observed is None else int(observed["rows"])


def _timestamp_ms(text: str | None) -> int | None:
    """Of ISO 8601, as in Spark's progress. One bad record is enough for a year that Python's `datetime` does not have:
    the calendar repeats itself every 400 years."""
    if text is None:
        return None
    year, rest = text[: (end := text.index("-", 1))], text[end:]
    cycles, year_within = divmod(int(year) - 2000, 400)
    time = datetime.fromisoformat(f"{2000 + year_within}{rest}")
    return round(time.timestamp() * 1000) + cycles * _CYCLE_MS
