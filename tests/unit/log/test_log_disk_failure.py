"""A disk that is full or broken: a clear error, nothing half-written, reads go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import moldau.disk
from moldau.errors import StorageError
from moldau.log.partition_log import PartitionLog
from tests.unit.log.log_helpers import (
    append,
    batch,
    crash,
    end_transaction,
    files_of,
    new_log,
    offsets_of,
    read_all,
    restart,
)

real_pwrite = os.pwrite
Pwrite = Callable[[int, Any, int], int]


def name_of(fd: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).name


def fail_on(suffix: str, number: int, *, after_bytes: int = 0) -> Pwrite:
    """A write that fails for files of `suffix`, with the first bytes already on their way."""

    def pwrite(fd: int, data: Any, position: int) -> int:
        if not name_of(fd).endswith(suffix):
            return real_pwrite(fd, data, position)
        if after_bytes:
            real_pwrite(fd, bytes(data)[:after_bytes], position)
        raise OSError(number, os.strerror(number))

    return pwrite


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pwrite], None]:
    return lambda pwrite: monkeypatch.setattr(moldau.disk, "pwrite", pwrite)


@pytest.mark.parametrize("written", [0, 1, 61, 80])
def test_a_full_disk_refuses_the_batch_and_keeps_the_log(
    tmp_path: Path, disk: Callable[[Pwrite], None], written: int
) -> None:
    log = new_log(tmp_path)
    append(log, batch(2))
    before = read_all(log)
    size = Path(log.segments[0].path).stat().st_size
    disk(fail_on(".log", errno.ENOSPC, after_bytes=written))
    with pytest.raises(StorageError, match=r"is full.*free space") as refused:
        append(log, batch(2))
    assert str(tmp_path) in refused.value.message
    assert not log.log_dir.offline
    assert Path(log.segments[0].path).stat().st_size == size
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    assert read_all(log) == before
    disk(real_pwrite)
    assert append(log, batch(2)).base_offset == 2
    assert offsets_of(crash(log)) == [0, 2]


def test_a_short_write_is_continued(tmp_path: Path, disk: Callable[[Pwrite], None]) -> None:
    log = new_log(tmp_path)
    disk(lambda fd, data, position: real_pwrite(fd, bytes(data)[:7], position))
    append(log, batch(3))
    append(log, batch(3))
    disk(real_pwrite)
    assert offsets_of(log) == [0, 3]


def test_a_disk_that_takes_nothing_more_counts_as_full(tmp_path: Path, disk: Callable[[Pwrite], None]) -> None:
    log = new_log(tmp_path)
    writes = iter([10])
    disk(lambda fd, data, position: next(writes, 0))
    with pytest.raises(StorageError, match="full"):
        append(log)
    assert log.size_bytes == 0


def test_a_refused_batch_leaves_no_trace_in_the_producer_state(tmp_path: Path, disk: Callable[[Pwrite], None]) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    one = batch(producer_id=1, producer_epoch=0, base_sequence=1, is_transactional=True)
    disk(fail_on(".log", errno.ENOSPC))
    with pytest.raises(StorageError):
        append(log, bytearray(one))
    disk(real_pwrite)
    assert log.last_stable_offset == 1
    assert append(log, bytearray(one)).base_offset == 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_a_roll_that_fails_is_tried_again_with_the_next_batch(
    tmp_path: Path, disk: Callable[[Pwrite], None], suffix: str
) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    append(log, batch(size=100))
    disk(fail_on(suffix, errno.ENOSPC))
    with pytest.raises(StorageError, match="full"):
        append(log, batch(size=100))
    assert len(log.segments) == 1
    assert offsets_of(log) == [0]
    disk(real_pwrite)
    assert append(log, batch(size=100)).base_offset == 1
    assert append(log, batch(size=100)).base_offset == 2
    assert offsets_of(crash(log)) == [0, 1, 2]


def test_a_crash_in_the_middle_of_a_failed_roll_loses_nothing(tmp_path: Path, disk: Callable[[Pwrite], None]) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    append(log, batch(size=100))
    disk(fail_on(".snapshot", errno.ENOSPC))
    with pytest.raises(StorageError):
        append(log, batch(size=100))
    disk(real_pwrite)
    log = crash(log)
    assert offsets_of(log) == [0]
    assert append(log, batch(size=100)).base_offset == 1
    assert offsets_of(restart(log)) == [0, 1]


@pytest.mark.parametrize("end", [restart, crash])
@pytest.mark.parametrize("later", [0, 4])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_what_is_acknowledged_after_a_failed_roll_is_there_after_a_restart(
    tmp_path: Path,
    disk: Callable[[Pwrite], None],
    suffix: str,
    later: int,
    end: Callable[[PartitionLog], PartitionLog],
) -> None:
    log = new_log(tmp_path, segment_bytes=400)
    append(log, batch(size=150))
    disk(fail_on(suffix, errno.ENOSPC))
    with pytest.raises(StorageError):
        append(log, batch(size=150))
    assert [name for name in files_of(log) if name.endswith(".log")] == ["00000000000000000000.log"]
    disk(real_pwrite)
    append(log, batch(size=20))  # fits into the old segment
    for _ in range(later):
        append(log, batch(size=150))
    acknowledged = read_all(log)
    log = end(log)
    assert read_all(log) == acknowledged
    assert append(log).base_offset == 2 + later


def test_a_segment_that_cannot_be_made_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, segment_bytes=400)
    append(log, batch(size=150))
    real_open = os.open

    def failing_open(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("1.log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_open(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing_open)
        with pytest.raises(StorageError, match="full"):
            append(log, batch(size=150))
    assert not [name for name in files_of(log) if name.startswith(f"{1:020d}") and "snapshot" not in name]
    append(log, batch(size=20))
    assert offsets_of(crash(log)) == [0, 1]


@pytest.mark.parametrize("later", [0, 4])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("end", [restart, crash])
def test_an_empty_segment_inside_the_one_before_cuts_nothing(
    tmp_path: Path, end: Callable[[PartitionLog], PartitionLog], flushed: bool, later: int
) -> None:
    log = new_log(tmp_path, segment_bytes=400)
    append(log, batch(size=150))
    append(log, batch(size=20))
    append(log, batch(size=20))
    for _ in range(later):
        append(log, batch(size=150))
    for suffix in (".log", ".index", ".timeindex"):
        (log.directory / f"{1:020d}{suffix}").touch()
    if flushed:
        log.flush(2)
    acknowledged = read_all(log)
    log = end(log)
    assert read_all(log) == acknowledged
    assert append(log).base_offset == 3 + later


@pytest.mark.parametrize("written", [0, 10])
def test_an_abort_that_cannot_be_indexed_is_taken_back(
    tmp_path: Path, disk: Callable[[Pwrite], None], written: int
) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True))
    end_transaction(log, 2, abort=True)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True))
    disk(fail_on(".txnindex", errno.ENOSPC, after_bytes=written))
    with pytest.raises(StorageError):
        end_transaction(log, 1, abort=True)
    assert (log.log_end_offset, log.last_stable_offset) == (3, 2)
    disk(real_pwrite)
    assert end_transaction(log, 1, abort=True).base_offset == 3
    assert log.aborted_transactions(0, 4) == [(2, 0), (1, 2)]
    assert log.last_stable_offset == 4
    log = crash(log)
    assert log.aborted_transactions(0, 4) == [(2, 0), (1, 2)]


def test_an_abort_that_can_neither_be_indexed_nor_taken_back_ends_the_writing_until_the_next_start(
    tmp_path: Path, disk: Callable[[Pwrite], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True))
    disk(fail_on(".txnindex", errno.ENOSPC))
    with monkeypatch.context() as broken:
        broken.setattr(moldau.disk, "ftruncate", refuse)
        with pytest.raises(StorageError):
            end_transaction(log, 1, abort=True)
    disk(real_pwrite)
    assert log.last_stable_offset == 0
    with pytest.raises(StorageError, match="offline"):
        append(log)  # it would have the offset of the marker, which is there
    log = crash(log)
    assert offsets_of(log) == [0, 1]
    assert (log.aborted_transactions(0, 2), log.last_stable_offset) == ([(1, 0)], 2)


def test_an_epoch_that_could_not_be_written_is_written_with_the_next_flush(
    tmp_path: Path, disk: Callable[[Pwrite], None]
) -> None:
    log = new_log(tmp_path)
    append(log, leader_epoch=1)
    log.flush()
    append(log, leader_epoch=2)
    disk(fail_on("leader-epoch-checkpoint.tmp", errno.ENOSPC))
    with pytest.raises(StorageError, match="full"):
        log.flush()
    assert not log.log_dir.offline
    assert log.recovery_point == 1
    disk(real_pwrite)
    log.flush()
    assert log.recovery_point == 2
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"


def test_a_broken_disk_takes_its_directory_offline_and_reads_go_on(
    tmp_path: Path, disk: Callable[[Pwrite], None]
) -> None:
    log = new_log(tmp_path)
    append(log)
    disk(fail_on(".log", errno.EIO, after_bytes=30))
    with pytest.raises(StorageError, match="offline"):
        append(log)
    assert log.log_dir.offline
    disk(real_pwrite)
    with pytest.raises(StorageError, match="is offline"):
        append(log)
    assert offsets_of(log) == [0]
    assert offsets_of(crash(log)) == [0]


def test_bytes_that_cannot_be_cut_off_again_take_the_directory_offline(
    tmp_path: Path, disk: Callable[[Pwrite], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    append(log)
    disk(fail_on(".log", errno.ENOSPC, after_bytes=30))

    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(moldau.disk, "ftruncate", ftruncate)
    with pytest.raises(StorageError):
        append(log)
    assert log.log_dir.offline
    assert "cannot cut" in log.log_dir.error
    monkeypatch.undo()
    assert offsets_of(crash(log)) == [0]


def failing_reads(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def pread(fd: int, size: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(moldau.disk, "pread", pread)


def test_a_read_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)
    failing_reads(log, monkeypatch)
    with pytest.raises(StorageError, match="cannot read t-0"):
        log.read(0, 1000, upto_offset=1, min_one=True)


def test_a_file_that_was_shortened_behind_our_back_gives_an_error(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    os.truncate(log.segments[0].path, 40)
    with pytest.raises(StorageError, match="ends at byte 40"):
        log.read(0, 1000, upto_offset=1, min_one=True)
