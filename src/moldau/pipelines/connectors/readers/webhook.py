"""Webhooks as Spark sees them: offsets are positions in the journal of requests.

Spark calls `commit(end)` of a batch only when the next one has been planned, for which a quiet source would have to
wait. But it asks for the next offset (`latestOffset(start)`) as soon as the batch that ends at `start` is in its commit
log, so both are signs that a request is committed and can be answered. Files of the journal are deleted after
`commit(end)`.

The reader is also made in processes that only plan or read: the port is opened with the first question for an offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import BinaryType, MapType, StringType, StructType, TimestampType

from moldau.errors import ConfigError
from moldau.pipelines.connectors.readers.json_values import json_values
from moldau.pipelines.connectors.readers.request_journal import Journal, Request, read_requests
from moldau.pipelines.connectors.readers.webhook_server import Limits, WebhookServer
from moldau.spark.plain_errors import plain_errors
from moldau.spark.source.typed_fields import TypedFields

# Spark asks again and again; a stop is noticed after this long.
_WAIT_S = 0.5
_ROWS_MAX = 1_000  # of an Arrow batch
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS = ("value", "path", "headers", "received")


@dataclass(frozen=True)
class WebhookSpec:
    """The options of the connector, as JSON in an option of Spark's."""

    host: str
    port: int
    path: str
    journal: str
    format: str
    schema: str | None
    authorization: str | None  # the SHA-256 of the header
    timeout_ms: int
    body_bytes_max: int
    waiting_max: int
    connections_max: int
    backlog_bytes_max: int
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        return Limits(
            self.timeout_ms / 1000, self.body_bytes_max, self.waiting_max, self.connections_max, self.backlog_bytes_max
        )

    def typed_fields(self) -> TypedFields | None:
        return json_values(self.schema, self.errors) if self.format == "json" else None


@dataclass(frozen=True)
class Part(InputPartition):
    begin: int
    end: int


class WebhookSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._spec = WebhookSpec(**json.loads(options["spec"]))

    @plain_errors()
    def schema(self) -> StructType:
        typed = self._spec.typed_fields()
        plain = BinaryType() if self._spec.format == "bytes" else StringType()
        value = typed.readers["value"].spark_type if typed else plain
        headers = MapType(StringType(), StringType())
        schema = StructType().add("value", value).add("path", StringType())
        return schema.add("headers", headers).add("received", TimestampType())

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        raise ConfigError("an http source has requests only while its pipeline runs: there is nothing to read before")

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return WebhookStreamReader(self._spec)


class WebhookStreamReader(DataSourceStreamReader):
    def __init__(self, spec: WebhookSpec) -> None:
        self._spec = spec
        self._opened: tuple[WebhookServer, Journal] | None = None

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Always the same until the first batch is committed: Spark asks again when it runs it, or repeats it."""
        _, journal = self._open()
        return {"position": journal.first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the backlog has a limit

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        server, _ = self._open(start["position"])
        server.committed(start["position"])
        return {"position": server.wait_for_requests(start["position"], _WAIT_S)}

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(start["position"], end["position"])]

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        server, journal = self._open(end["position"])
        server.committed(end["position"])
        journal.forget(end["position"])

    def stop(self) -> None:
        if self._opened is not None:
            server, journal = self._opened
            server.stop()
            journal.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        with plain_errors():
            yield from read_rows(partition, self._spec)

    def _open(self, position: int = 0) -> tuple[WebhookServer, Journal]:
        if self._opened is None:
            spec = self._spec
            journal = Journal(spec.journal)
            if journal.end < position:  # it was lost: what comes now is after what Spark knows
                journal.begin_at(position)
            server = WebhookServer((spec.host, spec.port), spec.path, spec.authorization, spec.limits, journal)
            self._opened = server, journal
        return self._opened


def read_rows(part: Part, spec: WebhookSpec) -> Iterator[pa.RecordBatch]:
    typed = spec.typed_fields()
    decoder = typed.decoder(("value", "topic", "headers", "timestamp")) if typed else None
    requests = read_requests(spec.journal, part.begin, part.end)
    while gathered := list(islice(requests, _ROWS_MAX)):
        records = _records(gathered)
        if decoder:
            yield _rows(decoder.apply(records))
        else:
            yield _rows(_plain(records, is_text=spec.format == "text"))
    if decoder:
        decoder.finish()


def _records(requests: Sequence[tuple[int, Request]]) -> pa.RecordBatch:
    """As records of a topic, so that a bad one becomes a dead letter as they do: the path is its topic."""
    rows = len(requests)
    headers = [[{"key": name, "value": value.encode()} for name, value in one.headers.items()] for _, one in requests]
    columns = {
        "topic": pa.array([one.path for _, one in requests], pa.string()),
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array([position for position, _ in requests], pa.int64()),
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([one.body for _, one in requests], pa.binary()),
        "timestamp": pa.array([one.received_us for _, one in requests], pa.timestamp("us", "UTC")),
        "headers": pa.array(headers, _HEADERS),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def _plain(records: pa.RecordBatch, *, is_text: bool) -> pa.RecordBatch:
    value = records.column("value")
    if is_text:
        value = pa.array([body.decode("utf-8", "replace") for body in value.to_pylist()], pa.string())
    names = ("topic", "headers", "timestamp")
    return pa.record_batch([value, *(records.column(name) for name in names)], names=["value", *names])


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Value, path, headers as a map, time."""
    value, path, headers, received = (batch.column(name) for name in ("value", "topic", "headers", "timestamp"))
    pairs = headers.flatten()
    texts = pairs.field("value").cast(pa.string())
    starts = np.concatenate([[0], np.cumsum(headers.value_lengths().fill_null(0).to_numpy())]).astype(np.int32)
    as_map = pa.MapArray.from_arrays(pa.array(starts), pairs.field("key"), texts)
    return pa.record_batch([value, path, as_map, received], names=list(_COLUMNS))
