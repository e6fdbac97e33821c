"""The views of a pipeline as DataFrames: sources, then steps in the order of the file.

`read` supplies the sources, so the same code builds the streams of a running pipeline, the batches in which a bad
record is searched, and the streams of its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import load_attribute
from moldau.pipelines.engine.expectations import apply_expectations
from moldau.pipelines.engine.sql_errors import step_errors
from moldau.pipelines.model.pipeline import Pipeline, Source, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build_views(
    spark: SparkSession, pipeline: Pipeline, read: Callable[[Source], DataFrame], wanted: str | None = None
) -> dict[str, DataFrame]:
    """Every view by name, registered in `spark`, which must be a session of this pipeline's own.

    `wanted` builds only what this view needs.
    """
    needed = pipeline.needed_by(wanted) if wanted is not None else set(pipeline.views)
    frames: dict[str, DataFrame] = {}
    for name, view in pipeline.views.items():
        if name not in needed:
            continue
        frame = read(view) if isinstance(view, Source) else _run_step(spark, pipeline, view, frames)
        frame = apply_expectations(pipeline, name, frame)
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
