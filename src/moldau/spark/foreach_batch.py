"""A topic as the sink of `foreachBatch`, exactly once.

Spark gives Python sinks no update mode, and `foreachBatch` calls again for a batch that was not finished. A batch
write under the query's id and the batch's number changes nothing when it is repeated, so the two together are a sink
with every output mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.spark.options import QUERY_ID, option_text
from moldau.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchSink:
    """Writes each micro-batch once. One topic a sink: a second one in the same query needs a `txnAppId` of its own."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = {name: option_text(value) for name, value in options.items()}
        WriteOptions.parse({**self._options, "txnAppId": "-", "txnVersion": "0"})  # what is wrong is told here

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        app_id = self._options.get("txnAppId") or _query_id(rows)
        options = {**self._options, "txnAppId": app_id, "txnVersion": str(batch_id)}
        rows.write.format("moldau").mode("append").options(**options).save()


def _query_id(rows: DataFrame) -> str:
    query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query_id is None:
        raise ConfigError("batch_sink works inside foreachBatch of a streaming query: use df.write for a batch")
    return query_id
