"""A topic as the sink of `foreachBatch`, exactly once.

Spark supports no update mode for sinks in Python, and `foreachBatch` is called again for a batch that was not finished.
A batch write with the query's id and the batch's number changes nothing when it is repeated, so the two together are a
sink for every output mode.

The query, the topic and the `txnAppId`, if there is one, identify the writer. A query with a new checkpoint is a new
query, so its batches are written even if they have the same numbers as earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from moldau.client.config import ClientConfig
from moldau.errors import ConfigError
from moldau.spark.options import QUERY_ID, Options, option_text
from moldau.spark.sink.exactly_once import Job
from moldau.spark.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOB_GROUP = "spark.jobGroup.id"  # the id of the query's run, which is another after each start
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a job group of the user's does not look like this
_SIGNS_OF_A_STOP = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
    "SPARK_JOB_CANCELLED",
)
# By these words Spark knows the error of a query that `stop()` has interrupted. It looks for them with a regular
# expression that overflows the stack of Java in a long text, as the error with its Java stack trace is.
_STOPPED = (
    "the query was stopped while it wrote a batch (py4j.protocol.Py4JJavaError: An error occurred while calling save: "
    "java.lang.InterruptedException)"
)


class _Batch(NamedTuple):
    run_id: str
    batch_id: int


# The last batch that each sink of this process wrote, by cluster and app. A run never repeats a batch.
_written: dict[tuple[ClientConfig, str], _Batch] = {}


@contextmanager
def plain_stop() -> Iterator[None]:
    """Around a function for `foreachBatch`, also as a decorator: a query that is stopped ends without noise."""
    try:
        yield
    except Exception as error:
        if any(sign in str(error) for sign in _SIGNS_OF_A_STOP):
            raise RuntimeError(_STOPPED) from None
        raise


class BatchSink:
    """Writes each micro-batch once. Two sinks of a query that write to the same topic have a `txnAppId` each."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = {name: option_text(value) for name, value in options.items()}
        self._parsed("-", 0)  # what is wrong is told here

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        context = rows.sparkSession.sparkContext
        query_id = context.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise ConfigError("batch_sink works inside foreachBatch of a streaming query: use df.write for a batch")
        options = self._parsed(query_id, batch_id)
        writer = options.client, Job.of_write(options).app
        batch = _Batch(context.getLocalProperty(_JOB_GROUP) or "", batch_id)
        if _written.get(writer) == batch and _RUN_ID.fullmatch(batch.run_id):
            raise ConfigError(
                f"batch {batch_id} was already written to {options.topic or 'the topics of its rows'} by a batch_sink "
                "of this query, so these rows would be taken for the same and left out: give each batch_sink a "
                "txnAppId of its own"
            )
        with plain_stop():
            rows.write.format("moldau").mode("append").options(**self._named(query_id, batch_id)).save()
        _written[writer] = batch

    def _parsed(self, query_id: str, batch_id: int) -> WriteOptions:
        return WriteOptions.parse(self._named(query_id, batch_id))

    def _named(self, query_id: str, batch_id: int) -> dict[str, str]:
        given = Options(self._options).get("txnAppId")
        app_id = query_id if given is None else f"{query_id}-{given}"
        return {**self._options, "txnAppId": app_id, "txnVersion": str(batch_id)}
