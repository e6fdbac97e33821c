"""What each database does its own way, as data: names of types, and the few pieces of SQL that differ.

Values never become part of a statement. SQLite gets them as parameters. PostgreSQL gets them as settings of the session
(`moldau.p1`), because it streams the result of a query only with COPY, which has no parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NESTED = ("array<", "map<", "struct<", "variant")  # types of Spark's that are written as JSON
_TABLE_PART = re.compile(r'"(?:[^"]|"")+"|[^."]+')
_DECIMAL_DIGITS_MAX = 38  # of Spark


@dataclass(frozen=True)
class Column:
    """A column of a table or query: how it is selected, and what it is in Spark."""

    name: str
    sql: str  # what to select, with the name quoted
    spark_type: str  # as in the JSON of a schema of Spark's
    own_type: str = ""  # what the database calls it


@dataclass(frozen=True)
class Target:
    """A column of a table that is written to."""

    name: str
    cast: str  # SQL with `{}` for the staged value


@dataclass(frozen=True)
class Dialect:
    name: str
    types: Mapping[str, str]  # of columns that are created, by Spark's names without parameters; others are text
    nested_type: str
    parameter: Callable[[int, str], str]  # (number, type) → SQL
    cursor_text: str  # a cursor value, as it is kept in an offset
    is_old: Callable[[str, str, int], str]  # (column, type, number of the parameter with seconds) → SQL
    now: Callable[[str], str]  # (type) → SQL
    stage_table: str  # how CREATE begins
    is_one_of: Callable[[str, int], str]  # (column, number of the parameter with a JSON array) → SQL
    writes_in_parallel: bool

    def created_type(self, spark_type: str) -> str:
        """For a type of Spark's as SQL names it."""
        if spark_type.startswith(NESTED):
            return self.nested_type
        word, bracket, rest = spark_type.partition("(")
        return f"{self.types[word]}{bracket}{rest}" if word == "decimal" else self.types.get(word, self.types["string"])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def table_parts(table: str) -> list[str]:
    """`schema.table` at its dots, without quotes; what is in quotes may have dots."""
    found = _TABLE_PART.findall(table)
    return [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in found]


def quoted_table(table: str) -> str:
    return ".".join(map(quoted, table_parts(table)))


def beside(table: str, name: str) -> str:
    """A table of this name in the same schema, quoted."""
    return ".".join(map(quoted, [*table_parts(table)[:-1], name]))


# What PostgreSQL's types are in Spark. All others are read as their text.
_POSTGRES_READ = {
    "bool": ("{}", "boolean"),
    "int2": ("{}", "short"),
    "int4": ("{}", "integer"),
    "int8": ("{}", "long"),
    "float4": ("{}", "float"),
    "float8": ("{}", "double"),
    "text": ("{}", "string"),
    "varchar": ("{}", "string"),
    "bpchar": ("{}", "string"),
    "bytea": ("{}", "binary"),
    # Infinite ones have no place in Arrow.
    "date": ("CASE WHEN isfinite({0}) THEN {0} END", "date"),
    "timestamp": ("CASE WHEN isfinite({0}) THEN {0} END", "timestamp_ntz"),
    "timestamptz": ("CASE WHEN isfinite({0}) THEN {0} END", "timestamp"),
}
_AS_TEXT = "CAST({} AS text)"


def postgres_column(name: str, own_type: str, modifier: int) -> Column:
    """`modifier` is PostgreSQL's typmod, which has a numeric's precision and scale."""
    column = quoted(name)
    if own_type == "numeric" and modifier >= 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if scale <= precision <= _DECIMAL_DIGITS_MAX:  # a negative scale is a large number here
            # As text, since ADBC has returned wrong digits (arrow-adbc#3485).
            return Column(name, f"NULLIF({_AS_TEXT.format(column)}, 'NaN')", f"decimal({precision},{scale})", "numeric")
    sql, spark_type = _POSTGRES_READ.get(own_type, (_AS_TEXT, "string"))
    return Column(name, sql.format(column), spark_type, own_type)


def postgres_target(name: str, own_type: str, category: str) -> Target:
    if category == "A":  # staged as JSON
        items = "ARRAY(SELECT jsonb_array_elements_text(CAST({0} AS jsonb)))"
        return Target(name, f"CASE WHEN {{0}} IS NOT NULL THEN CAST({items} AS {own_type}) END")
    return Target(name, f"CAST({{0}} AS {own_type})")


# SQLite's columns have the type of their declaration's first part that is found here.
_SQLITE_READ = (
    ("BOOL", "boolean"),
    ("DATETIME", "timestamp_ntz"),
    ("TIMESTAMP", "timestamp_ntz"),
    ("DATE", "date"),
    ("INT", "long"),
    ("CHAR", "string"),
    ("CLOB", "string"),
    ("TEXT", "string"),
    ("BLOB", "binary"),
    ("REAL", "double"),
    ("FLOA", "double"),
    ("DOUB", "double"),
    ("NUM", "double"),
    ("DEC", "double"),
)
_PRECISION = re.compile(r"(?:NUMERIC|DECIMAL)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)


def sqlite_column(name: str, declared: str) -> Column:
    exact = _PRECISION.search(declared)
    if exact and int(exact[1]) <= _DECIMAL_DIGITS_MAX:
        return Column(name, quoted(name), f"decimal({exact[1]},{exact[2] or 0})", declared)
    spark_type = next((kind for part, kind in _SQLITE_READ if part in declared.upper()), "string")
    return Column(name, quoted(name), spark_type, declared)


def _is_old_in_postgres(column: str, own_type: str, number: int) -> str:
    return f"{column} < {_postgres_now(own_type)} - CAST(current_setting('moldau.p{number}') AS interval)"


def _postgres_now(own_type: str) -> str:
    return "now()" if own_type == "timestamptz" else "localtimestamp"


def _is_old_in_sqlite(column: str, own_type: str, number: int) -> str:
    # Numbers are milliseconds, as SQLite's JDBC driver writes them.
    days = f"CASE WHEN typeof({column}) = 'integer' THEN {column} / 86400000.0 + 2440587.5 ELSE julianday({column}) END"
    return f"{days} < julianday('now') - CAST(?{number} AS REAL) / 86400"


POSTGRES = Dialect(
    name="postgres",
    types={
        "boolean": "boolean",
        "tinyint": "smallint",
        "smallint": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "float": "real",
        "double": "double precision",
        "decimal": "numeric",
        "string": "text",
        "binary": "bytea",
        "date": "date",
        "timestamp": "timestamptz",
        "timestamp_ntz": "timestamp",
    },
    nested_type="jsonb",
    parameter=lambda number, own_type: f"CAST(current_setting('moldau.p{number}') AS {own_type})",
    cursor_text="CAST({} AS text)",
    is_old=_is_old_in_postgres,
    now=lambda own_type: f"CAST({_postgres_now(own_type)} AS text)",
    stage_table="CREATE UNLOGGED TABLE",
    is_one_of=lambda column, number: (
        f"{column} IN (SELECT CAST(jsonb_array_elements_text(CAST(current_setting('moldau.p{number}') AS jsonb)) "
        "AS bigint))"
    ),
    writes_in_parallel=True,
)
SQLITE = Dialect(
    name="sqlite",
    types={
        "boolean": "BOOLEAN",
        "tinyint": "INTEGER",
        "smallint": "INTEGER",
        "int": "INTEGER",
        "bigint": "INTEGER",
        "float": "REAL",
        "double": "REAL",
        "decimal": "NUMERIC",
        "string": "TEXT",
        "binary": "BLOB",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
        "timestamp_ntz": "TIMESTAMP",
    },
    nested_type="TEXT",
    parameter=lambda number, _: f"?{number}",
    cursor_text="{}",
    is_old=_is_old_in_sqlite,
    now=lambda _: "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    stage_table="CREATE TABLE",
    is_one_of=lambda column, number: f"{column} IN (SELECT value FROM json_each(?{number}))",
    writes_in_parallel=False,  # it has one writer at a time
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (POSTGRES, SQLITE)}
