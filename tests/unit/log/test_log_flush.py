"""Flushing in one thread while another appends."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import moldau.disk
from moldau.errors import StorageError
from moldau.log import checkpoints
from tests.unit.log.log_helpers import Clock, append, batch, crash, new_log, offsets_of, restart


def watch_fsync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is forced to disk from here on."""
    synced: list[str] = []
    monkeypatch.setattr(moldau.disk, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    return synced


def test_a_flush_moves_the_recovery_point_to_the_end(tmp_path: Path) -> None:
    clock = Clock()
    log = new_log(tmp_path, clock, segment_bytes=300)
    for _ in range(10):
        append(log)
    assert (log.recovery_point, log.unflushed_messages) == (0, 10)
    clock.now_ms += 5
    log.flush()
    assert (log.recovery_point, log.unflushed_messages, log.durability.last_flush_ms) == (10, 0, clock.now_ms)


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
    synced = watch_fsync(monkeypatch)
    log.flush()
    names = {path.name for path in log.directory.iterdir()}
    active = f"{log.segments[-1].base_offset:020d}"
    assert set(synced) == names - {f"{active}.index", f"{active}.timeindex"} | {"t-0", tmp_path.name}
    synced.clear()
    log.flush()
    assert synced == []


def test_what_is_appended_during_a_flush_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)

    def slow_fsync(fd: int) -> None:
        append(log)

    monkeypatch.setattr(moldau.disk, "fsync", slow_fsync)
    log.flush()
    assert log.recovery_point == 1
    assert log.log_end_offset > 1


def test_a_truncation_during_a_flush_voids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    for _ in range(5):
        append(log)
    monkeypatch.setattr(moldau.disk, "fsync", lambda fd: log.truncate_to(2))
    log.flush()
    assert log.recovery_point <= 2


def test_segments_deleted_during_a_flush_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log)
    monkeypatch.setattr(moldau.disk, "fsync", lambda fd: log.delete_records(-1))
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

    monkeypatch.setattr(moldau.disk, "fsync", fail)
    with pytest.raises(StorageError, match="offline"):
        log.flush()
    assert log.recovery_point == 0
    assert log.log_dir.offline
    with pytest.raises(StorageError, match="offline"):
        append(log)
    assert offsets_of(log) == [0]


def test_what_could_not_be_forced_to_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(5):
        append(log, leader_epoch=3)
    small = {f"{log.snapshots.offsets[-1]:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata", "t-0"}
    failed: set[str] = set()

    def fail_once(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if name in small - failed:
            failed.add(name)
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(moldau.disk, "fsync", fail_once)
    for _ in small:
        with pytest.raises(StorageError, match="Too many open files"):
            log.flush()
    assert failed == small
    synced = watch_fsync(monkeypatch)
    log.flush()
    assert {"partition.metadata", "t-0"} <= set(synced)
    assert log.recovery_point == 5


def test_a_stop_forces_the_producer_snapshot_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.flush()
    synced = watch_fsync(monkeypatch)
    log.close()
    assert {f"{1:020d}.snapshot", "t-0"} <= set(synced)


def test_a_stop_of_a_log_that_did_not_change_forces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)
    log = restart(log)
    synced = watch_fsync(monkeypatch)
    log.close()
    assert synced == []


def test_the_mark_of_a_clean_stop_is_gone_for_good_once_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write_clean_shutdown(moldau.disk.OS_DISK, tmp_path, -1)
    synced = watch_fsync(monkeypatch)
    assert checkpoints.take_clean_shutdown(moldau.disk.OS_DISK, tmp_path)
    assert synced == [tmp_path.name]
    assert not checkpoints.take_clean_shutdown(moldau.disk.OS_DISK, tmp_path)


def test_a_clean_stop_leaves_nothing_to_flush(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    log = restart(log)
    assert log.unflushed_messages == 0
    log = restart(log)
    assert offsets_of(log) == [0]
