from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from moldau.errors import OffsetOutOfRangeError
from moldau.log.partition_log import PartitionLog
from tests.unit.log.log_helpers import NOW_MS, Clock, append, batch, crash, files_of, load, new_log, offsets_of, restart

HOUR_MS = 3_600_000


def segmented(directory: Path, clock: Clock | None = None, **config: Any) -> PartitionLog:
    """Ten batches, one hour apart, two in a segment."""
    log = new_log(directory, clock, **{"segment_bytes": 400, "retention_ms": -1, **config})
    for number in range(10):
        log.append(
            batch(size=100, timestamp_ms=NOW_MS + number * HOUR_MS),
            leader_epoch=0,
            now_ms=NOW_MS + number * HOUR_MS,
        )
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    return log


def test_time_retention_goes_by_the_newest_record_of_a_segment(tmp_path: Path) -> None:
    log = segmented(tmp_path, retention_ms=2 * HOUR_MS)
    newest_of_second = NOW_MS + 3 * HOUR_MS
    deleted = log.enforce_retention(newest_of_second + 2 * HOUR_MS)
    assert [segment.base_offset for segment in deleted] == [0]
    deleted = log.enforce_retention(newest_of_second + 2 * HOUR_MS + 1)
    assert [segment.base_offset for segment in deleted] == [2]
    assert log.log_start_offset == 4
    assert offsets_of(log) == [4, 5, 6, 7, 8, 9]


def test_one_late_record_keeps_its_segment_and_all_that_follow(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=400, retention_ms=HOUR_MS)
    for timestamp_ms in (NOW_MS, NOW_MS + HOUR_MS, NOW_MS, NOW_MS, NOW_MS):
        append(log, batch(size=100, timestamp_ms=timestamp_ms))
    assert log.enforce_retention(NOW_MS + 2 * HOUR_MS) == []
    assert len(log.enforce_retention(NOW_MS + 2 * HOUR_MS + 1)) == 3


def test_when_everything_has_expired_no_offset_is_given_again(tmp_path: Path) -> None:
    log = segmented(tmp_path, retention_ms=HOUR_MS)
    assert len(log.enforce_retention(NOW_MS + 100 * HOUR_MS)) == 5
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    assert log.enforce_retention(NOW_MS + 200 * HOUR_MS) == []
    log = restart(log)
    assert append(log).base_offset == 10
    assert crash(log).log_start_offset == 10


def test_records_without_timestamps_age_with_their_file(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=400, retention_ms=HOUR_MS)
    for _ in range(5):
        append(log, batch(size=100, timestamps=[-1]))
    for segment in log.segments:
        os.utime(segment.path, (NOW_MS / 1000, NOW_MS / 1000))
    assert log.enforce_retention(NOW_MS + HOUR_MS) == []
    assert len(log.enforce_retention(NOW_MS + HOUR_MS + 1)) == 3


def test_size_retention_keeps_at_least_what_is_asked_for(tmp_path: Path) -> None:
    log = segmented(tmp_path)
    segment_size = log.segments[0].size
    sizes = log.size_bytes
    log = restart(log, retention_bytes=sizes - segment_size + 1)
    assert log.enforce_retention(NOW_MS) == []
    log = restart(log, retention_bytes=sizes - 2 * segment_size)
    assert [segment.base_offset for segment in log.enforce_retention(NOW_MS)] == [0, 2]
    assert log.size_bytes == sizes - 2 * segment_size
    assert offsets_of(log) == [4, 5, 6, 7, 8, 9]


def test_retention_by_size_zero_empties_the_log(tmp_path: Path) -> None:
    log = segmented(tmp_path, retention_bytes=0)
    assert len(log.enforce_retention(NOW_MS)) == 5
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_nothing_at_or_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    log = segmented(tmp_path, retention_ms=0, retention_bytes=0)
    log.single_replica = False
    log.high_watermark = 5
    log.enforce_retention(NOW_MS + 100 * HOUR_MS)
    assert log.log_start_offset == 4
    assert log.high_watermark == 5


def test_a_compacted_topic_is_not_deleted_by_age_or_size(tmp_path: Path) -> None:
    log = segmented(tmp_path, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"}))
    assert log.enforce_retention(NOW_MS + 100 * HOUR_MS) == []
    log.delete_records(5)
    assert log.segments[0].base_offset == 4


def test_deleted_files_are_renamed_and_removed_after_the_delay(tmp_path: Path) -> None:
    clock = Clock()
    log = segmented(tmp_path, clock, file_delete_delay_ms=60_000)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.delete_records(4)
    renamed = [name for name in files_of(log) if name.endswith(".deleted")]
    assert len(renamed) == 6
    assert f"{2:020d}.snapshot" not in files_of(log)
    clock.now_ms += 59_999
    log.segments.purge_deleted(clock.now_ms)
    assert [name for name in files_of(log) if name.endswith(".deleted")] == renamed
    clock.now_ms += 1
    log.segments.purge_deleted(clock.now_ms)
    assert not [name for name in files_of(log) if name.endswith(".deleted")]
    assert f"{4:020d}.log" in files_of(log)
    assert log.segments.deleted_files == []


# -- DeleteRecords


def test_delete_records_moves_the_start_into_a_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(5))
    append(log, batch(5))
    assert log.delete_records(7) == 7
    with pytest.raises(OffsetOutOfRangeError):
        log.read(6, 1000, upto_offset=10, min_one=True)
    assert offsets_of(log) == [5]
    assert log.delete_records(3) == 7
    assert append(log).log_start_offset == 7


def test_delete_records_up_to_the_high_watermark(tmp_path: Path) -> None:
    log = segmented(tmp_path)
    assert log.delete_records(-1) == 10
    assert log.read(10, 1000, upto_offset=10, min_one=True) == b""
    assert [segment.base_offset for segment in log.segments] == [8]
    assert append(log).base_offset == 10


@pytest.mark.parametrize("offset", [11, -2])
def test_delete_records_above_the_high_watermark_is_out_of_range(tmp_path: Path, offset: int) -> None:
    log = segmented(tmp_path)
    with pytest.raises(OffsetOutOfRangeError, match="high watermark is 10"):
        log.delete_records(offset)
    assert log.log_start_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_the_log_start_offset_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    log = segmented(tmp_path)
    log.delete_records(5)
    if clean:
        log.close()
    log = load(log, clean=clean)
    assert log.log_start_offset == 5
    assert offsets_of(log) == [5, 6, 7, 8, 9]
    assert log.epochs.entries() == [(0, 5)]


def test_the_epochs_of_deleted_records_are_forgotten(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for epoch in range(5):
        append(log, batch(2), leader_epoch=epoch)
    log.delete_records(5)
    assert log.epochs.entries() == [(2, 5), (3, 6), (4, 8)]
    assert log.epochs.epoch_of(5) == 2
    assert log.offset_for_leader_epoch(0) == (0, 5)
    assert log.offset_for_leader_epoch(3) == (3, 8)
    assert log.offset_for_leader_epoch(9) == (-1, -1)
