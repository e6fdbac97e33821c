"""Documents of Elasticsearch and OpenSearch, by their REST interface: at least once, and once where rows have a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import BatchSink, Connector, WriteRequest
from moldau.pipelines.connectors.http import REQUEST_OPTIONS, URL, request_settings
from moldau.pipelines.connectors.writers.http_requests import Target, basic
from moldau.pipelines.model.kinds import NAMES, SQL, Kind, choice, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MIB = 1024 * 1024


def _urls(value: object) -> tuple[str, ...]:
    return tuple(URL.convert(url) for url in NAMES.convert(value))


_URLS = Kind("URLs", _urls, {"type": ["string", "array"], "items": {"type": "string"}})


class ElasticsearchConnector(Connector):
    name = "elasticsearch"
    summary = "Documents of Elasticsearch or OpenSearch."
    identity = ("index", "index column")
    sink_expressions = ("index column", "key", "version", "delete", "document")
    sink_options = (
        OptionTable.of(
            Option(
                "url", "One or more URLs of the same cluster.", _URLS, required=True, example="http://localhost:9200"
            ),
            Option("index", "The index, alias or data stream to write to.", example="page-views"),
            Option("index column", "Column or SQL expression for the index of each row.", SQL, example="topic"),
            Option("key", "Column or SQL expression for the id of the document; by default the server makes one.", SQL),
            Option(
                "version",
                "Column or SQL expression for a number that grows, such as the offset of a record: a document is never "
                "replaced by an older one. It needs a key.",
                SQL,
                example="offset",
            ),
            Option(
                "delete", "SQL condition: rows that meet it delete the document of their key.", SQL, example="deleted"
            ),
            Option(
                "document",
                "Column or SQL expression for the document, a struct or JSON text; by default all columns.",
                SQL,
            ),
            Option(
                "write",
                "index: replace the document; create: keep one that is there (for data streams); upsert: merge fields.",
                choice("index", "create", "upsert"),
                default="index",
            ),
            Option(
                "malformed documents",
                "What happens if the server refuses a document, for example since a field has another type: fail the "
                "batch, so that its record becomes a dead letter if the settings name a topic for them; or leave it "
                "out.",
                choice("fail", "warn", "ignore"),
                default="fail",
            ),
            Option("user", "Basic authentication: the user."),
            Option("password", "Basic authentication: the password.", secret=True),
            Option("api key", "An API key of Elasticsearch, encoded.", secret=True),
            Option("batch rows", "Most documents in a request.", whole(1), default=1_000),
            Option("batch bytes", "About the most bytes in a request.", whole(1), default=5 * _MIB),
        )
        + REQUEST_OPTIONS
    )
    sink_example = "url: http://localhost:9200\nindex: page-views\nkey: page"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if ("index" in options) == ("index column" in options):
            yield Problem("it needs either `index` or `index column`: add for example `index: page-views`")
        for name in ("version", "delete"):
            if name in options and "key" not in options:
                yield Problem(f"{name} needs a `key`", options[name].place)
        mode = options.get("write", Given("index"))
        if "version" in options and mode.value == "upsert":
            yield Problem(
                "version has no effect with `write: upsert`: servers keep versions of whole documents", mode.place
            )
        if mode.value == "upsert" and "key" not in options:
            yield Problem("`write: upsert` needs a `key`", mode.place)
        if ("user" in options) != ("password" in options):
            yield Problem("basic authentication needs both `user` and `password`")

    def write(self, request: WriteRequest) -> BatchSink:
        from moldau.pipelines.connectors.writers.refused_rows import RefusedRows
        from moldau.pipelines.connectors.writers.search_bulk import IDENTITY, Bulk, SearchRows

        options = request.options
        refused = RefusedRows(f"{request.checkpoint}/{request.name}", options["malformed documents"], IDENTITY)
        bulk = Bulk(options["write"], options["batch rows"], options["batch bytes"])
        sender = SearchRows(_target(options), bulk, refused)
        return BatchSink(sender.write, rows=lambda rows: _items(rows, options), trial=refused.trial)


def _target(options: Mapping[str, Value]) -> Target:
    headers = {str(name): str(value) for name, value in options.get("headers", {}).items()}
    headers["Content-Type"] = "application/x-ndjson"
    if "api key" in options:
        headers["Authorization"] = f"ApiKey {options['api key']}"
    if "user" in options:
        headers["Authorization"] = basic(options["user"], options["password"])
    return Target(options["url"], "POST", tuple(headers.items()), **request_settings(options))


def _items(rows: DataFrame, options: Mapping[str, Value]) -> DataFrame:
    """Columns of `search_bulk.COLUMNS`."""
    from pyspark.sql import functions as F  # noqa: N812

    index = F.expr(options["index column"]) if "index column" in options else F.lit(options["index"])
    is_delete = F.coalesce(F.expr(options["delete"]), F.lit(False)) if "delete" in options else F.lit(False)
    key = F.expr(options["key"]) if "key" in options else F.lit(None)
    version = F.expr(options["version"]) if "version" in options else F.lit(None)
    return rows.select(
        index.cast("string").alias("target"),
        key.cast("string").alias("id"),
        version.cast("bigint").alias("version"),
        is_delete.cast("boolean").alias("is_delete"),
        _document(rows, options).alias("document"),
    )


def _document(rows: DataFrame, options: Mapping[str, Value]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StructType

    document = F.expr(options["document"]) if "document" in options else F.struct("*")
    kind = rows.select(document.alias("document")).schema["document"].dataType
    if isinstance(kind, StructType | MapType | ArrayType):
        return F.to_json(document, {"ignoreNullFields": "false"})
    return document.cast("string")
