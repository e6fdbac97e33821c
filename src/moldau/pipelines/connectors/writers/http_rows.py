"""Rows as HTTP requests: one each, or several in one body. In order within a partition, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.writers.http_requests import Outcome, Requests, Target, requests_to
from moldau.pipelines.connectors.writers.refused_rows import SCHEMA, Refusals, RefusedRows, TooManyRefusedError, digest
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BODY = "body"


@dataclass(frozen=True)
class Batching:
    """How rows become the body of a request."""

    rows_max: int = 1
    bytes_max: int = 1024 * 1024
    prefix: bytes = b""
    suffix: bytes = b""
    separator: bytes = b""

    def body(self, rows: list[bytes]) -> bytes:
        return self.prefix + self.separator.join(rows) + self.suffix

    def requests(self, rows: Iterator[bytes]) -> Iterator[list[bytes]]:
        """A row that is larger than the limit is a request by itself."""
        gathered: list[bytes] = []
        size = 0
        for row in rows:
            if gathered and (len(gathered) >= self.rows_max or size + len(row) > self.bytes_max):
                yield gathered
                gathered, size = [], 0
            gathered.append(row)
            size += len(row) + len(self.separator)
        if gathered:
            yield gathered


@dataclass(frozen=True)
class HttpRows:
    target: Target
    batching: Batching
    refused: RefusedRows

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Rows of one column, the body."""
        target, batching, action = self.target, self.batching, self.refused.action

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with plain_errors():
                bodies = (body.as_py() for batch in batches for body in batch.column(0) if body.is_valid)
                yield from send_bodies(bodies, requests_to(target), batching, Refusals(action)).batches()

        found = rows.select(BODY).mapInArrow(send, SCHEMA).collect()
        self.refused.settle(found, f"{target.method} {requests_to(target).shown_url}")


def send_bodies(bodies: Iterator[bytes], requests: Requests, batching: Batching, refusals: Refusals) -> Refusals:
    with suppress(TooManyRefusedError):
        for rows in batching.requests(bodies):
            _send(rows, requests, batching, refusals)
    return refusals


def _send(rows: list[bytes], requests: Requests, batching: Batching, refusals: Refusals) -> None:
    answer = requests.send(batching.body(rows))
    if answer.outcome is Outcome.DONE:
        return
    if len(rows) == 1:
        refusals.add(digest(rows[0]), answer.text)
        return
    for row in rows:  # the server has not said which of them it refuses
        _send([row], requests, batching, refusals)
