"""One of several log directories fails: the others go on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import moldau.disk
from moldau.errors import StorageError
from moldau.log import files
from tests.unit.log.log_helpers import NOW_MS, TOPIC_ID, append, opened, topic_config


def fail_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, error: OSError) -> None:
    """Every write to a file in `folder` fails."""
    real = os.pwrite

    def pwrite(fd: int, data: Any, position: int) -> int:
        if str(folder) in os.readlink(f"/proc/self/fd/{fd}"):
            raise error
        return real(fd, data, position)

    monkeypatch.setattr(moldau.disk, "pwrite", pwrite)


def test_a_directory_that_takes_no_checkpoint_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, good = tmp_path / "full", tmp_path / "good"
    manager = opened(full, good)
    for partition in range(2):
        append(manager.create("t", partition, TOPIC_ID))
    fail_writes(monkeypatch, full, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match="full"):
        manager.checkpoint()
    assert (good / "replication-offset-checkpoint").read_text() == "0\n1\nt 1 1\n"
    manager.close()
    assert not (full / ".kafka_cleanshutdown").exists()
    assert (good / ".kafka_cleanshutdown").exists()


def test_a_file_that_cannot_be_removed_does_not_keep_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path, config=topic_config(file_delete_delay_ms=0))
    for partition in range(2):
        log = manager.create("t", partition, TOPIC_ID)
        append(log)
        log.roll()
        log.delete_records(-1)
    real = os.unlink

    def unlink(path: Any) -> None:
        if "/t-0/" in str(path):
            raise OSError(errno.EPERM, "Operation not permitted")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    manager.purge_deleted(NOW_MS)
    monkeypatch.undo()
    assert list((tmp_path / "t-0").glob("*.deleted"))
    assert not list((tmp_path / "t-1").glob("*.deleted"))
    manager.close()


def test_a_full_directory_gets_no_new_logs_until_it_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, good = tmp_path / "full", tmp_path / "good"
    manager = opened(full, good)
    log = manager.create("t", 0, TOPIC_ID)
    assert log.log_dir.path == full
    fail_writes(monkeypatch, full, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError):
        append(log)
    log.log_dir.probe()
    assert not log.log_dir.is_writable
    for partition in range(1, 4):
        assert manager.create("t", partition, TOPIC_ID).log_dir.path == good
    monkeypatch.undo()
    log.log_dir.probe()
    assert log.log_dir.is_writable
    assert not (full / files.PROBE_FILE).exists()
    assert manager.create("t", 4, TOPIC_ID).log_dir.path == full
    manager.close()


def test_a_full_directory_that_fails_when_it_is_tried_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = files.LogDir(tmp_path)
    log_dir.storage_error("cannot append", OSError(errno.ENOSPC, "No space left on device"))

    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(moldau.disk, "fsync", fsync)
    log_dir.probe()
    assert log_dir.offline


def test_a_directory_whose_space_is_unknown_says_why(tmp_path: Path) -> None:
    manager = opened(tmp_path / "data")
    (log_dir,) = manager.log_dirs
    (tmp_path / "data").rename(tmp_path / "away")
    log_dir.measure()
    (described,) = manager.describe_dirs()
    assert (described.total_bytes, described.usable_bytes) == (-1, -1)
    assert "No such file" in described.error
    (tmp_path / "away").rename(tmp_path / "data")
    log_dir.measure()
    (described,) = manager.describe_dirs()
    assert (described.error, described.total_bytes > 0) == ("", True)
    manager.close()


def test_a_failed_directory_gets_no_clean_mark_and_no_new_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    manager = opened(bad, good)
    log = manager.create("t", 0, TOPIC_ID)
    assert log.log_dir.path == bad
    fail_writes(monkeypatch, bad, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StorageError):
        append(log)
    assert manager.offline_dirs == [bad]
    assert [one.error != "" for one in manager.describe_dirs()] == [True, False]
    for partition in range(1, 4):
        assert manager.create("t", partition, TOPIC_ID).log_dir.path == good
    manager.checkpoint()
    manager.close()
    assert not (bad / ".kafka_cleanshutdown").exists()
    assert (good / ".kafka_cleanshutdown").exists()


def test_a_log_that_cannot_be_created_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)

    def pwrite(fd: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(moldau.disk, "pwrite", pwrite)
    with pytest.raises(StorageError, match="full"):
        manager.create("t", 0, TOPIC_ID)
    assert not (tmp_path / "t-0").exists()
    monkeypatch.undo()
    manager.create("t", 0, TOPIC_ID)
    manager.close()


def test_a_directory_that_cannot_be_read_at_start_goes_offline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    manager = opened(bad, good)
    for partition in range(2):
        append(manager.create("t", partition, TOPIC_ID))
    manager.close()
    real = os.listdir

    def listdir(path: Any) -> Any:
        if "bad/t-" in str(path):
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    manager = opened(bad, good)
    assert manager.offline_dirs == [bad]
    assert list(manager.logs) == [("t", 1)]
    manager.close()
