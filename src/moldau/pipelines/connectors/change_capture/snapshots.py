"""Publications, and snapshots of tables that fit to the changes that follow them.

A snapshot S of a table is taken when the query is at position L. What follows are the changes of transactions that
commit at L or later and that S has not seen. So nothing may be lost between the two: a transaction that S has not seen
must not have committed before L, nor have written to the table before it was published. Both is so if every transaction
that had an id when L was known and the publication was there has ended when S is taken; that is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from moldau.errors import ConfigError
from moldau.pipelines.connectors.change_capture.database import (
    Database,
    Table,
    connect,
    plain_refusals,
    quoted_name,
    quoted_table,
)
from moldau.pipelines.connectors.change_capture.positions import Snapshot

if TYPE_CHECKING:
    import psycopg

FILTERED, ALL_TABLES, DISABLED = "filtered", "all tables", "disabled"  # who makes the publication, and of what


def publish(database: Database, publication: str, mode: str, tables: Sequence[Table]) -> None:
    """Let the publication have these tables."""
    for table in tables:
        if not table.can_update:
            raise ConfigError(
                f"table {table.full_name} has no primary key: PostgreSQL would refuse every UPDATE and DELETE on it "
                f"once it is published. Add a primary key, run ALTER TABLE {quoted_table(table)} REPLICA IDENTITY "
                "FULL, or leave the table out"
            )
    published = database.published(publication)
    missing = [table for table in tables if table.full_name not in (published or ())]
    if published is not None and not missing:
        return
    names = ", ".join(map(quoted_table, missing))
    if mode == DISABLED:
        what = "does not exist" if published is None else f"lacks {names}"
        how = "CREATE PUBLICATION {} FOR TABLE {}" if published is None else "ALTER PUBLICATION {} ADD TABLE {}"
        raise ConfigError(
            f"publication {publication} {what}: run {how.format(quoted_name(publication), names)}, or let it be made "
            "for you (publication mode: filtered)"
        )
    if published is not None:
        database.ask(f"ALTER PUBLICATION {quoted_name(publication)} ADD TABLE {names}")
        return
    scope = "ALL TABLES" if mode == ALL_TABLES else f"TABLE {names}"
    # Rows of partitions are changes of their table.
    database.ask(f"CREATE PUBLICATION {quoted_name(publication)} FOR {scope} WITH (publish_via_partition_root = true)")


class Barrier:
    """The transactions that have to end before a snapshot may be taken."""

    def __init__(self, database: Database) -> None:
        ((self._next_xid,),) = database.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")

    def is_reached(self, database: Database) -> bool:
        ((oldest,),) = database.ask("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")
        return bool(oldest >= self._next_xid)


class HeldSnapshot:
    """A snapshot that others can read with as long as this is open."""

    def __init__(self, conninfo: str) -> None:
        self._connection = connect(conninfo)
        with plain_refusals():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = self._connection.execute(
                "SELECT pg_current_snapshot()::text, pg_export_snapshot(), (pg_current_wal_insert_lsn() - '0/0')::int8"
            ).fetchone()
        assert row is not None
        xids, self.export, until = row
        self.seen = Snapshot(xids, until)

    def close(self) -> None:
        self._connection.close()


def snapshot_rows(
    connection: psycopg.Connection[Any], table: Table, export: str | None
) -> Iterator[tuple[datetime, tuple[str | None, ...]]]:
    """The rows of a table as text, each with the time of the snapshot.

    `export` is an exported snapshot. Where it is gone, because the batch is repeated after a restart, the rows are read
    as they are now: changes since the first snapshot then come again.
    """
    from psycopg import errors

    columns = ", ".join(quoted_name(column.name) for column in table.columns)
    with plain_refusals():
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if export is not None:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{export}'")
        except (errors.InvalidParameterValue, errors.UndefinedObject):
            connection.execute("ROLLBACK")
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = connection.execute("SELECT now()").fetchone()
        assert row is not None
        query = f"COPY (SELECT {columns} FROM {quoted_table(table)}) TO STDOUT"
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            for values in cast(Iterable[tuple[str | None, ...]], copy.rows()):
                yield row[0], values
        connection.execute("COMMIT")
