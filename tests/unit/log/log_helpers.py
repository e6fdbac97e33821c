"""What the storage tests share: a clock that stands still, batches, logs that are stopped or crash."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings

from moldau.config.topic import TopicConfig
from moldau.log.context import LogContext
from moldau.log.files import FilePool, LogDir
from moldau.log.manager import LogManager
from moldau.log.partition_log import AppendInfo, PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.log.recovery import create_log, load_log
from moldau.wire.batch import (
    BatchHeader,
    ControlType,
    check_batch,
    encode_batch,
    encode_end_txn_marker,
    iter_headers,
)
from tests.examples import examples

# A machine that is busy with something else is no failure.
properties = settings(deadline=None, max_examples=examples(60))

NOW_MS = 1_700_000_000_000
TOPIC_ID = uuid.UUID("6f1a0b9e-5b53-4a3c-9f57-52ac8b5f3d10")


class Clock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def topic_config(**changes: Any) -> TopicConfig:
    """Small segments and a dense index, so that a few batches meet every boundary."""
    defaults: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 100}
    return dataclasses.replace(TopicConfig(), **{**defaults, **changes})


def context_of(directory: Path, clock: Clock, *, pool_limit: int = 100, **changes: Any) -> LogContext:
    return LogContext(LogDir(directory), FilePool(pool_limit), clock, 86_400_000, monotonic=clock, **changes)


def new_log(directory: Path, clock: Clock | None = None, *, pool_limit: int = 100, **config: Any) -> PartitionLog:
    directory.mkdir(exist_ok=True)
    context = context_of(directory, clock or Clock(), pool_limit=pool_limit)
    return create_log(directory / "t-0", "t", 0, TOPIC_ID, topic_config(**config), context=context)


def load(log: PartitionLog, *, clean: bool, recovery_point: int | None = None, **config: Any) -> PartitionLog:
    """The log in the same directory, as a new process finds it."""
    old = log.segments.context
    pool, log_dir = FilePool(old.pool.limit), LogDir(log.log_dir.path)
    context = dataclasses.replace(old, log_dir=log_dir, pool=pool, single_replica=log.single_replica)
    return load_log(
        log.directory,
        "t",
        0,
        dataclasses.replace(log.config, **config),
        context=context,
        clean=clean,
        recovery_point=log.recovery_point if recovery_point is None else recovery_point,
        log_start_offset=log.log_start_offset,
    )


def restart(log: PartitionLog, **config: Any) -> PartitionLog:
    log.close()
    return load(log, clean=True, **config)


def crash(log: PartitionLog, *, recovery_point: int | None = None, **config: Any) -> PartitionLog:
    """The process is gone, what it wrote is in the files."""
    log.close_files()
    return load(log, clean=False, recovery_point=recovery_point, **config)


def batch(
    count: int = 1,
    *,
    size: int = 20,
    timestamp_ms: int = NOW_MS,
    timestamps: Sequence[int] | None = None,
    key: bytes | None = b"k",
    **fields: Any,
) -> bytearray:
    times = timestamps if timestamps is not None else [timestamp_ms] * count
    return bytearray(encode_batch([(key, random.randbytes(size), time, ()) for time in times], **fields))


def marker(producer_id: int, *, abort: bool, producer_epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    return bytearray(
        encode_end_txn_marker(
            ControlType.ABORT if abort else ControlType.COMMIT,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=NOW_MS,
        )
    )


def append(log: PartitionLog, records: bytearray | None = None, *, leader_epoch: int = 0) -> AppendInfo:
    return log.append(records if records is not None else batch(), leader_epoch=leader_epoch, now_ms=log.clock())


def end_transaction(
    log: PartitionLog, producer_id: int, *, abort: bool, leader_epoch: int = 0, **fields: Any
) -> AppendInfo:
    return log.append(
        marker(producer_id, abort=abort, **fields),
        leader_epoch=leader_epoch,
        now_ms=log.clock(),
        origin=AppendOrigin.COORDINATOR,
    )


def read_all(log: PartitionLog, *, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, bytes]]:
    """Every batch of the log, each with its CRC checked."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes, upto_offset=log.log_end_offset, min_one=True)
        assert data, f"nothing to read at {offset}, the log ends at {log.log_end_offset}"
        for position, header in iter_headers(data):
            check_batch(data, position, header, strict=False)
            found.append((header, bytes(data[position : position + header.size])))
            offset = header.next_offset
    return found


def offsets_of(log: PartitionLog) -> list[int]:
    return [header.base_offset for header, _ in read_all(log)]


def files_of(log: PartitionLog) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir())


def producer_view(log: PartitionLog) -> dict[int, Any]:
    """What survives a restart of the producer state: the last batch of each producer."""
    return {
        entry.producer_id: (
            entry.epoch,
            entry.coordinator_epoch,
            entry.last_timestamp_ms,
            entry.txn_first_offset,
            [last[:3] for last in entry.batches[-1:]],  # a snapshot has one timestamp for batch and marker
        )
        for entry in log.producers.producers.values()
    }


def manager_of(*directories: Path, clock: Clock | None = None, node_id: int = 1, **changes: Any) -> LogManager:
    return LogManager(
        directories,
        default_config=changes.pop("config", topic_config()),
        node_id=node_id,
        clock=(clock := clock or Clock()),
        monotonic=changes.pop("monotonic", clock),
        recovery_threads=2,
        **changes,
    )


def opened(*directories: Path, **changes: Any) -> LogManager:
    manager = manager_of(*directories, **changes)
    manager.open()
    return manager


def crashed(manager: LogManager) -> None:
    """What the kernel does when the process is killed."""
    for log in manager.logs.values():
        log.close_files()
    manager._unlock()


def log_of(manager: LogManager, topic: str = "t", partition: int = 0) -> PartitionLog:
    log = manager.get(topic, partition)
    assert log is not None
    return log
