"""A cleaned segment takes its place whole or not at all, whenever the process is killed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.disk import OS_DISK
from moldau.errors import StorageError
from moldau.log.cleaning.job import Cleaned, Failed
from moldau.log.cleaning.plan import LogToClean, look_at
from moldau.log.cleaning.swap import discard, swap_in
from moldau.log.partition_log import PartitionLog
from tests.unit.log.cleaning.clean_helpers import clean_log, put, rows, work
from tests.unit.log.log_helpers import Clock, crash, end_transaction, files_of, new_log, restart

COMPACT = frozenset({"compact"})
CALLS = ("replace", "unlink")


class Killed(BaseException):
    """Nothing is caught any more: the process is gone."""


def kill_at(call: int, work_to_do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs until the given change of a directory, which no longer happens; False if there were fewer."""
    made = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made > call:
                raise Killed
            return original(*arguments, **options)

        return change

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            work_to_do()
        except Killed:
            return True
    return False


def story(log: PartitionLog) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last committed value of each key; an aborted record that came back would be told here."""
    aborted = log.aborted_transactions(0, log.log_end_offset)
    assert all(producer_id == 7 for producer_id, _ in aborted)
    latest = {key: (offset, value) for offset, key, value in rows(log) if not value or not value.startswith(b"aborted")}
    return {key: found for key, found in latest.items() if found[1] is not None}


def filled(directory: Path) -> PartitionLog:
    """Three groups of segments with values, tombstones, a committed and an aborted transaction."""
    log = new_log(directory, Clock(), cleanup_policy=COMPACT, segment_bytes=700)
    transactional: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    for number in range(12):
        key = b"k%d" % (number % 3)
        put(log, (key, b"v%d" % number), (b"once-%d" % number, b"v"), roll=number % 2 == 0)
        if number in (3, 8):
            word = b"aborted" if number == 3 else b"committed"
            put(log, (b"t", word), (b"k0", word), base_sequence=0 if number == 3 else 2, **transactional)
            end_transaction(log, 7, abort=number == 3)
    put(log, (b"once-1", None), (b"once-2", None))
    log.roll()
    return log


def copied(log: PartitionLog, directory: Path) -> PartitionLog:
    """The same log as another process would find it."""
    shutil.rmtree(log.directory)
    shutil.copytree(directory, log.directory)
    return crash(log)


def test_a_swap_killed_at_any_step_is_finished_or_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "log")
    before, told = rows(log), story(log)
    log.close_files()
    shutil.copytree(log.directory, tmp_path / "saved")
    sizes: list[int] = []
    was_killed = True
    while was_killed:
        log = copied(log, tmp_path / "saved")
        todo = look_at(log, log.clock())
        reports = [report for report in work(todo) if isinstance(report, Cleaned)]
        was_killed = kill_at(len(sizes), partial(swap_all, todo, reports), monkeypatch)
        log = crash(log)
        assert story(log) == told
        assert set(rows(log)) <= set(before)
        assert not [name for name in files_of(log) if name.endswith((".swap", ".cleaned", ".deleted"))]
        sizes.append(len(rows(log)))
    assert len(sizes) > 30
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3  # two of the three groups have something to drop


def swap_all(todo: LogToClean, reports: list[Cleaned]) -> None:
    for report in reports:
        assert swap_in(todo, report)


def test_a_start_killed_while_it_finishes_a_swap_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    told = story(log)
    log.close_files()
    shutil.copytree(log.directory, tmp_path / "saved")
    kills = 0
    for swap_call in range(3, 40, 2):
        log = copied(log, tmp_path / "saved")
        todo = look_at(log, log.clock())
        reports = [report for report in work(todo) if isinstance(report, Cleaned)]
        kill_at(swap_call, partial(swap_all, todo, reports), monkeypatch)
        log.close_files()
        start_call = 0
        while kill_at(start_call, partial(crash, log), monkeypatch):
            start_call += 1
            kills += 1
        log = crash(log)
        assert story(log) == told
    assert kills > 50


def test_a_cleaning_killed_in_the_worker_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    before = rows(log)
    for call in range(6):
        todo = look_at(log, log.clock())
        with monkeypatch.context() as patched:
            made = 0

            def fsync(fd: int, call: int = call) -> None:
                nonlocal made
                made += 1
                if made > call:
                    raise Killed

            patched.setattr("moldau.disk.fsync", fsync)
            with pytest.raises(Killed):
                work(todo)
        log = crash(log)
        assert rows(log) == before
        assert not [name for name in files_of(log) if name.endswith(".cleaned")]


def test_a_disk_that_fills_up_while_the_worker_writes_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    before = rows(log)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("moldau.disk.pwrite", full)
        (report,) = work(look_at(log, log.clock()))
    assert isinstance(report, Failed)
    assert not report.is_corrupt
    discard(OS_DISK, log.directory)
    assert not [name for name in files_of(log) if name.endswith(".cleaned")]
    assert rows(log) == before
    clean_log(log)
    assert len(rows(log)) < len(before)


def test_a_log_that_was_truncated_meanwhile_keeps_its_segments(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    todo = look_at(log, log.clock())
    reports = work(todo)
    log.truncate_to(log.segments[-2].base_offset)
    before = rows(log)
    assert isinstance(reports[0], Cleaned)
    assert not swap_in(todo, reports[0])
    discard(OS_DISK, log.directory)
    assert rows(restart(log)) == before


@pytest.mark.parametrize("change", ["retention", "policy"])
def test_a_log_that_changed_meanwhile_keeps_its_segments(tmp_path: Path, change: str) -> None:
    log = filled(tmp_path / "log")
    todo = look_at(log, log.clock())
    reports = work(todo)
    if change == "retention":
        log.delete_records(log.segments[2].base_offset)
    else:
        log.update_config(new_log(tmp_path / "other").config)
    before = rows(log)
    assert isinstance(reports[0], Cleaned)
    assert not swap_in(todo, reports[0])
    discard(OS_DISK, log.directory)
    assert rows(restart(log)) == before


def test_a_disk_that_fails_before_the_swap_leaves_the_log_in_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    before = rows(log)
    todo = look_at(log, log.clock())
    reports = work(todo)
    assert isinstance(reports[0], Cleaned)
    os.unlink(log.directory / f"{0:020d}.log.cleaned")
    with pytest.raises(StorageError):
        swap_in(todo, reports[0])
    assert not log.log_dir.offline
    assert not [name for name in files_of(log) if name.endswith(".swap")]
    assert rows(log) == before
    clean_log(log)
    assert len(rows(log)) < len(before)


def test_a_disk_that_fails_within_the_swap_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    told = story(log)
    todo = look_at(log, log.clock())
    reports = work(todo)
    assert isinstance(reports[0], Cleaned)

    rename = os.replace

    def broken(source: str, target: str) -> None:
        if source.endswith(".swap"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", broken)
        with pytest.raises(StorageError):
            swap_in(todo, reports[0])
    assert log.log_dir.offline
    discard(OS_DISK, log.directory)  # the swapped log is the only one there is
    assert story(crash(log)) == told


def test_old_files_of_two_cleanings_do_not_meet(tmp_path: Path) -> None:
    log = new_log(tmp_path, Clock(), cleanup_policy=COMPACT)
    for _ in range(3):
        put(log, (b"k", b"1"))
        put(log, (b"k", b"2"))
        clean_log(log)
    gone = [name for name in files_of(log) if name.startswith(f"{0:020d}.log") and name.endswith(".deleted")]
    assert len(gone) == 3
    log.segments.purge_deleted(log.clock() + log.config.file_delete_delay_ms)
    assert not [name for name in files_of(log) if name.endswith(".deleted")]
