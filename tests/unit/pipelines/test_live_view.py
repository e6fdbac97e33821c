"""The table, the plain lines and the JSON lines of running pipelines."""

from __future__ import annotations

import io
import json
import pty
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.live_view import JsonLines, LiveTable, PlainLines, open_view, table
from moldau.pipelines.engine.watching.observer import QuerySnapshot, Snapshot
from moldau.pipelines.engine.watching.progress import QueryProgress
from moldau.pipelines.engine.watching.short_text import short, short_bytes, short_seconds, sparkline

NOW = 1_767_225_900_000
BUSY = QueryProgress(
    batch_id=7,
    batch_ms=850,
    rows_in=10_000,
    rows_out=200,
    rows_in_per_second=1234.5,
    rows_out_per_second=61.2,
    lag=120_500,
    lag_seconds=12.3,
    state_rows=15_300,
    state_bytes=5_112_000,
    late_rows=3,
    watermark_ms=NOW - 60_000,
    failed_expectations={"has_page": 4, "is_new": 0},
    dead_letters=4,
    history=tuple(range(60)),
)
RUNNING = QuerySnapshot("shop", "page_counts", State.RUNNING, progress=BUSY)
RETRYING = QuerySnapshot("shop", "copies", State.RETRYING, "the broker at localhost:9092 is away", 2, NOW + 4000, 2)
FAILED = QuerySnapshot("shop", "a_name_that_is_much_longer_than_any_column", State.FAILED, "no column 'page'")


def lines(*queries: QuerySnapshot, width: int = 120, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(table(Snapshot(NOW, queries), console))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_cuts_no_number(width: int) -> None:
    shown = lines(RUNNING, RETRYING, FAILED, width=width)
    assert max(map(len, shown)) <= width
    assert re.search(r" RUNNING +1\.2k +61 +120k +12s 850ms +15k ", shown[1])
    assert "…" not in shown[0]
    assert "█" in shown[1]
    assert re.search(r" 4 ", shown[1])


def test_reasons_are_below_the_table() -> None:
    text = "\n".join(lines(RUNNING, RETRYING, FAILED))
    assert re.search(r"^shop\.copies RETRYING: attempt 2 at \d\d:\d\d:\d\d: the broker at localhost:9092", text, re.M)
    assert "much_longer_than_any_column FAILED: no column 'page'" in text
    assert "shop.page_counts: 4 rows failed has_page · at least 3 rows came too late" in text


def test_states_have_colours() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(table(Snapshot(NOW, (RUNNING, FAILED)), console))
    assert "\x1b[32mRUNNING" in captured.get()
    assert "\x1b[1;31mFAILED" in captured.get()


def test_queries_of_several_pipelines_have_their_full_names() -> None:
    assert lines(RUNNING)[1].startswith("page_counts ")
    other = replace(RUNNING, pipeline="other")
    assert [line.split(" ", 1)[0] for line in lines(RUNNING, other)[1:3]] == ["shop.page_counts", "other.page_counts"]


def test_what_has_no_room_is_counted_and_trouble_is_shown_first() -> None:
    many = [replace(RUNNING, query=f"q{number}") for number in range(50)]
    shown = lines(*many, RETRYING, height=12)
    assert len(shown) <= 12
    assert any(line.startswith("copies") for line in shown)
    assert any(re.fullmatch(r"… and \d+ more queries *", line) for line in shown)


def at(second: int, **changes: Any) -> Snapshot:
    own = {name: changes.pop(name) for name in ("state", "reason") if name in changes}
    return Snapshot(NOW + second * 1000, (replace(RUNNING, progress=replace(BUSY, **changes), **own),))


def test_plain_lines_come_when_something_happened_but_not_too_often() -> None:
    out = io.StringIO()
    view = PlainLines(out, every_ms=5_000)
    view.show(at(0))
    view.show(at(1, rows_in=10_100))
    view.show(at(2, rows_in=10_200))
    assert len(out.getvalue().splitlines()) == 1
    view.show(at(6, rows_in=10_300))
    view.show(at(12, rows_in=10_300))
    assert len(out.getvalue().splitlines()) == 2
    view.show(at(13, rows_in=10_300, state=State.RETRYING, reason="no broker"))
    view.show(at(14, rows_in=10_300))
    view.show(at(15, rows_in=10_400))
    view.close()
    shown = out.getvalue().splitlines()
    assert len(shown) == 5
    assert "10,000 rows in (1.2k/s) · 200 out (61/s) · lag 120,500 (12s) · batch 7 in 850 ms" in shown[0]
    assert shown[2].endswith("shop.page_counts RETRYING: no broker")
    assert "10,400 rows in" in shown[4]


def test_json_lines_have_every_number() -> None:
    out = io.StringIO()
    view = JsonLines(out)
    view.show(at(0))
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert line["time"] == "2026-01-01T00:05:00.000Z"
    assert (line["pipeline"], line["query"], line["state"]) == ("shop", "page_counts", "RUNNING")
    assert (line["lag"], line["lag_seconds"], line["failed_expectations"]) == (
        120_500,
        12.3,
        {"has_page": 4, "is_new": 0},
    )


def test_a_reason_is_told_once_for_all_queries_of_a_pipeline() -> None:
    out = io.StringIO()
    view = PlainLines(out, every_ms=0)
    both = tuple(replace(RETRYING, query=query) for query in ("a", "b"))
    view.show(Snapshot(NOW, both))
    view.show(Snapshot(NOW + 4_000, tuple(replace(query, next_try_ms=None) for query in both)))
    again = tuple(replace(query, attempt=3, restarts=3, next_try_ms=NOW + 9_000) for query in both)
    view.show(Snapshot(NOW + 5_000, (*again, replace(RETRYING, query="c"))))
    shown = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert [re.sub(r"\d\d:\d\d:\d\d", "…", line) for line in shown] == [
        "shop.a, shop.b RETRYING: attempt 2 at …: the broker at localhost:9092 is away",
        "shop.c RETRYING: as shop.a",
    ]
    notes = [line for line in lines(*both) if "away" in line]
    assert len(notes) == 1
    assert notes[0].startswith("shop.a, shop.b RETRYING: attempt 2 at")


def test_the_end_of_a_query_is_told_once() -> None:
    out = io.StringIO()
    view = PlainLines(out)
    view.show(at(0, state=State.FINISHED, rows_in=1))
    view.show(at(9, state=State.FINISHED, rows_in=1, lag=0, waiting="for nothing"))
    view.close()
    (line,) = out.getvalue().splitlines()
    assert "FINISHED · 1 row in" in line


class Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_is_no_error() -> None:
    view = PlainLines(Gone())
    view.show(at(0))
    view.close()
    assert view.is_lost


def test_a_terminal_gets_the_table_and_a_pipe_lines() -> None:
    with open_view(io.StringIO()) as view:
        assert isinstance(view, PlainLines)
    with open_view(io.StringIO(), as_json=True) as view:
        assert isinstance(view, JsonLines)
    reading, writing = pty.openpty()
    with open(writing, "w") as terminal, open(reading, "rb"), open_view(terminal) as view:
        assert isinstance(view, LiveTable)
        view.show(at(0))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (9.94, "9.9"), (61.2, "61"), (999, "999"), (999.6, "1.0k"), (1234, "1.2k"),
     (99_900, "100k"), (999_600, "1.0M"), (12_345_678, "12M")],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_sizes_and_times_are_short() -> None:
    assert [short_bytes(size) for size in (512, 2048, 5_112_000)] == ["512B", "2.0KB", "4.9MB"]
    times = [0.012, 0.9999, 1.23, 45, 600, 7200, 864_000]
    assert [short_seconds(each) for each in times] == ["12ms", "1.0s", "1.2s", "45s", "10min", "2h", "10d"]
    assert max(len(short_seconds(10**power / 7)) for power in range(-3, 8)) <= 5


def test_sparklines_scale_to_the_highest_value() -> None:
    assert sparkline((0, 50, 100), 8) == "▁▅█"
    assert sparkline((0, 0), 8) == "▁▁"
    assert sparkline(range(100), 4) == "████"
    assert sparkline((), 4) == ""
