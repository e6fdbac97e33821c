"""Statistics of the bench."""

from __future__ import annotations

import pytest

from bench.stats import number, percentile, spread_percent


def test_percentile_is_always_a_measured_value() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(samples, 50) == 3.0
    assert percentile(samples, 99) == 5.0
    assert percentile(samples, 1) == 1.0


def test_p99_of_a_hundred_samples_leaves_out_the_worst_one() -> None:
    assert percentile([float(value) for value in range(1, 101)], 99) == 99.0


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_spread_is_half_the_range_around_the_median() -> None:
    assert spread_percent([90.0, 100.0, 110.0]) == pytest.approx(10.0)
    assert spread_percent([100.0]) == 0.0


@pytest.mark.parametrize(("value", "text"), [(1_234_567.8, "1,234,568"), (0.18342, "0.183"), (12.34, "12.3")])
def test_numbers_show_no_more_digits_than_were_measured(value: float, text: str) -> None:
    assert number(value) == text
