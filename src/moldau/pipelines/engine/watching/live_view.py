"""What running pipelines show: a live table in a terminal, plain lines in a pipe, JSON lines for programs.

    with open_view(sys.stdout) as view:
        run.observer.add_show(view.show)

`show` takes a snapshot of all queries, about once a second.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, NamedTuple

from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.observer import QuerySnapshot, Snapshot
from moldau.pipelines.engine.watching.progress import clock_time
from moldau.pipelines.engine.watching.short_text import short, short_bytes, short_seconds, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_EVERY_MS = 5_000
"""Between two plain lines of a query whose state stays the same."""
JSON_EVERY_MS = 1_000
WIDE = 110
"""Columns of a terminal from which the table has all of its own."""

_STYLES = {
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.RETRYING: "bold yellow",
    State.FAILED: "bold red",
    State.STOPPED: "dim",
    State.FINISHED: "blue",
}
_CELL = 5  # characters of a number
_NOTES_MIN = 3


class View(ABC):
    @abstractmethod
    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """The last snapshot was shown."""


@contextmanager
def open_view(stream: IO[str], *, as_json: bool = False) -> Iterator[View]:
    """For people at a terminal a table, in a pipe plain lines."""
    view: View
    if as_json:
        view = JsonLines(stream)
    elif stream.isatty():
        from rich.console import Console

        view = LiveTable(Console(file=stream))
    else:
        view = PlainLines(stream)
    try:
        yield view
    finally:
        view.close()


class Lines(View):
    """A line per query when something happened to it, but not too often."""

    def __init__(self, stream: IO[str], every_ms: int) -> None:
        self._stream = stream
        self._every_ms = every_ms
        self._printed: dict[str, tuple[int, QuerySnapshot]] = {}
        self._last: Snapshot | None = None
        self.is_lost = False  # nobody reads any more, as with `| head` or when the terminal was closed

    @abstractmethod
    def line(self, query: QuerySnapshot, time_ms: int) -> str: ...

    def lines(self, queries: Sequence[QuerySnapshot], time_ms: int) -> Iterator[str]:
        """Of those to which something happened."""
        return (self.line(query, time_ms) for query in queries)

    def happened(self, query: QuerySnapshot) -> tuple[object, ...]:
        """What makes a new line worth reading."""
        return _happened(query)

    def show(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._print_all(snapshot, self._every_ms)

    def close(self) -> None:
        if self._last is not None:
            self._print_all(self._last, 0)

    def _print_all(self, snapshot: Snapshot, every_ms: int) -> None:
        try:
            if not self.is_lost:
                self._print(snapshot, every_ms)
        except OSError:
            self.is_lost = True

    def _print(self, snapshot: Snapshot, every_ms: int) -> None:
        due = [query for query in snapshot.queries if self._is_due(query, snapshot.time_ms, every_ms)]
        for line in self.lines(due, snapshot.time_ms):
            print(line, file=self._stream, flush=True)
        self._printed |= {query.name: (snapshot.time_ms, query) for query in due}

    def _is_due(self, query: QuerySnapshot, time_ms: int, every_ms: int) -> bool:
        printed_ms, printed = self._printed.get(query.name, (0, None))
        if printed is None or _state(query) != _state(printed):
            return True
        is_news = not query.state.is_end and self.happened(query) != self.happened(printed)
        return is_news and time_ms - printed_ms >= every_ms


class PlainLines(Lines):
    def __init__(self, stream: IO[str], every_ms: int = LINE_EVERY_MS) -> None:
        super().__init__(stream, every_ms)

    def lines(self, queries: Sequence[QuerySnapshot], time_ms: int) -> Iterator[str]:
        """One for all queries of a pipeline that have the same trouble. A reason is told once."""
        yield from (self.line(query, time_ms) for query in queries if not query.reason)
        for names, query in _in_trouble(queries):
            told = [name for name, (_, one) in self._printed.items() if _trouble_key(one) == _trouble_key(query)]
            why = f"as {told[0]}" if told else _trouble(query, time_ms)
            yield f"{clock_time(time_ms, time_ms)} {names} {query.state}: {why}"

    def happened(self, query: QuerySnapshot) -> tuple[object, ...]:
        return _state(query) if query.reason else _happened(query)

    def line(self, query: QuerySnapshot, time_ms: int) -> str:
        progress = query.progress
        head = f"{clock_time(time_ms, time_ms)} {query.name} {query.state}"
        words = [head]
        if progress.batch_id is not None:
            words.append(f"{_rows(progress.rows_in)} in ({short(progress.rows_in_per_second)}/s)")
            if progress.rows_out is not None:
                words.append(f"{progress.rows_out:,} out ({short(progress.rows_out_per_second)}/s)")
            if progress.lag is not None:
                behind = f" ({short_seconds(progress.lag_seconds)})" if progress.lag_seconds is not None else ""
                words.append(f"lag {progress.lag:,}{behind}")
            words.append(f"batch {progress.batch_id} in {progress.batch_ms:,} ms")
            if progress.state_rows:
                words.append(f"state {_rows(progress.state_rows)}, {short_bytes(progress.state_bytes)}")
            if progress.watermark_ms is not None:
                words.append(f"watermark {clock_time(progress.watermark_ms, time_ms)}")
            words += _complaints(query)
        return " · ".join(words)


class JsonLines(Lines):
    def __init__(self, stream: IO[str], every_ms: int = JSON_EVERY_MS) -> None:
        super().__init__(stream, every_ms)

    def line(self, query: QuerySnapshot, time_ms: int) -> str:
        time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time.replace("+00:00", "Z"), **query.to_json()}, ensure_ascii=False)


def _watermark(query: QuerySnapshot, now_ms: int) -> str:
    watermark = query.progress.watermark_ms
    if watermark is None:
        return "-"
    text = clock_time(watermark, now_ms)
    return text if len(text) == len("00:00:00") else text[: len("2026-01-01")]


def _batch_s(query: QuerySnapshot) -> float | None:
    return query.progress.batch_ms / 1000 if query.progress.batch_id is not None else None


class Column(NamedTuple):
    title: str
    cell: Callable[[QuerySnapshot, int], str]
    is_wide: bool = False  # only where there is room


COLUMNS: Sequence[Column] = (
    Column("in/s", lambda query, _: short(query.progress.rows_in_per_second)),
    Column("out/s", lambda query, _: short(query.progress.rows_out_per_second)),
    Column("lag", lambda query, _: short(query.progress.lag)),
    Column("lag s", lambda query, _: short_seconds(query.progress.lag_seconds)),
    Column("batch", lambda query, _: short_seconds(_batch_s(query))),
    Column("state", lambda query, _: short(query.progress.state_rows or None)),
    Column("bytes", lambda query, _: short_bytes(query.progress.state_bytes or None), is_wide=True),
    Column("watermark", _watermark),
    Column("dead", lambda query, _: short(query.progress.dead_letters or None)),
    Column("restarts", lambda query, _: short(query.restarts or None), is_wide=True),
)


class LiveTable(View):
    def __init__(self, console: Console, above: Callable[[], RenderableType] | None = None) -> None:
        """`above` makes something to show above the table, at each update."""
        from rich.live import Live

        self._console = console
        self._above = above
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        from rich.console import Group

        parts = [self._above()] if self._above is not None else []
        with suppress(OSError):  # the terminal was closed; the pipelines end after their batches
            self._live.update(Group(*parts, table(snapshot, self._console)), refresh=True)

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()


def table(snapshot: Snapshot, console: Console) -> RenderableType:
    """A row per query, and below what is wrong or waited for."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    notes = list(_notes(snapshot))
    room = console.height - 2  # for rows and notes; a few notes are always shown
    shown, left_out = _most_important(snapshot.queries, max(room - min(len(notes), _NOTES_MIN), _NOTES_MIN))
    notes = notes[: max(room - len(shown) - 1, _NOTES_MIN)]
    cells = {column.title: [column.cell(query, snapshot.time_ms) for query in shown] for column in COLUMNS}
    is_wide = console.width >= WIDE
    columns = [column for column in COLUMNS if is_wide or (not column.is_wide and set(cells[column.title]) != {"-"})]
    names = [_name(query, snapshot) for query in shown]
    bars = 15 if is_wide else 8
    taken = sum(max(_CELL, len(column.title)) + 1 for column in columns) + len("RETRYING") + 1 + bars + 1
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    width = max(min(max(map(len, names), default=0), console.width - taken), len("query"))
    grid.add_column("query", no_wrap=True, overflow="ellipsis", width=width)
    grid.add_column("status", no_wrap=True, width=len("RETRYING"))
    for column in columns:
        grid.add_column(column.title, justify="right", no_wrap=True, min_width=_CELL)
    grid.add_column("", no_wrap=True, width=bars)
    for row, query in enumerate(shown):
        own = [cells[column.title][row] for column in columns]
        line = Text(sparkline(query.progress.history, bars), "green")
        grid.add_row(names[row], Text(query.state, _STYLES[query.state]), *own, line)
    more = [Text(f"… and {left_out} more queries", "dim")] if left_out else []
    return Group(grid, *more, *(Text(text, style) for text, style in notes))


def _most_important(queries: Sequence[QuerySnapshot], room: int) -> tuple[Sequence[QuerySnapshot], int]:
    """Those in trouble, then the busiest, in the order of the files; and how many are left out."""
    if len(queries) <= room:
        return queries, 0
    ranked = sorted(queries, key=lambda query: (not query.reason, -query.progress.rows_in_per_second))
    kept = {id(query) for query in ranked[: room - 1]}
    return [query for query in queries if id(query) in kept], len(queries) - len(kept)


def _name(query: QuerySnapshot, snapshot: Snapshot) -> str:
    is_only_pipeline = len({each.pipeline for each in snapshot.queries}) == 1
    return query.query if is_only_pipeline else query.name


def _notes(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Lines below the table with their styles, the worst first."""
    for names, query in _in_trouble(snapshot.queries):
        yield f"{names} {query.state}: {_trouble(query, snapshot.time_ms)}", _STYLES[query.state]
    for query in snapshot.queries:
        if not query.reason and (complaints := _complaints(query)):
            yield f"{query.name}: {' · '.join(complaints)}", "dim"


def _in_trouble(queries: Sequence[QuerySnapshot]) -> Iterator[tuple[str, QuerySnapshot]]:
    """Queries of a pipeline with the same trouble together: their names and the first of them."""
    groups: dict[tuple[object, ...], list[QuerySnapshot]] = {}
    for query in queries:
        if query.reason:
            groups.setdefault(_trouble_key(query), []).append(query)
    return ((", ".join(query.name for query in group), group[0]) for group in groups.values())


def _trouble_key(query: QuerySnapshot) -> tuple[object, ...]:
    return query.pipeline, *_state(query)


def _trouble(query: QuerySnapshot, now_ms: int) -> str:
    if not query.attempt:
        return query.reason
    when = "" if query.next_try_ms is None else f" at {clock_time(query.next_try_ms, now_ms)}"
    return f"attempt {query.attempt}{when}: {query.reason}"


def _complaints(query: QuerySnapshot) -> list[str]:
    progress = query.progress
    words = [f"{_rows(count)} failed {name}" for name, count in progress.failed_expectations.items() if count]
    if progress.last_dead_letter:
        count = progress.dead_letters
        words.append(f"{count:,} dead letter{'s' * (count > 1)}, the last: {progress.last_dead_letter}")
    if progress.late_rows:
        words.append(f"at least {_rows(progress.late_rows)} came too late")
    if progress.waiting and query.state is State.RUNNING:
        words.append(progress.waiting)
    return words


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _state(query: QuerySnapshot) -> tuple[object, ...]:
    return query.state, query.reason


def _happened(query: QuerySnapshot) -> tuple[object, ...]:
    """Not the number of a batch: Spark counts on while it waits."""
    progress = query.progress
    return (
        *_state(query),
        query.restarts,
        query.attempt,
        progress.rows_in,
        progress.rows_out,
        progress.watermark_ms,
        progress.dead_letters,
        bool(progress.lag),
        bool(progress.waiting),
    )
