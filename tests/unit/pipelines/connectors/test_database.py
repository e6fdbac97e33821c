"""Addresses, statements and types of databases, without any database but SQLite."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from moldau.errors import ConfigError, MoldauError, RecordFormatError
from moldau.pipelines.connectors.database.dialects import (
    POSTGRES,
    SQLITE,
    Target,
    beside,
    postgres_column,
    quoted_table,
    sqlite_column,
)
from moldau.pipelines.connectors.database.sessions import opened
from moldau.pipelines.connectors.database.sink_sql import SinkSql
from moldau.pipelines.connectors.database.source import Part, parts
from moldau.pipelines.connectors.database.source_sql import SourceSql, relation
from moldau.pipelines.connectors.database.sqlite_values import arrow_column
from moldau.pipelines.connectors.database.urls import database
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.model.options import Given


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://ann@db:5433/shop", "postgresql://ann@db:5433/shop"),
        ("postgres://ann:s3cret@db/shop?sslmode=require", "postgresql://ann@db/shop?sslmode=require"),
        ("jdbc:postgresql://db:5432/shop?user=ann&password=s3cret", "postgresql://ann@db:5432/shop"),
        ("jdbc:postgresql://a:1,b:2/shop", "postgresql://a:1,b:2/shop"),
        ("jdbc:postgresql:shop", "postgresql://localhost/shop"),
        (
            "jdbc:postgresql://db/shop?ssl=true&currentSchema=x&reWriteBatchedInserts=true",
            "postgresql://db/shop?sslmode=verify-full&options=-c%20search_path%3Dx",
        ),
        ("shop.db", "shop.db"),
        ("jdbc:sqlite:/data/shop.db", "/data/shop.db"),
        ("jdbc:sqlite:shop.db?cache=shared", "shop.db"),
    ],
)
def test_addresses_are_those_of_libpq_or_files_without_passwords(url: str, found: str) -> None:
    assert database(url).url == found


def test_a_password_is_for_the_driver_alone() -> None:
    for address in (
        database("postgresql://ann:p%40ss@db/shop"),
        database("postgresql://ann@db/shop", password="p@ss"),
        database("jdbc:postgresql://db/shop?user=ann", password="p@ss"),
    ):
        assert address.connection_url == "postgresql://ann:p%40ss@db/shop"
        assert "p%40ss" not in repr(address) + address.url
        assert "p@ss" not in repr(address) + address.url


@pytest.mark.parametrize("url", ["jdbc:mysql://db/shop", "mysql://db/shop", "jdbc:oracle:thin:@db:1521:shop"])
def test_other_databases_are_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(ConfigError, match="postgresql"):
        database(url)


def test_names_are_quoted_so_that_none_ends_a_statement() -> None:
    assert quoted_table('shop.or"ders; DROP TABLE x') == '"shop"."or"."ders; DROP TABLE x"'
    assert quoted_table('"a.b"."c""d"') == '"a.b"."c""d"'
    assert beside("shop.orders", "x") == '"shop"."x"'
    assert beside("orders", "x") == '"x"'


@pytest.mark.parametrize(
    ("own_type", "modifier", "spark_type"),
    [
        ("int8", -1, "long"),
        ("numeric", (20 << 16 | 4) + 4, "decimal(20,4)"),
        ("numeric", -1, "string"),
        ("numeric", (1000 << 16 | 4) + 4, "string"),
        ("numeric", (5 << 16 | (-2 & 0x7FF)) + 4, "string"),
        ("timestamptz", -1, "timestamp"),
        ("timestamp", -1, "timestamp_ntz"),
        ("uuid", -1, "string"),
        ("_int4", -1, "string"),
        ("mood", -1, "string"),
    ],
)
def test_types_of_postgresql_in_spark(own_type: str, modifier: int, spark_type: str) -> None:
    column = postgres_column("c", own_type, modifier)
    assert column.spark_type == spark_type
    assert ("AS text" in column.sql) == (spark_type == "string" or spark_type.startswith("decimal"))


@pytest.mark.parametrize(
    ("declared", "spark_type"),
    [
        ("INTEGER", "long"),
        ("varchar(10)", "string"),
        ("DECIMAL(10, 2)", "decimal(10,2)"),
        ("NUMERIC", "double"),
        ("TIMESTAMP", "timestamp_ntz"),
        ("BOOLEAN", "boolean"),
        ("BLOB", "binary"),
        ("", "string"),
    ],
)
def test_types_of_sqlite_in_spark(declared: str, spark_type: str) -> None:
    assert sqlite_column("c", declared).spark_type == spark_type


def test_values_of_sqlite_become_those_of_the_declared_type_whatever_a_row_has() -> None:
    moment = datetime.datetime(2026, 1, 31, 12, 0, 1)
    stamps = ["2026-01-31 12:00:01", "2026-01-31T13:00:01+01:00", 1769860801000, None]
    found = arrow_column(stamps, pa.field("at", pa.timestamp("us")))
    assert found.to_pylist() == [moment, moment, moment, None]
    assert arrow_column([1.25, "2", 3], pa.field("n", pa.decimal128(10, 2))).to_pylist() == [
        Decimal("1.25"),
        Decimal("2.00"),
        Decimal("3.00"),
    ]
    with pytest.raises(RecordFormatError, match="column n has a value that is not int64"):
        arrow_column(["x"], pa.field("n", pa.int64()))


def sqlite_source(mode: str, **options: object) -> SourceSql:
    columns = [sqlite_column("id", "INTEGER"), sqlite_column("at", "TIMESTAMP"), sqlite_column("changed", "TIMESTAMP")]
    facts = {"incrementing": "id", "timestamps": ["at"], "lag_ms": 1500} | options
    return SourceSql.of("sqlite", relation("t", None), columns, mode=mode, **facts)  # type: ignore[arg-type]


def test_a_batch_lies_between_two_cursors() -> None:
    both = sqlite_source("timestamp+incrementing").read(["2026-01-01", 7], ["2026-01-02", 3])
    assert both.sql == (
        'SELECT "id" AS "id", "at" AS "at", "changed" AS "changed" FROM "t" AS moldau_rows '
        'WHERE (moldau_rows."at", moldau_rows."id") > (?1, ?2) AND (moldau_rows."at", moldau_rows."id") <= (?3, ?4) '
        'ORDER BY moldau_rows."at", moldau_rows."id"'
    )
    assert both.values == ("2026-01-01", 7, "2026-01-02", 3)
    assert "WHERE" not in sqlite_source("bulk").read().sql
    several = sqlite_source("timestamp", timestamps=["changed", "at"]).read(["2026"]).sql
    assert '(COALESCE(moldau_rows."changed", moldau_rows."at")) > (?1)' in several


def test_a_cursor_needs_a_column_of_the_table() -> None:
    with pytest.raises(ConfigError, match="incrementing column: there is no column 'idd': did you mean 'id'"):
        sqlite_source("incrementing", incrementing="idd")


def test_values_are_no_part_of_statements() -> None:
    source = SourceSql.of(
        "postgres",
        relation(None, "SELECT * FROM t;"),
        [postgres_column("id", "int8", -1)],
        mode="incrementing",
        incrementing="id",
        timestamps=(),
        lag_ms=0,
    )
    page = source.page(["1); DROP TABLE t"], None, 10)
    assert page.values == ("1); DROP TABLE t",)
    assert "DROP" not in page.sql
    assert "(SELECT * FROM t) AS moldau_rows" in page.sql
    assert "CAST(current_setting('moldau.p1') AS int8)" in page.sql


def test_large_ranges_of_ids_are_divided_without_gap_or_overlap() -> None:
    found = parts(["5"], {"first": ["11"], "last": ["1000010"], "rows": 250_000})
    assert found == [Part(["5"], ["333343"]), Part(["333343"], ["666677"]), Part(["666677"], ["1000010"])]
    assert parts(None, {"first": [1], "last": [9], "rows": 9}) == [Part(None, [9])]
    stamps = {"first": ["2026-01-01 00:00:00"], "last": ["2026-01-02 00:00:00"], "rows": 10**6}
    assert len(parts(None, stamps)) == 1


def test_tables_are_created_with_types_and_key() -> None:
    types = {"id": "bigint", "price": "decimal(10,2)", "tags": "array<string>", "at": "timestamp", "v": "varchar(9)"}
    assert SinkSql(POSTGRES, "shop.orders", ["id"]).create_table(types) == (
        'CREATE TABLE IF NOT EXISTS "shop"."orders" ("id" bigint, "price" numeric(10,2), "tags" jsonb, '
        '"at" timestamptz, "v" text, PRIMARY KEY ("id"))'
    )


def sqlite_sink(path: Path, mode: str, staged: list[tuple[int, str, int, int, int]]) -> list[tuple[object, ...]]:
    """Rows of (id, name, deleted, row, task) moved to a table that has 1 and 2; task 9 was given up."""
    sql = SinkSql(SQLITE, "t", ["id"], mode, has_deletes=mode != "insert")
    with opened(database(str(path))) as session:
        session.rows(sql.create_table({"id": "bigint", "name": "string"}))
        session.rows("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        session.rows(sql.create_stage("s", {"id": "bigint", "name": "string"}))
        for row in staged:
            session.rows("INSERT INTO s (id, name, moldau_delete, moldau_row, moldau_task) VALUES (?, ?, ?, ?, ?)", row)
        for statement in sql.move("s", [Target("id", "{}"), Target("name", "{}")]):
            session.rows(statement, ("[3]",))
        return session.rows("SELECT * FROM t ORDER BY id")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("upsert", [(2, "zwei"), (3, "drei"), (4, "vier")]),
        ("update", [(2, "zwei")]),
    ],
)
def test_the_last_row_of_a_key_decides(tmp_path: Path, mode: str, expected: list[tuple[int, str]]) -> None:
    staged = [
        (1, "eins", 0, 0, 3),
        (1, "", 1, 1, 3),  # deleted after it was written
        (2, "zwo", 0, 2, 3),
        (2, "zwei", 0, 3, 3),
        (3, "", 1, 4, 3),  # written after it was deleted
        (3, "drei", 0, 5, 3),
        (4, "vier", 0, 6, 3),
        (5, "of a task that was given up", 0, 0, 9),
    ]
    assert sqlite_sink(tmp_path / "a.db", mode, staged) == expected


def test_inserting_a_key_that_is_there_fails(tmp_path: Path) -> None:
    with pytest.raises(MoldauError, match="UNIQUE constraint failed"):
        sqlite_sink(tmp_path / "a.db", "insert", [(1, "eins", 0, 0, 3)])


def test_a_recorded_batch_is_not_recorded_again(tmp_path: Path) -> None:
    sql = SinkSql(SQLITE, "t")
    with opened(database(str(tmp_path / "a.db"))) as session:
        session.rows(sql.create_batches())
        recorded = [bool(session.rows(sql.record_batch(), ("sink", batch))) for batch in (0, 0, 1, 0, 1, 2)]
    assert recorded == [True, False, True, False, False, True]


def test_nothing_is_kept_without_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(database(str(path))) as session:
        session.rows("CREATE TABLE t (id INTEGER)")
    assert sqlite3.connect(path).execute("SELECT * FROM sqlite_master").fetchall() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "t", "query": "SELECT 1"}, "either `table` or `query`"),
        ({"table": "t", "mode": "incrementing"}, "mode incrementing needs `incrementing column`"),
        ({"table": "t", "timestamp column": "at"}, "timestamp column is for mode timestamp"),
        ({"table": "t", "url": "postgresql://db/shop"}, "not a database of sqlite"),
        ({"table": "t", "url": "jdbc:mysql://db/shop"}, "only postgresql and sqlite"),
    ],
)
def test_mistakes_in_a_source_are_found_without_a_database(options: dict[str, str], message: str) -> None:
    given = {name: Given(value) for name, value in ({"url": "shop.db"} | options).items()}
    assert [message in problem.message for problem in connector("sqlite").check(given, is_source=True)] == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `table` or `table column`"),
        ({"table": "t", "insert mode": "upsert"}, "insert mode upsert needs a `key`"),
        ({"table": "t", "delete": "gone"}, "use `insert mode: upsert`"),
    ],
)
def test_mistakes_in_a_sink_are_found_without_a_database(options: dict[str, str], message: str) -> None:
    given = {name: Given(value) for name, value in ({"url": "shop.db"} | options).items()}
    assert [message in problem.message for problem in connector("sqlite").check(given, is_source=False)] == [True]
