"""What a broker does again and again while it serves: retention, flushes, checkpoints, checks of its disks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from moldau.broker.background import Spawn
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.replicas.hosted_partitions import HostedPartitions
from moldau.broker.threads import Threads
from moldau.clocks import Clock
from moldau.config.broker import BrokerConfig
from moldau.errors import StorageError
from moldau.log.files import LogDir
from moldau.log.manager import LogManager

logger = logging.getLogger(__name__)

INTERVAL_MIN_S = 0.05


class Housekeeping:
    def __init__(
        self,
        me: LocalBroker,
        logs: LogManager,
        partitions: HostedPartitions,
        threads: Threads,
        *,
        spawn: Spawn,
        clock: Clock,
        monotonic_ms: Clock,
    ) -> None:
        self._me = me
        self._logs = logs
        self._partitions = partitions
        self._threads = threads
        self._spawn = spawn
        self._clock = clock
        self._monotonic_ms = monotonic_ms

    def start(self) -> None:
        """The work on the logs; other parts have theirs done with `every`."""
        config = self._me.config
        self.every(config.log_retention_check_interval_ms / 1000, self._enforce_retention)
        self.every(config.producer_id_expiration_check_interval_ms / 1000, self._expire_producers)
        for directory in self._logs.directories:
            self.every(min(config.log_flush_scheduler_interval_ms / 1000, 1.0), self._flush, directory)
            self.every(_checkpoint_interval_ms(config) / 1000, self._checkpoint, directory)
            self.every(1.0, self._purge, directory)
        for log_dir in self._logs.log_dirs:
            self.every(1.0, self._measure, log_dir)

    def every(self, interval_s: float, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        async def loop_forever() -> None:
            while True:
                await asyncio.sleep(max(interval_s, INTERVAL_MIN_S))
                try:
                    await work(*args)
                except StorageError as error:
                    logger.error("background task failed", extra={"work": work.__name__, "why": error.message})
                except Exception:
                    # One failed round must not end all later ones.
                    logger.exception("background task failed", extra={"work": work.__name__})

        self._spawn(loop_forever())

    async def _enforce_retention(self) -> None:
        self._logs.enforce_retention(self._clock())

    async def _expire_producers(self) -> None:
        self._logs.expire_producers(self._clock(), self._me.config.producer_id_expiration_ms)

    async def _flush(self, directory: Path) -> None:
        flush_due = self._threads.disk(directory)(self._logs.flush_due, self._monotonic_ms(), directory)
        for flushed in await flush_due:
            self._partitions.flushed(flushed)

    async def _checkpoint(self, directory: Path) -> None:
        await self._threads.disk(directory)(self._logs.checkpoint, directory)

    async def _purge(self, directory: Path) -> None:
        await self._threads.disk(directory)(self._logs.purge_deleted, self._monotonic_ms(), directory)

    async def _measure(self, log_dir: LogDir) -> None:
        await self._threads.disk(log_dir.path)(log_dir.measure)


def _checkpoint_interval_ms(config: BrokerConfig) -> int:
    """All checkpoints are written together; only where there are other replicas high watermarks are hard to get."""
    interval_ms = config.log_flush_offset_checkpoint_interval_ms
    if not config.is_clustered:
        return interval_ms
    return min(interval_ms, config.replica_high_watermark_checkpoint_interval_ms)
