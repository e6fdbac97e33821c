"""A connection to a database, with the few calls that reading and writing need."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.database.dialects import (
    DIALECTS,
    Column,
    Target,
    postgres_column,
    postgres_target,
    quoted,
    quoted_table,
    sqlite_column,
    table_parts,
)
from moldau.pipelines.connectors.database.sqlite_values import arrow_column, sqlite_values
from moldau.pipelines.connectors.database.urls import Database

_ARROW_ROWS = 10_000
_LOCKED_S = 60.0  # how long SQLite waits for another writer
# The driver repeats the statement and where in it: the first line says what happened.
_NOISE = re.compile(r"^[A-Z_]+: (?:\[libpq\] )?(?:Failed to [a-z ]+: )?(?:could not begin COPY: )?(?:ERROR: +)?")


class Session(ABC):
    """Statements name their values `dialect.parameter(1, …)`, `(2, …)` and so on. Nothing is kept without `commit`."""

    def __init__(self, database: Database) -> None:
        self.dialect = DIALECTS[database.dialect]

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; the rows that it returns, if any."""

    @abstractmethod
    def batches(self, sql: str, values: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a query in this schema, without holding all of them in memory."""

    @abstractmethod
    def ingest(self, table: str, reader: pa.RecordBatchReader) -> int:
        """Append to a table whose columns have the same names; returns the number of rows."""

    @abstractmethod
    def columns(self, relation: str) -> list[Column]:
        """Of what may stand after FROM."""

    @abstractmethod
    def targets(self, table: str) -> list[Target] | None:
        """The columns of a table to write to; None if there is no such table."""

    @abstractmethod
    def tables(self, like: str = "") -> list[str]:
        """Names of tables, without schemas of the system; those that begin with `like`."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


@contextmanager
def opened(database: Database) -> Iterator[Session]:
    """A session that is closed at the end. Errors of the driver become a sentence."""
    session: Session | None = None
    try:
        session = PostgresSession(database) if database.dialect == "postgres" else SqliteSession(database)
        yield session
    except Exception as error:
        if isinstance(error, sqlite3.Error) or type(error).__module__.startswith("adbc_driver_manager"):
            raise MoldauError(f"{database.url}: {_said(error)}") from None
        raise
    finally:
        if session is not None:
            session.close()


def _said(error: Exception) -> str:
    return _NOISE.sub("", str(error)).partition("\nLINE ")[0].partition("\n\nQuery was")[0].strip()


class PostgresSession(Session):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        try:
            from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]
        except ImportError as error:
            raise ConfigError(
                "PostgreSQL needs ADBC's driver: install it with `pip install adbc-driver-postgresql`"
            ) from error
        self._connection = dbapi.connect(database.connection_url)
        self._cursor = self._connection.cursor()
        self._set({"TimeZone": database.zone})

    def _set(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self._cursor.execute("SELECT set_config($1, $2, false)", (name, value))
            self._cursor.fetchall()

    def _execute(self, sql: str, values: Sequence[Any]) -> None:
        self._set({f"moldau.p{number}": str(value) for number, value in enumerate(values, 1)})
        self._cursor.execute(sql)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._execute(sql, values)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def batches(self, sql: str, values: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self._execute(sql, values)
        for batch in self._cursor.fetch_record_batch():
            columns = [_stored(column).cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            yield pa.record_batch(columns, schema=schema)

    def ingest(self, table: str, reader: pa.RecordBatchReader) -> int:
        *schema, name = table_parts(table)
        where = {"db_schema_name": schema[-1]} if schema else {}
        return int(self._cursor.adbc_ingest(name, reader, mode="append", **where))

    def columns(self, relation: str) -> list[Column]:
        self._execute(f"SELECT * FROM {relation} LIMIT 0", ())
        found = []
        for field in self._cursor.fetch_arrow_table().schema:
            facts = field.metadata or {}
            modifier = int(facts.get(b"POSTGRESQL:typmod", b"-1"))
            found.append(postgres_column(field.name, facts.get(b"POSTGRESQL:type", b"").decode(), modifier))
        return found

    def targets(self, table: str) -> list[Target] | None:
        found = self.rows(
            "SELECT a.attname::text, format('%I.%I', n.nspname, t.typname), t.typcategory::text "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace "
            "WHERE a.attrelid = to_regclass(current_setting('moldau.p1')) AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            (quoted_table(table),),
        )
        return [postgres_target(*each) for each in found] or None

    def tables(self, like: str = "") -> list[str]:
        found = self.rows(
            "SELECT CASE WHEN n.nspname = current_schema() THEN quote_ident(c.relname) "
            "ELSE format('%I.%I', n.nspname, c.relname) END "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^(pg_|information_schema$)' "
            "AND starts_with(c.relname::text, current_setting('moldau.p1')) ORDER BY 1",
            (like,),
        )
        return [name for (name,) in found]

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()


def _stored(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


class SqliteSession(Session):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._connection = sqlite3.connect(database.url, timeout=_LOCKED_S, isolation_level=None)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if not self._connection.in_transaction and not sql.startswith(("SELECT", "PRAGMA", "WITH")):
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection.execute(sql, values).fetchall()

    def batches(self, sql: str, values: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        cursor = self._connection.execute(sql, values)
        while rows := cursor.fetchmany(_ARROW_ROWS):
            columns = zip(*rows, strict=True)
            yield pa.record_batch([arrow_column(*each) for each in zip(columns, schema, strict=True)], schema=schema)

    def ingest(self, table: str, reader: pa.RecordBatchReader) -> int:
        names = ", ".join(map(quoted, reader.schema.names))
        marks = ", ".join("?" * len(reader.schema))
        self._connection.execute("BEGIN IMMEDIATE")
        count = 0
        for batch in reader:
            columns = map(sqlite_values, batch.columns)
            self._connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", zip(*columns, strict=True))
            count += len(batch)
        return count

    def columns(self, relation: str) -> list[Column]:
        self._connection.execute("DROP VIEW IF EXISTS temp.moldau_columns")
        self._connection.execute(f"CREATE TEMP VIEW moldau_columns AS SELECT * FROM {relation}")
        found = self._connection.execute("PRAGMA temp.table_info(moldau_columns)").fetchall()
        return [sqlite_column(name, declared or self._type_in(relation, name)) for _, name, declared, *_ in found]

    def _type_in(self, relation: str, name: str) -> str:
        """Of an expression, which has no declared type: that of its first value."""
        column = quoted(name)
        found = self.rows(f"SELECT typeof({column}) FROM {relation} WHERE {column} IS NOT NULL LIMIT 1")
        return str(found[0][0]) if found else "text"

    def targets(self, table: str) -> list[Target] | None:
        found = self.rows(f"PRAGMA table_info({quoted_table(table)})")
        return [Target(name, "{}") for _, name, *_ in found] or None

    def tables(self, like: str = "") -> list[str]:
        found = self.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
            "AND substr(name, 1, length(?1)) = ?1 ORDER BY name",
            (like,),
        )
        return [name for (name,) in found]

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()
