"""The generator as Spark sees it. An offset says how many rows there were, and from when to when the last batch is:

    {"row": 300, "from_us": …, "until_us": …}

So a repeated batch has the same rows with the same timestamps, and a query that was stopped for a day does not make up
for that day.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from moldau.clocks import wall_clock_ms
from moldau.pipelines.connectors.readers.generated_columns import Rows, columns
from moldau.spark.formats.columns import arrow_type
from moldau.spark.plain_errors import plain_errors

_SECOND_US = 1_000_000
# A query that is slower than the rate gets no more than this at once: its batches would grow and grow.
_CATCH_UP_US = 10 * _SECOND_US
# Of a batch read, such as a preview, without `rows`.
_BATCH_ROWS = 1000
_TASK_ROWS = 100_000
_ARROW_ROWS = 10_000


@dataclass(frozen=True)
class Part(InputPartition):
    """Rows [start, end) of a batch whose row `first` has this time; each later one is a step later."""

    start: int
    end: int
    first: int
    first_us: float
    step_us: float


class Generator:
    """What batch reads and streams share."""

    def __init__(self, spec: dict[str, Any], schema: StructType) -> None:
        self.rate: float = spec["rows per second"]
        self.rows_max: int | None = spec.get("rows")
        self._tasks: int | None = spec.get("numPartitions")
        self._schema, self._spec = schema, spec
        self._columns = columns(schema, spec.get("fields", {}), spec["seed"])

    def __reduce__(self) -> Any:
        return Generator, (self._spec, self._schema)

    def parts(self, first: int, last: int, from_us: int, until_us: int) -> list[Part]:
        rows = last - first
        step_us = (until_us - from_us) / max(rows, 1)
        tasks = min(self._tasks or -(-rows // _TASK_ROWS), rows) or 1
        bounds = [first + rows * task // tasks for task in range(tasks + 1)]
        return [Part(start, end, first, from_us + step_us, step_us) for start, end in itertools.pairwise(bounds)]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        target = pa.schema(list(arrow_type(self._schema)))
        for start in range(part.start, part.end, _ARROW_ROWS):
            end = min(start + _ARROW_ROWS, part.end)
            rows = Rows.of(start, end, part.first, part.first_us, part.step_us)
            yield pa.RecordBatch.from_arrays([column(rows) for column in self._columns.values()], schema=target)


class GeneratorSource(DataSource):
    def _generator(self, schema: StructType) -> Generator:
        return Generator(json.loads(self.options["spec"]), schema)

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        return GeneratorReader(self._generator(schema))

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return GeneratorStreamReader(self._generator(schema))


class GeneratorReader(DataSourceReader):
    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def partitions(self) -> Sequence[InputPartition]:
        rows, until_us = self._generator.rows_max or _BATCH_ROWS, _now_us()
        return self._generator.parts(0, rows, until_us - int(rows / self._generator.rate * _SECOND_US), until_us)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._generator.read(partition)


class GeneratorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._until_us: int | None = None  # of the last batch of this run
        self._rows_left: int | None = None  # availableNow: in all batches to come

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._rows_left = self._generator.rows_max or max(int(self._generator.rate), 1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        row, now_us = start.get("row", 0), _now_us()
        rate, rows_max = self._generator.rate, self._generator.rows_max
        if self._rows_left is not None:
            rows, self._rows_left = self._rows_left, 0
            from_us = now_us - int(rows / rate * _SECOND_US)
        else:
            row_us = int(_SECOND_US / rate) + 1
            if self._until_us is None:  # the rows of the second before, so that there is something to see at once
                self._until_us = max(now_us - max(_SECOND_US, row_us), start.get("until_us", 0))
            # Not later than now: the clock may have been set back.
            from_us = self._until_us = min(max(self._until_us, now_us - max(_CATCH_UP_US, 2 * row_us)), now_us)
            rows = int((now_us - from_us) * rate / _SECOND_US)
        if rows_max is not None:
            rows = min(rows, rows_max - row)
        if rows <= 0:
            return start
        self._until_us = from_us + round(rows / rate * _SECOND_US)
        return {"row": row + rows, "from_us": from_us, "until_us": self._until_us}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._generator.parts(start.get("row", 0), end["row"], end["from_us"], end["until_us"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._generator.read(partition)


def _now_us() -> int:
    return wall_clock_ms() * 1000
