"""Which log is cleaned next, and up to where."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from moldau.log.cleaning.plan import filthiest, look_at
from moldau.log.partition_log import PartitionLog
from tests.unit.log.cleaning.clean_helpers import clean_log, put
from tests.unit.log.log_helpers import NOW_MS, Clock, crashed, log_of, new_log, opened, topic_config

COMPACT = frozenset({"compact"})


def compacted(directory: Path, clock: Clock | None = None, **config: Any) -> PartitionLog:
    return new_log(directory, clock or Clock(), **{"cleanup_policy": COMPACT, **config})


def test_the_filthiest_log_comes_first(tmp_path: Path) -> None:
    logs = [compacted(tmp_path / str(number)) for number in range(3)]
    for number, log in enumerate(logs):
        for _ in range(4):
            put(log, (b"a", b"1"), (b"%d" % log.log_end_offset, bytes(50)))
        clean_log(log)
        for _ in range([2, 5, 3][number]):
            put(log, (b"a", bytes(200)))
    todo = filthiest(logs, NOW_MS)
    assert todo is not None
    assert todo.log is logs[1]


def test_only_compacted_logs_are_cleaned(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, (b"a", b"1"))
    assert filthiest([log], NOW_MS) is None


def test_a_log_is_due_when_more_than_the_ratio_is_dirty(tmp_path: Path) -> None:
    log = compacted(tmp_path, min_cleanable_dirty_ratio=0.5)
    put(log, (b"a", bytes(100)))
    assert look_at(log, NOW_MS).is_due
    clean_log(log)
    assert not look_at(log, NOW_MS).is_due
    put(log, (b"b", bytes(100)))
    assert look_at(log, NOW_MS).dirty_ratio == 0.5
    assert filthiest([log], NOW_MS) is None
    put(log, (b"c", b""))
    assert filthiest([log], NOW_MS) is not None


def test_young_records_wait_for_min_compaction_lag_ms(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, min_compaction_lag_ms=1000)
    put(log, (b"a", b"1"), timestamp_ms=NOW_MS - 1000)
    put(log, (b"a", b"2"), timestamp_ms=NOW_MS - 999)
    put(log, (b"a", b"3"), timestamp_ms=NOW_MS - 2000)
    assert look_at(log, clock()).first_uncleanable_offset == 1
    assert look_at(log, clock() + 1).first_uncleanable_offset == 3


def test_old_records_are_due_after_max_compaction_lag_ms_whatever_the_ratio(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, max_compaction_lag_ms=5000, min_cleanable_dirty_ratio=1.0)
    put(log, (b"a", b"1"))
    assert filthiest([log], NOW_MS + 5000) is None
    assert filthiest([log], NOW_MS + 5001) is not None
    clean_log(log)
    assert filthiest([log], NOW_MS + 5001) is None


def test_a_compacted_log_rolls_in_time_for_max_compaction_lag_ms(tmp_path: Path) -> None:
    log = compacted(tmp_path, max_compaction_lag_ms=5000)
    put(log, (b"a", b"1"), roll=False)
    put(log, (b"a", b"2"), roll=False, timestamp_ms=NOW_MS + 5000)
    assert len(log.segments) == 1
    put(log, (b"a", b"3"), roll=False, timestamp_ms=NOW_MS + 5001)
    assert len(log.segments) == 2


@pytest.mark.parametrize("first_dirty_offset", [-1, 99])
def test_an_impossible_checkpoint_means_that_all_is_dirty(tmp_path: Path, first_dirty_offset: int) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.compacted_upto(first_dirty_offset)
    assert look_at(log, NOW_MS).first_dirty_offset == 0


def test_a_truncation_moves_the_first_dirty_offset_back(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for value in (b"1", b"2", b"3"):
        put(log, (value, value))
    clean_log(log)
    assert log.first_dirty_offset == 3
    log.truncate_to(1)
    assert log.first_dirty_offset == 1
    log.truncate_fully_and_start_at(7)
    assert log.first_dirty_offset == 7


def test_first_dirty_offsets_survive_in_kafkas_checkpoint_file(tmp_path: Path) -> None:
    config = topic_config(cleanup_policy=COMPACT)
    manager = opened(tmp_path, config=config)
    log = manager.create("t", 0, uuid.uuid4())
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    clean_log(log)
    manager.checkpoint_dirty_offsets(tmp_path)
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    crashed(manager)
    manager = opened(tmp_path, config=config)
    assert log_of(manager).first_dirty_offset == 2
    manager.delete("t", 0)
    new = manager.create("t", 0, uuid.uuid4(), is_new=True)
    assert new.first_dirty_offset == 0
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n0\n"
    manager.close()


def test_what_is_written_after_a_log_lost_its_end_is_dirty(tmp_path: Path) -> None:
    config = topic_config(cleanup_policy=COMPACT)
    manager = opened(tmp_path, config=config)
    log = manager.create("t", 0, uuid.uuid4())
    for value in (b"1", b"2", b"3"):
        put(log, (value, value))
    clean_log(log)
    manager.checkpoint()
    log.truncate_to(1)
    crashed(manager)
    manager = opened(tmp_path, config=config)
    log = log_of(manager)
    for _ in range(5):
        put(log, (b"1", None))
    assert look_at(log, log.clock()).first_dirty_offset == 1
    manager.close()


def test_a_new_partition_does_not_find_the_dirty_offset_of_an_old_one(tmp_path: Path) -> None:
    config = topic_config(cleanup_policy=COMPACT)
    manager = opened(tmp_path, config=config)
    log = manager.create("t", 0, uuid.uuid4())
    for _ in range(2):
        put(log, (b"a", b"1"))
    clean_log(log)
    manager.checkpoint_dirty_offsets(tmp_path)
    manager.delete("t", 0)
    manager.create("t", 0, uuid.uuid4(), is_new=True)
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n0\n"
    manager.close()
