"""What the event loop and the worker tell each other: one JSON object a line, over pipes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Everything the worker needs to know of one log; the files it reads do not change while it works."""

    directory: str
    now_ms: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    segments: list[tuple[int, int]]  # base offset and size, from the log's start up to the first uncleanable offset
    # Base offset and size of all there are: a marker may lie above what is cleaned, where the file still grows.
    txn_indexes: list[tuple[int, int]]
    # Producer id, last data offset (-1: none), epoch of those still remembered: a batch that holds their state stays.
    producers: list[tuple[int, int, int]]
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    uncompressed_bytes_max: int
    dedupe_buffer_bytes: int
    buffer_bytes: int
    bytes_per_second_max: float

    def end_offsets(self) -> dict[int, int]:
        """The end offset of each segment, by base offset."""
        bases = [base_offset for base_offset, _ in self.segments]
        return dict(zip(bases, [*bases[1:], self.first_uncleanable_offset], strict=False))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One `.cleaned` segment is complete and on disk."""

    base_offset: int
    replaces: list[int]  # base offsets of the segments it was made from
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Done:
    """All of a job's segments were reported; the log is clean up to `end_offset`."""

    end_offset: int
    keys: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended early."""

    reason: str
    is_corrupt: bool  # the log itself cannot be cleaned; else another try may succeed


Report = Cleaned | Done | Failed
_REPORTS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Cleaned, Done, Failed)}


def encode_job(job: CleaningJob) -> bytes:
    return _line(job)


def decode_job(line: bytes) -> CleaningJob:
    return CleaningJob(**json.loads(line))


def encode_report(report: Report) -> bytes:
    return _line(report, kind=type(report).__name__)


def decode_report(line: bytes) -> Report:
    fields = json.loads(line)
    report: Report = _REPORTS[fields.pop("kind")](**fields)
    return report


def _line(message: Any, **more: str) -> bytes:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    return json.dumps({**fields, **more}).encode() + b"\n"
