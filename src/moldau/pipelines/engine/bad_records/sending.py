"""Writes the dead letters of records that a query leaves out, once: `left_out` explains when."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.topic import kafka_options, letter_headers
from moldau.pipelines.engine.bad_records.left_out import LeftOut, LeftOutRecord, is_pending
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.queries import QueryPlan, Settings, read_request
from moldau.pipelines.model.references import hidden
from moldau.spark.options import DEAD_LETTER_BYTES_MAX, HEADER_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from moldau.pipelines.connectors.base import ReadRequest

logger = logging.getLogger(__name__)


def send_pending(spark: SparkSession, plan: QueryPlan, settings: Settings) -> int:
    """Write the dead letters of the last search, unless that is done. Returns how many there were."""
    folder = open_folder(settings.checkpoint(plan.pipeline, plan.name), spark)
    left_out = LeftOut.load(folder)
    log = CheckpointLog(folder)
    if left_out is None or left_out.is_sent or not is_pending(log, left_out.batch_id):
        return 0
    records = [record for record in left_out.records if record.search == left_out.search]
    for source in plan.sources:
        own = [record for record in records if record.source == source.name]
        if own:
            request = read_request(spark, plan.pipeline, source, settings, query=plan.name)
            _send(request, f"{log.query_id}-{source.name}-{left_out.search}", own)
    replace(left_out, is_sent=True).save(folder)
    return len(records)


def _send(request: ReadRequest, app_id: str, records: Sequence[LeftOutRecord]) -> None:
    """In one transaction that is made once."""
    from moldau.spark.connections import borrowed
    from moldau.spark.sink.exactly_once import Job, commit_tasks, write_task
    from moldau.spark.sink.row_sink import send_in_transaction
    from moldau.spark.sink.write_options import WriteOptions

    kafka = kafka_options(request)
    once = {"topic": str(request.dead_letters), "txnAppId": app_id, "txnVersion": "0"}
    options = WriteOptions.parse({"kafka.max.request.size": str(DEAD_LETTER_BYTES_MAX), **kafka, **once})
    batches = [batch for record in records for batch in _letters(request, kafka, record)]
    job = Job.of_write(options)
    message = write_task(job, 0, options, iter(batches), partial(send_in_transaction, options))
    with borrowed(options.client) as cluster:
        commit_tasks(cluster, job.batch_id, options, [message])


def _letters(request: ReadRequest, kafka: Mapping[str, str], record: LeftOutRecord) -> list[pa.RecordBatch]:
    """The record as it is in the topic, and headers that say why it is a dead letter."""
    import pyarrow as pa

    from moldau.spark.options import Options
    from moldau.spark.source.fetching import read_range
    from moldau.spark.source.read_plan import ReadPlan

    columns = ("key", "value", "timestamp", "headers")
    client = Options(kafka).client_config("moldau-pipelines")
    batches = [
        batch for batch in read_range(ReadPlan(client, columns, fail_on_data_loss=False), record.range) if len(batch)
    ]
    if not batches:
        logger.warning("record %s is no longer in its topic: there is no dead letter of it", hidden(str(record)))
    texts = {
        **{HEADER_PREFIX + name: str(getattr(record, name)) for name in ("topic", "partition", "offset")},
        f"{HEADER_PREFIX}stage": "TRANSFORMATION",
        f"{HEADER_PREFIX}exception.message": record.reason,
        **letter_headers(request),
    }
    ours = [{"key": name, "value": text.encode()} for name, text in texts.items()]
    return [
        pa.record_batch(
            [
                *(batch.column(name) for name in columns[:-1]),
                pa.array(
                    [[*(own or []), *ours] for own in batch.column("headers").to_pylist()],
                    batch.schema.field("headers").type,
                ),
            ],
            names=list(columns),
        )
        for batch in batches
    ]
