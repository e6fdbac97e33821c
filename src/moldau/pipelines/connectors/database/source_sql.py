"""The statements that a source runs.

A cursor is the position of a row: its timestamp, its id, or both, compared as SQL compares rows. A batch is what lies
between two cursors, `low` excluded and `high` included, so it can be read again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.connectors.database.dialects import DIALECTS, Column, Dialect, quoted, quoted_table
from moldau.pipelines.model.options import options_hint

Cursor = Sequence[Any]  # values as JSON holds them; the first columns, if it is shorter
_ROWS = "moldau_rows"  # columns of a cursor are named with it: ORDER BY takes a bare name for what is selected
BULK = "bulk"
INCREMENTING = "incrementing"
TIMESTAMP = "timestamp"
MODES = (BULK, INCREMENTING, TIMESTAMP, f"{TIMESTAMP}+{INCREMENTING}")


def relation(table: str | None, query: str | None) -> str:
    """What stands after FROM."""
    what = f"({query.strip().rstrip(';')})" if query else quoted_table(table or "")
    return f"{what} AS {_ROWS}"


@dataclass(frozen=True)
class CursorColumn:
    sql: str
    own_type: str


@dataclass(frozen=True)
class Statement:
    sql: str
    values: tuple[Any, ...] = ()


class _Values:
    """Collects values while a statement is written, and returns their place in it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.values: list[Any] = []

    def number(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values)

    def place(self, value: Any, own_type: str) -> str:
        return self._dialect.parameter(self.number(value), own_type)


@dataclass(frozen=True)
class SourceSql:
    dialect_name: str
    relation: str
    columns: tuple[Column, ...]
    cursor: tuple[CursorColumn, ...] = ()  # empty: bulk
    has_time: bool = False  # the first column of the cursor is a timestamp
    lag_ms: int = 0

    @classmethod
    def of(
        cls,
        dialect: str,
        what: str,
        columns: Sequence[Column],
        *,
        mode: str,
        incrementing: str | None,
        timestamps: Sequence[str],
        lag_ms: int,
    ) -> SourceSql:
        cursor = []
        if TIMESTAMP in mode:
            found = [_find(columns, name, "timestamp column") for name in timestamps]
            names = ", ".join(f"{_ROWS}.{quoted(column.name)}" for column in found)
            cursor.append(CursorColumn(f"COALESCE({names})" if len(found) > 1 else names, found[0].own_type))
        if INCREMENTING in mode:
            column = _find(columns, incrementing or "", "incrementing column")
            cursor.append(CursorColumn(f"{_ROWS}.{quoted(column.name)}", column.own_type))
        return cls(dialect, what, tuple(columns), tuple(cursor), TIMESTAMP in mode, lag_ms)

    @property
    def _dialect(self) -> Dialect:
        return DIALECTS[self.dialect_name]

    def read(self, low: Cursor | None = None, high: Cursor | None = None) -> Statement:
        """The rows between two cursors; without any, all rows."""
        values = _Values(self._dialect)
        selected = ", ".join(f"{column.sql} AS {quoted(column.name)}" for column in self.columns)
        conditions = self._between(low, high, values)
        order = f" ORDER BY {self._list()}" if conditions else ""
        return Statement(f"SELECT {selected} FROM {self.relation}{_where(conditions)}{order}", tuple(values.values))

    def page(self, low: Cursor | None, high: Cursor | None, rows_max: int) -> Statement:
        """How many rows come next, the cursor of the last one and that of the first: (rows, *last, *first)."""
        values = _Values(self._dialect)
        conditions = [*self._known(), *self._between(low, high, values), *self._settled(values)]
        names = [f"c{number}" for number in range(len(self.cursor))]
        page = (
            f"SELECT {', '.join(f'{column.sql} AS {name}' for column, name in zip(self.cursor, names, strict=True))} "
            f"FROM {self.relation}{_where(conditions)} ORDER BY {self._list()} LIMIT {rows_max:d}"
        )
        kept = ", ".join(f"{self._dialect.cursor_text.format(name)} AS kept_{name}" for name in names)
        first, last = (
            f"(SELECT {kept} FROM page ORDER BY {', '.join(f'{name}{way}' for name in names)} LIMIT 1)"
            for way in ("", " DESC")
        )
        count = "(SELECT COUNT(*) AS n FROM page)"
        return Statement(
            f"WITH page AS ({page}) SELECT * FROM {count} AS a, {last} AS b, {first} AS c", tuple(values.values)
        )

    def last(self) -> Statement:
        """The cursor of the last row there is."""
        values = _Values(self._dialect)
        kept = ", ".join(self._dialect.cursor_text.format(column.sql) for column in self.cursor)
        order = ", ".join(f"{column.sql} DESC" for column in self.cursor)
        conditions = [*self._known(), *self._settled(values)]
        return Statement(
            f"SELECT {kept} FROM {self.relation}{_where(conditions)} ORDER BY {order} LIMIT 1", tuple(values.values)
        )

    def now(self) -> Statement:
        return Statement(f"SELECT {self._dialect.now(self.cursor[0].own_type)}")

    def _between(self, low: Cursor | None, high: Cursor | None, values: _Values) -> list[str]:
        bounds = ((">", low), ("<=", high))
        return [
            f"({self._list(len(cursor))}) {compare} "
            f"({', '.join(values.place(v, c.own_type) for v, c in zip(cursor, self.cursor, strict=False))})"
            for compare, cursor in bounds
            if cursor
        ]

    def _known(self) -> list[str]:
        """Rows that have a place in the order."""
        return [f"{column.sql} IS NOT NULL" for column in self.cursor]

    def _settled(self, values: _Values) -> list[str]:
        """Rows that are older than the safety lag."""
        if not self.has_time:
            return []
        column = self.cursor[0]
        return [self._dialect.is_old(column.sql, column.own_type, values.number(self.lag_ms / 1000))]

    def _list(self, count: int | None = None) -> str:
        return ", ".join(column.sql for column in self.cursor[:count])


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _find(columns: Sequence[Column], name: str, option: str) -> Column:
    found = next((column for column in columns if column.name == name), None)
    if found is None:
        hint = options_hint(name, tuple(column.name for column in columns), "Its columns are")
        raise ConfigError(f"{option}: there is no column '{name}'{hint}")
    return found
