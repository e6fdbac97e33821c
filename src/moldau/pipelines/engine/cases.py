"""Tests of pipelines: given rows instead of sources, expected rows instead of sinks, real streaming queries between.

A query of a test reads one stream in memory, from which each source takes its rows, so the rows of a micro-batch arrive
together whichever source they belong to. Watermarks work as they do live: rows of one micro-batch are not late to each
other, rows of a later one may be. After the last rows all sources are quiet forever, so every window closes: a clock
row of the far future moves the watermark, and is removed behind it.

A view is compared in the output mode of the sink that it leads to. What a sink writes has the columns of the view and
those of the record (`key`, `partition`, `timestamp`). In mode `update` every update is a row: a group that changes in
two micro-batches comes twice. In mode `complete` it is the last table. Times without a zone are UTC, unless the
pipeline sets `spark.sql.session.timeZone`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from moldau.config.keys import nearest
from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.case_rows import Difference, compare
from moldau.pipelines.engine.case_values import JSON_OPTIONS, as_json, converted, converted_rows
from moldau.pipelines.engine.local_files import local_file_settings
from moldau.pipelines.engine.queries import Settings, read_request, write_request
from moldau.pipelines.engine.reasons import reason_of
from moldau.pipelines.engine.sql_errors import check_sink_columns
from moldau.pipelines.engine.views import SourceRows, build_views, with_watermark
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Case, Pipeline, Sink, Source
from moldau.pipelines.model.places import Place, Problem, place_of
from moldau.pipelines.model.references import resolve
from moldau.pipelines.model.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

THREADS = 4  # a test waits for Spark's driver more than for a core
_CLOCK = "__moldau_clock"
_RESULT = "__moldau_rows"  # table of the memory sink
_QUIET_FOREVER = datetime(2200, 1, 1, tzinfo=UTC)  # pandas has no times after 2262
_LONGEST_WINDOW = timedelta(days=36_500)
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_MARKS = {"missing": "missing row", "unexpected": "unexpected row", "different": "row", "more": "and"}
_STATEFUL_FUNCTION = re.compile(r"TransformWithState|WithState")

_SESSION_SETTINGS = {
    # A test has a few rows: one partition, and expressions that are interpreted, since compiling them takes longer.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "1ms",
    # Checkpoints of tests are never read again.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


@dataclass(frozen=True)
class Failure:
    message: str
    place: Place | None = None
    kind: str = "error"  # missing, unexpected, different, error, more
    target: str | None = None  # view or sink

    def __str__(self) -> str:
        """It begins with the place, so that terminals and editors find it."""
        where = f"{self.place}: " if self.place else ""
        target = f"{self.target}: " if self.target else ""
        mark = f"{_MARKS[self.kind]} " if self.kind in _MARKS else ""
        return f"{where}{target}{mark}{self.message}"


@dataclass(frozen=True)
class CaseResult:
    pipeline: Pipeline
    case: Case
    seconds: float
    failures: tuple[Failure, ...] = ()

    @property
    def has_passed(self) -> bool:
        return not self.failures


def run_cases(spark: SparkSession, cases: Sequence[tuple[Pipeline, Case]]) -> Iterator[CaseResult]:
    """Run them, several at once, and return results in their order as they come."""
    with _checkpoint_folder() as folder, ThreadPoolExecutor(THREADS, "pipeline-test") as pool:
        # The first one alone: Spark loads its classes once, and its result comes sooner.
        first = [run_case(spark, *case, folder) for case in cases[:1]]
        # Functions of Python may start processes: they begin early, so that nobody waits for them alone at the end.
        early_first = sorted(range(1, len(cases)), key=lambda place: not _has_functions(cases[place][0]))
        futures = {place: pool.submit(run_case, spark, *cases[place], folder) for place in early_first}
        rest = [futures[place] for place in range(1, len(cases))]
        yield from first
        try:
            for future in rest:
                yield future.result()
        finally:
            for future in rest:
                future.cancel()


def _has_functions(pipeline: Pipeline) -> bool:
    return any(step.python is not None for step in pipeline.steps)


def run_case(spark: SparkSession, pipeline: Pipeline, case: Case, folder: Path) -> CaseResult:
    """Run one test. `folder` is for checkpoints, which are removed with it."""
    started = time.monotonic()
    pipeline = _without_references(pipeline)
    failures: list[Failure] = []
    for target in case.expect:
        place = place_of(case.expect, target, case.place)
        try:
            failures += _run_target(spark, pipeline, case, target, folder)
        except _CaseError as error:
            failures.append(Failure(str(error), error.place or place, target=target))
        except InvalidPipelineError as error:  # of a step, an expectation or a sink, and found again for other targets
            failures += [Failure(each.message, each.place) for each in error.problems if isinstance(each, Problem)]
        except Exception as error:  # what Spark or the user's code raises is the result of the test
            failures.append(Failure(reason_of(error), place, target=target))
    return CaseResult(pipeline, case, time.monotonic() - started, tuple(dict.fromkeys(failures)))


class _CaseError(ConfigError):
    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place


def _run_target(spark: SparkSession, pipeline: Pipeline, case: Case, target: str, folder: Path) -> list[Failure]:
    view, mode, sink = _find_target(pipeline, target)
    query = _Query(spark, pipeline, case, tempfile.mkdtemp(dir=folder))
    schema, texts = query.run(view, mode, sink)
    expected = []
    for row in case.expect[target]:
        try:
            expected.append(converted(row, schema, query.zone))
        except ValueError as error:
            raise _CaseError(f"expected row of {target}: {error}", _row_place(row)) from None
    differences = compare(expected, converted_rows(texts, schema, query.zone))
    return [_failure(case, target, difference) for difference in differences]


def _failure(case: Case, target: str, difference: Difference) -> Failure:
    place = place_of(case.expect, target, case.place)
    if difference.index is not None:
        place = _row_place(case.expect[target][difference.index]) or place
    return Failure(difference.text, place, difference.kind, target)


def _find_target(pipeline: Pipeline, target: str) -> tuple[str, str, Sink | None]:
    """The view, the output mode, and the sink if it is one."""
    sink = next((sink for sink in pipeline.sinks if sink.name == target), None)
    if sink is not None:
        return sink.view, sink.mode, sink
    if target not in pipeline.views:
        names = [*pipeline.views, *(sink.name for sink in pipeline.sinks)]
        meant = nearest(target, names)
        raise _CaseError(
            f"there is no view or sink '{target}': " + (f"did you mean '{meant}'?" if meant else ", ".join(names))
        )
    readers = [sink for sink in pipeline.sinks if target in pipeline.needed_by(sink.view)]
    readers.sort(key=lambda sink: sink.view != target)
    return target, readers[0].mode if readers else "append", None


class _Query:
    """A streaming query of one test, in a session of its own."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, case: Case, checkpoint: str) -> None:
        self.session = spark.newSession()
        self.pipeline, self.case, self.checkpoint = pipeline, case, checkpoint
        self.settings = Settings.of(pipeline)
        self._configure(self.settings.spark)
        self.zone = ZoneInfo(str(self.session.conf.get("spark.sql.session.timeZone")))
        self.rows: dict[str, list[list[str]]] = {}  # source → micro-batches → rows as JSON
        self.clock: dict[str, str] = {}  # source → its last row, if it has a watermark
        self.java = cast("Any", self.session._jvm)
        runtime = self.java.org.apache.spark.sql.execution.streaming.runtime
        self.text = self.java.org.apache.spark.sql.Encoders.STRING()
        self.stream = runtime.MemoryStream.apply(self.text, self.session._jsparkSession)

    def _configure(self, given: Mapping[str, Any]) -> None:
        own = {name: value for name, value in given.items() if name != "spark.sql.shuffle.partitions"}
        files = local_file_settings(self.session, self.checkpoint)
        for name, value in {**_SESSION_SETTINGS, **files, **own}.items():
            if name not in own or self.session.conf.isModifiable(name):
                self.session.conf.set(name, str(value))

    def run(self, view: str, mode: str, sink: Sink | None) -> tuple[StructType, list[str]]:
        """The schema, and rows as JSON."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = build_views(self.session, self.pipeline, self._read, wanted=view)[view]
        if sink is not None:
            frame = self._as_written(frame, sink)
        if not frame.isStreaming:
            rows = frame
        else:
            self._run_batches(frame, mode)
            rows = self.session.table(_RESULT)
        texts = rows.select(F.to_json(F.struct("*"), JSON_OPTIONS)).collect()
        return frame.schema, [text for (text,) in texts]

    def _run_batches(self, frame: DataFrame, mode: str) -> None:
        count = max(map(len, self.rows.values()), default=0)
        batches = [
            [line for given in self.rows.values() for batch in given[number : number + 1] for line in batch]
            for number in range(max(count, 1))
        ]
        clock = list(self.clock.values())
        if clock and _STATEFUL_FUNCTION.search(str(frame._jdf.queryExecution().analyzed())):
            batches.append(clock)  # timers of the last rows fire first, as they do live
        else:
            batches[-1] += clock
        self._add(batches[0])
        writer = frame.writeStream.format("memory").queryName(_RESULT).outputMode(mode)
        query = writer.option("checkpointLocation", self.checkpoint).start()
        try:
            query.processAllAvailable()
            for batch in batches[1:]:
                self._add(batch)
                query.processAllAvailable()
        finally:
            threading.Thread(target=query.stop).start()  # it may take 0.1 s

    def _add(self, lines: Sequence[str]) -> None:
        self.stream.addData(self.java.PythonUtils.toSeq(list(lines)))

    def _as_written(self, frame: DataFrame, sink: Sink) -> DataFrame:
        """With the columns of the record, and the fields of its value."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StructType

        request = write_request(self.session, self.pipeline, sink, self.settings, self.checkpoint)
        own = connector(sink.connector, self.pipeline.folder)
        check_sink_columns(frame, sink, own, request.options)
        rows = own.write(request).rows(frame)
        value = rows.schema["value"].dataType if "value" in rows.columns else None
        if not isinstance(value, StructType):
            return rows
        fields = [name for name in value.fieldNames() if name not in rows.columns]
        return rows.select("*", *(F.col("value")[name].alias(name) for name in fields))

    def _read(self, source: Source) -> SourceRows:
        """A source that has the given rows."""
        from pyspark.sql import DataFrame

        request = read_request(self.session, self.pipeline, source, self.settings)
        columns = connector(source.connector, self.pipeline.folder).columns(request.options)
        if columns is None:
            raise _CaseError(f"tests need the columns of source {source.name}: add the option `schema`", source.place)
        schema = _schema(columns)
        batches = self._given(source.name, schema)
        if not request.is_streaming:
            lines = [_line(source.name, row) for batch in batches for row in batch]
            static = self.session._jsparkSession.createDataset(lines, self.text).toDF()
            return SourceRows(self._parsed(DataFrame(static, self.session), source.name, columns), lambda rows: rows)
        self.rows[source.name] = [[_line(source.name, row) for row in batch] for batch in batches]
        frame = self._parsed(DataFrame(self.stream.toDF(), self.session), source.name, f"{columns}, {_CLOCK} BOOLEAN")
        watermark = request.options.get("watermark")
        if not isinstance(watermark, Watermark):
            return SourceRows(frame.drop(_CLOCK), lambda rows: rows)
        self.clock[source.name] = _line(source.name, _clock_row(batches, watermark))
        # Spark moves conditions below the watermark: this one, and those of the user, which a clock row does not meet,
        # since its other columns are null. It moves none past a condition that is not deterministic.
        is_given = f"{_CLOCK} IS NULL OR spark_partition_id() < 0"
        return SourceRows(
            frame, lambda rows: with_watermark(rows, watermark).where(is_given).drop(_CLOCK), unjudged=_CLOCK
        )

    def _parsed(self, lines: DataFrame, source: str, columns: str) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        parsed = F.from_json("value", f"`{source}` STRUCT<{columns}>", {"mode": "FAILFAST"})[source]
        return lines.select(parsed.alias("row")).where("row IS NOT NULL").select("row.*")

    def _given(self, source: str, schema: StructType) -> list[list[dict[str, Any]]]:
        batches = []
        for batch in self.case.given.get(source, ()):
            rows = []
            for row in batch:
                try:
                    rows.append(converted(row, schema, self.zone))
                except ValueError as error:
                    raise _CaseError(f"given row of {source}: {error}", _row_place(row)) from None
            batches.append(rows)
        return batches


def _line(source: str, row: Mapping[str, Any]) -> str:
    """A row in the stream of all sources."""
    return as_json({source: row})


def _clock_row(batches: Sequence[Sequence[Mapping[str, Any]]], watermark: Watermark) -> dict[str, Any]:
    times = [row.get(watermark.column) for batch in batches for row in batch]
    last = max((each for each in times if isinstance(each, datetime) and each.tzinfo), default=_QUIET_FOREVER)
    return {watermark.column: max(_QUIET_FOREVER, last + min(_LONGEST_WINDOW, _LAST_TIME - last)), _CLOCK: True}


@lru_cache(maxsize=256)
def _schema(columns: str) -> StructType:
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(columns))


def _row_place(row: object) -> Place | None:
    return next(iter(getattr(row, "places", {}).values()), None)


def _without_references(pipeline: Pipeline) -> Pipeline:
    """References that stand for nothing on this machine are left out: most are addresses and passwords of brokers."""

    def known(given: Mapping[str, Given]) -> dict[str, Given]:
        found: dict[str, Given] = {}
        for name, entry in given.items():
            try:
                found |= resolve({name: entry}, pipeline.folder)
            except ConfigError:
                continue
        return found

    return replace(
        pipeline,
        sources=tuple(replace(source, options=known(source.options)) for source in pipeline.sources),
        sinks=tuple(replace(sink, options=known(sink.options)) for sink in pipeline.sinks),
        settings=known(pipeline.settings),
    )


@contextmanager
def _checkpoint_folder() -> Iterator[Path]:
    """In memory, if there is room for files in memory."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="moldau-tests-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
