"""Records that cannot be read as their format says: where they go, and that somebody hears of them.

`errors.tolerance=all`, the default, keeps the query running, `none` fails the task; both are Kafka Connect's words.
A tolerated record

- stays a row, its unreadable key or value null and its raw bytes and the reason in the column `_corrupt_record`
  (Spark's option `columnNameOfCorruptRecord`), a struct that is null where all is well; or
- with `errors.deadletterqueue.topic.name` leaves the DataFrame for that topic, as it was (key, value, timestamp,
  headers) with the headers of Kafka Connect that say where it came from and what is wrong with it.

The topic has its dead letters before Spark has the rows beside them: a task that fails and runs again, or a query
that reads the topic twice, writes them again. So they are there at least once; topic, partition and offset in
their headers tell duplicates apart. Each task with bad records says in one log line how many.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from moldau.client.librdkafka import to_librdkafka
from moldau.errors import ErrorCode, KafkaError, RecordFormatError
from moldau.spark.options import Options

CORRUPT_TYPE = StructType().add("key", BinaryType()).add("value", BinaryType()).add("reason", StringType())
_CORRUPT_ARROW_TYPE = pa.struct([("key", pa.binary()), ("value", pa.binary()), ("reason", pa.string())])

_PLACE = ("topic", "partition", "offset")
_HEADER_PREFIX = "__connect.errors."
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}
_CLIENT_PROPERTIES = ("bootstrap.servers", "client.id", "security.protocol", "request.timeout.ms", "ssl.", "sasl.")
# Long enough for a leader to move; after it the task fails, and Spark runs it again.
_DELIVERY_TIMEOUT_MS = 120_000

_logger = logging.getLogger(__name__)


class ErrorPolicy(NamedTuple):
    """What to do with a bad record; small, since it travels with every task."""

    tolerated: bool
    corrupt_column: str | None  # None where bad records are no rows
    topic: str | None
    kafka: Mapping[str, str]  # properties to reach the dead-letter topic

    @classmethod
    def from_options(cls, options: Options) -> ErrorPolicy:
        tolerated = options.choice("errors.tolerance", ("all", "none"), "all") == "all"
        topic = options.get("errors.deadletterqueue.topic.name") or None
        column = options.text("columnNameOfCorruptRecord", "_corrupt_record")
        return cls(
            tolerated,
            column if tolerated and topic is None else None,
            topic if tolerated else None,
            {name: value for name, value in options.kafka_properties().items() if name.startswith(_CLIENT_PROPERTIES)},
        )

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """What of a bad record is told on."""
        return (*_PLACE, "key", "value", "timestamp", "headers") if self.topic else _PLACE


class BadRows:
    """The bad records of one task. `reasons` is row → column → why, of one raw batch."""

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._topic: DeadLetterTopic | None = None
        self._count = 0
        self._first = ""

    def handle(self, batch: pa.RecordBatch, reasons: Mapping[int, Mapping[str, str]]) -> pa.Array | None:
        """Tells on the bad rows, and which rows stay where not all do."""
        if not reasons:
            return None
        first = min(reasons)
        if not self._count or not self._policy.tolerated:
            self._first = f"{_place(batch, first)}: {_sentence(reasons[first])}"
        if not self._policy.tolerated:
            raise RecordFormatError(
                f"record {self._first}; errors.tolerance=all keeps the query running and such records apart"
            )
        self._count += len(reasons)
        if self._policy.topic is None:
            return None
        if self._topic is None:
            self._topic = DeadLetterTopic(self._policy.topic, self._policy.kafka)
        self._topic.write(batch, reasons)
        return pa.array([row not in reasons for row in range(len(batch))])

    def column(self, batch: pa.RecordBatch, reasons: Mapping[int, Mapping[str, str]]) -> pa.Array:
        if not reasons:
            return pa.nulls(len(batch), _CORRUPT_ARROW_TYPE)
        rows: list[dict[str, Any] | None] = [None] * len(batch)
        for row, why in reasons.items():
            rows[row] = {name: batch.column(name)[row].as_py() for name in why} | {"reason": _sentence(why)}
        return pa.array(rows, _CORRUPT_ARROW_TYPE)

    def finish(self) -> None:
        if self._count:
            where = f"topic {self._policy.topic}" if self._policy.topic else f"column {self._policy.corrupt_column}"
            _logger.warning("%d records could not be read, now in %s; the first: %s", self._count, where, self._first)


class DeadLetterTopic:
    """Writes bad records and waits until the topic has them."""

    def __init__(self, name: str, kafka: Mapping[str, str]) -> None:
        from confluent_kafka import Producer

        config, _ = to_librdkafka(kafka)
        self._name = name
        self._failed: list[str] = []
        self._producer = Producer(
            {"enable.idempotence": True, "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS, "linger.ms": 0} | config
        )

    def write(self, batch: pa.RecordBatch, reasons: Mapping[int, Mapping[str, str]]) -> None:
        rows = batch.take(pa.array(list(reasons), pa.int64()))
        timestamps_ms = rows.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
        for record, why, timestamp_ms in zip(rows.to_pylist(), reasons.values(), timestamps_ms, strict=True):
            self._produce(record, why, timestamp_ms)
        self._producer.flush()
        if self._failed:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"dead-letter topic {self._name} takes no records: {self._failed[0]}"
            )

    def _produce(self, record: Mapping[str, Any], why: Mapping[str, str], timestamp_ms: int) -> None:
        headers = [(header["key"], header["value"]) for header in record["headers"] or ()]
        while True:
            try:
                self._producer.produce(
                    self._name,
                    key=record["key"],
                    value=record["value"],
                    timestamp=timestamp_ms,
                    headers=headers + _connect_headers(record, why),
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(0.1)  # its queue is full: wait until some are delivered
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))


def _connect_headers(record: Mapping[str, Any], why: Mapping[str, str]) -> list[tuple[str, bytes]]:
    first, text = next(iter(why.items()))
    context = {name: record[name] for name in _PLACE} | {
        "stage": _STAGES[first],
        "exception.class.name": RecordFormatError.__qualname__,
        "exception.message": text,
    }
    return [(_HEADER_PREFIX + name, str(value).encode()) for name, value in context.items()]


def _place(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
    return f"{topic}-{partition}@{offset}"


def _sentence(why: Mapping[str, str]) -> str:
    return "; ".join(f"{column}: {reason}" for column, reason in why.items())
