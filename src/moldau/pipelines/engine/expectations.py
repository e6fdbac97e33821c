"""Expectations on a view: conditions that rows should meet, and what happens to those that do not.

| action        | a row that fails                                                                              |
|---------------|-----------------------------------------------------------------------------------------------|
| `warn`        | is counted                                                                                    |
| `drop`        | is counted and left out                                                                       |
| `dead-letter` | is counted and left out; a query of its own writes it to the dead letters (`dead_letters`)    |
| `fail`        | fails the query, for good: a restart would meet the same row                                  |

A row fails if the condition is false or null. Expectations of a view are applied in the order of the file, those of a
source before its watermark, which rows that are left out do not move. The counts
are observed metrics of each query that computes the view, so they are part of its progress: `failed_counts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moldau.pipelines.engine.sql_errors import expectation_errors
from moldau.pipelines.model.pipeline import Action, Expectation, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_METRIC = "expect:"


def apply_expectations(pipeline: Pipeline, view: str, frame: DataFrame, unjudged: str | None = None) -> DataFrame:
    """The view with failing rows counted, and removed or refused as the expectation says. Rows that meet the SQL
    condition `unjudged` pass."""
    from pyspark.sql import functions as F  # noqa: N812

    for expectation in pipeline.expectations_of(view):
        with expectation_errors(frame.sparkSession, expectation):
            fails = failed_condition(expectation)
            fails = fails if unjudged is None else fails & ~F.coalesce(F.expr(unjudged), F.lit(False))
            frame = frame.observe(f"{_METRIC}{expectation.name}", F.count_if(fails).alias("failed"))
            frame = refuse(frame, fails, expectation) if expectation.action is not Action.WARN else frame
    return frame


def refuse(frame: DataFrame, fails: Column, expectation: Expectation) -> DataFrame:
    """The rows that pass; one that does not fails the query if the expectation says so."""
    from pyspark.sql import functions as F  # noqa: N812

    if expectation.action is not Action.FAIL:
        return frame.where(~fails)
    refused = F.raise_error(F.lit(failure(expectation))).cast("boolean")
    return frame.where(F.when(fails, refused).otherwise(F.lit(True)))


def failed_condition(expectation: Expectation) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return ~F.coalesce(F.expr(expectation.condition), F.lit(False))


def failure(expectation: Expectation) -> str:
    """Why a row fails. A query that fails with this is not restarted (`reasons`)."""
    return f"expectation {expectation.name} of {expectation.view} failed: {expectation.condition}"


def failed_counts(progress: Mapping[str, Any]) -> dict[str, int]:
    """How many rows of a batch failed each expectation, from Spark's progress of the batch."""
    found = (progress.get("observedMetrics") or {}).items()
    return {name.removeprefix(_METRIC): int(row["failed"] or 0) for name, row in found if name.startswith(_METRIC)}
