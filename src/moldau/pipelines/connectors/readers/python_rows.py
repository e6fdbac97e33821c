"""Rows of a generator function. An offset is the cursor behind the last row of a batch, and the number of its rows:

    {"cursor": 17, "rows": 3}

The driver calls the function to learn where a batch ends and keeps its rows for the task. A batch that is repeated
after a restart has none kept: its task calls the function again, from the cursor before.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from moldau.config.keys import nearest
from moldau.errors import DataLossError, RecordFormatError
from moldau.spark.formats.columns import arrow_type
from moldau.spark.plain_errors import plain_errors

Row = dict[str, Any]
_BATCH_S_MAX = 1.0  # rows that come slowly are not kept waiting for more
_ARROW_ROWS = 10_000
_CURSOR_BYTES_MAX = 100_000  # it is in every offset of the checkpoint


def spec_of(function: Callable[..., Any], **options: Any) -> str:
    return json.dumps(options | {"function": base64.b64encode(cloudpickle.dumps(function)).decode()})


@dataclass(frozen=True)
class Part(InputPartition):
    cursor: Any
    end: Any
    count: int
    rows: list[Row] | None


class PythonRows:
    """The function, with what it returns checked."""

    def __init__(self, spec: dict[str, Any], schema: StructType) -> None:
        self._function: Callable[[Any], Any] = cloudpickle.loads(base64.b64decode(spec["function"]))
        self._spec, self._schema = spec, schema
        self.poll_s: float = spec["poll_ms"] / 1000
        self.rows_max: int = spec["rows_max"]

    def __reduce__(self) -> Any:
        return PythonRows, (self._spec, self._schema)

    def after(self, cursor: Any) -> Iterator[tuple[Row, Any]]:
        owner, names = self._spec["owner"], set(self._schema.names)
        for item in self._function(cursor) or ():
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], dict)):
                raise RecordFormatError(
                    f"{owner}: the function has to yield pairs of a dict and a cursor, not {item!r:.200}"
                )
            row, following = item
            if not row.keys() <= names:
                name = min(map(str, row.keys() - names))
                meant = nearest(name, self._schema.names)
                hint = f": did you mean '{meant}'?" if meant else ""
                raise RecordFormatError(f"{owner}: the schema has no column '{name}'{hint}")
            yield row, following

    def batches(self, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        target = pa.schema(list(arrow_type(self._schema)))
        for start in range(0, len(rows), _ARROW_ROWS):
            try:
                yield pa.RecordBatch.from_pylist(list(rows[start : start + _ARROW_ROWS]), target)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise RecordFormatError(f"{self._spec['owner']}: a row does not fit the schema: {error}") from error

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            rows, end = part.rows, part.end
            if rows is None:
                rows, end = self.take(part.cursor, part.count, _same_clock)
            if len(rows) != part.count or _stored(end) != _stored(part.end):
                raise DataLossError(
                    f"{self._spec['owner']}: a batch is repeated, and the function returned other rows than before for "
                    f"the same cursor {part.cursor!r:.200}"
                )
            yield from self.batches(rows)

    def take(self, cursor: Any, count: int, clock: Callable[[], float] = time.monotonic) -> tuple[list[Row], Any]:
        """Up to `count` rows, fewer if they come slowly, and the cursor behind them."""
        rows: list[Row] = []
        began = clock()
        for row, following in self.after(cursor):
            rows.append(row)
            cursor = following
            if len(rows) >= count or clock() - began > _BATCH_S_MAX:
                break
        return rows, cursor


class PythonSource(DataSource):
    def _rows(self, schema: StructType) -> PythonRows:
        return PythonRows(json.loads(self.options["spec"]), schema)

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        return PythonReader(self._rows(schema))

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return PythonStreamReader(self._rows(schema))


class PythonReader(DataSourceReader):
    """For previews and tables: what the function has now, from the beginning."""

    def __init__(self, rows: PythonRows) -> None:
        self._rows = rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            rows, _ = self._rows.take(None, self._rows.rows_max)
            yield from self._rows.batches(rows)


class PythonStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: PythonRows) -> None:
        self._rows = rows
        self._kept: tuple[dict[str, Any], list[Row]] | None = None  # of the batch with this end
        self._asked = float("-inf")
        self._is_available_now = self._is_done = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._is_done or (not self._is_available_now and time.monotonic() - self._asked < self._rows.poll_s):
            return start
        rows, cursor = self._rows.take(start.get("cursor"), self._rows.rows_max)
        if not rows:
            self._asked, self._is_done = time.monotonic(), self._is_available_now
            return start
        end = {"cursor": json.loads(_stored(cursor)), "rows": len(rows), "batch": start.get("batch", 0) + 1}
        self._kept = end, rows
        return end

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        rows = self._kept[1] if self._kept and self._kept[0] == end else None
        return [Part(start.get("cursor"), end["cursor"], end["rows"], rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._rows.read(partition)


def _same_clock() -> float:
    """For a batch whose size is known: it does not end early."""
    return 0.0


def _stored(cursor: Any) -> str:
    """As the checkpoint has it."""
    try:
        text = json.dumps(cursor, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise RecordFormatError(f"a cursor has to be a value that JSON can hold, not {cursor!r:.200}") from error
    if len(text) > _CURSOR_BYTES_MAX:
        raise RecordFormatError(f"a cursor has {len(text)} characters, at most {_CURSOR_BYTES_MAX} are allowed")
    return text
