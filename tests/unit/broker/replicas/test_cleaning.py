"""The cleaner's rounds, with real worker processes on a broker without sockets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from moldau.broker.replicas import cleaning
from moldau.log import checkpoints
from moldau.log.cleaning.plan import filthiest
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import encode_batch
from tests.unit.broker.offline import OfflineBroker, StartOffline, until

SETTINGS = {"log.cleaner.backoff.ms": "50"}


@asynccontextmanager
async def cleaner_of(broker: OfflineBroker) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(broker.node.cleaner.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def fill(broker: OfflineBroker, topic: str, value: bytes = b"v") -> PartitionLog:
    """A compacted topic whose records all have the same key, in three segments."""
    await broker.create(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    log = broker.node.find_partition(topic, None, 0).log
    for _ in range(3):
        batch = bytearray(encode_batch([(b"k", value, broker.node.clock(), ())] * 3))
        log.append(batch, leader_epoch=0, now_ms=broker.node.clock())
        log.roll()
    return log


def is_clean(log: PartitionLog) -> bool:
    return log.first_dirty_offset == log.log_end_offset


async def test_a_small_log_does_not_wait_for_a_large_one_when_there_are_two_threads(
    start_offline: StartOffline,
) -> None:
    rate = {"log.cleaner.io.max.bytes.per.second": "100000"}
    broker = start_offline({**SETTINGS, **rate, "log.cleaner.threads": "2"})
    large = await fill(broker, "large", bytes(200_000))  # takes more than the time that the test has
    async with cleaner_of(broker):
        await until(lambda: bool(psutil.Process().children()))
        await asyncio.sleep(0.2)  # rounds that find nothing to do pass meanwhile
        small = await fill(broker, "small")
        await until(lambda: is_clean(small))
        assert not is_clean(large)


async def test_a_disk_too_full_for_the_checkpoint_keeps_nothing_from_being_cleaned(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_offline(SETTINGS)
    logs = [await fill(broker, topic) for topic in ("one", "other")]

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_offsets", fail)
        async with cleaner_of(broker):
            await until(lambda: all(map(is_clean, logs)))
    assert "cannot compact a log" in caplog.text
    assert "internal error in a round of log cleaning" not in caplog.text


async def test_others_have_their_turn_while_the_cleaner_looks_at_many_logs(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "LOGS_AT_A_TIME", 2)
    sizes: list[int] = []

    def note(logs: list[PartitionLog], now_ms: int) -> object:
        sizes.append(len(logs))
        return filthiest(logs, now_ms)

    monkeypatch.setattr(cleaning, "filthiest", note)
    broker = start_offline(SETTINGS)
    logs = [await fill(broker, f"t{number}") for number in range(5)]
    async with cleaner_of(broker):
        await until(lambda: all(map(is_clean, logs)))
    assert max(sizes) == 2
