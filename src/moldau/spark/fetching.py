"""Ranges of a partition as Arrow batches: raw Fetch from a Spark task, the next one in flight while decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from moldau.client.config import ClientConfig
from moldau.spark.columns.decode import RAW_FIELDS
from moldau.wire.constants import IsolationLevel

__all__ = ["RAW_FIELDS", "OffsetRange", "ReadPlan", "read_range"]


class OffsetRange(NamedTuple):
    """The records of a partition from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int


class ReadPlan(NamedTuple):
    """All that a task needs to read any range; small, since it travels with every task."""

    client: ClientConfig
    columns: tuple[str, ...] = tuple(RAW_FIELDS)  # what to read, in the order of the output
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    fail_on_data_loss: bool = True
    fetch_bytes_max: int = 8 * 1024 * 1024
    batch_rows_max: int = 10_000
    check_crcs: bool = True


def read_range(plan: ReadPlan, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    raise NotImplementedError
