"""The rows of a task: gathered, encoded and sent to their topics.

Arrow batches are gathered until each partition has enough rows for a record batch of a good size.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.errors import ErrorCode, KafkaError
from moldau.spark.columns.encode import Rows, encode, headers, no_headers, nulls, texts, timestamps_ms
from moldau.spark.columns.kernels import Int32s, Int64s
from moldau.spark.columns.partitioner import NO_PARTITION, assign
from moldau.spark.connections import borrowed
from moldau.spark.sink.exactly_once import RowIterator
from moldau.spark.sink.producing import Producer, ProducerIdentity
from moldau.spark.sink.sink_columns import COLUMN_TYPES
from moldau.spark.sink.transactions import Transaction, Transactions
from moldau.spark.sink.write_options import WriteOptions

# What a task may gather before it encodes: it is in memory twice then, and there are a few requests on their way.
_GATHERED_BYTES_MAX = 16 * 1024 * 1024


def send_in_transaction(
    options: WriteOptions, transactions: Transactions, transaction: Transaction, rows: RowIterator
) -> int:
    """How many there were; all are acknowledged."""
    identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch, transaction.transactional_id)
    # Connections of their own: on these, requests are on their way while the coordinator is asked.
    with borrowed(options.client) as cluster:
        return _send(options, Producer(cluster, options, identity, partial(transactions.enlist, transaction)), rows)


def send_idempotently(options: WriteOptions, rows: RowIterator) -> int:
    """The same without a transaction: each attempt of a task writes its rows once."""
    with borrowed(options.client) as cluster:
        return _send(
            options, Producer(cluster, options, ProducerIdentity(*Transactions(cluster).idempotent_id())), rows
        )


def _send(options: WriteOptions, producer: Producer, rows: RowIterator) -> int:
    sink = RowSink(options, producer)
    count = 0
    try:
        if options.topic is not None:
            producer.topic(options.topic)  # created where it does not exist, even without rows
        for batch in rows:
            sink.write(batch)
            count += batch.num_rows
        sink.finish()
    except BaseException:
        producer.drain()
        raise
    return count


class RowSink:
    """Rows of one task, gathered, encoded and sent."""

    def __init__(self, options: WriteOptions, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._sticky: dict[str, Int64s] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= self._enough():
            self._send()

    def finish(self) -> None:
        """Return when the brokers have acknowledged every row."""
        if self._gathered:
            self._send()
        self._producer.flush()

    def _enough(self) -> int:
        if self._options.topic is None:
            return _GATHERED_BYTES_MAX
        partitions = len(self._producer.topic(self._options.topic).partitions)
        return min(_GATHERED_BYTES_MAX, partitions * self._options.batch_bytes)

    def _send(self) -> None:
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        if self._options.topic is not None:
            self._send_to(self._options.topic, batch)
            return
        topics = batch.column("topic").dictionary_encode()
        if topics.null_count:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "a row has no topic: fill the column 'topic', or add .option(\"topic\", …) for all rows",
            )
        for index, name in enumerate(topics.dictionary.to_pylist()):
            self._send_to(name, batch.filter(pc.equal(topics.indices, index)))

    def _send_to(self, topic: str, batch: pa.RecordBatch) -> None:
        partitions = self._producer.topic(topic).partitions
        now_ms = time.time_ns() // 1_000_000
        count = batch.num_rows
        columns = {name: batch.column(name) for name in COLUMN_TYPES if name in batch.schema.names}
        stamps = columns.get("timestamp")
        rows = Rows(
            texts(columns["key"]) if "key" in columns else nulls(count),
            texts(columns["value"]),
            headers(columns["headers"]) if "headers" in columns else no_headers(count),
            np.full(count, now_ms, np.int64) if stamps is None else timestamps_ms(stamps, now_ms),
        )
        chosen = _chosen(columns.get("partition"), count, len(partitions), topic)
        available = [p.partition for p in partitions if p.leader >= 0] or [p.partition for p in partitions]
        if topic not in self._sticky:
            self._sticky[topic] = np.array([random.randrange(len(available)), 0], np.int64)
        assign(
            *rows.keys,
            rows.values.lengths,
            len(partitions),
            np.array(available, np.int32),
            self._producer.batch_bytes,
            self._sticky[topic],
            chosen,
        )
        batches = encode(
            rows,
            chosen,
            len(partitions),
            batch_bytes=self._producer.batch_bytes,
            record_bytes_max=self._options.request_bytes_max,
        )
        self._producer.send(topic, batches)


def _chosen(column: Any, rows: int, partitions: int, topic: str) -> Int32s:
    """What the `partition` column says."""
    if column is None:
        return np.full(rows, NO_PARTITION, np.int32)
    limits = pc.min_max(column).as_py()
    for value in limits.values():
        if value is not None and not 0 <= value < partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"column 'partition' says {value}, but topic '{topic}' has partitions 0 to {partitions - 1}: "
                "drop the column to let keys decide",
            )
    result: Int32s = column.fill_null(NO_PARTITION).to_numpy(zero_copy_only=False).astype(np.int32)
    return result
