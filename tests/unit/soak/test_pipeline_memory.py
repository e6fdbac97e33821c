"""What counts as memory that grows."""

from __future__ import annotations

import pytest

from soak.pipeline import Outcome, judge, slope


def test_the_slope_is_per_minute() -> None:
    assert slope([(0.0, 10.0), (1.0, 12.0), (2.0, 14.0)]) == pytest.approx(2.0)
    assert slope([(1.0, 5.0)]) == 0.0


def test_growth_counts_only_after_the_first_half() -> None:
    grows_at_first = [(0.0, 100.0), (1.0, 300.0), (2.0, 400.0), (3.0, 400.0)]
    outcome = Outcome(clicks=10, counted=9, samples={"the JVM": grows_at_first})
    judge(outcome)
    assert outcome.problems == []
    outcome.samples["Python"] = [(minute, 100.0 + 5 * minute) for minute in range(10)]
    judge(outcome)
    assert outcome.problems == ["memory of Python grows by 5.0 MB per minute"]
    outcome.problems.clear()
    judge(outcome, is_long=False)
    assert outcome.problems == []


def test_a_few_megabytes_within_a_short_time_are_no_slope() -> None:
    outcome = Outcome(
        clicks=10, counted=9, samples={"Python": [(second / 60, 100.0 + second / 10) for second in range(60)]}
    )
    assert outcome.slope("Python") == pytest.approx(6.0)
    judge(outcome)
    assert outcome.problems == []


def test_clicks_that_were_not_counted_are_a_problem() -> None:
    outcome = Outcome(clicks=10, counted=11)
    judge(outcome)
    assert outcome.problems == ["11 of 10 clicks were counted"]
