"""Which sinks share a query: those of the same stateful view that write exactly once, so that its state is kept once.

Which query that is must not depend on the order of the file, because a query without its checkpoint would start over.
So a shared query has a file `sinks.json` in its checkpoint, which says whose it is. A sink that is added to the view
later joins the query; sinks that have had a query each keep them.

Measured with a million JSON records, windows of a minute and two topics, on 2 cores: 25 s of CPU and one state with a
shared query, 29 s and two with a query each. A view without state stays apart: its rows would have to be kept for the
second sink, and a sink that fails would hold up the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.checkpoints.folders import checkpoints_in, open_folder
from moldau.pipelines.model.pipeline import Pipeline, Sink, Step
from moldau.pipelines.model.sql_names import aggregates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS = "sinks.json"


class RecordedQuery(NamedTuple):
    """A query as its checkpoint records it."""

    sinks: frozenset[str]  # it wrote to
    is_shared: bool = False  # it was started as a query that sinks share


RecordedQueries = Mapping[str, RecordedQuery]
"""The queries of a pipeline that have a checkpoint, by name."""


def groups_of_sinks(pipeline: Pipeline, recorded: RecordedQueries) -> Iterator[tuple[str, tuple[Sink, ...]]]:
    """Each query by name, with its sinks, in the order of the file."""
    owners = {sink.name: _owner(sink, recorded) for sink in pipeline.sinks}
    families = {sink.name: _family(pipeline, sink) for sink in pipeline.sinks}
    open_queries: dict[tuple[str, ...], str] = {}  # by family: the query that sinks without one join
    for sink in pipeline.sinks:
        owner = owners[sink.name]
        if owner is not None and _is_open(sink, recorded[owner]):
            open_queries.setdefault(families[sink.name], owner)
    found: dict[str, list[Sink]] = {}
    for sink in pipeline.sinks:
        query = owners[sink.name] or open_queries.setdefault(families[sink.name], sink.name)
        found.setdefault(query, []).append(sink)
    return ((query, tuple(sinks)) for query, sinks in found.items())


def _owner(sink: Sink, recorded: RecordedQueries) -> str | None:
    """The query that this sink has been part of."""
    return next((name for name, query in recorded.items() if sink.name in query.sinks), None)


def _is_open(sink: Sink, query: RecordedQuery) -> bool:
    """Whether others may join. An append sink that was alone wrote in another way: its last batch may be unfinished,
    and would not be recognized."""
    return query.is_shared or sink.mode != "append"


def _family(pipeline: Pipeline, sink: Sink) -> tuple[str, ...]:
    """Sinks with equal families may share a query."""
    can_share = connector(sink.connector, pipeline.folder).can_share
    return (sink.view, sink.mode) if can_share and _is_stateful(pipeline, sink) else (sink.view, sink.mode, sink.name)


def _is_stateful(pipeline: Pipeline, sink: Sink) -> bool:
    if sink.mode != "append":
        return True
    views, needed = pipeline.views, pipeline.needed_by(sink.view)
    steps = [view for name in needed if isinstance(view := views[name], Step)]
    return any(step.sql is not None and aggregates(step.sql) for step in steps)


def read_recorded_queries(checkpoint: str, spark: SparkSession | None = None) -> RecordedQueries:
    """Of the checkpoints of a pipeline."""
    folder = open_folder(checkpoint, spark)
    found = {}
    for query in checkpoints_in(folder):
        text = folder.read(f"{query}/{SINKS}")
        if text is not None:
            found[query] = RecordedQuery(frozenset(json.loads(text)), is_shared=True)
        elif folder.read(f"{query}/metadata") is not None:  # Spark's: the query has been started
            found[query] = RecordedQuery(frozenset([query]))
    return found


def record_sinks(checkpoint: str, sinks: tuple[Sink, ...], spark: SparkSession | None = None) -> None:
    """Before a shared query is started."""
    open_folder(checkpoint, spark).write(SINKS, json.dumps([sink.name for sink in sinks]))
