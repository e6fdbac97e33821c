"""The statements that a sink runs.

The tasks of a batch copy their rows into a staging table. Then one transaction moves them to the table and records the
number of the batch in `moldau_batches`, so that a batch that is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.pipelines.connectors.database.dialects import Dialect, Target, beside, quoted, quoted_table

INSERT, UPSERT, UPDATE = "insert", "upsert", "update"
INSERT_MODES = (INSERT, UPSERT, UPDATE)
PART, ROW, TASK, DELETE = "moldau_part", "moldau_row", "moldau_task", "moldau_delete"
STAGE_COLUMNS = {PART: "int", ROW: "bigint", TASK: "bigint", DELETE: "boolean"}  # beside those of the rows
MARKED_KEYS = "*"  # as `key`, from a door: the columns with this in their metadata
KEY_METADATA = {"moldau.key": True}
_BATCHES = "moldau_batches"
_STAGE = "moldau_stage_"


@dataclass(frozen=True)
class SinkSql:
    dialect: Dialect
    table: str
    keys: Sequence[str] = ()
    mode: str = INSERT
    has_deletes: bool = False

    @property
    def batches_table(self) -> str:
        return beside(self.table, _BATCHES)

    def stage(self, sink: str, attempt: str = "") -> str:
        """The name of the staging table, not quoted. Another attempt has another: a task of the last may still run."""
        return f"{_STAGE}{sink}_{attempt}"

    def quoted_stage(self, name: str) -> str:
        return beside(self.table, name)

    def create_batches(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self.batches_table} "
            "(sink VARCHAR(100) PRIMARY KEY, batch BIGINT NOT NULL, written TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
        )

    def last_batch(self) -> str:
        return f"SELECT batch FROM {self.batches_table} WHERE sink = {self.dialect.parameter(1, 'text')}"

    def record_batch(self) -> str:
        """Returns a row, unless this batch or a later one is recorded. Others that write it wait for this one."""
        sink, batch = self.dialect.parameter(1, "text"), self.dialect.parameter(2, "bigint")
        return (
            f"INSERT INTO {self.batches_table} AS known (sink, batch) VALUES ({sink}, {batch}) ON CONFLICT (sink) "
            "DO UPDATE SET batch = excluded.batch, written = CURRENT_TIMESTAMP WHERE known.batch < excluded.batch "
            "RETURNING batch"
        )

    def create_table(self, types: Mapping[str, str]) -> str:
        columns = [f"{quoted(name)} {self.dialect.created_type(kind)}" for name, kind in types.items()]
        key = [f"PRIMARY KEY ({_names(self.keys)})"] if self.keys else []
        return f"CREATE TABLE IF NOT EXISTS {quoted_table(self.table)} ({', '.join(columns + key)})"

    def add_column(self, name: str, spark_type: str) -> str:
        column = f"{quoted(name)} {self.dialect.created_type(spark_type)}"
        return f"ALTER TABLE {quoted_table(self.table)} ADD COLUMN {column}"

    def create_stage(self, name: str, staged_types: Mapping[str, str]) -> str:
        types = {**staged_types, **STAGE_COLUMNS}
        columns = ", ".join(f"{quoted(column)} {self.dialect.created_type(kind)}" for column, kind in types.items())
        return f"{self.dialect.stage_table} {self.quoted_stage(name)} ({columns})"

    def drop_stage(self, name: str) -> str:
        return f"DROP TABLE IF EXISTS {self.quoted_stage(name)}"

    def count(self, stage: str) -> str:
        """How many rows these tasks have staged; as of `move`, the parameter is the list of them."""
        return f"SELECT COUNT(*) FROM {self.quoted_stage(stage)} WHERE {self.dialect.is_one_of(TASK, 1)}"

    def move(self, stage: str, columns: Sequence[Target]) -> list[str]:
        """The statements that bring the rows to the table. Their parameter is the list of tasks whose rows count."""
        rows = self._rows(stage)
        moving = {INSERT: self._insert, UPSERT: self._upsert, UPDATE: self._update}[self.mode](rows, columns)
        return ([self._delete(rows, columns)] if self.has_deletes else []) + ([moving] if moving else [])

    def _rows(self, stage: str) -> str:
        """All rows of the batch, or the last one of each key."""
        staged, counts = self.quoted_stage(stage), self.dialect.is_one_of(TASK, 1)
        if self.mode == INSERT:
            return f"SELECT * FROM {staged} WHERE {counts}"
        ranked = (
            f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {_names(self.keys)} ORDER BY {PART} DESC, {ROW} DESC) "
            f"AS moldau_rank FROM {staged} WHERE {counts}"
        )
        return f"SELECT * FROM ({ranked}) AS ranked WHERE moldau_rank = 1"

    def _insert(self, rows: str, columns: Sequence[Target]) -> str:
        names = _names([column.name for column in columns])
        return (
            f"INSERT INTO {quoted_table(self.table)} ({names}) SELECT {', '.join(map(_value, columns))} "
            f"FROM ({rows}) AS staged WHERE NOT {DELETE} ORDER BY {PART}, {ROW}"
        )

    def _upsert(self, rows: str, columns: Sequence[Target]) -> str:
        changes = ", ".join(
            f"{quoted(column.name)} = excluded.{quoted(column.name)}"
            for column in columns
            if column.name not in self.keys
        )
        action = f"UPDATE SET {changes}" if changes else "NOTHING"
        return f"{self._insert(rows, columns)} ON CONFLICT ({_names(self.keys)}) DO {action}"

    def _update(self, rows: str, columns: Sequence[Target]) -> str | None:
        changes = [f"{quoted(column.name)} = {_value(column)}" for column in columns if column.name not in self.keys]
        if not changes:
            return None
        return (
            f"UPDATE {quoted_table(self.table)} AS target SET {', '.join(changes)} "
            f"FROM ({rows}) AS staged WHERE NOT {DELETE} AND {self._same_key('target', columns)}"
        )

    def _delete(self, rows: str, columns: Sequence[Target]) -> str:
        return (
            f"DELETE FROM {quoted_table(self.table)} AS target WHERE EXISTS "
            f"(SELECT 1 FROM ({rows}) AS staged WHERE {DELETE} AND {self._same_key('target', columns)})"
        )

    def _same_key(self, alias: str, columns: Sequence[Target]) -> str:
        keys = [column for column in columns if column.name in self.keys]
        return " AND ".join(f"{alias}.{quoted(column.name)} = {_value(column)}" for column in keys)


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _value(column: Target) -> str:
    return column.cast.format(f"staged.{quoted(column.name)}")
