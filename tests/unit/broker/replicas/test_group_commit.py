"""Writers that wait for the disk share fsyncs: with a real log, on a disk whose fsync the test holds back."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import moldau.disk
from moldau.broker.replicas.group_commit import GroupCommit
from moldau.broker.threads import Lane
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.errors import StorageError
from moldau.log.manager import LogManager
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import encode_batch

NOW_MS = 1_700_000_000_000


class SlowDisk:
    """fsync, counted by flushes; `hold` makes the next ones wait until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushes = 0
        self.fails = False
        self.is_waiting = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()
        real_flush, real_fsync = PartitionLog.flush, os.fsync

        def flush(log: PartitionLog, upto_offset: int | None = None) -> None:
            self.flushes += 1
            real_flush(log, upto_offset)

        def fsync(fd: int) -> None:
            self.is_waiting.set()
            assert self._may_go.wait(30)
            if self.fails:
                raise OSError(5, "Input/output error")
            real_fsync(fd)

        monkeypatch.setattr(PartitionLog, "flush", flush)
        monkeypatch.setattr(moldau.disk, "fsync", fsync)

    def hold(self) -> None:
        self.is_waiting.clear()
        self._may_go.clear()

    def release(self) -> None:
        self._may_go.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[PartitionLog]]:
    config = TopicConfig.resolve({}, BrokerConfig.from_properties({})[0])
    manager = LogManager([tmp_path], default_config=config, node_id=1, clock=lambda: NOW_MS)
    manager.open()
    topic_id = uuid.uuid4()
    yield [manager.create("t", index, topic_id, config) for index in range(2)]
    manager.close()


@pytest.fixture
async def commit() -> AsyncIterator[GroupCommit]:
    loop = asyncio.get_running_loop()
    lane = Lane(loop, "disk", 4)
    yield GroupCommit(loop, lambda _: lane)
    lane.stop()


def append(log: PartitionLog, count: int = 1) -> None:
    for _ in range(count):
        batch = bytearray(encode_batch([(None, b"v", NOW_MS, ())]))
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


async def held(disk: SlowDisk) -> None:
    """Until a flush has come as far as its fsync."""
    await asyncio.to_thread(disk.is_waiting.wait, 30)


async def test_one_writer_waits_for_one_flush(commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]) -> None:
    append(logs[0])
    await commit.flushed(logs[0])
    assert disk.flushes == 1
    assert logs[0].recovery_point == 1


async def test_writers_that_come_during_an_fsync_share_the_next_one(
    commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]
) -> None:
    disk.hold()
    append(logs[0])
    first = commit.flushed(logs[0])
    await held(disk)
    later = []
    for _ in range(100):
        append(logs[0])
        later.append(commit.flushed(logs[0]))
    assert not first.done()
    disk.release()
    await asyncio.gather(first, *later)
    assert disk.flushes == 2, "one for the first writer, one for the hundred that came meanwhile"
    assert logs[0].recovery_point == 101


async def test_a_writer_is_not_told_of_an_fsync_that_began_before_its_append(
    commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]
) -> None:
    disk.hold()
    append(logs[0])
    first = commit.flushed(logs[0])
    await held(disk)
    append(logs[0])
    second = commit.flushed(logs[0])
    second_is_durable = asyncio.Event()

    def check(_: object) -> None:
        assert not second.done(), "the first fsync says nothing of the second record"
        second_is_durable.set()

    first.add_done_callback(check)
    disk.release()
    await asyncio.gather(first, second)
    await second_is_durable.wait()
    assert logs[0].recovery_point == 2


async def test_logs_do_not_wait_for_each_other(commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]) -> None:
    for log in logs:
        append(log)
    await asyncio.gather(*(commit.flushed(log) for log in logs))
    assert disk.flushes == 2
    assert [log.recovery_point for log in logs] == [1, 1]


async def test_a_failed_fsync_is_told_to_every_writer_of_its_group(
    commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]
) -> None:
    append(logs[0])
    disk.fails = True
    answers = await asyncio.gather(*(commit.flushed(logs[0]) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, StorageError) for answer in answers)
    assert logs[0].recovery_point == 0


async def test_a_writer_that_goes_away_does_not_take_those_along_who_share_its_fsync(
    commit: GroupCommit, disk: SlowDisk, logs: list[PartitionLog]
) -> None:
    disk.hold()
    append(logs[0])
    commit.flush_soon(logs[0], lambda _: None)
    await held(disk)
    append(logs[0])
    leaving, staying = commit.flushed(logs[0]), commit.flushed(logs[0])
    leaving.cancel()
    disk.release()
    await staying
    assert logs[0].recovery_point == 2
