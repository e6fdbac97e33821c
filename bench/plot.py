"""The picture of a run: one line per metric, how many times better than Apache Kafka, the goals marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.metrics import MOLDAU, Outcome
from bench.stats import number

BETTER = "#1b7f79"
WORSE = "#d1603d"
CLIENT_BOUND = "#8a97a0"
INK = "#22303c"
FAINT = "#c9d1d6"
SMALL: dict[str, Any] = {"fontsize": 8, "color": INK}
TITLE: dict[str, Any] = {"fontsize": 13, "color": INK, "weight": "bold"}


LEGEND = "right of 1: Moldau is better · black tick: the goal · grey: the client, not Moldau, was the limit"


def colour_of(outcome: Outcome) -> str:
    if outcome.is_client_bound(MOLDAU):
        return CLIENT_BOUND
    return BETTER if (outcome.times_better or 1.0) >= 1 else WORSE


def value_text(outcome: Outcome) -> str:
    """`0.18 against 0.38 CPU s`: what stands at the end of the line."""
    moldau, rival = (number(outcome.median(name) or 0.0) for name in (MOLDAU, outcome.metric.rival))
    return f"{moldau} against {rival} {outcome.metric.unit}".rstrip()


def goal_as_times_better(outcome: Outcome) -> float | None:
    """Where the goal lies on the axis, or None: a goal of Moldau's own value is turned by the rival's."""
    goal, rival = outcome.metric.goal, outcome.median(outcome.metric.rival)
    if goal is None or not rival:
        return None
    ratio = goal.limit if goal.of == "ratio" else goal.limit / rival
    return ratio if outcome.metric.better == "higher" else 1 / ratio


def draw(path: Path, title: str, outcomes: Sequence[Outcome], caption: str) -> None:
    # Half a second of import that a run without a plot need not pay.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = list(reversed(outcomes))
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.32 * len(rows)), dpi=160)
    axes.set_xscale("log")
    for y, outcome in enumerate(rows):
        times = outcome.times_better or 1.0
        colour = colour_of(outcome)
        axes.plot([1, times], [y, y], color=colour, linewidth=3, solid_capstyle="round", zorder=2)
        axes.plot([times], [y], "o", color=colour, markersize=8, zorder=3)
        if (goal := goal_as_times_better(outcome)) is not None:
            axes.plot([goal, goal], [y - 0.28, y + 0.28], color=INK, linewidth=1.6, zorder=4)
        at_the_right = ("axes fraction", "data")
        axes.annotate(value_text(outcome), (1.01, y), xycoords=at_the_right, va="center", **SMALL)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_yticks(range(len(rows)), [outcome.metric.title for outcome in rows], fontsize=9, color=INK)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    _label_times(axes, [outcome.times_better or 1.0 for outcome in rows])
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", pad=12, **TITLE)
    axes.set_xlabel(f"{LEGEND}\n{caption}", loc="left", labelpad=10, linespacing=1.8, **SMALL)
    figure.savefig(path, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def _label_times(axes: Any, times: Sequence[float]) -> None:
    """Ticks at round factors only; powers of ten alone would be too coarse."""
    low, high = min([*times, 0.8]) * 0.85, max([*times, 2.5]) * 1.25
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
