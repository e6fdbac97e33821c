"""What Spark calls to write: `write` in every task, then `commit` or `abort` on the driver.

Spark pickles a batch writer on the driver and sends it to the tasks and to the commit. A stream writer is created again
for the commit of each micro-batch, so it knows only what the messages of the tasks contain. `exactly_once` explains
how rows become transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.client.config import ClientConfig
from moldau.errors import ConfigError
from moldau.spark.connections import borrowed
from moldau.spark.hang_ups import ignore_hang_ups
from moldau.spark.options import QUERY_ID, TYPED_COLUMNS, Options
from moldau.spark.plain_errors import plain_errors
from moldau.spark.sink.exactly_once import Job, TaskMessage, abort_tasks, abort_unfinished, commit_tasks, write_task
from moldau.spark.sink.sink_columns import check_columns
from moldau.spark.sink.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from moldau.spark.formats import Encoder

_BATCH_ID = "streaming.sql.batchId"


class _Sink:
    """What both writers share: typed columns made bytes, then rows made transactions.

    What only tasks need, Arrow and the compiled encoder, is imported there: Spark starts a Python process for each
    commit.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = WriteOptions.parse(options)
        self._encoder = _encoder(Options(options), schema)
        check_columns(schema if self._encoder is None else self._encoder.schema, self.options.topic)

    def write(self, job: Job, context: TaskContext, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        from moldau.spark.sink.row_sink import send_idempotently, send_in_transaction

        ignore_hang_ups()
        rows = batches if self._encoder is None else map(self._encoder.apply, batches)
        task = context.partitionId()
        if self.options.exactly_once:
            return write_task(job, task, self.options, rows, partial(send_in_transaction, self.options))
        return TaskMessage(task, send_idempotently(self.options, rows))


def _encoder(options: Options, schema: StructType) -> Encoder | None:
    if all(options.get(f"{column}.format") is None for column in TYPED_COLUMNS):
        return None
    from moldau.spark.formats import encoder

    return encoder(options, schema)


class BatchWriter(DataSourceArrowWriter):
    """The rows of one `df.write.save()`, which appear when all are written."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        self._job = Job.of_write(self._sink.options)

    @property
    def client(self) -> ClientConfig:
        return self._sink.options.client

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(self._job, _context(), iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._sink.options.exactly_once:
            with borrowed(self._sink.options.client) as cluster:
                commit_tasks(cluster, self._job.batch_id, self._sink.options, _ours(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._sink.options.exactly_once:
            with borrowed(self._sink.options.client) as cluster:
                abort_tasks(cluster, _ours(messages))
                abort_unfinished(cluster, self._job.app, _unfinished(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The rows of each micro-batch of a query, once each."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        if self._sink.options.app_id is not None:
            raise ConfigError(
                "options txnAppId and txnVersion are for batch writes; a stream uses the id of its query and batch"
            )

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise ConfigError(f"Spark does not say which query and batch this is ({QUERY_ID}, {_BATCH_ID})")
        job = Job.of_query(self._sink.options, query_id, int(batch_id))
        return self._sink.write(job, context, iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._sink.options.exactly_once:
            with borrowed(self._sink.options.client) as cluster:
                commit_tasks(cluster, batchId, self._sink.options, _ours(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The query's id is known from those tasks that were done. Where none was, those that were killed leave their
        transactions to the query's next start."""
        ours = _ours(messages)
        app = next((message.app for message in ours if message.app is not None), None)
        if self._sink.options.exactly_once and app is not None:
            with borrowed(self._sink.options.client) as cluster:
                abort_tasks(cluster, ours)
                abort_unfinished(cluster, app, _unfinished(messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write in a task"
    return context


def _unfinished(messages: Iterable[WriterCommitMessage | None]) -> list[int]:
    return [task for task, message in enumerate(messages) if message is None]


def _ours(messages: Iterable[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]
