"""Micro-batches whose records have several types: transforms and converters see one type at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.plugins import Frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def in_parts(split: Callable[[DataFrame], Iterable[DataFrame]], functions: Sequence[Frames], columns: str) -> Frames:
    """A step on micro-batches: their parts, each through the functions, together again. `columns` is what they become,
    for a batch that has no parts."""
    kept: list[DataFrame] = []

    def convert(batch: DataFrame) -> DataFrame:
        for before in kept:
            before.unpersist()
        kept[:] = [batch.persist()]  # each part reads it
        parts = [reduce(lambda frame, function: function(frame), functions, part) for part in split(batch)]
        if not parts:
            return batch.sparkSession.createDataFrame([], columns)
        return reduce(lambda one, other: one.unionByName(other), parts)

    return convert
