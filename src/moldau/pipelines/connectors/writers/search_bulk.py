"""Rows as the bulk requests of Elasticsearch and OpenSearch, and what their answers mean, item by item.

A document with an external version is written only if the server has an older one or none. So repeating a batch, and
even another order, changes nothing. Without versions, an id is at most once in a request, and what has to be sent again
is sent before what follows: the last row of an id wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.errors import MoldauError
from moldau.pipelines.connectors.writers.http_requests import Answer, Outcome, Requests, Target, outcome_of, requests_to
from moldau.pipelines.connectors.writers.refused_rows import SCHEMA, Refusals, RefusedRows, TooManyRefusedError, digest
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = ("target", "id", "version", "is_delete", "document")
IDENTITY = ("target", "id", "document")  # of a row that is refused
INDEX, CREATE, UPSERT = "index", "create", "upsert"
_PATH = "/_bulk?filter_path=errors,items.*.status,items.*.error"
_ANSWER_CHARACTERS_MAX = 200
_CONFLICT = 409


class Item(NamedTuple):
    target: str  # index, alias or data stream
    id: str | None
    version: int | None
    is_delete: bool
    document: str | None  # JSON

    @property
    def digest(self) -> str:
        return digest(self.target, self.id, self.document)

    def action(self, mode: str) -> str:
        return "delete" if self.is_delete else "update" if mode == UPSERT else mode

    def lines(self, mode: str) -> str:
        """An action and its document, a line each."""
        action = self.action(mode)
        head: dict[str, Any] = {"_index": self.target}
        if self.id is not None:
            head["_id"] = self.id
        if self.version is not None:
            head |= {"version": self.version, "version_type": "external"}
        line = json.dumps({action: head}) + "\n"
        if action == "delete":
            return line
        # Line breaks outside of the strings of JSON are only white space, and inside there are none.
        text = (self.document or "{}").replace("\n", " ").replace("\r", " ")
        return line + (f'{{"doc": {text}, "doc_as_upsert": true}}\n' if action == "update" else f"{text}\n")


def item_outcome(action: str, status: int, *, has_version: bool) -> Outcome:
    if action == "delete" and status == 404:
        return Outcome.DONE
    if status == _CONFLICT:
        # A newer version is there, or this one; or the document that was to be created is. An update met another.
        return Outcome.DONE if has_version or action == "create" else Outcome.RETRY
    return outcome_of(status)


@dataclass(frozen=True)
class Bulk:
    mode: str = INDEX
    rows_max: int = 1_000
    bytes_max: int = 5 * 1024 * 1024

    def requests(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        gathered: list[Item] = []
        ids, size = set[tuple[str, str]](), 0
        for item in items:
            key = (item.target, item.id or "")
            is_twice = item.version is None and item.id is not None and key in ids
            length = len(item.document or "") + 100
            if gathered and (is_twice or len(gathered) >= self.rows_max or size + length > self.bytes_max):
                yield gathered
                gathered, ids, size = [], set(), 0
            gathered.append(item)
            ids.add(key)
            size += length
        if gathered:
            yield gathered

    def body(self, items: Sequence[Item]) -> bytes:
        return "".join(item.lines(self.mode) for item in items).encode()

    def send(self, items: list[Item], requests: Requests, refusals: Refusals) -> None:
        """Until each is written or refused. Raises MoldauError if that cannot be."""
        attempt = 0
        while items:
            answer = requests.try_send(self.body(items), _PATH)
            if answer.outcome is Outcome.FAILED:
                raise MoldauError(f"cannot write to {requests.shown_url}: {answer.text}")
            if answer.outcome is Outcome.REFUSED:
                self._send_halves(items, answer, requests, refusals)
                return
            if answer.outcome is Outcome.DONE:
                items, answer = self._left(items, answer, requests, refusals)
            if items:
                requests.pause(attempt, answer)
                attempt += 1

    def _send_halves(self, items: list[Item], answer: Answer, requests: Requests, refusals: Refusals) -> None:
        """The request as a whole was refused: it is too large, or a document is not JSON."""
        if len(items) == 1:
            refusals.add(items[0].digest, answer.text)
            return
        middle = len(items) // 2
        self.send(items[:middle], requests, refusals)
        self.send(items[middle:], requests, refusals)

    def _left(
        self, items: list[Item], answer: Answer, requests: Requests, refusals: Refusals
    ) -> tuple[list[Item], Answer]:
        """The items to send again, and the answer that says why."""
        left: list[Item] = []
        for item, status, reason in results(items, answer.content):
            outcome = item_outcome(item.action(self.mode), status, has_version=item.version is not None)
            text = f"document {item.id or ''} of {item.target}: it answered {status}: {reason}"
            if outcome is Outcome.FAILED:
                raise MoldauError(f"cannot write to {requests.shown_url}: {text}")
            if outcome is Outcome.REFUSED:
                refusals.add(item.digest, text)
            if outcome is Outcome.RETRY:
                left.append(item)
                answer = Answer(outcome, b"", text, status)
        return left, answer


def results(items: Sequence[Item], content: bytes) -> Iterator[tuple[Item, int, str]]:
    """Each item with its status, and why it was not written; none if all were."""
    try:
        found = json.loads(content)
        if not found["errors"]:
            return
        answers = [next(iter(entry.values())) for entry in found["items"]]
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise MoldauError(f"cannot write to the search server: its answer to _bulk has no items: {error}") from error
    for item, answer in zip(items, answers, strict=True):
        yield item, int(answer["status"]), _reason(answer.get("error"))


def _reason(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error or "")
    text = f"{error.get('type', '')}: {error.get('reason', '')}"
    if cause := error.get("caused_by"):
        text += f" ({cause.get('reason', '')})"
    return " ".join(text.split())[:_ANSWER_CHARACTERS_MAX]


@dataclass(frozen=True)
class SearchRows:
    target: Target
    bulk: Bulk
    refused: RefusedRows

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Rows with COLUMNS."""
        target, bulk, action = self.target, self.bulk, self.refused.action

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with plain_errors():
                items = (Item(**row) for batch in batches for part in _parts(batch) for row in part.to_pylist())
                yield from send_items(items, requests_to(target), bulk, Refusals(action)).batches()

        found = rows.select(*COLUMNS).mapInArrow(send, SCHEMA).collect()
        self.refused.settle(found, requests_to(target).shown_url)


def send_items(items: Iterator[Item], requests: Requests, bulk: Bulk, refusals: Refusals) -> Refusals:
    with suppress(TooManyRefusedError):
        for gathered in bulk.requests(items):
            bulk.send(gathered, requests, refusals)
    return refusals


def _parts(batch: pa.RecordBatch, rows: int = 1_000) -> Iterator[pa.RecordBatch]:
    """Not all rows of a batch become objects at once."""
    return (batch.slice(start, rows) for start in range(0, len(batch), rows))
