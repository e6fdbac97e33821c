from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from moldau.errors import ConfigError, ErrorCode, KafkaError, StorageError
from moldau.log import checkpoints
from moldau.log.partition_log import PartitionLog
from tests.unit.log.log_helpers import (
    NOW_MS,
    TOPIC_ID,
    Clock,
    append,
    batch,
    crashed,
    log_of,
    manager_of,
    offsets_of,
    opened,
    topic_config,
)


def test_logs_are_found_again_after_a_clean_stop(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    for partition in range(3):
        append(manager.create("my-topic.x", partition, TOPIC_ID), batch(partition + 1))
    manager.close()
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    assert manager.logs == {}
    manager = opened(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert {key: log.log_end_offset for key, log in manager.logs.items()} == {
        ("my-topic.x", 0): 1,
        ("my-topic.x", 1): 2,
        ("my-topic.x", 2): 3,
    }
    assert {log.topic_id for log in manager.logs.values()} == {TOPIC_ID}
    assert all(log.recovery_point == log.log_end_offset for log in manager.logs.values())
    manager.close()


def test_logs_are_recovered_after_a_crash_from_the_checkpointed_point(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(5):
        append(log)
    log.flush()
    manager.checkpoint()
    append(log)
    log.delete_records(3)
    manager.checkpoint()
    crashed(manager)
    seen: list[tuple[int, int]] = []
    manager = manager_of(tmp_path)
    manager.open(progress=lambda done, total: seen.append((done, total)))
    log = log_of(manager)
    assert seen == [(1, 1)]
    assert (log.log_start_offset, log.recovery_point, log.log_end_offset) == (3, 5, 6)
    manager.close()


def test_a_stop_of_a_broker_that_never_got_ready_is_not_marked_clean(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.lock()
    manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_each_topic_is_loaded_with_its_own_configuration(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("a", 0, TOPIC_ID, topic_config(retention_ms=5))
    manager.create("b", 0, uuid.uuid4())
    manager.close()
    manager = manager_of(tmp_path)
    manager.open(lambda topic: topic_config(retention_ms=5 if topic == "a" else 7))
    assert (log_of(manager, "a").config.retention_ms, log_of(manager, "b").config.retention_ms) == (5, 7)
    manager.close()


def test_partitions_spread_over_the_directories(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "abc"]
    manager = opened(*dirs)
    for partition in range(9):
        append(manager.create("t", partition, TOPIC_ID))
    assert [len(list(directory.glob("t-*"))) for directory in dirs] == [3, 3, 3]
    described = manager.describe_dirs()
    assert [len(one.sizes) for one in described] == [3, 3, 3]
    assert all(one.error == "" and one.total_bytes >= one.usable_bytes > 0 for one in described)
    assert {size for one in described for size in one.sizes.values()} == {log_of(manager).size_bytes}
    manager.close()
    manager = opened(*dirs)
    assert len(manager.logs) == 9
    manager.close()


def test_the_same_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        manager = opened(tmp_path / name, cluster_id="c")
        manager.create("t", 0, TOPIC_ID)
        manager.close()
    manager = manager_of(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="remove the stale copy"):
        manager.open()
    manager.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


# -- who a directory belongs to


def test_a_directory_in_use_is_refused_within_a_process(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    manager.close()
    opened(tmp_path).close()


def test_a_directory_in_use_is_refused_between_processes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from moldau.disk import OS_DISK; from moldau.log.dir_lock import DirLock;"
        "DirLock(OS_DISK, Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"in use by process {holder.pid}.*stop that broker"):
            opened(tmp_path)
        holder.kill()
    opened(tmp_path).close()


def test_two_directories_are_locked_both_or_not_at_all(tmp_path: Path) -> None:
    first = opened(tmp_path / "b")
    with pytest.raises(ConfigError):
        opened(tmp_path / "a", tmp_path / "b")
    opened(tmp_path / "a").close()
    first.close()


def test_meta_properties_say_whose_the_directory_is(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    cluster_id = manager.cluster_id
    manager.close()
    assert len(cluster_id) == 22
    lines = (tmp_path / "a" / "meta.properties").read_text().splitlines()
    assert {"version=1", f"cluster.id={cluster_id}", "node.id=1"} <= set(lines)
    assert manager.directory_ids[tmp_path / "a"] != manager.directory_ids[tmp_path / "b"]
    again = opened(tmp_path / "a", tmp_path / "b", tmp_path / "new")
    assert again.cluster_id == cluster_id
    assert again.directory_ids[tmp_path / "a"] == manager.directory_ids[tmp_path / "a"]
    again.close()


def test_a_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a").close()
    opened(tmp_path / "b").close()
    with pytest.raises(ConfigError, match=r"belongs to node 1, node\.id is 2"):
        opened(tmp_path / "a", node_id=2)
    with pytest.raises(ConfigError, match="belongs to cluster"):
        opened(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="belongs to cluster"):
        opened(tmp_path / "a", cluster_id="another")
    opened(tmp_path / "a").close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        opened(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="twice"):
        opened(tmp_path / "a", tmp_path / "a")


# -- creating and deleting


def test_creating_what_exists_gives_the_same_log(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    assert manager.create("t", 0, TOPIC_ID) is log
    with pytest.raises(KafkaError) as refused:
        manager.create("t", 0, uuid.uuid4())
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    manager.close()


def test_partition_metadata_is_kafkas(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("t", 0, TOPIC_ID)
    manager.close()
    text = (tmp_path / "t-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: bxoLnltTSjyfV1Ksi189EA"


@pytest.mark.parametrize("content", ["", "version: 0\n", "version: 0\ntopic_id: ?", None])
def test_a_lost_topic_id_can_be_given_back(tmp_path: Path, content: str | None) -> None:
    manager = opened(tmp_path)
    append(manager.create("t", 0, TOPIC_ID))
    manager.close()
    path = tmp_path / "t-0" / "partition.metadata"
    path.unlink() if content is None else path.write_text(content)
    manager = opened(tmp_path)
    assert log_of(manager).topic_id == uuid.UUID(int=0)
    assert offsets_of(manager.create("t", 0, TOPIC_ID)) == [0]
    manager.close()
    manager = opened(tmp_path)
    assert log_of(manager).topic_id == TOPIC_ID
    manager.close()


def test_a_deleted_log_is_gone_at_once_and_its_files_later(tmp_path: Path) -> None:
    wall_clock, clock = Clock(), Clock(7)
    manager = opened(tmp_path, clock=wall_clock, monotonic=clock)
    append(manager.create("t", 0, TOPIC_ID))
    manager.delete("t", 0)
    wall_clock.now_ms -= 3_600_000  # somebody set it: a delay stays as long as it is
    assert manager.get("t", 0) is None
    [renamed] = tmp_path.glob("t-0.*-delete")
    assert not (tmp_path / "t-0").exists()
    append(manager.create("t", 0, uuid.uuid4()))
    clock.now_ms += 59_999
    manager.purge_deleted(clock.now_ms)
    assert renamed.exists()
    clock.now_ms += 1
    manager.purge_deleted(clock.now_ms)
    assert not renamed.exists()
    assert offsets_of(log_of(manager)) == [0]
    manager.close()


@pytest.mark.parametrize("crash_between", [False, True])
def test_a_new_topic_of_an_old_name_does_not_inherit_its_offsets(tmp_path: Path, crash_between: bool) -> None:
    manager = opened(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    append(log, batch(20))
    log.delete_records(15)
    manager.checkpoint()
    manager.delete("t", 0)
    if crash_between:
        crashed(manager)
        manager = opened(tmp_path)
    append(manager.create("t", 0, uuid.uuid4()))
    crashed(manager)
    manager = opened(tmp_path)
    log = log_of(manager)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 1, 0)
    assert offsets_of(log) == [0]
    manager.close()


def test_a_topic_made_again_while_a_checkpoint_is_written_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = opened(tmp_path)
    old = manager.create("t", 0, TOPIC_ID)
    for _ in range(10):
        append(old)
    old.delete_records(8)
    writing, go_on = threading.Event(), threading.Event()
    real = checkpoints.write_offsets

    def slow(*arguments: Any) -> None:
        writing.set()
        assert go_on.wait(10)
        real(*arguments)

    monkeypatch.setattr(checkpoints, "write_offsets", slow)
    checkpoint = threading.Thread(target=manager.checkpoint)
    checkpoint.start()
    assert writing.wait(10)
    manager.delete("t", 0)

    def create() -> None:
        log = manager.create("t", 0, uuid.uuid4())
        for _ in range(3):
            append(log)
        log.flush()

    owner = threading.Thread(target=create)
    owner.start()
    owner.join(0.1)  # it may be done, or have to wait for the checkpoint
    go_on.set()
    owner.join()
    checkpoint.join()
    crashed(manager)
    monkeypatch.undo()
    manager = opened(tmp_path)
    assert log_of(manager).log_start_offset == 0
    assert offsets_of(log_of(manager)) == [0, 1, 2]
    manager.close()


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("n" * 249, 0, TOPIC_ID)
    manager.delete("n" * 249, 0)
    [renamed] = tmp_path.glob("n*-delete")
    assert len(renamed.name) == 255
    manager.close()


def test_what_was_deleted_before_a_crash_is_removed_after_it(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("t", 0, TOPIC_ID)
    manager.delete("t", 0)
    crashed(manager)
    manager = opened(tmp_path)
    assert manager.logs == {}
    manager.purge_deleted(NOW_MS)
    assert list(tmp_path.glob("*-delete")) == []
    manager.close()


def test_directories_that_are_no_partitions_are_left_alone(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.close()
    for name in ("lost+found", "notes", "t-0.abc-stray", "__cluster_metadata-0", "-1"):
        (tmp_path / name).mkdir()
    manager = opened(tmp_path)
    assert manager.logs == {}
    manager.close()
    assert (tmp_path / "notes").is_dir()


def test_a_folder_that_is_in_the_way_of_a_new_log_is_not_deleted(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "precious").write_text("mine")
    with pytest.raises(StorageError, match="File exists"):
        manager.create("t", 0, TOPIC_ID)
    assert (tmp_path / "t-0" / "precious").read_text() == "mine"
    manager.close()


def test_no_empty_log_takes_the_place_of_one_that_may_be_offline(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    there = manager.create("t", 0, TOPIC_ID)
    assert manager.create("t", 0, TOPIC_ID, is_new=False) is there
    manager.create("t", 1, TOPIC_ID, is_new=False)
    there.log_dir.take_offline("broken")
    with pytest.raises(StorageError, match=f"t-2 is in none.*offline: {there.log_dir.path}"):
        manager.create("t", 2, TOPIC_ID, is_new=False)
    assert manager.get("t", 2) is None
    assert manager.create("t", 2, TOPIC_ID).log_dir.path == tmp_path / "b"
    manager.close()


# -- housekeeping


def test_checkpoints_are_kafkas(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    for topic in ("a", "b"):
        log = manager.create(topic, 0, uuid.uuid4())
        for _ in range(3):
            append(log)
    log_of(manager, "a").flush()
    log_of(manager, "b").delete_records(2)
    manager.checkpoint()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\na 0 3\nb 0 0\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nb 0 2\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n2\na 0 3\nb 0 3\n"
    manager.close()


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_damaged_checkpoint_costs_time_not_data(tmp_path: Path, name: str) -> None:
    manager = opened(tmp_path)
    append(manager.create("t", 0, TOPIC_ID))
    manager.checkpoint()
    crashed(manager)
    (tmp_path / name).write_bytes(b"0\n5\n\xff\xfe")
    manager = opened(tmp_path)
    assert offsets_of(log_of(manager)) == [0]
    manager.close()


def test_flushes_come_due_by_count_and_by_time(tmp_path: Path) -> None:
    clock = Clock(7)
    manager = opened(tmp_path, monotonic=clock)
    by_count = manager.create("count", 0, uuid.uuid4(), topic_config(flush_messages=3))
    by_time = manager.create("time", 0, uuid.uuid4(), topic_config(flush_ms=1000))
    for log in (by_count, by_time):
        append(log, batch(2))
    manager.flush_due(clock.now_ms + 999)
    assert (by_count.recovery_point, by_time.recovery_point) == (0, 0)
    append(by_count)
    manager.flush_due(clock.now_ms + 1000)
    assert (by_count.recovery_point, by_time.recovery_point) == (3, 2)
    manager.close()


def test_directories_can_be_described_while_logs_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    manager.create("t", 0, TOPIC_ID)

    def size_bytes(log: PartitionLog) -> int:
        manager.create("t", len(manager.logs), TOPIC_ID)  # as another thread may
        return 7

    monkeypatch.setattr(PartitionLog, "size_bytes", property(size_bytes))
    assert [one.sizes for one in manager.describe_dirs()] == [{("t", 0): 7}]
    manager.close()


def test_retention_runs_over_every_log(tmp_path: Path) -> None:
    manager = opened(tmp_path, config=topic_config(retention_ms=1000))
    for partition in range(3):
        append(manager.create("t", partition, TOPIC_ID))
    assert len(manager.enforce_retention(NOW_MS + 1001)) == 3
    assert all(log.log_start_offset == 1 for log in manager.logs.values())
    manager.close()


def test_a_checkpoint_beside_a_stop_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    append(log, batch(5))
    log.delete_records(3)
    unlock = manager._unlock
    late = threading.Thread(target=manager.checkpoint)

    def unlock_late(except_for: Collection[Path]) -> None:
        late.start()
        late.join(0.2)  # it may be done, or have to wait for the end
        unlock(except_for)

    monkeypatch.setattr(manager, "_unlock", unlock_late)
    manager.close()
    late.join()
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"


def test_a_checkpoint_while_the_logs_are_loading_forgets_nothing(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    append(manager.create("t", 0, TOPIC_ID))
    manager.close()
    before = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    manager = manager_of(tmp_path)
    manager.lock()
    manager.checkpoint()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == before
    manager.close()
