"""Dead letters of expectations: queries that the engine adds to those of the user's sinks.

An expectation with the action `dead-letter` removes rows from its view. The query `<view>-dead-letters` computes which
rows these are and writes them to the topic of the dead letters, exactly once:

- for a view that is a source with records (a topic), the unchanged key, value, timestamp and headers of the record;
- for a step, the row as JSON, since a row may come from many records, or from none. The query computes the step a
  second time, with state of its own if the step has state. What is too late for a window may then differ between the
  two, as it does between two runs.

Both have Kafka Connect's headers and `moldau.pipeline`, `moldau.query`, `moldau.source` or `moldau.view`. Each such
query is a pipeline itself, derived from the user's, so it is planned, started and restarted like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.dead_letters import DeadLetterConnector
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.connectors.topic import RECORD
from moldau.pipelines.engine.expectations import failed_condition, failure, refuse
from moldau.pipelines.engine.sql_errors import expectation_errors
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.kinds import NAMES
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Action, Expectation, Pipeline, Sink, Source, Step
from moldau.spark.options import HEADER_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUFFIX = "-dead-letters"  # no name of a view has a hyphen


def dead_letter_pipelines(pipeline: Pipeline) -> Iterator[Pipeline]:
    """One for each view with an expectation whose rows become dead letters. It has one sink."""
    found: dict[str, Expectation] = {}
    for expectation in pipeline.expectations:
        if expectation.action is Action.DEAD_LETTER:
            found.setdefault(expectation.view, expectation)
    for view, expectation in found.items():
        if DEAD_LETTERS not in pipeline.settings:
            where = f"{expectation.place}: " if expectation.place else ""
            raise ConfigError(
                f"{where}expectation {expectation.name}: the action dead-letter needs a topic: add for example"
                f" `{DEAD_LETTERS}: {pipeline.name}-dead-letters` to the settings"
            )
        yield _derived(pipeline, view)


def _derived(pipeline: Pipeline, view: str) -> Pipeline:
    own = pipeline.views[view]
    name = f"{view}{SUFFIX}"
    kafka: Mapping[str, Given] = {}
    sources = without_letters(pipeline).sources
    has_records = isinstance(own, Source) and bool(connector(own.connector, pipeline.folder).origin)
    if has_records:
        sources = tuple(_with_record(source) if source.name == view else source for source in sources)
        kafka = {name: given for name, given in own.options.items() if name.startswith("kafka.")}  # type: ignore[union-attr]
    expectations = tuple(pipeline.expectations_of(view))

    def letters(frame: DataFrame) -> DataFrame:
        failing = failing_rows(frame, expectations)
        headers = {"moldau.pipeline": pipeline.name, "moldau.query": name}
        return _records(failing, headers, view) if has_records else _rows(failing, headers, view)

    return replace(
        pipeline,
        sources=sources,
        steps=(*pipeline.steps, Step(name, python=letters, inputs=(view,))),
        sinks=(
            Sink(
                name,
                name,
                DeadLetterConnector.name,
                _mode(pipeline, view),
                {"topic": pipeline.settings[DEAD_LETTERS], **kafka},
            ),
        ),
        expectations=tuple(one for one in pipeline.expectations if one.view != view),
        tests=(),
    )


def _mode(pipeline: Pipeline, view: str) -> str:
    """A row of the modes update and complete is a dead letter each time that it changes and fails."""
    modes = {sink.mode for sink in pipeline.sinks if view in pipeline.needed_by(sink.view)}
    return "append" if modes <= {"append"} else "update"


def without_letters(pipeline: Pipeline) -> Pipeline:
    """For a second reader: what cannot be decoded is reported by the queries of the user's sinks."""
    return replace(pipeline, sources=tuple(_without_letters(pipeline, source) for source in pipeline.sources))


def _without_letters(pipeline: Pipeline, source: Source) -> Source:
    table = connector(source.connector, pipeline.folder).source_options
    if table is None or table.find("errors.tolerance") is None or "format" not in source.options:
        return source
    return replace(source, options={**source.options, "errors.tolerance": Given("skip")})


def _with_record(source: Source) -> Source:
    options = {name: given for name, given in source.options.items() if name != "watermark"}
    metadata = NAMES.convert(options["metadata"].value) if "metadata" in options else []
    return replace(source, options={**options, "metadata": Given([*metadata, RECORD])})


def failing_rows(frame: DataFrame, expectations: tuple[Expectation, ...]) -> DataFrame:
    """The rows that become dead letters, with the first reason in a column `__reason`.

    A row that an earlier expectation drops does not reach later ones. A row that fails the query (`fail`) fails this
    one as well: if it went on alone, the row would be behind its offsets when the expectation is mended.
    """
    from pyspark.sql import functions as F  # noqa: N812

    reason = F.lit(None).cast("string")
    for expectation in expectations:
        with expectation_errors(frame.sparkSession, expectation):
            fails = F.col("__reason").isNull() & failed_condition(expectation)
            frame = frame.withColumn("__reason", reason) if "__reason" not in frame.columns else frame
            if expectation.action is Action.DEAD_LETTER:
                why = F.when(fails, F.lit(failure(expectation))).otherwise(F.col("__reason"))
                frame = frame.withColumn("__reason", why)
            elif expectation.action is not Action.WARN:
                frame = refuse(frame, fails, expectation)
    return frame.where(F.col("__reason").isNotNull())


def _records(failing: DataFrame, headers: Mapping[str, str], source: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    record = F.col(RECORD)
    places = {name: record[name].cast("string") for name in ("topic", "partition", "offset")}
    added = _headers(places, {**headers, "moldau.source": source})
    none = F.array().cast("array<struct<key: string, value: binary>>")
    own = F.coalesce(record["headers"], none)
    return failing.select(
        record["key"].alias("key"),
        record["value"].alias("value"),
        record["timestamp"].alias("timestamp"),
        F.concat(own, added).alias("headers"),
    )


def _rows(failing: DataFrame, headers: Mapping[str, str], view: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col(f"`{name}`") for name in failing.columns if name != "__reason"]
    value = F.to_json(F.struct(*columns)).cast("binary")
    return failing.select(value.alias("value"), _headers({}, {**headers, "moldau.view": view}).alias("headers"))


def _headers(places: Mapping[str, Column], constant: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    values = {
        **{HEADER_PREFIX + name: column for name, column in places.items()},
        f"{HEADER_PREFIX}stage": F.lit("TRANSFORMATION"),
        f"{HEADER_PREFIX}exception.class.name": F.lit("Expectation"),
        f"{HEADER_PREFIX}exception.message": F.col("__reason"),
        **{name: F.lit(value) for name, value in constant.items()},
    }
    pairs = (F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in values.items())
    return F.array(*pairs).cast("array<struct<key: string, value: binary>>")
