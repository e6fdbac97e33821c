"""Expectations on a view: conditions that rows should meet, and what happens to those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.pipelines.model.pipeline import Action, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply_expectations(pipeline: Pipeline, view: str, frame: DataFrame) -> DataFrame:
    """The view with failing rows counted, and removed or refused as the expectation says.

    A row that goes to the dead letters is removed here; another query reads and writes it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    for expectation in pipeline.expectations_of(view):
        passes = F.coalesce(F.expr(expectation.condition), F.lit(False))
        frame = frame.observe(f"expect:{expectation.name}", F.count_if(~passes).alias("failed"))
        if expectation.action is Action.FAIL:
            reason = F.lit(f"expectation {expectation.name} of {view} failed: {expectation.condition}")
            frame = frame.where(F.when(passes, F.lit(True)).otherwise(F.raise_error(reason).cast("boolean")))
        elif expectation.action in (Action.DROP, Action.DEAD_LETTER):
            frame = frame.where(passes)
    return frame
