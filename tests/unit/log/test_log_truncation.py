from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import KafkaError
from moldau.log.lookups import max_timestamp
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import read_header
from tests.unit.log.log_helpers import (
    NOW_MS,
    append,
    batch,
    crash,
    end_transaction,
    new_log,
    offsets_of,
    producer_view,
    properties,
    read_all,
    restart,
)


def filled(directory: Path) -> PartitionLog:
    log = new_log(directory, segment_bytes=400)
    for number in range(12):
        fields: dict[str, Any] = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3 * 2}
        append(
            log,
            batch(2, is_transactional=number % 3 == 2, timestamp_ms=NOW_MS + number, **fields),
            leader_epoch=number // 5,
        )
        if number == 8:
            end_transaction(log, 2, abort=True, leader_epoch=1)
    return log


def last_base_offset(log: PartitionLog) -> int:
    end = log.log_end_offset
    return read_header(log.read(end - 1, 1000, upto_offset=end, min_one=True)).base_offset


@properties
@given(st.integers(0, 13), st.sampled_from(["stay", "stop", "crash"]))
def test_what_is_left_is_as_if_the_rest_had_never_been_written(
    tmp_path_factory: pytest.TempPathFactory, count: int, after: str
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = filled(directory / "log")
    batches = read_all(log)
    assert len(batches) == 13
    model = new_log(directory / "model", segment_bytes=400)
    for _, data in batches[:count]:
        model.append_as_follower(data, now_ms=NOW_MS)
    end = model.log_end_offset
    assert log.truncate_to(end) is (count < 13)
    if after != "stay":
        log = restart(log) if after == "stop" else crash(log)
    assert log.log_end_offset == end
    assert read_all(log) == read_all(model)
    assert producer_view(log) == producer_view(model)
    assert log.epochs.entries() == model.epochs.entries()
    assert log.aborted_transactions(0, 100) == model.aborted_transactions(0, 100)
    assert log.last_stable_offset == model.last_stable_offset
    assert log.recovery_point <= log.high_watermark == end
    assert max_timestamp(log) == max_timestamp(model)
    assert append(log, leader_epoch=9).base_offset == last_base_offset(log) == end
    log.close_files()
    model.close_files()


def test_an_offset_inside_a_batch_takes_the_whole_batch_with_it(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(5))
    append(log, batch(5))
    log.truncate_to(7)
    assert log.log_end_offset == 7
    assert log.read(5, 1000, upto_offset=7, min_one=True) == b""
    log.append_as_follower(batch(2, base_offset=7), now_ms=NOW_MS)
    assert offsets_of(log) == [0, 7]
    assert offsets_of(restart(log)) == [0, 7]


def test_truncating_below_the_first_segment_starts_over_there(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.delete_records(10)
    first = log.segments[0].base_offset
    assert first > 2
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    assert append(log).base_offset == 2
    assert offsets_of(restart(log)) == [2]


def test_truncating_fully_forgets_producers_and_epochs(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.truncate_fully_and_start_at(1000)
    assert log.producers.producers == {}
    assert log.epochs.entries() == []
    assert log.size_bytes == 0
    assert append(log, leader_epoch=3).base_offset == 1000
    log = crash(log)
    assert offsets_of(log) == [1000]
    assert log.log_start_offset == 1000


def test_an_epoch_that_never_wrote_is_forgotten_by_a_truncation_to_the_end(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, leader_epoch=1)
    log.epochs.assign(2, 1)
    assert log.truncate_to(1) is False
    assert log.epochs.entries() == [(1, 0)]


def test_an_empty_log_may_begin_inside_a_batch_of_its_leader(tmp_path: Path) -> None:
    """DeleteRecords cuts anywhere; the leader sends the batch whole, to a replica that begins at the cut."""
    log = new_log(tmp_path)
    log.truncate_fully_and_start_at(5)
    log.append_as_follower(batch(10, base_offset=0), now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)
    assert offsets_of(log) == [0]
    log.append_as_follower(batch(1, base_offset=10), now_ms=NOW_MS)
    log = crash(log)
    assert (log.log_start_offset, log.log_end_offset) == (5, 11)


def test_a_log_that_holds_something_takes_no_batch_that_begins_before_its_end(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(5))
    with pytest.raises(KafkaError):
        log.append_as_follower(batch(10, base_offset=4), now_ms=NOW_MS)
    assert log.log_end_offset == 5
