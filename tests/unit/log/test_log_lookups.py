from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.log.lookups import max_timestamp, offset_for_timestamp
from moldau.wire import batch as wire_batch
from tests.unit.log.log_helpers import NOW_MS, append, batch, new_log, properties, restart

times = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), max_size=20)


@properties
@given(times, st.integers(0, 5), st.integers(-1, 55), st.booleans())
def test_a_timestamp_leads_to_the_first_record_that_is_not_older(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[list[int]],
    deleted: int,
    wanted: int,
    restarted: bool,
) -> None:
    log = new_log(tmp_path_factory.mktemp("log"), segment_bytes=400)
    for batch_times in times:
        append(log, batch(timestamps=[NOW_MS + time for time in batch_times]))
    log.delete_records(min(deleted, log.high_watermark))
    if restarted:
        log = restart(log)
    flat = [NOW_MS + time for batch_times in times for time in batch_times]
    left = [(time, offset, 0) for offset, time in enumerate(flat) if offset >= log.log_start_offset]
    expected = next((found for found in left if found[0] >= NOW_MS + wanted), None)
    assert offset_for_timestamp(log, NOW_MS + wanted) == expected
    assert max_timestamp(log) == min(left, key=lambda found: (-found[0], found[1]), default=None)
    log.close_files()


def test_an_empty_log_has_no_timestamps(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert offset_for_timestamp(log, 0) is None
    assert max_timestamp(log) is None
    append(log, batch(timestamps=[-1]))
    assert max_timestamp(log) is None


def test_the_epoch_of_what_is_found_comes_with_it(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(timestamp_ms=NOW_MS), leader_epoch=3)
    append(log, batch(timestamp_ms=NOW_MS + 1), leader_epoch=5)
    assert offset_for_timestamp(log, NOW_MS) == (NOW_MS, 0, 3)
    assert offset_for_timestamp(log, NOW_MS + 1) == (NOW_MS + 1, 1, 5)
    assert max_timestamp(log) == (NOW_MS + 1, 1, 5)


def test_a_lookup_reads_no_further_than_the_record_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=100_000)
    append(log, batch(timestamps=[NOW_MS + number for number in range(1000)]))
    real = wire_batch._read_record
    calls: list[int] = []

    def counted(data: bytes, start: int, *fields: Any) -> Any:
        calls.append(start)
        return real(data, start, *fields)

    monkeypatch.setattr(wire_batch, "_read_record", counted)
    assert offset_for_timestamp(log, NOW_MS + 2) == (NOW_MS + 2, 2, 0)
    assert len(calls) == 3


def test_log_append_time_counts_for_every_record_of_the_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path, message_timestamp_type="LogAppendTime")
    append(log, batch(3, timestamp_ms=1))
    assert offset_for_timestamp(log, NOW_MS) == (NOW_MS, 0, 0)
    assert offset_for_timestamp(log, NOW_MS + 1) is None
