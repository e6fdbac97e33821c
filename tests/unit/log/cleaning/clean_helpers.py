"""Cleaning a log in the process of the test: plan, work, swap, as the broker and its worker do it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moldau.log.cleaning.job import Cleaned, Done, Failed, Report, decode_job, encode_job
from moldau.log.cleaning.plan import CleaningLimits, LogToClean, look_at
from moldau.log.cleaning.swap import swap_in
from moldau.log.cleaning.worker import clean
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import decode_records, encode_batch
from tests.unit.log.log_helpers import NOW_MS, read_all

LIMITS = CleaningLimits(io_buffer_bytes=4096)


def work(todo: LogToClean, limits: CleaningLimits = LIMITS) -> list[Report]:
    """What the worker says; its files lie there, the log is as it was."""
    reports: list[Report] = []
    job = decode_job(encode_job(todo.job(todo.log.clock(), limits)))
    clean(job, reports.append)
    return reports


def clean_log(log: PartitionLog, limits: CleaningLimits = LIMITS) -> int:
    """One whole cleaning, due or not; returns how many keys the map had."""
    todo = look_at(log, log.clock())
    for report in work(todo, limits):
        assert not isinstance(report, Failed), report
        if isinstance(report, Cleaned):
            assert swap_in(todo, report)
        elif isinstance(report, Done):
            log.compacted_upto(report.end_offset)
            keys = report.keys
    return keys


def keyed(
    *pairs: tuple[bytes | None, bytes | None], timestamp_ms: int = NOW_MS, step_ms: int = 0, **fields: Any
) -> bytearray:
    return bytearray(
        encode_batch(
            [(key, value, timestamp_ms + number * step_ms, ()) for number, (key, value) in enumerate(pairs)], **fields
        )
    )


def put(log: PartitionLog, *pairs: tuple[bytes | None, bytes | None], roll: bool = True, **fields: Any) -> int:
    """Appends one batch, and puts it into a segment of its own that is no longer active; returns its offset."""
    info = log.append(keyed(*pairs, **fields), leader_epoch=0, now_ms=log.clock())
    if roll:
        log.roll()
    return info.base_offset


def rows(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of every data record."""
    return [
        (record.offset, record.key, record.value)
        for header, data in read_all(log)
        if not header.is_control
        for record in decode_records(data, 0, header)
    ]


def pairs_of(log: PartitionLog) -> Sequence[tuple[bytes | None, bytes | None]]:
    return [(key, value) for _, key, value in rows(log)]
