"""What Spark calls to write: `write` in every task, then `commit` or `abort` on the driver.

Spark pickles a batch writer on the driver and sends it to the tasks and to the commit; a stream writer is made
anew for the commit of each micro-batch, so all it knows there comes in the tasks' messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWriter(DataSourceArrowWriter):
    """All rows of one `df.write.save()`, or none of them."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        raise NotImplementedError

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        raise NotImplementedError

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        raise NotImplementedError


class StreamWriter(DataSourceStreamArrowWriter):
    """The rows of each micro-batch of a query, once each."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        raise NotImplementedError

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        raise NotImplementedError

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        raise NotImplementedError
