"""Tables of PostgreSQL and SQLite as sources and sinks of pipelines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import BatchSink, Connector, Guarantee, ReadRequest, Request, WriteRequest
from moldau.pipelines.connectors.database.sink_sql import INSERT, INSERT_MODES, UPSERT
from moldau.pipelines.connectors.database.source_sql import BULK, INCREMENTING, MODES, TIMESTAMP, SourceSql, relation
from moldau.pipelines.connectors.database.urls import Database, database, dialect_of
from moldau.pipelines.model.kinds import BOOLEAN, DURATION, NAMES, SQL, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_CURSORS = {TIMESTAMP: "timestamp column", INCREMENTING: "incrementing column"}


def _address(url: Option) -> OptionTable:
    return OptionTable.of(
        url,
        Option("user", "The user, if the URL does not say it."),
        Option("password", "The password.", secret=True, example="${env:DATABASE_PASSWORD}"),
    )


_SOURCE = OptionTable.of(
    Option("table", "The table to read, with its schema if that is not the user's.", example="public.orders"),
    Option("query", "A SELECT to read instead of a table.", example="SELECT * FROM orders JOIN customers USING (id)"),
    Option(
        "mode",
        "bulk: the whole table, again with each poll. incrementing: rows with a new id. timestamp: rows with a new "
        "timestamp. timestamp+incrementing: both, so that rows may have the same timestamp.",
        choice(*MODES),
        default=BULK,
    ),
    Option("incrementing column", "Column with an id that only grows.", example="id"),
    Option(
        "timestamp column",
        "Column with the time of the last change; of several, the first that is not null.",
        NAMES,
        example="updated_at",
    ),
    Option(
        "timestamp initial",
        "Where a new pipeline starts: a timestamp, or `now`. By default with the first row.",
        example="2026-01-31 00:00:00",
    ),
    Option(
        "safety lag",
        "Rows younger than this are read later, because rows with lower ids or earlier timestamps may still be "
        "committed. It has to be longer than the longest transaction that writes to the table: later rows are missed.",
        DURATION,
        default=1_000,
    ),
    Option("poll", "How often to look for new rows.", DURATION, default=1_000),
    Option(
        "maxRowsPerTrigger",
        "About how many rows to read in a micro-batch; not in mode bulk, which reads the table as a whole.",
        whole(1),
        default=1_000_000,
    ),
    Option("time zone", "Time zone of timestamps that have none.", default="UTC", example="Europe/Prague"),
)
_SINK = OptionTable.of(
    Option("table", "The table to write to, with its schema if that is not the user's.", example="public.orders"),
    Option(
        "table column",
        "Column with the name of the table, instead of `table`, if rows are for several. It is not written.",
    ),
    Option(
        "insert mode",
        "insert: new rows. upsert: insert, or update the row with the same key. update: only that.",
        choice(*INSERT_MODES),
        default=INSERT,
    ),
    Option("key", "Columns of the key, for upsert, update and delete.", NAMES, example="id"),
    Option("delete", "SQL condition: rows that meet it delete the row with their key.", SQL, example="op = 'd'"),
    Option("exclude", "Columns that are not written, such as one that only `delete` needs.", NAMES, example="op"),
    Option("auto create", "Create the table if it does not exist.", BOOLEAN, default=False),
    Option("auto evolve", "Add columns that the table does not have.", BOOLEAN, default=False),
)


class DatabaseConnector(Connector):
    guarantee = Guarantee.EXACTLY_ONCE
    can_share = True
    identity = ("table", "query", "mode")
    sink_expressions = ("delete",)
    sink_columns = ("key", "exclude")
    dialect: ClassVar[str]

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        url = options["url"]
        if not has_reference(url.value):
            try:
                if dialect_of(str(url.value)) != self.dialect:
                    yield Problem(f"url: this is not a database of {self.name}", url.place)
            except ConfigError as error:
                yield Problem(f"url: {error}", url.place)
        yield from (_check_source if is_source else _check_sink)(options)

    def database(self, request: Request) -> Database:
        options = request.options
        found = database(
            str(options["url"]), options.get("user"), options.get("password"), str(options.get("time zone", "UTC"))
        )
        # Absolute, since Spark's Python processes have working directories of their own.
        return found if self.dialect != "sqlite" else replace(found, url=os.path.abspath(request.folder / found.url))

    def read(self, request: ReadRequest) -> DataFrame:
        from moldau.pipelines.connectors.database.sessions import opened
        from moldau.pipelines.connectors.database.source import TableSource, TableSpec

        options, found = request.options, self.database(request)
        if self.dialect == "sqlite" and not os.path.exists(found.url):
            raise ConfigError(f"there is no database {found.url}")
        what = relation(options.get("table"), options.get("query"))
        with opened(found) as session:
            columns = session.columns(what)
        sql = SourceSql.of(
            self.dialect,
            what,
            columns,
            mode=options["mode"],
            incrementing=options.get("incrementing column"),
            timestamps=options.get("timestamp column", ()),
            lag_ms=options["safety lag"],
        )
        spec = TableSpec(found, sql, options["poll"], options["maxRowsPerTrigger"], options.get("timestamp initial"))
        frame = request.loader(TableSource).options(**spec.options()).load()
        return frame if "schema" not in options else _with_schema(frame, options["schema"])

    def write(self, request: WriteRequest) -> BatchSink:
        from moldau.pipelines.connectors.database.sink import TableSink

        options = request.options
        sink = TableSink(
            self.database(request),
            request.name,
            options.get("table"),
            table_column=options.get("table column"),
            mode=options["insert mode"],
            keys=options.get("key", ()),
            delete=options.get("delete"),
            exclude=options.get("exclude", ()),
            creates=options["auto create"],
            evolves=options["auto evolve"],
        )
        return BatchSink(sink.write)


class PostgresConnector(DatabaseConnector):
    name = "postgres"
    summary = "A table of PostgreSQL, or a query."
    dialect = "postgres"
    _url = _address(
        Option("url", "Where the database is.", required=True, example="postgresql://moldau@localhost:5432/shop")
    )
    source_options = _url + _SOURCE
    sink_options = _url + _SINK
    source_example = (
        "url: postgresql://moldau@localhost:5432/shop\n"
        "password: ${env:DATABASE_PASSWORD}\n"
        "table: orders\n"
        "mode: incrementing\n"
        "incrementing column: id"
    )
    sink_example = (
        "url: postgresql://moldau@localhost:5432/shop\n"
        "password: ${env:DATABASE_PASSWORD}\n"
        "table: page_counts\n"
        "insert mode: upsert\n"
        "key: page\n"
        "auto create: true"
    )


class SqliteConnector(DatabaseConnector):
    name = "sqlite"
    summary = "A table of an SQLite file, or a query."
    dialect = "sqlite"
    _url = _address(Option("url", "The file of the database.", required=True, example="shop.db"))
    source_options = _url + _SOURCE
    sink_options = _url + _SINK
    source_example = "url: shop.db\ntable: orders\nmode: incrementing\nincrementing column: id"
    sink_example = "url: shop.db\ntable: page_counts\ninsert mode: upsert\nkey: page\nauto create: true"


def _check_source(options: Mapping[str, Given]) -> Iterable[Problem]:
    if ("table" in options) == ("query" in options):
        yield Problem("a database source needs either `table` or `query`", None)
    mode = options.get("mode", Given(BULK))
    for word, option in _OF_CURSORS.items():
        if word in str(mode.value) and option not in options:
            yield Problem(f"mode {mode.value} needs `{option}`", mode.place)
        if word not in str(mode.value) and option in options and not has_reference(mode.value):
            yield Problem(f"{option} is for mode {word} or {MODES[-1]}", options[option].place)


def _check_sink(options: Mapping[str, Given]) -> Iterable[Problem]:
    if ("table" in options) == ("table column" in options):
        yield Problem("a database sink needs either `table` or `table column`", None)
    mode = options.get("insert mode", Given(INSERT))
    if mode.value != INSERT and "key" not in options and not has_reference(mode.value):
        yield Problem(f"insert mode {mode.value} needs a `key`", mode.place)
    if mode.value == INSERT and "delete" in options:
        yield Problem(f"delete needs a key: use `insert mode: {UPSERT}`", options["delete"].place)


def _with_schema(frame: DataFrame, schema: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DataType, StructType

    wanted = cast("StructType", DataType.fromDDL(schema))
    return frame.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in wanted.fields))
