"""The database: what change capture asks PostgreSQL for, and what its refusals mean to the user.

Everything is ordinary SQL. `pg_logical_slot_peek_binary_changes` decodes from the slot's confirmed position and returns
the transactions whose commit record begins before `upto_lsn`, each as a whole, and changes nothing, so that a range can
be read again. PostgreSQL keeps its result on disk if it is large, and COPY streams it, so neither side's memory grows
with a transaction.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from moldau.errors import CommandError, ConfigError, DataLossError
from moldau.pipelines.connectors.change_capture.pgoutput import Column
from moldau.pipelines.connectors.change_capture.positions import lsn_text

if TYPE_CHECKING:
    import psycopg

# Values arrive as text, so how PostgreSQL prints them must not depend on the server's settings.
_SESSION = (
    "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c bytea_output=hex -c extra_float_digits=3 "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
_CONNECT_S = 10
# A session that was killed holds the slot until PostgreSQL notices that nobody reads.
_SLOT_BUSY_S = 60.0
_SLOT_POLL_S = 0.2
_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")


@dataclass(frozen=True)
class Slot:
    lsn: int  # all before it has been confirmed
    plugin: str
    database: str
    wal_status: str


@dataclass(frozen=True)
class Table:
    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]  # `is_key`: of the primary key, or of the index that is the replica identity
    can_update: bool  # its replica identity identifies rows

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


class Database:
    """One connection, opened when it is needed and again after it was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def connection(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, sql: str, *parameters: object) -> list[Any]:
        with plain_refusals():
            cursor = self.connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def check_server(self) -> None:
        ((level, is_allowed, user),) = self.ask(
            "SELECT current_setting('wal_level'), rolreplication OR rolsuper, rolname FROM pg_roles "
            "WHERE rolname = current_user"
        )
        if level != "logical":
            raise ConfigError(
                f"change capture needs `wal_level = logical`, and this PostgreSQL has '{level}': run ALTER SYSTEM SET "
                "wal_level = 'logical' and restart PostgreSQL (in the cloud it is a parameter of the instance)"
            )
        # Cloud providers grant a role of their own instead of the attribute.
        if not is_allowed and not self.ask(
            "SELECT 1 FROM pg_roles WHERE rolname IN ('rds_replication', 'rds_superuser', 'cloudsqlsuperuser', "
            "'azure_pg_admin') AND pg_has_role(oid, 'member')"
        ):
            raise ConfigError(f'user {user} may not use replication slots: run ALTER ROLE "{user}" REPLICATION')

    def flushed_lsn(self) -> int:
        ((lsn,),) = self.ask("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
        return int(lsn)

    def slot(self, name: str) -> Slot | None:
        found = self.ask(
            "SELECT (confirmed_flush_lsn - '0/0')::int8, plugin, database, coalesce(wal_status, 'reserved'), "
            "database = current_database() FROM pg_replication_slots WHERE slot_name = %s AND slot_type = 'logical'",
            name,
        )
        if not found:
            return None
        lsn, plugin, database, wal_status, is_here = found[0]
        if plugin != "pgoutput" or not is_here:
            raise ConfigError(
                f"replication slot {name} is of plugin {plugin} and database {database}: use another slot, or drop it "
                f"with SELECT pg_drop_replication_slot('{name}')"
            )
        return Slot(lsn or 0, plugin, database, wal_status)

    def create_slot(self, name: str) -> int:
        ((lsn,),) = self.ask("SELECT (lsn - '0/0')::int8 FROM pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        return int(lsn)

    def slot_position(self, name: str, lsn: int) -> Slot:
        """The slot, if all changes from this position on are still there."""
        slot = self.slot(name)
        again = "To start over with a new snapshot, delete the query's checkpoint (`moldau pipeline reset`)"
        if slot is None:
            raise DataLossError(
                f"replication slot {name} does not exist anymore: changes since {lsn_text(lsn)} are lost. {again}"
            )
        if slot.wal_status == "lost":
            raise DataLossError(
                f"PostgreSQL has invalidated replication slot {name}, because it kept more of its log than "
                f"max_slot_wal_keep_size: changes since {lsn_text(lsn)} are lost. Drop it with SELECT "
                f"pg_drop_replication_slot('{name}'). {again}"
            )
        if slot.lsn > lsn:
            raise DataLossError(
                f"replication slot {name} is at {lsn_text(slot.lsn)}, and this query has only read until "
                f"{lsn_text(lsn)}: something else has advanced it. A slot has one reader: give each query its own. "
                f"{again}"
            )
        return slot

    def advance_slot(self, name: str, lsn: int) -> None:
        """PostgreSQL may free its log before this position. A slot that is in use is advanced another time."""
        from psycopg import errors

        slot = self.slot(name)
        if slot is None or slot.lsn >= lsn:
            return
        with plain_refusals(), suppress(errors.ObjectInUse):
            self.connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, lsn_text(lsn)))

    def has_changes(self, slot: str, publication: str, end: int) -> bool:
        """Whether a published table has changed. False, too, while a session that was killed holds the slot."""
        from psycopg import errors

        query = f"SELECT 1 FROM {_peek(slot, publication, end, changes_max='1')} LIMIT 1"
        with plain_refusals():
            try:
                return bool(self.connection.execute(query).fetchall())
            except errors.ObjectInUse:
                return False

    def changes(self, slot: str, publication: str, end: int) -> Iterator[tuple[int, bytes]]:
        """Messages of pgoutput with their positions, from the slot's position to `end`."""
        from psycopg import errors

        rows = f"SELECT (lsn - '0/0')::int8, data FROM {_peek(slot, publication, end)}"
        query = f"COPY ({rows}) TO STDOUT (FORMAT BINARY)"
        deadline = time.monotonic() + _SLOT_BUSY_S
        while True:
            try:
                with self.connection.cursor() as cursor, cursor.copy(query) as copy:
                    copy.set_types(["int8", "bytea"])
                    yield from cast(Iterator[tuple[int, bytes]], copy.rows())
                return
            except errors.ObjectInUse as error:  # before the first row
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"replication slot {slot} is in use: {error.diag.message_primary}. A slot has one reader"
                    ) from error
                time.sleep(_SLOT_POLL_S)

    def tables(self, patterns: Sequence[re.Pattern[str]]) -> dict[str, Table]:
        """The tables whose `schema.table` matches, by name."""
        rows = self.ask(
            "SELECT c.oid::int8, n.nspname, c.relname, c.relreplident::text, "
            "coalesce((SELECT i.indkey::int2[] FROM pg_index i WHERE i.indrelid = c.oid AND "
            "CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END), '{}'), "
            "array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.atttypid::int8 ORDER BY a.attnum), "
            "array_agg(a.atttypmod ORDER BY a.attnum), array_agg(a.attnum ORDER BY a.attnum) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped "
            "AND a.attgenerated = '' AND n.nspname <> ALL (%s) GROUP BY c.oid, n.nspname, c.relname, c.relreplident "
            "ORDER BY n.nspname, c.relname",
            list(_SYSTEM_SCHEMAS),
        )
        found = {}
        for oid, schema, name, identity, key, *columns in rows:
            if any(pattern.fullmatch(f"{schema}.{name}") for pattern in patterns):
                table = Table(
                    oid,
                    schema,
                    name,
                    tuple(
                        Column(column, type_oid, modifier, number in key)
                        for column, type_oid, modifier, number in zip(*columns, strict=True)
                    ),
                    can_update=identity in "fi" or (identity == "d" and bool(key)),
                )
                found[table.full_name] = table
        return found

    def tables_of(self, names: Sequence[str]) -> dict[str, Table]:
        """As `tables`, of expressions that must each match at least one."""
        patterns = [re.compile(name) for name in names]
        tables = self.tables(patterns)
        for pattern in patterns:
            if not any(map(pattern.fullmatch, tables)):
                shown = pattern.pattern.replace("\\", "")
                raise ConfigError(f"the database has no table {shown}, or this user cannot see it")
        return tables

    def published(self, publication: str) -> set[str] | None:
        """The tables of a publication; None if it does not exist."""
        if not self.ask("SELECT 1 FROM pg_publication WHERE pubname = %s", publication):
            return None
        rows = self.ask("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", publication)
        return {f"{schema}.{table}" for schema, table in rows}


def conninfo_of(url: str, user: str | None, password: str | None) -> str:
    """What libpq takes. It may have a password in it."""
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise ConfigError("change capture needs the package psycopg: pip install 'psycopg[binary]'") from error
    try:
        return make_conninfo(url, user=user, password=password)
    except psycopg.ProgrammingError:
        # Without libpq's reason, which repeats the URL.
        raise ConfigError("url: expected a URL of PostgreSQL, such as postgresql://db:5432/shop") from None


def connect(conninfo: str) -> psycopg.Connection[Any]:
    import psycopg

    with plain_refusals():
        return psycopg.connect(
            conninfo, autocommit=True, connect_timeout=_CONNECT_S, options=_SESSION, application_name="moldau cdc"
        )


@contextmanager
def plain_refusals() -> Iterator[None]:
    """PostgreSQL's errors as ours: what happened, and what to do."""
    import psycopg
    from psycopg import errors

    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"PostgreSQL refuses: {error.diag.message_primary}. The user needs REPLICATION, SELECT on the tables, and "
            "to own them and have CREATE on the database if the publication is to be made for it"
        ) from error
    except errors.ConfigurationLimitExceeded as error:
        raise ConfigError(
            f"PostgreSQL refuses: {error.diag.message_primary}. {error.diag.message_hint or ''}"
        ) from error
    except (errors.OperationalError, psycopg.errors.InvalidPassword) as error:
        reason = (error.diag.message_primary or str(error)).strip()
        raise CommandError(f"PostgreSQL cannot be reached or has closed the connection: {reason}") from error
    except psycopg.Error as error:
        raise CommandError(f"PostgreSQL refuses: {(error.diag.message_primary or str(error)).strip()}") from error


def _peek(slot: str, publication: str, end: int, changes_max: str = "NULL") -> str:
    """The call as text: COPY takes no parameters. Names were checked to be plain, and are quoted all the same."""
    return (
        f"pg_logical_slot_peek_binary_changes({_quoted(slot)}, '{lsn_text(end)}', {changes_max}, "
        f"'proto_version', '1', 'publication_names', {_quoted(quoted_name(publication))})"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: Table) -> str:
    return f"{quoted_name(table.schema)}.{quoted_name(table.name)}"
