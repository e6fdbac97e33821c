"""Flushing in one thread while another appends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from log_helpers import Clock, append, batch, crash, new_log, offsets_of, restart

from moldau.errors import StorageError
from moldau.log import files


def test_a_flush_moves_the_recovery_point_to_the_end(tmp_path: Path) -> None:
    clock = Clock()
    log = new_log(tmp_path, clock, segment_bytes=300)
    for _ in range(10):
        append(log)
    assert (log.recovery_point, log.unflushed_messages) == (0, 10)
    clock.now_ms += 5
    log.flush()
    assert (log.recovery_point, log.unflushed_messages, log.last_flush_ms) == (10, 0, clock.now_ms)


def test_a_flush_up_to_an_offset_counts_no_further(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(10):
        append(log)
    log.flush(4)
    assert log.recovery_point == 4


def test_every_file_with_data_is_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log, batch(producer_id=1, producer_epoch=0, base_sequence=log.log_end_offset))
    synced: list[str] = []
    monkeypatch.setattr(files, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    log.flush()
    names = {path.name for path in log.directory.iterdir()}
    active = f"{log.segments[-1].base_offset:020d}"
    assert set(synced) == names - {f"{active}.index", f"{active}.timeindex"} | {"t-0"}
    synced.clear()
    log.flush()
    assert synced == []


def test_what_is_appended_during_a_flush_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)

    def slow_fsync(fd: int) -> None:
        append(log)

    monkeypatch.setattr(files, "fsync", slow_fsync)
    log.flush()
    assert log.recovery_point == 1
    assert log.log_end_offset > 1


def test_a_truncation_during_a_flush_voids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    for _ in range(5):
        append(log)
    monkeypatch.setattr(files, "fsync", lambda fd: log.truncate_to(2))
    log.flush()
    assert log.recovery_point <= 2


def test_segments_deleted_during_a_flush_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log)
    monkeypatch.setattr(files, "fsync", lambda fd: log.delete_records(-1))
    log.flush()
    assert log.recovery_point == 10


def test_threads_flush_while_the_owner_appends_and_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=2000)
    done = threading.Event()
    failures: list[BaseException] = []

    def flush_on() -> None:
        try:
            while not done.is_set():
                before = log.log_end_offset
                log.flush()
                assert log.recovery_point >= before
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=flush_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1500):
        append(log)
        if number % 400 == 399:
            log.delete_records(number - 100)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    log.flush()
    assert log.recovery_point == 1500
    start = log.log_start_offset
    log = crash(log)
    assert offsets_of(log) == list(range(start, 1500))


def test_a_failed_fsync_takes_the_directory_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "fsync", fail)
    with pytest.raises(StorageError, match="offline"):
        log.flush()
    assert log.recovery_point == 0
    assert log.log_dir.offline
    with pytest.raises(StorageError, match="offline"):
        append(log)
    assert offsets_of(log) == [0]


def test_a_clean_stop_leaves_nothing_to_flush(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    log = restart(log)
    assert log.unflushed_messages == 0
    log = restart(log)
    assert offsets_of(log) == [0]
