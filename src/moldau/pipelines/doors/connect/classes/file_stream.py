"""Kafka's own file connectors, on the connector `lines`: lines of a file to a topic, records of topics to a file.

As in Kafka, a last line is read when its line break is there. Unlike in Kafka, the file may be rotated or truncated,
and the sink writes each record once even if it was killed. Standard input and output are not supported.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.config import Check
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, Plugin, PluginKind, SinkParts, SourceParts
from moldau.pipelines.model.kinds import whole
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.pipeline import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEVER = "36500 days"  # a line without a line break is not read


def _source(config: ConnectorConfig) -> SourceParts:
    topic = config.values["topic"]

    def records(lines: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        # Never null, so that the schema says so, as Kafka's does.
        return lines.select(F.lit(topic).alias("topic"), F.coalesce("value", F.lit("")).alias("value"))

    options = {
        "path": Given([glob.escape(config.given["file"])]),
        "format": Given("text"),
        "unfinished after": Given(_NEVER),
    }
    return SourceParts((Source("file", "lines", options),), records)


def _sink(config: ConnectorConfig) -> SinkParts:
    return SinkParts("lines", {"path": config.unresolved("file"), "format": Given("text")}, _lines)


def _lines(records: DataFrame) -> DataFrame:
    """A line is the value as text; a null is `null`, as in Kafka."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as t

    kind = records.schema["value"].dataType
    is_nested = isinstance(kind, t.StructType | t.ArrayType | t.MapType)
    text = F.to_json("value", {"ignoreNullFields": "false"}) if is_nested else F.col("value").cast("string")
    return records.select(F.coalesce(text, F.lit("null")).alias("value"))


def _needs_file(what: str, instead: str) -> Check:
    def check(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        if not config.get("file", "").strip():
            yield "file", f"{what} is not supported: name a file, or use {instead}"

    return check


PLUGINS = (
    Plugin(
        ("org.apache.kafka.connect.file.FileStreamSourceConnector",),
        PluginKind.SOURCE,
        OptionTable.of(
            Option("file", "The file to read. It may appear later."),
            Option("topic", "The topic to write to.", required=True, example="connect-test"),
            Option("batch.size", "Most lines that a poll returns. Has no effect here.", whole(1), default=2000),
        ),
        _source,
        _needs_file("reading standard input", "kafka-console-producer"),
    ),
    Plugin(
        ("org.apache.kafka.connect.file.FileStreamSinkConnector",),
        PluginKind.SINK,
        OptionTable.of(Option("file", "The file to append to. It is created if it does not exist.")),
        _sink,
        _needs_file("writing to standard output", "kafka-console-consumer"),
    ),
)
