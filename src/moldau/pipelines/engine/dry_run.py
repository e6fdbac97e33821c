"""What a run would do, found without starting or changing anything: plans in Spark, brokers, checkpoints.

For each query: is the plan right, are its topics there, is the checkpoint new or where does it continue, what has
changed since, and what would be refused, with the ways out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.errors import MoldauError
from moldau.pipelines.connectors.base import Connector
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.bad_records.dead_letters import SUFFIX
from moldau.pipelines.engine.checkpoints.changes import Change, Verdict
from moldau.pipelines.engine.checkpoints.checkpoint import Checkpoint, NamesInUse, left_behind
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog, LoggedBatch
from moldau.pipelines.engine.checkpoints.folders import checkpoints_in, open_folder
from moldau.pipelines.engine.checkpoints.identity import owner_of
from moldau.pipelines.engine.queries import (
    QueryPlan,
    Settings,
    build_view,
    plan_queries,
    query_session,
    read_request,
    refuse_without_sinks,
    write_request,
)
from moldau.pipelines.engine.reasons import reason_of
from moldau.pipelines.engine.session import unknown_settings
from moldau.pipelines.engine.sql_errors import check_sink_columns
from moldau.pipelines.model.pipeline import Action, Pipeline
from moldau.pipelines.model.places import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class QueryReport:
    pipeline: str
    query: str
    checkpoint: str
    batch: int | None = None  # the next one; None: the query is new
    is_repeated: bool = False  # that batch was started before, and is repeated
    records: int | None = None  # to process; None: not known
    sinks: tuple[str, ...] = ()  # that share the query
    stateful: tuple[str, ...] = ()
    changes: list[str] = field(default_factory=list)  # that keep the checkpoint
    refused: list[str] = field(default_factory=list)  # that do not
    ways_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def can_run(self) -> bool:
        return not self.problems and not self.refused


def dry_run(spark: SparkSession, pipelines: Iterable[Pipeline]) -> list[QueryReport]:
    found = []
    pipelines = list(pipelines)
    refuse_without_sinks(pipelines)
    names = {pipeline.name for pipeline in pipelines}
    for pipeline in pipelines:
        settings = Settings.of(pipeline)
        plans = plan_queries(pipeline)
        in_use = NamesInUse(names, {plan.name for plan in plans})
        renamed: set[str] = set()
        reports = [_report(spark, plan, settings, in_use, renamed) for plan in plans]
        if reports:
            reports[0].notes += _removed(settings.checkpoint(pipeline), in_use, renamed, spark)
            reports[0].notes += _unknown_settings(spark, pipeline)
        found += reports
    return found


def _removed(base: str, in_use: NamesInUse, renamed: Collection[str], spark: SparkSession) -> Iterable[str]:
    """Queries that have a checkpoint and are no longer in the pipeline, unless they were renamed."""
    for name in checkpoints_in(open_folder(base, spark)):
        if name not in in_use.queries and f"{base}/{name}" not in renamed:
            yield f"{name} is no longer in the pipeline; its checkpoint stays in {base}/{name}"


def _unknown_settings(spark: SparkSession, pipeline: Pipeline) -> Iterator[str]:
    given = pipeline.settings.get("spark")
    if given is None:
        return
    for name, meant in unknown_settings(spark, given.value).items():
        place = place_of(given.value, name, given.place)
        hint = f": did you mean '{meant}'?" if meant else ""
        yield f"{f'{place}: ' if place else ''}settings: spark: Spark does not know '{name}'{hint}"


def _report(
    spark: SparkSession, plan: QueryPlan, settings: Settings, in_use: NamesInUse, renamed: set[str]
) -> QueryReport:
    """Checkpoints that the query may have had under another name are added to `renamed`."""
    report = QueryReport(plan.pipeline.name, plan.name, settings.checkpoint(plan.pipeline, plan.name))
    report.sinks = tuple(sink.name for sink in plan.sinks)
    session = query_session(spark, settings)
    try:
        checkpoint = Checkpoint(plan, settings, session)
    except MoldauError as error:
        report.problems.append(str(error))
        return report
    last = checkpoint.log.last_batch
    if last is not None:
        report.batch, report.is_repeated = last.batch_id + last.is_finished, not last.is_finished
    positions = last.positions if last is not None else {}
    _look_at_counterparts(report, session, plan, settings, positions or checkpoint.starts)
    try:
        frame = build_view(session, plan, settings, checkpoint.starts)
        _check_writing(session, frame, plan, settings)
    except Exception as error:  # of Spark, of a connector, or of a user's function
        report.problems.append(reason_of(error))
        return report
    identity = checkpoint.identity(frame)
    report.stateful = tuple(operator.kind for operator in identity.operators)
    changes = checkpoint.changes(identity)
    for change in changes:
        (report.refused if change.verdict is Verdict.REFUSED else report.changes).append(change.text)
        report.ways_out += change.ways_out
    report.ways_out = list(dict.fromkeys(report.ways_out))
    if last is not None:
        report.notes += records_at_risk(plan, settings, last, changes, session)
    else:
        found = left_behind(identity, plan, settings, in_use, session)
        report.notes += found.values()
        renamed.update(found)
    return report


def records_at_risk(
    plan: QueryPlan, settings: Settings, last: LoggedBatch, changes: Iterable[Change], session: SparkSession | None
) -> Iterator[str]:
    """Whether a changed condition is a risk now: it is if its dead letters were written up to another offset."""
    pipeline = plan.pipeline
    changed = {change.owner for change in changes}
    for expectation in pipeline.expectations:
        if expectation.action is not Action.DEAD_LETTER or owner_of(expectation) not in changed:
            continue
        name = f"{expectation.view}{SUFFIX}"
        letters = CheckpointLog(open_folder(settings.checkpoint(pipeline, name), session)).last_batch
        if letters is None:
            continue
        for source in pipeline.sources_of(expectation.view):
            start_at = _connector(plan, source.connector).start_at
            here, there = (start_at(each.positions.get(source.name, "{}")) for each in (last, letters))
            if here != there:
                yield f"{name} is at other offsets of {source.name} ({there}, not {here}): records between are at risk"
            else:
                yield f"{name} is at the same offsets of {source.name}: no record is at risk"


def _look_at_counterparts(
    report: QueryReport, session: SparkSession, plan: QueryPlan, settings: Settings, positions: Mapping[str, str]
) -> None:
    total: int | None = 0
    for source in plan.sources:
        request = read_request(session, plan.pipeline, source, settings, query=plan.name)
        try:
            records = _connector(plan, source.connector).backlog(request, positions.get(source.name))
        except MoldauError as error:
            report.problems.append(f"source {source.name}: {error}")
            records = None
        total = total + records if total is not None and records is not None else None
    report.records = total
    for sink in plan.sinks:
        try:
            to_write = write_request(session, plan.pipeline, sink, settings, report.checkpoint)
            report.notes += [
                f"sink {sink.name}: {note}" for note in _connector(plan, sink.connector).sink_notes(to_write)
            ]
        except MoldauError as error:
            report.problems.append(f"sink {sink.name}: {error}")


def _check_writing(session: SparkSession, frame: DataFrame, plan: QueryPlan, settings: Settings) -> None:
    """What Spark checks when a query starts: the sink's expressions, and whether the output mode is possible."""
    location = settings.checkpoint(plan.pipeline, plan.name)
    for sink in plan.sinks:
        request = write_request(session, plan.pipeline, sink, settings, location)
        own = _connector(plan, sink.connector)
        check_sink_columns(frame, sink, own, request.options)
        rows: Any = own.write(request).rows(frame)
        jvm: Any = session._jvm
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, plan.mode.capitalize())()
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def _connector(plan: QueryPlan, name: str) -> Connector:
    return connector(name, plan.pipeline.folder)
