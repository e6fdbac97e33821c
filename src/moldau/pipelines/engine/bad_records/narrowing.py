"""A batch that fails again and again is narrowed down to the records at fault, which become dead letters.

The same views are computed as batches over parts of the batch's records (`bisecting`), into a sink that keeps nothing.
That finds records that a step cannot process: an error of a Python function, of a cast, of arithmetic; and those that
are too large for the topic they would be written to. It is not done

- without the setting `dead letters`: then the batch is retried, and says why it fails;
- for errors that are not about data: a broker that is away, a full disk, memory;
- for sources whose records cannot be singled out (`Connector.origin`);
- if the records pass as a batch: then the failure is in the sink, or in state from earlier batches.

What was found is left out when the batch is repeated (`left_out`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.bad_records.bisecting import CULPRITS_MAX, Part, Parts, Search, TooManyError, without
from moldau.pipelines.engine.bad_records.dead_letters import without_letters
from moldau.pipelines.engine.bad_records.left_out import LeftOut, LeftOutRecord, excluded
from moldau.pipelines.engine.bad_records.sending import send_pending
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog, LoggedBatch
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.queries import (
    QueryPlan,
    Settings,
    open_sink,
    query_session,
    read_request,
    read_source,
    source_values,
    write_request,
)
from moldau.pipelines.engine.reasons import is_external, is_lasting, reason_of
from moldau.pipelines.engine.supervisor import Listener, RunningQuery
from moldau.pipelines.engine.views import SourceRows, build_views
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.pipeline import Source
from moldau.pipelines.model.references import hidden
from moldau.spark.source.offsets import StreamOffset, parse_ranges, ranges_to_json
from moldau.spark.source.read_plan import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# SQLSTATE classes of errors that are about data: data exceptions, errors of users' functions, and raise_error().
_DATA_ERRORS = re.compile(r"SQLSTATE: (?:22|38|P0)\w{3}")
# Errors of Python functions that are about the world.
_PYTHON_EXTERNAL = re.compile(
    r"^(?:[\w.]*\.)?(?:OSError|IOError|\w*Connection\w*Error|\w*Timeout\w*|MemoryError|BrokenPipeError|PermissionError"
    r"|FileNotFoundError|InterruptedError|KafkaError|KafkaException|ModuleNotFoundError|ImportError)\b",
    re.MULTILINE,
)

logger = logging.getLogger(__name__)


class NotNarrowedError(Exception):
    """Says why no record could be found to be at fault."""


class BadRecords(Listener):
    """Finishes what an earlier run began before a query starts, and searches batches that fail again and again."""

    def before_start(self, spark: SparkSession, query: RunningQuery) -> None:
        send_pending(spark, query.plan, query.settings)

    def failed_again(self, spark: SparkSession, query: RunningQuery, reason: str) -> bool:
        try:
            records = narrow(spark, query.plan, query.settings)
        except NotNarrowedError as error:
            logger.warning("query %s: no record was found to be at fault: %s", query, error)
            return False
        for record in records:
            logger.warning(
                "query %s: record %s goes to the dead letters: %s", query, hidden(str(record)), record.reason
            )
        return bool(records)


def narrow(
    spark: SparkSession, plan: QueryPlan, settings: Settings, culprits_max: int = CULPRITS_MAX
) -> tuple[LeftOutRecord, ...]:
    """The records at fault in the batch that a query is to repeat. They are dead letters when this returns.

    Raises ConfigError if there are too many.
    """
    if settings.dead_letters is None:
        raise NotNarrowedError(f"the pipeline has no topic for dead letters (add `{DEAD_LETTERS}` to the settings)")
    send_pending(spark, plan, settings)
    folder = open_folder(settings.checkpoint(plan.pipeline, plan.name), spark)
    batch = CheckpointLog(folder).last_batch
    if batch is None or batch.is_finished:
        raise NotNarrowedError("there is no unfinished batch")
    parts = batch_parts(plan, batch, excluded(folder))
    trials = _Trials(spark, plan, settings, parts)
    if reason := trials(()):
        raise NotNarrowedError(f"the steps fail without any record, too: {reason}")
    try:
        culprits = Search(trials, culprits_max=culprits_max).culprits(parts)
    except TooManyError as error:
        raise ConfigError(
            f"more than {culprits_max} records of batch {batch.batch_id} fail ({trials.last_reason}): nothing was sent"
            " to the dead letters, since a step is more likely at fault than so many records"
        ) from error
    if not culprits:
        raise NotNarrowedError(
            "its records pass when they are computed as a batch, so the cause is in the sink or in earlier state"
        )
    before = LeftOut.load(folder) or LeftOut(batch.batch_id, 0, is_sent=True, records=())
    found = tuple(
        LeftOutRecord(part.source, part.range.topic, part.range.partition, part.range.start, why, before.search + 1)
        for part, why in culprits
    )
    before.with_records(batch.batch_id, found).save(folder)
    send_pending(spark, plan, settings)
    return found


def batch_parts(plan: QueryPlan, batch: LoggedBatch, left_out: Mapping[str, str]) -> Parts:
    """The records of a batch, without those that it leaves out already."""
    parts: list[Part] = []
    gone: list[Part] = []
    for source in plan.sources:
        if source_values(plan.pipeline, source).get("static"):
            continue  # read as a whole in every batch, so its records are not the batch's
        if not connector(source.connector, plan.pipeline.folder).origin:
            raise NotNarrowedError(f"the records of source {source.name} ({source.connector}) cannot be singled out")
        if source.name not in batch.offsets:
            raise NotNarrowedError(f"the checkpoint has no offsets of source {source.name}")
        end = StreamOffset.from_json(json.loads(batch.offsets[source.name]))
        start = StreamOffset.from_json(json.loads(batch.starts.get(source.name, "{}")))
        begins = {**start.positions, **end.joined}
        parts += [
            Part(source.name, OffsetRange(*tp, begins.get(tp, 0), offset)) for tp, offset in end.positions.items()
        ]
        ranges = parse_ranges("excludedOffsets", left_out.get(source.name, "{}"))
        gone += [Part(source.name, one) for one in ranges]
    return without(tuple(parts), gone)


class _Trials:
    """Computes what the query writes, of some records, as a batch."""

    def __init__(self, spark: SparkSession, plan: QueryPlan, settings: Settings, batch: Parts) -> None:
        self._batch = batch
        self._session = query_session(spark, settings)
        self._pipeline = without_letters(plan.pipeline)
        self._plan = replace(plan, pipeline=self._pipeline)
        self._settings = settings
        self.last_reason = ""

    def __call__(self, parts: Parts) -> str | None:
        try:
            self._run(parts)
        except Exception as error:
            reason = reason_of(error)
            if not is_about_data(error):
                raise NotNarrowedError(f"the search met another error: {reason}") from error
            self.last_reason = reason
            return reason
        return None

    def _run(self, parts: Parts) -> None:
        frame = build_views(
            self._session, self._pipeline, lambda source: self._read(source, parts), wanted=self._plan.view
        )[self._plan.view]
        checkpoint = self._settings.checkpoint(self._pipeline, self._plan.name)
        for sink in self._plan.sinks:
            request = write_request(self._session, self._pipeline, sink, self._settings, checkpoint)
            opened = open_sink(connector(sink.connector, self._pipeline.folder), sink, request)
            opened.trial(opened.rows(frame)).write.format("noop").mode("overwrite").save()

    def _read(self, source: Source, parts: Parts) -> SourceRows:
        request = read_request(self._session, self._pipeline, source, self._settings, query=self._plan.name)
        if request.is_streaming:
            request = replace(request, is_streaming=False, part=json.dumps(ranges_to_json(self._ranges(source, parts))))
        return read_source(request, source, self._pipeline)

    def _ranges(self, source: Source, parts: Parts) -> list[OffsetRange]:
        """Of a source without records, only where it is."""
        own = [part.range for part in parts if part.source == source.name]
        return own or [one.range._replace(end=one.range.start) for one in self._batch if one.source == source.name][:1]


def is_about_data(error: BaseException) -> bool:
    """Whether records may be at fault, as far as the error tells."""
    text = str(error)
    if is_external(error) or is_lasting(error) or "moldau.errors." in text or _PYTHON_EXTERNAL.search(text):
        return False
    state = getattr(error, "getSqlState", lambda: None)()
    return bool(_DATA_ERRORS.search(f"{text} SQLSTATE: {state}"))
