"""Any format of Spark's: Delta, JDBC, rate, or a jar's or package's own. Its options are passed on as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import BatchSink, Connector, ReadRequest, StreamSink, WriteRequest
from moldau.pipelines.model.kinds import NAMES, choice
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem
from moldau.spark.options import option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SECRETS = tuple(
    Option(name, "Passed to the format. Never printed.", secret=True)
    for name in ("password", "token", "secret", "sfPassword", "fs.s3a.secret.key")
)
_FORMAT = Option("spark.format", "Name of the format, or a Java class.", required=True, example="delta")
_PATH = Option("path", "File or directory, for formats that have one. Relative paths are below the file's folder.")
_PASSED = Option("*", "Options of the format, with its own names.", example="jdbc:postgresql://localhost/shop")
_OWN = ("spark.format", "path", "schema", "watermark", "static", "partition by", "write")


class SparkConnector(Connector):
    name = "spark"
    summary = "Any format that Spark knows."
    identity = ("spark.format", "path", "dbtable", "query")
    sink_columns = ("partition by",)
    source_options = OptionTable.of(_FORMAT, _PATH, *_SECRETS, _PASSED)
    sink_options = OptionTable.of(
        _FORMAT,
        _PATH,
        Option("partition by", "Columns that become directories or partitions.", NAMES, example="day"),
        Option(
            "write",
            "stream: the format is a sink of streams. batch: it writes tables, and each micro-batch is appended.",
            choice("stream", "batch"),
            default="stream",
        ),
        *_SECRETS,
        _PASSED,
    )
    source_example = "spark.format: delta\npath: tables/clicks"
    sink_example = "spark.format: delta\npath: tables/page-counts"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        for name, given in options.items():
            if name not in _OWN and not isinstance(given.value, str | int | float | bool):
                yield Problem(f"{name}: an option of a Spark format is text, a number, true or false", given.place)

    def read(self, request: ReadRequest) -> DataFrame:
        loader = request.loader(request.options["spark.format"]).options(**self._passed(request.options))
        if "schema" in request.options:
            loader = loader.schema(request.options["schema"])
        return loader.load(request.path("path")) if "path" in request.options else loader.load()

    def write(self, request: WriteRequest) -> StreamSink | BatchSink:
        name, options = request.options["spark.format"], self._passed(request.options)
        if "path" in request.options:
            options["path"] = request.path("path")
        partition_by = request.options.get("partition by", ())
        if request.options["write"] == "stream":
            return StreamSink(name, options, partition_by)

        def write(rows: DataFrame, batch_id: int) -> None:
            rows.write.format(name).options(**options).partitionBy(*partition_by).mode("append").save()

        return BatchSink(write)

    def _passed(self, options: Mapping[str, Value]) -> dict[str, str]:
        return {name: option_text(value) for name, value in options.items() if name not in _OWN}
