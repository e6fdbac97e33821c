"""What a connector is: a class with option tables that reads a stream, writes one, or both.

    class Clock(Connector):
        name = "clock"
        summary = "one row a second"
        source_options = OptionTable.of(Option("zone", "Time zone.", default="UTC"))

        def read(self, request: ReadRequest) -> DataFrame:
            return request.spark.readStream.format("rate").load()

A file names it as `connector: clock`, or as `connector: package.module:Clock` if it is your own. Modules of connectors
import Spark only inside functions: lint and graph load them without Spark.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from moldau.errors import ConfigError
from moldau.pipelines.model.options import Given, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamReader


SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"  # whether the streams of a session have names


class Guarantee(Enum):
    """What a sink promises when a query is killed at any point and restarted."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True)
class Request:
    """What a connector gets to work with. Values are converted, references resolved."""

    spark: SparkSession
    pipeline: str
    name: str  # of the source or sink
    options: Mapping[str, Value]  # of the connector's table, with defaults, and of SOURCE_OPTIONS or SINK_OPTIONS
    kafka: Mapping[str, str] = field(default_factory=dict)  # `kafka.*` of the settings
    folder: Path = field(default_factory=Path)  # relative paths are below it

    def path(self, option: str) -> str:
        """A path relative to the pipeline's folder; URLs and absolute paths as they are."""
        text = str(self.options[option])
        return text if "://" in text else str(self.folder / text)


@dataclass(frozen=True)
class ReadRequest(Request):
    query: str = ""  # that reads; several may read the same source
    is_streaming: bool = True
    # Where a dead letter of this source goes; None: nowhere.
    dead_letters: str | None = None
    # What cannot be decoded is left out, and logged: for a preview, which neither fails nor writes.
    skips_bad: bool = False
    # Set by `reset`: start here instead of where the options say. In the form of Spark's checkpoint.
    start: str | None = None
    # How long the source may wait for new records before it says that there are none; see `engine/idle.py`.
    idle_wait_ms: int = 0
    idle_wait_topics: tuple[str, ...] = ()  # of the query's other sources: new records there end the wait, too
    # Records that are left out, because they are dead letters, and (of a batch) the only ones that are read. For a
    # connector with an `origin`, in a form of its own.
    excluded: str | None = None
    part: str | None = None

    @property
    def _stream_reader(self) -> DataStreamReader:
        reader = self.spark.readStream
        return reader.name(self.name) if self.spark.conf.get(SOURCE_NAMES) == "true" else reader

    def loader(self, source: str | type[DataSource]) -> DataStreamReader:
        """`spark.readStream`, named, so that checkpoints find the source again when others come and go.

        `source` is the name of a Spark format, or the class of a data source in Python, which needs no registration.
        For a batch (a preview, or the search for a bad record) it is `spark.read`, which has the same methods.
        """
        reader = self._stream_reader if self.is_streaming else self.spark.read
        if isinstance(source, str):
            return cast("DataStreamReader", reader.format(source))
        from moldau.pipelines.connectors.readers.data_source import FORMAT, options_of

        return cast("DataStreamReader", reader.format(FORMAT).options(**options_of(source)))

    def rows(
        self,
        function: Callable[[Any], Iterable[tuple[Mapping[str, Any], Any]]],
        *,
        schema: str | None = None,
        poll_ms: int = 1_000,
        rows_max: int = 10_000,
    ) -> DataFrame:
        """The rows of a generator function, which gets a cursor and yields rows with the cursor that follows each.

        The cursor is None at first, later what JSON has made of the last one. The same cursor has to lead to the same
        rows: a batch that was interrupted is read again. After the function had nothing more, it rests for `poll_ms`.
        """
        from moldau.pipelines.connectors.readers.python_rows import PythonSource, spec_of

        spec = spec_of(function, owner=f"source {self.name}", poll_ms=poll_ms, rows_max=rows_max)
        return self.loader(PythonSource).schema(schema or self.options["schema"]).options(spec=spec).load()


@dataclass(frozen=True)
class WriteRequest(Request):
    mode: str = "append"
    checkpoint: str = ""  # of the query; a sink may keep files of its own in a folder below it
    is_new: bool = False  # this sink has joined a query that had written before
    is_shared: bool = False  # the query has or had other sinks, too: it needs a BatchSink


@dataclass(frozen=True)
class StreamSink:
    """A sink of Spark's: `writeStream.format(…)`."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: Sequence[str] = ()
    rows: Callable[[DataFrame], DataFrame] = lambda rows: rows  # applied to the rows before they are written
    # In a search for bad records, which writes nothing: applied to these rows, to fail where the sink would.
    trial: Callable[[DataFrame], DataFrame] = lambda rows: rows


@dataclass(frozen=True)
class BatchSink:
    """A function that gets each micro-batch and its number: `foreachBatch`. A repeated batch has the same number."""

    write: Callable[[DataFrame, int], None]
    rows: Callable[[DataFrame], DataFrame] = lambda rows: rows  # applied to the stream before it is written
    trial: Callable[[DataFrame], DataFrame] = lambda rows: rows  # as of StreamSink

    def after(self, steps: Sequence[Callable[[DataFrame], DataFrame]]) -> BatchSink:
        """This sink behind steps that are applied to each micro-batch."""

        def prepared(rows: DataFrame) -> DataFrame:
            return self.rows(reduce(lambda frame, step: step(frame), steps, rows))

        return BatchSink(
            lambda rows, batch_id: self.write(prepared(rows), batch_id), trial=lambda rows: self.trial(prepared(rows))
        )


class Connector(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]  # one line of the reference page
    source_options: ClassVar[OptionTable | None] = None  # None: it is no source
    sink_options: ClassVar[OptionTable | None] = None  # None: it is no sink
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE  # of the sink
    modes: ClassVar[tuple[str, ...]] = ("append", "update", "complete")  # of the sink
    source_example: ClassVar[str] = ""  # YAML: the body of a source, for the reference page
    sink_example: ClassVar[str] = ""
    # Options of the sink that are SQL expressions over its rows, or lists of their columns: checked before it writes.
    sink_expressions: ClassVar[tuple[str, ...]] = ()
    sink_columns: ClassVar[tuple[str, ...]] = ()
    # Options that say what is read or written: a query with other values for them is another query.
    identity: ClassVar[tuple[str, ...]] = ()
    writes_alone: ClassVar[bool] = False  # two sinks with the same `path` would lose rows after a kill
    # Whether `ReadRequest.start` says where it starts; otherwise a source can only start over.
    can_start_at: ClassVar[bool] = False
    # Sinks of one stateful view may share a query: `write` returns a BatchSink if the request says so. A batch that is
    # repeated, because another sink failed or the process was killed, must change nothing.
    can_share: ClassVar[bool] = False
    # What together identifies a record, for dead letters; empty: records cannot be singled out.
    origin: ClassVar[tuple[str, ...]] = ()

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        """What the option table cannot say, without Spark or I/O."""
        return ()

    def columns(self, options: Mapping[str, Value]) -> str | None:
        """The columns that `read` returns, as in SQL, for lint and tests; None if the options do not tell."""
        schema = options.get("schema")
        return str(schema) if schema else None

    def preview_options(self, options: Mapping[str, Value]) -> Iterable[Mapping[str, Value]]:
        """Options with which a preview reads the source, best first: it takes the first that can be read."""
        return (options,)

    def read(self, request: ReadRequest) -> DataFrame:
        """The stream, with the columns that the user's steps see."""
        raise ConfigError(f"connector {self.name} cannot be a source")

    def write(self, request: WriteRequest) -> StreamSink | BatchSink:
        raise ConfigError(f"connector {self.name} cannot be a sink")

    def continues(self, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
        """Whether a source whose `identity` options have changed can continue with the offsets of its checkpoint."""
        return False

    def start_at(self, position: str) -> str:
        """The offset of a checkpoint as `ReadRequest.start` takes it and as people read it: as JSON, by topic."""
        return position

    def backlog(self, request: ReadRequest, position: str | None) -> int | None:
        """How many records a query would find now, for dry-run. `position` is the offset in its checkpoint.

        None if it cannot be told. Raises MoldauError if what is read is not there or cannot be reached.
        """
        return None

    def sink_notes(self, request: WriteRequest) -> Iterable[str]:
        """What is worth knowing about where the sink writes, for dry-run. Raises MoldauError as `backlog` does."""
        return ()

    def hold_ms(self, options: Mapping[str, Value]) -> int:
        """How long the source may keep rows back before it tells Spark of them."""
        return 0

    def prepare(self, request: Request) -> None:  # noqa: B027 (most have nothing to do)
        """Called before queries start, for what must exist: a topic, a folder. Called again at each restart."""
