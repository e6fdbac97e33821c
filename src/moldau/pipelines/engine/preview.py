"""The first rows of a source, and its columns as text for the option `schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import ReadRequest
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.queries import Settings, read_request
from moldau.pipelines.engine.reasons import reason_of
from moldau.pipelines.model.options import Value
from moldau.pipelines.model.pipeline import Pipeline, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JSON_OPTIONS = {"ignoreNullFields": "false"}


@dataclass(frozen=True)
class Preview:
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    options: Mapping[str, str]  # to add to the source: `schema`, and `format` if it was guessed

    @property
    def text(self) -> str:
        """The options as lines of a pipeline file."""
        return "\n".join(f"{name}: {_yaml(value)}" for name, value in self.options.items())


def find_source(pipeline: Pipeline, name: str) -> Source:
    names = [source.name for source in pipeline.sources]
    if name not in names:
        meant = nearest(name, names)
        hint = f"did you mean '{meant}'?" if meant else f"its sources are {', '.join(names)}"
        raise ConfigError(f"{pipeline.file or pipeline.name} has no source '{name}': {hint}")
    return pipeline.sources[names.index(name)]


def preview(spark: SparkSession, pipeline: Pipeline, source: Source, rows: int) -> Preview:
    """Read the first rows as a batch: no query, no checkpoint, no consumer group, no dead letters."""
    request = read_request(spark, pipeline, source, Settings.of(pipeline), is_streaming=False)
    request = replace(request, dead_letters=None)
    tries = list(connector(source.connector, pipeline.folder).preview_options(request.options))
    for options in tries:
        try:
            # With a format that is only guessed, what does not fit is a reason to try the next one.
            is_guessed = options.get("format") != request.options.get("format")
            return _preview(replace(request, options=options, skips_bad=not is_guessed), source, pipeline, rows)
        except Exception as error:  # what Spark or a connector raises
            if options is tries[-1]:
                raise ConfigError(f"cannot read source {source.name}: {reason_of(error)}") from error
    raise AssertionError("a connector has options to try")


def _preview(request: ReadRequest, source: Source, pipeline: Pipeline, rows: int) -> Preview:
    from pyspark.sql import functions as F  # noqa: N812

    frame = connector(source.connector, pipeline.folder).read(request)
    binary = {name for name, kind in frame.dtypes if kind == "binary"}
    readable = frame.select(
        *(F.col(f"`{name}`").cast("string" if name in binary else kind).alias(name) for name, kind in frame.dtypes)
    )
    texts = readable.select(F.to_json(F.struct("*"), _JSON_OPTIONS)).take(rows)  # reads no more than it has to
    return Preview(
        tuple(frame.columns),
        tuple(json.loads(text) for (text,) in texts),
        _options(frame, request.options),
    )


def _options(frame: DataFrame, options: Mapping[str, Value]) -> dict[str, str]:
    """Columns of `metadata` are not part of the value's schema."""
    schema = cast("Any", frame)._jdf.schema()
    columns = [field.toDDL() for field in schema.fields() if field.name() not in options.get("metadata", ())]
    format_option = {"format": str(options["format"])} if "format" in options else {}
    return {**format_option, "schema": ", ".join(columns)}


def _yaml(text: str) -> str:
    """Plain text, or a block where YAML would see something else in it."""
    return f">-\n  {text}" if any(mark in text for mark in (": ", " #", "`", "'", '"')) else text
