"""A Python function as a source or a sink.

A source is a generator function that gets a cursor and yields rows with the cursor that follows each:

    def orders(cursor):                      # None at the very beginning
        for order in fetch_after(cursor):
            yield {"id": order.id, "total": order.total}, order.id

It returns when there is nothing more for now, and is called again with the last cursor. A cursor is anything that JSON
can hold. A batch that was interrupted is read again from its first cursor, so the same cursor has to lead to the same
rows; if its last cursor is another one then, the query fails.

A sink is a function of a batch: `def store(rows)` or `def store(rows, batch_id)`. It gets a list of dictionaries, or a
DataFrame with `rows: dataframe`. A batch that was interrupted is written again, with the same number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import BatchSink, Connector, ReadRequest, Request, WriteRequest
from moldau.pipelines.connectors.registry import load_attribute
from moldau.pipelines.model.kinds import DURATION, Kind, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A sink's function gets its rows as a list.
_SINK_ROWS_MAX = 1_000_000


def _function(value: object) -> object:
    if callable(value) or has_reference(value):
        return value
    module, colon, function = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not all(name.isidentifier() for name in (*module.split("."), function)):
        raise ValueError("expected `module:function`")
    return value


_FUNCTION = Option(
    "function",
    "The function, as `module:function`. The module is looked up in the folder of the file.",
    Kind("`module:function`", _function, {"type": "string"}),
    required=True,
    example="orders:fetch",
)


class PythonConnector(Connector):
    name = "python"
    summary = "A Python function: a generator with a cursor as source, a function of a batch as sink."
    identity = ("function",)
    source_options = OptionTable.of(
        _FUNCTION,
        Option("poll", "How long to wait after the function had nothing more.", DURATION, default=1_000),
        Option("maxRowsPerTrigger", "Most rows in a micro-batch.", whole(1), default=10_000),
    )
    sink_options = OptionTable.of(
        _FUNCTION,
        Option(
            "rows",
            "What the function gets: a list of dictionaries, or a DataFrame.",
            choice("list", "dataframe"),
            default="list",
        ),
        Option("max rows", "A larger batch is an error; a DataFrame has no limit.", whole(1), default=_SINK_ROWS_MAX),
    )
    source_example = "function: orders:fetch\nschema: id BIGINT, total DOUBLE"
    sink_example = "function: orders:store"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if is_source and "schema" not in options:
            yield Problem("a Python source needs a schema, such as `schema: id BIGINT, total DOUBLE`")

    def read(self, request: ReadRequest) -> DataFrame:
        options = request.options
        return request.rows(self._load(request), poll_ms=options["poll"], rows_max=options["maxRowsPerTrigger"])

    def write(self, request: WriteRequest) -> BatchSink:
        function = self._load(request)
        takes_batch_id = _parameter_count(function) > 1
        rows_max = request.options["max rows"]

        def write(rows: DataFrame, batch_id: int) -> None:
            given: Any = rows
            if request.options["rows"] == "list":
                found = rows.limit(rows_max + 1).collect()
                if len(found) > rows_max:
                    raise ConfigError(
                        f"sink {request.name}: batch {batch_id} has more than {rows_max} rows (max rows): for this "
                        "one, use `rows: dataframe` or a higher `max rows`; for those to come, limit the batches of "
                        "the source"
                    )
                given = [row.asDict(recursive=True) for row in found]
            function(given, batch_id) if takes_batch_id else function(given)

        return BatchSink(write)

    def _load(self, request: Request) -> Callable[..., Any]:
        function = request.options["function"]
        if isinstance(function, str):
            module, _, attribute = function.partition(":")
            function = load_attribute(module, attribute, request.folder, f"{request.name}: function {function}")
        if not callable(function):
            raise ConfigError(f"{request.name}: {request.options['function']} is not a function")
        found: Callable[..., Any] = function
        return found


def _parameter_count(function: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 1
