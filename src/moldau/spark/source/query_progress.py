"""The progress of a streaming query: `print(moldau.spark.progress(query))`.

Spark's own progress contains the same as JSON within JSON: for each source the start and end offsets of a batch and the
latest offsets. Here they are numbers per partition. Works for this source and for Spark's Kafka connector.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.spark.source.offsets import StreamOffset
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class PartitionProgress:
    topic: str
    partition: int
    start: int | None  # None: not known, as of the first batch
    end: int
    latest: int | None  # where the records ended when the batch was planned

    @property
    def rows(self) -> int | None:
        """Offsets of the last batch: rows, where nothing was compacted, aborted or a transaction's marker."""
        return None if self.start is None else self.end - self.start

    @property
    def lag(self) -> int | None:
        return None if self.latest is None else max(self.latest - self.end, 0)


@dataclass(frozen=True)
class Progress:
    """A query's last batch; all zero, with `batch_id` None, before the first."""

    name: str
    batch_id: int | None = None
    timestamp: str = ""
    rows: int = 0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    duration_ms: int = 0
    partitions: tuple[PartitionProgress, ...] = ()

    @property
    def lag(self) -> int:
        """Offsets not yet read, in all partitions."""
        return sum(partition.lag or 0 for partition in self.partitions)

    def __str__(self) -> str:
        if self.batch_id is None:
            return f"{self.name}: no batch yet"
        head = (
            f"{self.name}: batch {self.batch_id}, {self.rows:,} rows in {self.duration_ms:,} ms"
            f" ({self.processed_rows_per_second:,.0f} rows/s), lag {self.lag:,}"
        )
        return "\n".join([head, *_table(self.partitions)])


def progress_of_query(query: StreamingQuery) -> Progress:
    """The last progress of a query, which may have ended meanwhile."""
    name = query.name or str(query.id)
    last: Mapping[str, Any] | None = query.lastProgress
    return Progress(name) if last is None else progress_of(name, last)


def progress_of(name: str, last: Mapping[str, Any]) -> Progress:
    """The same, of Spark's progress as a mapping: what a StreamingQueryListener has in hand, too."""
    return Progress(
        name=name,
        batch_id=last["batchId"],
        timestamp=last["timestamp"],
        rows=last["numInputRows"],
        input_rows_per_second=_number(last.get("inputRowsPerSecond")),
        processed_rows_per_second=_number(last.get("processedRowsPerSecond")),
        duration_ms=(last.get("durationMs") or {}).get("triggerExecution", 0),
        partitions=tuple(partition for source in last["sources"] for partition in _partitions(source)),
    )


def _partitions(source: Mapping[str, Any]) -> Iterable[PartitionProgress]:
    """None of a source whose offsets are not a topic's."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    started, ended = _offset_text(source.get("startOffset")), _offset_text(source.get("endOffset"))
    # A batch without news ends where the last one did, and says again which partitions joined that one.
    joined = {} if ended == started else _joined(ended)
    start = {**_offsets(started), **joined}
    for key in sorted(end):
        yield PartitionProgress(key.topic, key.partition, start.get(key), end[key], latest.get(key))


def _joined(ended: dict[str, Any]) -> Mapping[TopicPartition, int]:
    """Nothing of a source that is not ours."""
    try:
        return StreamOffset.from_json(ended).joined
    except ConfigError:
        return {}


def _offsets(value: object) -> dict[TopicPartition, int]:
    topics = _offset_text(value)
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in topics.items()
        if isinstance(offsets, dict)
        for partition, offset in offsets.items()
        if partition.isdigit() and isinstance(offset, int)
    }


def _offset_text(value: object) -> dict[str, Any]:
    """Spark gives offsets as JSON text; a listener's may already be parsed."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _number(value: float | None) -> float:
    """Spark leaves out what is not a number, as of a batch that took no time."""
    return value if value is not None and value == value else 0.0  # noqa: PLR0124


def _table(partitions: Iterable[PartitionProgress]) -> list[str]:
    head = ("topic", "partition", "start", "end", "latest", "lag")
    rows = [
        (p.topic, str(p.partition), *(_cell(value) for value in (p.start, p.end, p.latest, p.lag))) for p in partitions
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, *rows)
    ]


def _cell(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
