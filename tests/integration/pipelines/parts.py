"""Small pipelines for the tests of connectors: one source, one sink, run until there is no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.queries import Settings, plan_queries, read_request, read_source, start_query
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source, Step

RUN_S = 60


def given(options: dict[str, Any]) -> dict[str, Given]:
    return {name: Given(value) for name, value in options.items()}


def copy(
    folder: Path, source: dict[str, Any], sink: dict[str, Any], *steps: Step, settings: dict[str, Any] | None = None
) -> Pipeline:
    """From the source `rows` to the sink `out`; each has `connector` among its options."""
    source, sink = dict(source), dict(sink)
    return Pipeline(
        "copy",
        (Source("rows", source.pop("connector"), given(source)),),
        steps,
        (
            Sink(
                "out",
                steps[-1].name if steps else "rows",
                sink.pop("connector"),
                sink.pop("mode", "append"),
                given(sink),
            ),
        ),
        settings=given({"trigger": "available now", **(settings or {})}),
        folder=folder,
    )


def start(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    (plan,) = plan_queries(pipeline)
    return start_query(spark, plan, Settings.of(pipeline))


def run(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    """All there is, then no more."""
    query = start(spark, pipeline)
    try:
        assert query.awaitTermination(RUN_S), query.status
    finally:
        query.stop()
    return query


def forget_commit(commits: Path, batch: int) -> None:
    """As if the query had been killed after it wrote the batch, and before Spark noted that."""
    (commits / str(batch)).unlink()
    (commits / f".{batch}.crc").unlink(missing_ok=True)  # Hadoop's, if it writes checksums


def read_batch(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    (source,) = pipeline.sources
    request = read_request(spark, pipeline, source, Settings.of(pipeline), is_streaming=False)
    return read_source(request, source, pipeline).frame


def problems(name: str, *, is_source: bool = True, **options: Any) -> list[str]:
    """What lint says about these options."""
    found = connector(name)
    table = found.source_options if is_source else found.sink_options
    assert table is not None
    checked = given({option.replace("_", " "): value for option, value in options.items()})
    known = {option: entry for option, entry in checked.items() if option not in ("schema", "static")}
    return [str(problem) for problem in (*table.check(known, name, None), *found.check(checked, is_source=is_source))]
