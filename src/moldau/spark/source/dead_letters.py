"""What happens to records that cannot be decoded in their format.

`errors.tolerance=all`, the default, keeps the query running; `none` fails the task. Both are Kafka Connect's names.
A tolerated record

- stays a row with a null key or value, and with its raw bytes and the reason in the column `_corrupt_record` (Spark's
  option `columnNameOfCorruptRecord`), a struct that is null for good records; or
- with `errors.deadletterqueue.topic.name`, is written to that topic instead, unchanged (key, value, timestamp, headers)
  and with Kafka Connect's headers that say where it came from and what is wrong with it.

`errors.tolerance=skip` leaves it out and only counts it in the log: for a second query on a topic whose bad records the
first one reports.

Dead letters are written before Spark gets the other rows of the batch. A task that fails and runs again, or a query
that reads the topic twice, writes them again: they are delivered at least once. The topic, partition and offset in
their headers identify duplicates. Each task with bad records logs their number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.options import DEAD_LETTER_BYTES_MAX, HEADER_PREFIX, KAFKA_PREFIX, Options
from moldau.spark.sink.write_options import WriteOptions
from moldau.spark.source.read_plan import RAW_COLUMNS

CORRUPT_TYPE = StructType().add("key", BinaryType()).add("value", BinaryType()).add("reason", StringType())
_CORRUPT_ARROW_TYPE = to_arrow_type(CORRUPT_TYPE)

_PLACE = ("topic", "partition", "offset")
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}

Reasons = Mapping[int, Mapping[str, str]]  # row -> column -> why, of one raw batch

logger = logging.getLogger(__name__)


class ErrorPolicy(NamedTuple):
    """What to do with a bad record; small, since it travels with every task."""

    tolerated: bool
    corrupt_column: str | None  # None where bad records are no rows
    letters: WriteOptions | None  # how to write to the dead-letter topic; None where there is none
    skipped: bool = False  # bad records are left out
    headers: tuple[tuple[str, str], ...] = ()  # further ones of dead letters

    @classmethod
    def from_options(cls, options: Options) -> ErrorPolicy:
        tolerance = options.choice("errors.tolerance", ("all", "none", "skip"), "all")
        tolerated, skipped = tolerance != "none", tolerance == "skip"
        topic = options.get("errors.deadletterqueue.topic.name") or None
        column = options.text("columnNameOfCorruptRecord", "_corrupt_record")
        if column in RAW_COLUMNS:
            raise ConfigError(f"option columnNameOfCorruptRecord={column}: a topic has that column: use another name")
        letters = _write_options(options, topic) if tolerated and topic and not skipped else None
        return cls(
            tolerated,
            column if tolerated and not skipped and letters is None else None,
            letters,
            skipped,
            _more_headers(options),
        )

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns of a bad record that are reported."""
        return (*_PLACE, "key", "value", "timestamp", "headers") if self.letters else _PLACE


class BadRows:
    """The bad records of one task."""

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._count = 0
        self._first = ""

    def handle(self, batch: pa.RecordBatch, reasons: Reasons) -> pa.Array | None:
        """Report the bad rows. Returns which rows stay, or None if all do."""
        if not reasons:
            return None
        first = min(reasons)
        if not self._count or not self._policy.tolerated:
            self._first = f"{_place(batch, first)}: {_sentence(reasons[first])}"
        if not self._policy.tolerated:
            raise RecordFormatError(
                f"record {self._first}; errors.tolerance=all keeps the query running and sets such records apart"
            )
        self._count += len(reasons)
        if self._policy.letters is not None:
            _write(self._policy.letters, batch, reasons, self._policy.headers)
        elif not self._policy.skipped:
            return None
        return pa.array([row not in reasons for row in range(len(batch))])

    def column(self, batch: pa.RecordBatch, reasons: Reasons) -> pa.Array:
        if not reasons:
            return pa.nulls(len(batch), _CORRUPT_ARROW_TYPE)
        rows: list[dict[str, Any] | None] = [None] * len(batch)
        for row, why in reasons.items():
            rows[row] = {name: batch.column(name)[row].as_py() for name in why} | {"reason": _sentence(why)}
        return pa.array(rows, _CORRUPT_ARROW_TYPE)

    def finish(self) -> None:
        if self._count:
            letters, column = self._policy.letters, self._policy.corrupt_column
            where = f"in topic {letters.topic}" if letters else f"in column {column}" if column else "left out"
            records, are = ("record", "is") if self._count == 1 else ("records", "are")
            # With headers of its own, somebody counts them: a pipeline shows their number and the last reason.
            level = logging.INFO if self._policy.headers else logging.WARNING
            logger.log(
                level,
                "%d %s could not be decoded and %s %s; the first: %s",
                self._count,
                records,
                are,
                where,
                self._first,
            )


def _more_headers(options: Options) -> tuple[tuple[str, str], ...]:
    name = "errors.deadletterqueue.headers"
    try:
        return tuple((str(key), str(value)) for key, value in json.loads(options.text(name, "{}")).items())
    except (ValueError, AttributeError) as error:
        raise ConfigError(f'option {name}={options.get(name)}: expected JSON like {{"team": "checkout"}}') from error


def _write_options(options: Options, topic: str) -> WriteOptions:
    properties = {"max.request.size": str(DEAD_LETTER_BYTES_MAX)} | options.kafka_properties()
    given = {KAFKA_PREFIX + name: value for name, value in properties.items()}
    return WriteOptions.parse(given | {"topic": topic, "processing.guarantee": "at_least_once"})


def _write(options: WriteOptions, batch: pa.RecordBatch, reasons: Reasons, more: Sequence[tuple[str, str]]) -> None:
    """Return when the topic has the bad records."""
    # Loaded with the first bad record: most tasks have none.
    from moldau.spark.connections import borrowed
    from moldau.spark.sink.producing import Producer, ProducerIdentity
    from moldau.spark.sink.row_sink import RowSink

    records = batch.select(["key", "value", "timestamp"]).take(pa.array(list(reasons), pa.int64()))
    headers = [_headers(batch, row, why, more) for row, why in reasons.items()]
    with borrowed(options.client) as cluster:
        # Without a producer id: duplicates are there anyway when a task runs again, and brokers keep ids for a day.
        sink = RowSink(options, Producer(cluster, options, ProducerIdentity(-1, -1)))
        sink.write(records.append_column("headers", pa.array(headers, batch.schema.field("headers").type)))
        sink.finish()


def _headers(
    batch: pa.RecordBatch, row: int, why: Mapping[str, str], more: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """The record's own and then Kafka Connect's, which tell of the first thing that was wrong."""
    column, text = next(iter(why.items()))
    context = {name: batch.column(name)[row].as_py() for name in _PLACE} | {
        "stage": _STAGES[column],
        "exception.class.name": RecordFormatError.__qualname__,
        "exception.message": text,
    }
    own = batch.column("headers")[row].as_py() or []
    ours = [(HEADER_PREFIX + name, str(value)) for name, value in context.items()]
    return own + [{"key": name, "value": value.encode()} for name, value in (*ours, *more)]


def _place(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
    return f"{topic}-{partition}@{offset}"


def _sentence(why: Mapping[str, str]) -> str:
    return "; ".join(f"{column}: {reason}" for column, reason in why.items())
