"""What a task has to read.

It is made on the driver, which need not load the code that reads (`fetching`): its compiled kernels take a second, and
each step of Spark's planning is a Python process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from moldau.client.config import ClientConfig
from moldau.wire.constants import IsolationLevel
from moldau.wire.uuids import ZERO_UUID

RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

# As measured: neither larger fetches nor larger Arrow batches are read faster.
FETCH_BYTES_DEFAULT = 8 * 1024 * 1024
BATCH_ROWS_DEFAULT = 10_000


class OffsetRange(NamedTuple):
    """The records of a partition from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: UUID = ZERO_UUID  # a topic with another one is not read; zero: any


class ReadPlan(NamedTuple):
    """All that a task needs to read any range; small, since it travels with every task."""

    client: ClientConfig
    columns: tuple[str, ...] = RAW_COLUMNS  # what to read, in the order of the output
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    fail_on_data_loss: bool = True
    fetch_bytes_max: int = FETCH_BYTES_DEFAULT
    batch_rows_max: int = BATCH_ROWS_DEFAULT
    check_crcs: bool = True
    excluded: tuple[OffsetRange, ...] = ()  # records that are not read, in order


def remaining(wanted: OffsetRange, excluded: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """What of a range is left when others, in order, are taken out."""
    start = wanted.start
    for part in excluded:
        if (part.topic, part.partition) != (wanted.topic, wanted.partition) or part.end <= start:
            continue
        if start < min(part.start, wanted.end):
            yield wanted._replace(start=start, end=min(part.start, wanted.end))
        start = part.end
    if start < wanted.end:
        yield wanted._replace(start=start)
