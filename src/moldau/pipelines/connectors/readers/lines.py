"""Lines of files as Spark sees them: the offset of a batch has the entries of all files (`tailed_files`)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructType

from moldau.errors import ConfigError, DataLossError
from moldau.pipelines.connectors.readers.json_values import json_values
from moldau.pipelines.connectors.readers.line_blocks import LineBlock, as_text, line_blocks
from moldau.pipelines.connectors.readers.tailed_files import Entries, Entry, TailedFiles, open_entry
from moldau.spark.formats import json as json_format
from moldau.spark.formats.columns import ColumnOptions
from moldau.spark.options import Options
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.typed_fields import Decoder, TypedFields

# Spark asks a hundred times a second; folders are listed less often.
_LOOK_S = 0.1
# Each task reads at least so much, so that many small files do not become many small tasks.
_TASK_BYTES_MIN = 1024 * 1024
_TASKS_MAX = 32
_EVERYTHING = 2**62
_SAMPLE_BYTES = 1024 * 1024
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinesSpec:
    """The options of the connector, as JSON in an option of Spark's."""

    patterns: list[str]
    format: str
    schema: str | None
    is_from_latest: bool
    batch_bytes_max: int
    line_bytes_max: int
    unfinished_ms: int
    is_loss_failure: bool
    errors: dict[str, str] = field(default_factory=dict)

    def files(self) -> TailedFiles:
        return TailedFiles(self.patterns, self.unfinished_ms)

    def with_schema(self) -> LinesSpec:
        """With the schema of JSON inferred from the first lines, if none is given."""
        if self.format != "json" or self.schema:
            return self
        found = self.files().next({}, _SAMPLE_BYTES)
        lines = [
            line
            for part in _parts(found)
            for _, block in _blocks(part, self)
            for line in block.lines.to_pylist()
            if line.strip()
        ]
        if not lines:
            raise ConfigError(
                f"path {', '.join(self.patterns)}: no line to infer the schema from: give it, such as "
                "`schema: page STRING, at TIMESTAMP`"
            )
        reader = json_format.reader(ColumnOptions(Options({}), "value"), lambda _, rows: lines[:rows], None)
        return replace(self, schema=json.dumps(reader.spark_type.jsonValue()))

    def typed_fields(self) -> TypedFields | None:
        return json_values(self.schema, self.errors) if self.format == "json" else None


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task reads."""

    entries: list[tuple[str, Entry]]


class LinesSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._spec = LinesSpec(**json.loads(options["spec"]))

    @plain_errors()
    def schema(self) -> StructType:
        typed = self._spec.typed_fields()
        value = typed.readers["value"].spark_type if typed else StringType()
        return StructType().add("value", value).add("file", StringType()).add("position", LongType())

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        return LinesReader(self._spec)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return LinesStreamReader(self._spec)


class LinesReader(DataSourceReader):
    """All there is when it is read: as a table, that is with each batch, although Spark plans it once."""

    def __init__(self, spec: LinesSpec) -> None:
        self._spec = replace(spec, unfinished_ms=0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        files, known = self._spec.files(), dict[str, Entry]()
        while (found := files.next(known, _EVERYTHING)) is not known:  # an unfinished line is a step of its own
            known = dict(found)
        yield from read_lines(Part([(key, entry._replace(begin=0)) for key, entry in known.items()]), self._spec)


class LinesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, spec: LinesSpec) -> None:
        self._spec = spec
        self._files = spec.files()
        self._sizes: dict[str, int] | None = None  # availableNow: nothing that comes later is read
        self._looked = float("-inf")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._spec.batch_bytes_max)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._sizes = self._files.sizes()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        now = time.monotonic()
        if self._sizes is None and now - self._looked < _LOOK_S:
            return start
        self._looked = now
        known = _entries(start)
        bytes_max = _EVERYTHING if isinstance(limit, ReadAllAvailable) else self._spec.batch_bytes_max
        is_first = self._spec.is_from_latest and not start
        found = self._files.next(known, bytes_max, is_from_latest=is_first, sizes=self._sizes)
        if found is known and (start or not is_first):
            return start
        # A new query that starts at the end says so, even if there is no file: those that come are read as a whole.
        return {"files": {key: list(entry) for key, entry in found.items()}}

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _parts(_entries(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_lines(partition, self._spec)


def _entries(offset: dict[str, Any]) -> Entries:
    return {key: Entry(*entry) for key, entry in offset.get("files", {}).items()}


def _parts(entries: Entries) -> list[Part]:
    """Tasks of about the same size; files are not divided."""
    new = {key: entry for key, entry in entries.items() if entry.has_bytes}
    size = max(sum(entry.end - entry.begin for entry in new.values()) // _TASKS_MAX, _TASK_BYTES_MIN)
    parts: list[Part] = []
    left = 0
    for key, entry in new.items():
        if left <= 0:
            parts.append(Part([]))
            left = size
        parts[-1].entries.append((key, entry))
        left -= entry.end - entry.begin
    return parts


def read_lines(part: Part, spec: LinesSpec) -> Iterator[pa.RecordBatch]:
    """Rows of value, file and position."""
    with plain_errors():
        typed = spec.typed_fields()
        decoder = typed.decoder(("value", "topic", "offset")) if typed else None
        cut = 0
        for path, block in _blocks(part, spec):
            cut += block.cut
            yield _typed(decoder, path, block) if decoder else _row_batch(as_text(block.lines), path, block.positions)
        if decoder:
            decoder.finish()
        if cut:
            logger.warning("%d lines were longer than %d bytes (max line bytes) and were cut", cut, spec.line_bytes_max)


def _blocks(part: Part, spec: LinesSpec) -> Iterator[tuple[str, LineBlock]]:
    for key, entry in part.entries:
        file = open_entry(key, entry)
        if file is None:
            _lose(f"{entry.path} was truncated or deleted before bytes {entry.begin} to {entry.end} were read", spec)
            continue
        with file:
            for block in line_blocks(file, entry.begin, entry.end, spec.line_bytes_max):
                yield entry.path, block


def _lose(message: str, spec: LinesSpec) -> None:
    if spec.is_loss_failure:
        raise DataLossError(f"{message}. To continue with what is there, set failOnDataLoss: false")
    logger.warning("%s (with failOnDataLoss: true that is an error)", message)


def _row_batch(values: pa.Array, path: str, positions: Any) -> pa.RecordBatch:
    files = pa.array([path]).take(pa.array(np.zeros(len(values), np.int64)))
    return pa.record_batch([values, files, pa.array(positions, pa.int64())], names=["value", "file", "position"])


def _typed(decoder: Decoder, path: str, block: LineBlock) -> pa.RecordBatch:
    """Lines with text in them. A bad one is reported as a record is: file and position are its topic and offset."""
    raw = _row_batch(block.lines, path, block.positions)
    raw = raw.filter(pc.match_substring_regex(block.lines, r"\S"))
    rows = len(raw)
    columns = {
        "topic": raw.column("file"),
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": raw.column("position"),
        "key": pa.nulls(rows, pa.binary()),
        "value": raw.column("value"),
        "timestamp": pa.nulls(rows, pa.timestamp("us", "UTC")),
        "headers": pa.nulls(rows, _HEADERS),
    }
    typed = decoder.apply(pa.record_batch(list(columns.values()), names=list(columns)))
    return typed.rename_columns(["value", "file", "position"])
