"""Micro-batches written to tables, each exactly once (`sink_sql` says how)."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.database.dialects import DIALECTS, NESTED, Target
from moldau.pipelines.connectors.database.sessions import Session, opened
from moldau.pipelines.connectors.database.sink_sql import (
    DELETE,
    INSERT,
    KEY_METADATA,
    MARKED_KEYS,
    PART,
    ROW,
    TASK,
    SinkSql,
)
from moldau.pipelines.connectors.database.urls import Database
from moldau.pipelines.model.options import options_hint
from moldau.spark.options import QUERY_ID
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

# Types that the driver copies as they are. ADBC has copied decimals wrongly (arrow-adbc#4507): they are staged as text.
_COPIED = {"boolean", "smallint", "int", "bigint", "float", "double", "binary", "date", "timestamp", "timestamp_ntz"}


@dataclass(frozen=True)
class TableSink:
    database: Database
    name: str  # of the sink
    table: str | None
    table_column: str | None = None
    mode: str = INSERT
    keys: Sequence[str] = ()
    delete: str | None = None  # SQL of Spark's
    exclude: Sequence[str] = ()
    creates: bool = False
    evolves: bool = False

    def write(self, rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or "batch"
        if self.table_column is None:
            self._write(rows, self.table or "", query, batch_id)
            return
        rows.persist()  # it is read for each table
        try:
            for (table,) in sorted(rows.select(self.table_column).distinct().collect()):
                self._write(rows.where(_column(self.table_column).eqNullSafe(table)), table, query, batch_id)
        finally:
            rows.unpersist()

    def _written(self, rows: DataFrame) -> list[StructField]:
        left_out = {*self.exclude, self.table_column}
        return [field for field in rows.schema.fields if field.name not in left_out]

    def _keys(self, rows: DataFrame) -> Sequence[str]:
        if self.keys != (MARKED_KEYS,):
            return self.keys
        return [field.name for field in rows.schema.fields if KEY_METADATA.items() <= field.metadata.items()]

    def _write(self, rows: DataFrame, table: str, query: str, batch_id: int) -> None:
        sql = SinkSql(DIALECTS[self.database.dialect], table, self._keys(rows), self.mode, self.delete is not None)
        sink = hashlib.sha256(f"{query}/{self.name}/{table}".encode()).hexdigest()[:16]
        stage = sql.stage(sink, uuid.uuid4().hex[:8])
        with opened(self.database) as session:
            if self._is_written(session, sql, sink, batch_id):
                return
            if self.table_column is not None:  # rows of several tables have the columns of all of them
                known = {column.name for column in session.targets(table) or ()}
                rows = _without_empty(rows, [each.name for each in self._written(rows) if each.name not in known])
            fields = self._written(rows)
            columns = self._columns(session, sql, fields)
            for left in session.tables(sql.stage(sink)):  # of an attempt that was killed
                session.rows(f"DROP TABLE IF EXISTS {left}")
            staged_types = {field.name: _staged_type(field) for field in fields}
            session.rows(sql.create_stage(stage, staged_types))
            session.commit()
        try:
            self._move(sql, stage, columns, self._copy(rows, fields, sql.quoted_stage(stage)), (sink, batch_id))
        except Exception:
            with suppress(MoldauError), opened(self.database) as session:
                session.rows(sql.drop_stage(stage))
                session.commit()
            raise

    def _move(
        self, sql: SinkSql, stage: str, columns: Sequence[Target], staged: Mapping[int, int], batch: tuple[str, int]
    ) -> None:
        """From the staging table to the table, in one transaction. `staged` has the rows of each task."""
        tasks = json.dumps([*staged])
        with opened(self.database) as session:
            # First, since it also keeps out another process that writes the same batch.
            if session.rows(sql.record_batch(), batch):
                if session.rows(sql.count(stage), (tasks,)) != [(sum(staged.values()),)]:
                    raise MoldauError(  # PostgreSQL empties such a table when it recovers from a crash
                        f"table {sql.table}: rows of a batch were lost before they were moved to it, probably because "
                        "the database was restarted: the batch is written again"
                    )
                for statement in sql.move(stage, columns):
                    session.rows(statement, (tasks,))
            session.rows(sql.drop_stage(stage))
            session.commit()

    def _is_written(self, session: Session, sql: SinkSql, sink: str, batch_id: int) -> bool:
        if session.targets(sql.batches_table) is None:
            session.rows(sql.create_batches())
            session.commit()
        found = session.rows(sql.last_batch(), (sink,))
        return bool(found) and found[0][0] >= batch_id

    def _columns(self, session: Session, sql: SinkSql, fields: Sequence[StructField]) -> list[Target]:
        """The columns to write, created if that is asked for."""
        types = {field.name: field.dataType.simpleString() for field in fields}
        for key in sql.keys:
            if key not in types:
                raise ConfigError(f"key: there is no column '{key}'{options_hint(key, tuple(types), 'Columns are')}")
        found = session.targets(sql.table)
        if found is None:
            if not self.creates:
                raise MoldauError(f"there is no table {sql.table}: create it, or set `auto create: true`")
            session.rows(sql.create_table(types))
        elif missing := types.keys() - {column.name for column in found}:
            if not self.evolves:
                name = min(missing)
                hint = options_hint(name, tuple(column.name for column in found), "Its columns are")
                raise MoldauError(
                    f"table {sql.table} has no column '{name}'{hint} Add it, leave it out with `exclude`, or set "
                    "`auto evolve: true`"
                )
            for name in (name for name in types if name in missing):
                session.rows(sql.add_column(name, types[name]))
        return [column for column in session.targets(sql.table) or () if column.name in types]

    def _copy(self, rows: DataFrame, fields: Sequence[StructField], stage: str) -> dict[int, int]:
        """Copy the rows to the staging table. Returns how many each task had, without tasks that Spark gave up."""
        from pyspark.sql import functions as F  # noqa: N812

        deletes = F.coalesce(F.expr(self.delete), F.lit(False)) if self.delete else F.lit(False)
        staged = rows.select(*(_staged(field) for field in fields), deletes.alias(DELETE))
        if not DIALECTS[self.database.dialect].writes_in_parallel:
            staged = staged.coalesce(1)
        copy = partial(_copy_task, database=self.database, stage=stage)
        return {row[0]: row[1] for row in staged.mapInArrow(copy, f"{TASK} BIGINT, count BIGINT").collect()}


def _copy_task(batches: Iterable[pa.RecordBatch], database: Database, stage: str) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task = context.taskAttemptId()
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    if first is None:
        return
    schema = pa.schema([*first.schema, (PART, pa.int32()), (ROW, pa.int64()), (TASK, pa.int64())])
    numbered = _numbered(chain([first], filled), schema, context.partitionId(), task)
    with plain_errors(), opened(database) as session:
        count = session.ingest(stage, pa.RecordBatchReader.from_batches(schema, numbered))
        session.commit()
    yield pa.record_batch([pa.array([task], pa.int64()), pa.array([count], pa.int64())], names=[TASK, "count"])


def _numbered(batches: Iterable[pa.RecordBatch], schema: pa.Schema, part: int, task: int) -> Iterator[pa.RecordBatch]:
    """With the place of each row in the batch: the last one of a key is the one that stays."""
    done = 0
    for batch in batches:
        size = len(batch)
        numbers = np.full(size, part, np.int32), np.arange(done, done + size), np.full(size, task, np.int64)
        yield pa.record_batch([*batch.columns, *map(pa.array, numbers)], schema=schema)
        done += size


def _staged_type(field: StructField) -> str:
    kind = field.dataType.simpleString()
    return "smallint" if kind == "tinyint" else kind if kind in _COPIED else "string"


def _staged(field: StructField) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    kind = field.dataType.simpleString()
    column = _column(field.name)
    if kind.startswith(NESTED):
        return F.to_json(column).alias(field.name)
    return column.cast(_staged_type(field)).alias(field.name)


def _without_empty(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Without those of these columns that have no value in any row."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = rows.agg(*(F.count(_column(name)) for name in names)).first() if names else ()
    return rows.drop(*(name for name, count in zip(names, counts or (), strict=True) if not count))


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(f"`{name.replace('`', '``')}`")
