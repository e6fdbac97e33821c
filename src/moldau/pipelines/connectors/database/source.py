"""Tables and queries as Spark sees them. The offset of a batch has the cursor of its last row (`source_sql`):

    {"last": ["2026-01-31 12:00:00+00", "17"], "first": ["2026-01-31 11:00:00+00", "3"], "rows": 15}

In bulk mode it is the number of times that the table was read.

A row may be committed after another with a higher id or a later timestamp was read, and would never be seen
(kafka-connect-jdbc#172). So rows are left alone until they are older than the safety lag: by their timestamp, or, if
they have only an id, by when this reader first saw an id as high.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from moldau.pipelines.connectors.database.dialects import Column
from moldau.pipelines.connectors.database.sessions import Session, opened
from moldau.pipelines.connectors.database.source_sql import Cursor, CursorColumn, SourceSql, Statement
from moldau.pipelines.connectors.database.urls import Database
from moldau.spark.formats.columns import arrow_type
from moldau.spark.plain_errors import plain_errors

_TASK_ROWS = 100_000  # a batch is divided into tasks of about so many
_TASKS_MAX = 32
NOW = "now"


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task reads."""

    low: Cursor | None = None
    high: Cursor | None = None


@dataclass(frozen=True)
class TableSpec:
    database: Database
    sql: SourceSql
    poll_ms: int
    rows_max: int
    initial: str | None = None  # timestamp

    def options(self) -> dict[str, str]:
        """As options of Spark's. The password has one of its own, whose value Spark does not print."""
        facts = asdict(self)
        password = facts["database"].pop("password")
        return {"spec": json.dumps(facts)} | ({"password": password} if password is not None else {})

    @classmethod
    def from_options(cls, options: dict[str, str]) -> TableSpec:
        facts = json.loads(options["spec"])
        sql = facts.pop("sql")
        sql["columns"] = tuple(Column(**column) for column in sql["columns"])
        sql["cursor"] = tuple(CursorColumn(**column) for column in sql["cursor"])
        database = Database(**facts.pop("database"), password=options.get("password"))
        return cls(database, SourceSql(**sql), **facts)

    @property
    def schema(self) -> StructType:
        schema = StructType()
        for column in self.sql.columns:
            schema = schema.add(column.name, column.spark_type)
        return schema

    def read(self, statement: Statement) -> Iterator[pa.RecordBatch]:
        with plain_errors(), opened(self.database) as session:
            schema = pa.schema(list(arrow_type(self.schema)))
            yield from session.batches(statement.sql, statement.values, schema)


class TableSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._spec = TableSpec.from_options(options)

    def schema(self) -> StructType:
        return self._spec.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(self._spec)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TableStreamReader(self._spec)


class TableReader(DataSourceReader):
    """All rows there are when it is read: with each batch, although Spark plans it once."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._spec.read(self._spec.sql.read())


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._asked = float("-inf")
        self._seen = deque[tuple[float, Cursor]]()  # ids that are not settled, and since when they are known
        self._settled: Cursor | None = None
        self._is_available_now = self._is_done = False

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        initial = self._spec.initial
        if initial == NOW:
            with opened(self._spec.database) as session:
                ((initial,),) = session.rows(self._spec.sql.now().sql)
        return {"last": [initial]} if initial is not None else {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing is read that comes later."""
        self._is_available_now = True
        if self._spec.sql.cursor:
            with opened(self._spec.database) as session:
                self._settled = _one(session, self._spec.sql.last())
            if not self._spec.sql.has_time:
                time.sleep(self._spec.sql.lag_ms / 1000)  # for those that were about to be committed before it

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        now = time.monotonic()
        if self._is_done or (not self._is_available_now and now - self._asked < self._spec.poll_ms / 1000):
            return start
        self._asked = now
        if not self._spec.sql.cursor:
            self._is_done = self._is_available_now
            return {"reads": start.get("reads", 0) + 1}
        with opened(self._spec.database) as session:
            if self._waits_for_ids:
                self._look(session, now)
            if self._settled is None and (self._waits_for_ids or self._is_available_now):
                return start
            page = self._spec.sql.page(start.get("last"), self._settled, self._spec.rows_max)
            found = _one(session, page)
        if found is None:
            return start
        rows, *cursors = found
        if rows >= self._spec.rows_max:
            self._asked = float("-inf")  # there is more
        size = len(self._spec.sql.cursor)
        return {"last": cursors[:size], "first": cursors[size:], "rows": rows, "after": start.get("last")}

    @property
    def _waits_for_ids(self) -> bool:
        sql = self._spec.sql
        return not sql.has_time and sql.lag_ms > 0 and not self._is_available_now

    def _look(self, session: Session, now: float) -> None:
        """Ids up to the highest one that was there a safety lag ago are settled."""
        highest = _one(session, self._spec.sql.last())
        if highest is not None and highest != (self._seen[-1][1] if self._seen else self._settled):
            self._seen.append((now, highest))
        while self._seen and now - self._seen[0][0] >= self._spec.sql.lag_ms / 1000:
            self._settled = self._seen.popleft()[1]

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if end == start:
            return []
        if not self._spec.sql.cursor:
            return [Part()]
        # Not from `start`: Spark asks for the initial offset again when it repeats the first batch; `now` has moved.
        return parts(end["after"], end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._spec.read(self._spec.sql.read(partition.low, partition.high))


def parts(low: Cursor | None, end: dict[str, Any]) -> list[Part]:
    """Ranges of about the same size: of ids, if these are whole numbers; otherwise one."""
    tasks = min(-(-end["rows"] // _TASK_ROWS), _TASKS_MAX)
    first, last = end["first"], end["last"]
    try:
        (lowest,), (highest,) = map(int, first), map(int, last)
    except ValueError:
        return [Part(low, last)]
    step = (highest - lowest + 1) / max(tasks, 1)
    kind = type(last[0])  # text or number, as the database wants it back
    bounds = [[kind(lowest - 1 + round(step * number))] for number in range(1, tasks)]
    return [Part(*pair) for pair in zip([low, *bounds], [*bounds, last], strict=True)]


def _one(session: Session, statement: Statement) -> list[Any] | None:
    found = session.rows(statement.sql, statement.values)
    return list(found[0]) if found else None
