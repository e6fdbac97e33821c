"""Spark's progress, batch by batch, as the numbers that people look at."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.pipelines.engine.queries import OUTPUT
from moldau.pipelines.engine.watching.progress import HISTORY_MAX, ProgressTracker, QueryProgress, clock_time
from moldau.pipelines.model.watermark import Watermark
from moldau.wire.topic_partition import TopicPartition
from tests.unit.pipelines.progresses import batch, topic_source

NOW = 1_767_225_900_000  # 2026-01-01T00:05:00Z
STATE = {"numRowsTotal": 5, "memoryUsedBytes": 700, "numRowsDroppedByWatermark": 2}


def after(tracker: ProgressTracker, *batches: dict[str, Any], seconds: int = 0) -> QueryProgress:
    """The first poll is at second 0, without any batch."""
    tracker.add((), 0, NOW)
    tracker.poll(0, NOW)
    tracker.add(batches, seconds * 1000, NOW + seconds * 1000)
    return tracker.poll(seconds * 1000, NOW + seconds * 1000)


def test_before_the_first_batch_nothing_is_claimed() -> None:
    assert ProgressTracker().poll(0, NOW) == QueryProgress(history=(0.0,))


def test_rows_of_all_batches_since_the_last_poll_are_added_once() -> None:
    tracker = ProgressTracker()
    first = after(tracker, batch(0, 100, 10), batch(1, 200, 20), seconds=2)
    assert (first.rows_in, first.rows_out, first.batch_id, first.batch_ms) == (300, 30, 1, 250)
    assert (first.rows_in_per_second, first.rows_out_per_second) == (150, 15)
    tracker.add([batch(0, 100, 10), batch(1, 200, 20), batch(2, 7, 1)], 3000, NOW)
    assert (tracker.poll(3000, NOW).rows_in, tracker.poll(3000, NOW).rows_out) == (307, 31)


def test_counts_go_on_after_a_restart_which_repeats_the_number_of_a_batch() -> None:
    tracker = ProgressTracker()
    after(tracker, batch(0, 100, 10), seconds=1)
    tracker.add([batch(0, 100, 10, run="second")], 2000, NOW)
    assert tracker.poll(2000, NOW).rows_in == 200


def test_rates_fall_to_zero_when_nothing_comes_and_hold_through_a_long_batch() -> None:
    short, long = ProgressTracker(), ProgressTracker()
    after(short, batch(0, 1000, 1000), seconds=1)
    after(long, batch(0, 1000, 1000, batchDuration=20_000), seconds=20)
    for tracker, start in ((short, 1), (long, 20)):
        for second in range(start + 1, start + 11):
            tracker.add((), second * 1000, NOW)
            found = tracker.poll(second * 1000, NOW)
        assert found.rows_in_per_second == (0 if tracker is short else pytest.approx(1000 / 30))


def test_the_history_is_bounded() -> None:
    tracker = ProgressTracker()
    for second in range(3 * HISTORY_MAX):
        tracker.add([batch(second, 10, 10)], second * 1000, NOW)
        found = tracker.poll(second * 1000, NOW)
    assert len(found.history) == HISTORY_MAX
    assert found.history[-1] == pytest.approx(10)


def test_rows_of_a_sink_by_foreach_batch_are_those_it_observed() -> None:
    observed = {OUTPUT: {"rows": 3}}
    assert after(ProgressTracker(), batch(0, 10, None, observedMetrics=observed)).rows_out == 3


def test_output_that_nobody_counts_is_unknown_and_not_zero() -> None:
    found = after(ProgressTracker(), batch(0, 10, None), seconds=60)
    assert (found.rows_out, found.rows_out_per_second, found.waiting) == (None, None, "")


def test_rows_that_fail_expectations_are_counted_by_name() -> None:
    tracker = ProgressTracker(dead_letter_expectations=["has_page"])
    first = {"expect:has_page": {"failed": 2}, "expect:is_new": {"failed": 5}}
    second = {"expect:has_page": {"failed": 1}, "expect:is_new": {"failed": None}}
    found = after(tracker, batch(0, 10, 10, observedMetrics=first), batch(1, 10, 10, observedMetrics=second))
    assert found.failed_expectations == {"has_page": 3, "is_new": 5}
    assert found.dead_letters == 3


def test_state_and_watermark() -> None:
    times = {"max": "2026-01-01T00:04:00.500Z", "watermark": "2026-01-01T00:03:00.500Z"}
    found = after(ProgressTracker(), batch(0, 1, 0, stateOperators=[STATE, STATE], eventTime=times))
    assert (found.state_rows, found.state_bytes, found.late_rows) == (10, 1400, 4)
    assert (found.watermark_ms, found.event_time_ms) == (NOW - 119_500, NOW - 59_500)


def test_positions_and_ends_of_topics_are_those_of_the_last_batch() -> None:
    tracker = ProgressTracker()
    after(tracker, batch(0, 1, 0, sources=[topic_source((5, 7), (5, 17))]))
    assert tracker.positions == {TopicPartition("clicks", 0): 5, TopicPartition("clicks", 1): 7}
    assert tracker.ends[TopicPartition("clicks", 1)] == 17


def test_the_age_of_the_oldest_unread_record_grows_with_the_clock() -> None:
    assert ProgressTracker().poll(0, NOW, 10, NOW - 2_500).lag_seconds == 2.5
    assert ProgressTracker().poll(0, NOW, 10, NOW + 2_500).lag_seconds == 0  # its producer's clock is ahead


TIMES = {"max": "2026-01-01T00:04:05.000Z", "watermark": "2026-01-01T00:03:05.000Z"}
NO_WATERMARK = {"max": "2026-01-01T00:04:05.000Z", "watermark": "1970-01-01T00:00:00.000Z"}


@pytest.mark.parametrize(
    ("mode", "progress", "said"),
    [
        ("append", batch(0), "no output yet: no rows have come in"),
        ("append", batch(0, 1200), "no output yet: none of 1,200 rows passed the steps"),
        ("update", batch(0, 10, stateOperators=[STATE]), ""),
        (
            "append",
            batch(0, 10, stateOperators=[STATE]),
            "no output yet: no row has an event time in at, so there is no watermark",
        ),
        (
            "append",
            batch(0, 10, stateOperators=[STATE], eventTime=NO_WATERMARK),
            "no output yet: the watermark is set when the first batch is done",
        ),
        (
            "append",
            batch(0, 10, stateOperators=[STATE], eventTime=TIMES),
            f"no output yet: the watermark is {clock_time(NOW - 115_000, NOW)}; windows that end later are open, up to "
            f"that of {clock_time(NOW - 55_000, NOW)}, the latest event (rows may be 60 s late, "
            "and after 30 s without rows the clock closes windows)",
        ),
    ],
)
def test_a_query_without_output_says_what_it_waits_for(mode: str, progress: dict[str, Any], said: str) -> None:
    tracker = ProgressTracker(mode, [Watermark("at", 60_000)])
    assert after(tracker, progress, seconds=9).waiting == ""
    assert tracker.poll(20_000, NOW + 20_000).waiting == said


def test_output_that_stopped_is_told_with_its_time() -> None:
    tracker = ProgressTracker("append", [Watermark("at", 60_000)])
    after(tracker, batch(0, 10, 3, stateOperators=[STATE], eventTime=TIMES), seconds=1)
    assert tracker.poll(60_000, NOW + 60_000).waiting.startswith(
        f"no output since {clock_time(NOW + 1000, NOW + 1000)}: the watermark is"
    )


def test_times_of_another_day_have_a_date() -> None:
    day = 86_400_000
    assert clock_time(NOW - 2 * day, NOW).startswith("2025-12-")
    assert len(clock_time(NOW, NOW)) == 8


@pytest.mark.parametrize(
    ("year", "shown"),
    [
        ("9999", "9999-06-01 "),
        ("+10000", "the end of the year 9999 or later"),
        ("+294247", "the end of the year 9999 or later"),
    ],
)
def test_one_event_far_ahead_is_named_as_the_reason_why_nothing_is_written(year: str, shown: str) -> None:
    tracker = ProgressTracker("append", [Watermark("at", 60_000)])
    times = {"max": f"{year}-06-01T12:01:00.000Z", "watermark": f"{year}-06-01T12:00:00.000Z"}
    after(tracker, batch(0, 10, stateOperators=[STATE], eventTime=times))
    found = tracker.poll(20_000, NOW + 20_000)
    assert found.waiting.startswith(f"no output yet: the watermark is {shown}")
    assert "ahead of the clock" in found.waiting
    assert found.event_time_ms == (found.watermark_ms or 0) + 60_000


def test_event_times_before_the_year_1_are_numbers_too() -> None:
    first, second = (
        after(ProgressTracker(), batch(0, 1, eventTime={"max": f"{year}-01-01T00:00:00.000Z"})).event_time_ms or 0
        for year in ("-0001", "0000")
    )
    assert (second - first, clock_time(first, NOW)) == (365 * 86_400_000, "a time before the year 1")


def test_json_has_no_history_and_keeps_the_names() -> None:
    found = after(ProgressTracker(), batch(0, 100, 10), seconds=1).to_json()
    assert found["rows_in"] == 100
    assert "history" not in found
