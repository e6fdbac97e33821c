"""The views of a pipeline as DataFrames: sources, then steps in the order of the file.

`read` supplies the sources, so the same code builds the streams of a running pipeline, the batches in which a bad
record is searched, and the streams of its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import load_attribute
from moldau.pipelines.engine.expectations import apply_expectations
from moldau.pipelines.engine.sql_errors import step_errors
from moldau.pipelines.model.options import Value
from moldau.pipelines.model.pipeline import Pipeline, Source, Step
from moldau.pipelines.model.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SourceRows(NamedTuple):
    """A source before its expectations."""

    frame: DataFrame
    finish: Callable[[DataFrame], DataFrame]  # what is done after them: its watermark
    unjudged: str | None = None  # rows that meet this SQL condition are of our making, and pass


def with_watermark(frame: DataFrame, watermark: Value) -> DataFrame:
    if not isinstance(watermark, Watermark):
        return frame
    return frame.withWatermark(watermark.column, f"{watermark.delay_ms} milliseconds")


def build_views(
    spark: SparkSession, pipeline: Pipeline, read: Callable[[Source], SourceRows], wanted: str | None = None
) -> dict[str, DataFrame]:
    """Every view by name, registered in `spark`, which must be a session of this pipeline's own.

    `wanted` builds only what this view needs.
    """
    needed = pipeline.needed_by(wanted) if wanted is not None else set(pipeline.views)
    frames: dict[str, DataFrame] = {}
    for name, view in pipeline.views.items():
        if name not in needed:
            continue
        if isinstance(view, Source):
            rows = read(view)
            # A row that is left out must not move the watermark: one from the year 9999 would make all others late.
            frame = rows.finish(apply_expectations(pipeline, name, rows.frame, rows.unjudged))
        else:
            frame = apply_expectations(pipeline, name, _run_step(spark, pipeline, view, frames))
        frame.createOrReplaceTempView(f"`{name}`")
        frames[name] = frame
    return frames


def _run_step(spark: SparkSession, pipeline: Pipeline, step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import DataFrame

    where = f"{step.text_place or step.place}: " if step.place else ""
    if step.sql is not None:
        with step_errors(spark, step):
            return spark.sql(step.sql)
    function = step.python
    if isinstance(function, str):
        module, _, attribute = function.partition(":")
        function = load_attribute(module, attribute, pipeline.folder, f"{where}step {step.name}")  # type: ignore[assignment]
    if not callable(function):
        raise ConfigError(f"{where}step {step.name}: {step.python} is not a function")
    result = function(*(spark if name == "spark" else frames[name] for name in step.inputs))
    if not isinstance(result, DataFrame):
        raise ConfigError(f"{where}step {step.name}: the function returned {type(result).__name__}, not a DataFrame")
    return result
