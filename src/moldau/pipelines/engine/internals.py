"""Parts of Spark that PySpark does not show, reached through py4j."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

WAITING = ("Waiting for data to arrive", "Waiting for next trigger")
"""The status of a query between two batches: its sources were reached."""


def stream_execution(query: StreamingQuery) -> Any:
    """Spark's StreamExecution; None if it is out of reach, as with Spark Connect."""
    wrapper = getattr(query, "_jsq", None)
    try:
        return None if wrapper is None else wrapper.streamingQuery()
    except Exception:
        logger.debug("cannot reach Spark's StreamExecution", exc_info=True)
        return None


def items(collection: Any) -> Iterator[Any]:
    """The items of a Scala collection."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def jvm_process(spark: SparkSession | None) -> Popen[bytes] | None:
    """The process of Spark's JVM; None if this process did not start it, as with Spark Connect or spark-submit."""
    try:
        return getattr(spark.sparkContext._gateway, "proc", None) if spark is not None else None
    except Exception:
        logger.debug("cannot reach the process of Spark's JVM", exc_info=True)
        return None
