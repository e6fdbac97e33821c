"""A connector of one's own: tables of SQLite. New rows come in by their rowid; each batch goes out exactly once."""

import sqlite3
from collections.abc import Iterator
from typing import Any

from moldau.pipelines import BatchSink, Connector, Guarantee, Option, OptionTable, ReadRequest, WriteRequest


class Sqlite(Connector):
    name = "sqlite"
    summary = "A table of an SQLite database."
    guarantee = Guarantee.EXACTLY_ONCE
    identity = ("database", "table")
    source_options = sink_options = OptionTable.of(
        Option("database", "Path of the file.", required=True, example="shop.db"),
        Option("table", "Name of the table.", required=True, example="orders"),
    )

    def read(self, request: ReadRequest) -> Any:
        path, table = request.path("database"), request.options["table"]

        def rows(cursor: int | None) -> Iterator[tuple[dict[str, Any], int]]:
            with sqlite3.connect(path) as database:
                found = database.execute(f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY 1", (cursor or 0,))
                names = [column[0] for column in found.description]
                for row in found:
                    yield dict(zip(names[1:], row[1:], strict=True)), row[0]

        return request.rows(rows)

    def write(self, request: WriteRequest) -> BatchSink:
        path, table = request.path("database"), request.options["table"]

        def write(rows: Any, batch: int) -> None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            with sqlite3.connect(path) as database:  # one transaction: the rows, and that the batch is done
                if database.execute("INSERT OR IGNORE INTO done VALUES (?, ?)", (query, batch)).rowcount:
                    places = ", ".join("?" * len(rows.columns))
                    database.executemany(f"INSERT INTO {table} VALUES ({places})", map(tuple, rows.collect()))

        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS done (query, batch, UNIQUE (query, batch))")
        return BatchSink(write)
