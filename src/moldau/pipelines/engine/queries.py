"""The queries of a pipeline: which there are, and how each is started.

There is a query for each sink, so that one that fails does not hold up the others. Sinks of the same stateful view
that write exactly once share one, which keeps the state once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import SOURCE_NAMES, BatchSink, Connector, ReadRequest, StreamSink, WriteRequest
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.bad_records.dead_letters import dead_letter_pipelines
from moldau.pipelines.engine.bad_records.left_out import excluded
from moldau.pipelines.engine.checkpoints.checkpoint import Checkpoint
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.checkpoints.sharing import (
    RecordedQueries,
    RecordedQuery,
    groups_of_sinks,
    read_recorded_queries,
    record_sinks,
)
from moldau.pipelines.engine.idle import idle_settings, idle_waits
from moldau.pipelines.engine.local_files import local_file_settings
from moldau.pipelines.engine.sql_errors import check_sink_columns
from moldau.pipelines.engine.views import SourceRows, build_views, with_watermark
from moldau.pipelines.model.common_options import AVAILABLE_NOW, DEAD_LETTERS, SETTINGS, SINK_OPTIONS, SOURCE_OPTIONS
from moldau.pipelines.model.options import OptionTable, Value
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source
from moldau.pipelines.model.references import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_NAMED_SOURCES = {SOURCE_NAMES: "true", "spark.sql.streaming.offsetLog.formatVersion": "2"}  # offsets by these names
_NUMBERED_SOURCES = {SOURCE_NAMES: "false", "spark.sql.streaming.offsetLog.formatVersion": "1"}
_NOT_A_BATCH_SINK = "a connector that can share a query has to return a BatchSink if the request says so"
OUTPUT = "moldau:output"  # among a query's observed metrics: the rows that it wrote


@dataclass(frozen=True)
class QueryPlan:
    """One query: a view and the sinks it is written to. Its name is that of its first sink, or was when it began."""

    pipeline: Pipeline
    sinks: tuple[Sink, ...]
    query: str = ""  # its name, where the first sink has another
    recorded: RecordedQuery | None = None  # None: it is new

    @property
    def name(self) -> str:
        return self.query or self.sinks[0].name

    @property
    def is_shared(self) -> bool:
        """It writes to several sinks, or did: then the way it writes stays the same."""
        return len(self.sinks) > 1 or (self.recorded is not None and self.recorded.is_shared)

    @property
    def view(self) -> str:
        return self.sinks[0].view

    @property
    def mode(self) -> str:
        return self.sinks[0].mode

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.pipeline.sources_of(self.view)


def plan_queries(pipeline: Pipeline, recorded: RecordedQueries | None = None) -> tuple[QueryPlan, ...]:
    """In the order of the file, then those of dead letters. `recorded`: what checkpoints say, by default read here."""
    if recorded is None:
        recorded = read_recorded_queries(Settings.of(pipeline).checkpoint(pipeline))
    sinks = tuple(
        QueryPlan(pipeline, sinks, name, recorded.get(name)) for name, sinks in groups_of_sinks(pipeline, recorded)
    )
    return sinks + tuple(QueryPlan(derived, derived.sinks) for derived in dead_letter_pipelines(pipeline))


def refuse_without_sinks(pipelines: Iterable[Pipeline]) -> None:
    """Such a pipeline can be previewed and tested while it is written, but a run would end without a word."""
    for pipeline in pipelines:
        if not pipeline.sinks and not any(dead_letter_pipelines(pipeline)):
            where = f"{pipeline.place}: " if pipeline.place else ""
            how = "add `sinks` to the file" if pipeline.file else "add one with .to(…)"
            raise ConfigError(f"{where}pipeline {pipeline.name} has no sinks, so it would write nothing: {how}")


@dataclass(frozen=True)
class Settings:
    """The settings of a pipeline, resolved."""

    values: Mapping[str, Value]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Settings:
        return cls(SETTINGS.values(resolve(pipeline.settings, pipeline.folder)))

    @property
    def spark(self) -> Mapping[str, Value]:
        return self.values.get("spark") or {}

    @property
    def dead_letters(self) -> str | None:
        """The topic for them."""
        topic = self.values.get(DEAD_LETTERS)
        return None if topic is None else str(topic)

    @property
    def is_available_now(self) -> bool:
        """Its queries process what is there, then end."""
        return bool(self.values.get("trigger") == AVAILABLE_NOW)

    @property
    def kafka(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.values.items() if name.startswith("kafka.")}

    def checkpoint(self, pipeline: Pipeline, query: str = "") -> str:
        """The folder of a query's checkpoint, or of all checkpoints of a pipeline."""
        base = str(self.values["checkpoint"])
        base = base if "://" in base else str((pipeline.folder / base).resolve())
        return "/".join(part for part in (base, pipeline.name, query) if part)


def read_request(
    spark: SparkSession, pipeline: Pipeline, source: Source, settings: Settings, **more: Any
) -> ReadRequest:
    """`more` overrides what the pipeline says."""
    options = source_values(pipeline, source)
    said: dict[str, Any] = {
        "is_streaming": not options.get("static"),
        "dead_letters": settings.dead_letters,
    }
    return ReadRequest(**_request(spark, pipeline, source, settings, options), **(said | more))


def read_source(request: ReadRequest, source: Source, pipeline: Pipeline) -> SourceRows:
    frame = connector(source.connector, pipeline.folder).read(request)
    return SourceRows(frame, lambda rows: with_watermark(rows, request.options.get("watermark")))


def write_request(
    spark: SparkSession,
    pipeline: Pipeline,
    sink: Sink,
    settings: Settings,
    checkpoint: str,
    *,
    is_shared: bool = False,
    is_new: bool = False,
) -> WriteRequest:
    table = connector(sink.connector, pipeline.folder).sink_options
    options = _values(pipeline, sink, table, SINK_OPTIONS)
    request = _request(spark, pipeline, sink, settings, options)
    needs_batches = is_shared or bool(sink.batch_steps)
    return WriteRequest(**request, mode=sink.mode, checkpoint=checkpoint, is_shared=needs_batches, is_new=is_new)


def query_session(
    spark: SparkSession, settings: Settings, defaults: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A new session beside this one, with the Spark settings of a pipeline."""
    import moldau.spark

    session = moldau.spark.register(spark.newSession())
    # Spark looks up data sources in the active session, which a thread has to be given.
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    ours = {**_NAMED_SOURCES, **defaults}
    for name, value in {**ours, **settings.spark}.items():
        # Spark says no to settings that it does not list, too.
        if name in ours or session.conf.isModifiable(name):
            session.conf.set(name, str(value))
    return session


def build_view(
    session: SparkSession,
    plan: QueryPlan,
    settings: Settings,
    starts: Mapping[str, str],
    more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> DataFrame:
    """The stream that a query writes. `starts` are where sources start, by name, if `reset` was asked for that,
    and `more` are fields of their `ReadRequest`."""

    def read(source: Source) -> SourceRows:
        fields = {"query": plan.name, "start": starts.get(source.name), **more.get(source.name, {})}
        return read_source(read_request(session, plan.pipeline, source, settings, **fields), source, plan.pipeline)

    return build_views(session, plan.pipeline, read, wanted=plan.view)[plan.view]


def start_query(
    spark: SparkSession,
    plan: QueryPlan,
    settings: Settings,
    admitted: Callable[[], None] = lambda: None,
    before_batch: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start it in a session of its own: its views are nobody else's. `admitted` is called when nothing has been refused
    and the query is about to start, `before_batch` with the number of each micro-batch before that is written."""
    from pyspark.errors import AnalysisException

    try:
        return _start_query(spark, plan, settings, _NAMED_SOURCES, admitted=admitted, before_batch=before_batch)
    except AnalysisException as error:
        if "DUPLICATE_SOURCE_NAMES" not in str(error):
            raise
    # A query that reads a source twice, as a self-join does, cannot have names. Its sources are then known by their
    # order, so a checkpoint does not survive when others come and go.
    return _start_query(spark, plan, settings, _NUMBERED_SOURCES, admitted=admitted, before_batch=before_batch)


def _start_query(
    spark: SparkSession,
    plan: QueryPlan,
    settings: Settings,
    offsets: Mapping[str, str],
    *,
    admitted: Callable[[], None],
    before_batch: Callable[[int], None] | None,
) -> StreamingQuery:
    pipeline, checkpoint = plan.pipeline, settings.checkpoint(plan.pipeline, plan.name)
    waits = idle_waits(pipeline, plan.view, has_trigger="trigger" in settings.values)
    defaults = {**idle_settings(waits), **local_file_settings(spark, checkpoint), **offsets}
    session = query_session(spark, settings, defaults)
    earlier = Checkpoint(plan, settings, session)
    left_out = excluded(open_folder(checkpoint, session))
    more = {one.name: {**waits.get(one.name, {}), "excluded": left_out.get(one.name)} for one in plan.sources}
    frame = build_view(session, plan, settings, earlier.starts, more)
    new_sinks = earlier.admit(frame)
    needs_batches = plan.is_shared or before_batch is not None
    writes = [
        write_request(
            session, pipeline, sink, settings, checkpoint, is_shared=needs_batches, is_new=sink.name in new_sinks
        )
        for sink in plan.sinks
    ]
    connectors = [connector(sink.connector, pipeline.folder) for sink in plan.sinks]
    for sink, one, request in zip(plan.sinks, connectors, writes, strict=True):
        check_sink_columns(frame, sink, one, request.options)
    for one, request in zip(connectors, writes, strict=True):
        one.prepare(request)
    opened = [open_sink(one, sink, request) for one, sink, request in zip(connectors, plan.sinks, writes, strict=True)]
    if plan.is_shared:
        record_sinks(checkpoint, plan.sinks, session)
    writer = _writer(frame, opened, before_batch).outputMode(plan.mode).queryName(f"{pipeline.name}.{plan.name}")
    writer = writer.option("checkpointLocation", checkpoint)
    trigger = settings.values.get("trigger")
    if settings.is_available_now:
        writer = writer.trigger(availableNow=True)
    elif trigger is not None:
        writer = writer.trigger(processingTime=f"{trigger} milliseconds")
    admitted()
    return writer.start()


def open_sink(connector: Connector, sink: Sink, request: WriteRequest) -> StreamSink | BatchSink:
    """The sink with its batch steps before it."""
    opened = connector.write(request)
    if not sink.batch_steps:
        return opened
    if not isinstance(opened, BatchSink):
        raise ConfigError(f"sink {sink.name}: connector {connector.name} writes streams, and cannot have batch steps")
    return opened.after(sink.batch_steps)


def _writer(
    frame: DataFrame, sinks: Sequence[StreamSink | BatchSink], before_batch: Callable[[int], None] | None
) -> DataStreamWriter:
    if len(sinks) > 1:
        return _batch_writer(frame, _write_to_all(sinks), before_batch)
    (sink,) = sinks
    rows = sink.rows(frame)
    if isinstance(sink, BatchSink):
        return _batch_writer(rows, sink.write, before_batch)
    if before_batch is not None:
        raise ConfigError(_NOT_A_BATCH_SINK)
    writer = rows.writeStream.format(sink.format).options(**sink.options)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def _batch_writer(
    rows: DataFrame, write: Callable[[DataFrame, int], None], before_batch: Callable[[int], None] | None
) -> DataStreamWriter:
    from moldau.spark.sink.foreach_batch import plain_stop

    def announced(batch: DataFrame, batch_id: int) -> None:
        if before_batch is not None:
            before_batch(batch_id)
        write(batch, batch_id)

    return _counted(rows).writeStream.foreachBatch(plain_stop()(announced))


def _counted(rows: DataFrame) -> DataFrame:
    """For `foreachBatch`, whose rows Spark does not count by itself."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.observe(OUTPUT, F.count(F.lit(1)).alias("rows"))


def _write_to_all(sinks: Sequence[StreamSink | BatchSink]) -> Callable[[DataFrame, int], None]:
    batch_sinks = [sink for sink in sinks if isinstance(sink, BatchSink)]
    if len(batch_sinks) < len(sinks):
        raise ConfigError(_NOT_A_BATCH_SINK)

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.persist()  # else each sink would read the sources and update the state again
        try:
            prepared = [sink.rows(rows) for sink in batch_sinks]
            for more in prepared[1:]:
                if more is not rows:
                    # A row on which an expression of one sink fails becomes a dead letter: no other may have it then.
                    more.write.format("noop").mode("overwrite").save()
            for sink, its_rows in zip(batch_sinks, prepared, strict=True):
                sink.write(its_rows, batch_id)
        finally:
            rows.unpersist()

    return write


def source_values(pipeline: Pipeline, source: Source) -> dict[str, Value]:
    """The options of a source as its connector gets them: converted, with defaults, references resolved."""
    return _values(pipeline, source, connector(source.connector, pipeline.folder).source_options, SOURCE_OPTIONS)


def _values(
    pipeline: Pipeline, part: Source | Sink, table: OptionTable | None, common: OptionTable
) -> dict[str, Value]:
    return ((table or OptionTable()) + common).values(resolve(part.options, pipeline.folder))


def _request(
    spark: SparkSession, pipeline: Pipeline, part: Source | Sink, settings: Settings, options: Mapping[str, Value]
) -> dict[str, Any]:
    return {
        "spark": spark,
        "pipeline": pipeline.name,
        "name": part.name,
        "options": options,
        "kafka": settings.kafka,
        "folder": pipeline.folder,
    }
