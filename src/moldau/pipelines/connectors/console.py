"""Rows on the screen: a table in a terminal, a line of JSON for each row in a pipe."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import BatchSink, Connector, WriteRequest
from moldau.pipelines.model.kinds import choice, whole
from moldau.pipelines.model.options import Option, OptionTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A cell of a table. Longer ones would push the other columns off the screen.
_CELL_CHARS_MAX = 200
_FORMATS = ("table", "json")


class ConsoleConnector(Connector):
    name = "console"
    summary = "Rows on the screen."
    sink_options = OptionTable.of(
        Option("rows", "Most rows shown of each batch.", whole(1), default=20),
        Option(
            "format",
            "table, or json for a line for each row. By default a table in a terminal, lines elsewhere.",
            choice(*_FORMATS),
        ),
    )
    sink_example = "rows: 10"

    def write(self, request: WriteRequest) -> BatchSink:
        rows_max = request.options["rows"]

        def write(rows: DataFrame, batch_id: int) -> None:
            is_table = request.options.get("format", "table" if sys.stdout.isatty() else "json") == "table"
            (_print_table if is_table else _print_lines)(rows, rows_max, f"{request.name}, batch {batch_id}")

        return BatchSink(write)


def _print_lines(rows: DataFrame, rows_max: int, title: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}) if rows.columns else F.lit("{}")
    lines = [row[0] for row in rows.select(text).limit(rows_max + 1).collect()]
    for line in lines[:rows_max]:
        print(line)
    sys.stdout.flush()
    if len(lines) > rows_max:
        print(f"{title}: only the first {rows_max} rows are shown", file=sys.stderr)


def _print_table(rows: DataFrame, rows_max: int, title: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = rows.select([F.col(f"`{name}`").cast("string") for name in rows.columns]).limit(rows_max + 1).collect()
    if not found:
        return
    more = f" (first {rows_max} rows)" if len(found) > rows_max else ""
    table = Table(title=Text(f"{title}{more}"), title_justify="left")
    for name in rows.columns:
        table.add_column(Text(name))
    for row in found[:rows_max]:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console().print(table)


def _cell(value: str | None) -> str:
    """Without control characters: data must not move the cursor."""
    if value is None:
        return "null"
    text = value if value.isprintable() else json.dumps(value, ensure_ascii=False)[1:-1]
    text = "".join(char if char.isprintable() else "�" for char in text)
    return text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…"
