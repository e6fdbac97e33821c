"""Numbers about numbers: medians, percentiles, spread. No I/O, no knowledge of scenarios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

__all__ = ["median", "number", "percentile", "spread_percent"]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always a value that was really measured, never an interpolation."""
    if not samples:
        raise ValueError("a percentile of no samples")
    ordered = sorted(samples)
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]


def spread_percent(samples: Sequence[float]) -> float:
    """Half the range around the median, in percent: the "±" of the report. 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    middle = median(samples)
    if middle == 0:
        return 0.0
    return (max(samples) - min(samples)) / 2 / middle * 100


def number(value: float) -> str:
    """Three significant digits, thousands separated: more would claim more than was measured."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
