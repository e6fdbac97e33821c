"""Spark's own Kafka connector behind the same options: `connector=jvm`.

Some features of Spark, such as the real-time mode, do not support data sources in Python. A Python source cannot pass a
query on to a Java source, but `apply_options` can choose one when the query is built: it sets the format and the
options on any of Spark's four readers and writers. The connector's jars must be available (`spark.jars.packages` with
org.apache.spark:spark-sql-kafka-0-10_2.13, or `spark.jars`).

Options that only Moldau supports are errors. Where the defaults differ, Moldau's are set explicitly: reads see only
committed records. The connector's sink may write a record twice when a task is repeated, so it requires
`processing.guarantee=at_least_once`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from moldau.errors import ConfigError
from moldau.spark.options import FORMAT_OPTIONS, Options, option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

Builder = TypeVar("Builder", "DataFrameReader", "DataStreamReader", "DataFrameWriter", "DataStreamWriter")

_OURS_ALONE = (
    "commitGroupId",
    "idleWaitMs",
    "idleWaitTopics",
    "pushDownPredicate",
    "txnAppId",
    "txnVersion",
    "transactionalIdPrefix",
    "failOnDoubt",
    *FORMAT_OPTIONS,
)


def apply_options(builder: Builder, options: Mapping[str, object]) -> Builder:
    """The builder (`spark.readStream`, `frame.write`, …) with the format and options of the connector chosen."""
    texts = {name: option_text(value) for name, value in options.items()}
    connector = Options(texts).connector()
    texts = {name: value for name, value in texts.items() if name.lower() != "connector"}
    if connector == "moldau":
        return builder.format("moldau").options(**texts)
    translate = _for_writing if hasattr(builder, "outputMode") or hasattr(builder, "mode") else _for_reading
    return builder.format("kafka").options(**translate(texts))


def _for_reading(texts: dict[str, str]) -> dict[str, str]:
    _refuse_ours(texts)
    if Options(texts).get("kafka.isolation.level") is None:
        texts["kafka.isolation.level"] = "read_committed"
    return texts


def _for_writing(texts: dict[str, str]) -> dict[str, str]:
    _refuse_ours(texts)
    if Options(texts).text("processing.guarantee", "exactly_once").strip().lower() != "at_least_once":
        raise ConfigError(
            "connector=jvm cannot write exactly once: add the option processing.guarantee=at_least_once, "
            "or leave connector=jvm out"
        )
    return {name: value for name, value in texts.items() if name.lower() != "processing.guarantee"}


def _refuse_ours(texts: Mapping[str, str]) -> None:
    ours = {name.lower(): name for name in _OURS_ALONE}
    for given in texts:
        if given.lower() in ours:
            raise ConfigError(f"option {ours[given.lower()]} is not supported by connector=jvm: remove one of the two")
