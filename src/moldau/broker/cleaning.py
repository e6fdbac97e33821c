"""Log compaction in the background: rounds, worker processes, what becomes of a cleaning.

The event loop chooses a log, hands the work to a process (`moldau.log.cleaning`) and swaps in what comes back, a
group of segments at a time. Anything that changes the log meanwhile, its deletion, a truncation, retention, simply
makes the swap impossible: the cleaning is given up and a later round begins it anew. So is one whose worker dies.
Workers are started when there is something to clean and end when there is nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from typing import IO

from moldau.broker.node import BrokerNode
from moldau.errors import KafkaError
from moldau.log.cleaning.job import Cleaned, CleaningJob, Done, Failed, Report, decode_report, encode_job
from moldau.log.cleaning.plan import CleaningLimits, LogToClean, filthiest
from moldau.log.cleaning.swap import discard, swap_in
from moldau.log.files import fsync_path
from moldau.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.05
IO_BUFFER_BYTES_MIN = 64 * 1024
"""Below it, system calls would cost more than the work between them."""


class Cleaner:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._in_progress: set[PartitionLog] = set()
        self._failed: set[PartitionLog] = set()  # in this round: another try would fail the same way
        self._uncleanable: set[PartitionLog] = set()

    async def run(self) -> None:
        """Round after round, `log.cleaner.backoff.ms` between them, until cancelled."""
        while True:
            try:
                await self.clean_due()
            except Exception:
                log.exception("a round of cleaning failed")
            await asyncio.sleep(max(self._node.config.log_cleaner_backoff_ms / 1000, BACKOFF_MIN_S))

    async def clean_due(self) -> None:
        """Cleans until no log is due, the filthiest first, `log.cleaner.threads` of them at a time."""
        self._failed.clear()
        self._uncleanable.intersection_update(list(self._node.logs.logs.values()))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._node.config.log_cleaner_threads):
                group.create_task(self._clean_one_by_one())

    async def _clean_one_by_one(self) -> None:
        worker: _Worker | None = None
        try:
            while (todo := self._choose()) is not None:
                self._in_progress.add(todo.log)
                try:
                    worker = worker or await _Worker.start(self._node)
                    is_whole = await self._clean(todo, worker)
                finally:
                    self._in_progress.remove(todo.log)
                if not is_whole:
                    self._failed.add(todo.log)
                    await worker.end()  # whatever it is doing, nobody waits for it
                    worker = None
                    discard(todo.log.directory)
        finally:
            if worker is not None:
                await worker.end()

    def _choose(self) -> LogToClean | None:
        busy = self._in_progress | self._failed | self._uncleanable
        logs = list(self._node.logs.logs.values())  # another thread may be adding some
        idle = (one for one in logs if one not in busy and not one.log_dir.offline)
        return filthiest(idle, self._node.clock())

    async def _clean(self, todo: LogToClean, worker: _Worker) -> bool:
        """False when the cleaning came to nothing, or ended half-way."""
        node, started_s = self._node, time.monotonic()
        bytes_before = bytes_after = 0
        await worker.send(todo.job(node.clock(), self._limits()))
        while True:
            report = await worker.receive()
            if self._is_gone(todo.log) or todo.is_void:
                return False
            match report:
                case Cleaned():
                    if not self._swap_in(todo, report):
                        return False
                    await node.in_thread(fsync_path, todo.log.directory)
                    bytes_before += report.bytes_before
                    bytes_after += report.bytes_after
                case Done(end_offset, keys):
                    todo.log.first_dirty_offset = end_offset
                    node.metrics.cleanings += 1
                    node.metrics.bytes_cleaned += bytes_before
                    log.info(
                        "cleaned a log",
                        extra={
                            "partition": todo.log.name, "upto_offset": end_offset, "keys": keys,
                            "bytes_before": bytes_before, "bytes_after": bytes_after,
                            "seconds": round(time.monotonic() - started_s, 3),
                        },
                    )  # fmt: skip
                    await node.in_thread(node.logs.checkpoint)
                    return True
                case Failed(reason, is_corrupt):
                    self._note_failure(todo.log, reason, is_corrupt)
                    return False
                case None:
                    log.warning("the cleaner's worker died", extra={"partition": todo.log.name})
                    return False

    def _swap_in(self, todo: LogToClean, report: Cleaned) -> bool:
        try:
            return swap_in(todo, report)
        except KafkaError as error:
            log.error("cannot clean a log", extra={"partition": todo.log.name, "why": error.message})
            return False

    def _note_failure(self, partition_log: PartitionLog, reason: str, is_corrupt: bool) -> None:
        if is_corrupt:
            self._uncleanable.add(partition_log)
            log.error("a log cannot be cleaned", extra={"partition": partition_log.name, "why": reason})
        else:
            log.warning("a cleaning failed", extra={"partition": partition_log.name, "why": reason})

    def _is_gone(self, partition_log: PartitionLog) -> bool:
        return self._node.logs.get(partition_log.topic, partition_log.partition) is not partition_log

    def _limits(self) -> CleaningLimits:
        config = self._node.config
        workers = max(1, config.log_cleaner_threads)
        return CleaningLimits(
            dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size // workers,
            io_buffer_bytes=max(IO_BUFFER_BYTES_MIN, config.log_cleaner_io_buffer_size // workers // 2),
            bytes_per_second_max=max(1.0, config.log_cleaner_io_max_bytes_per_second / workers),
        )


class _Worker:
    """A process of `moldau.log.cleaning.worker`. What may block is done in threads: to start, write to and end it."""

    def __init__(self, node: BrokerNode, process: subprocess.Popen[bytes]) -> None:
        self._node = node
        self._process = process
        self._reports = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def start(cls, node: BrokerNode) -> _Worker:
        worker = cls(node, await node.in_thread(_spawn))
        worker._transport, _ = await node.loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(worker._reports), _pipe(worker._process.stdout)
        )
        return worker

    async def send(self, job: CleaningJob) -> None:
        def write() -> None:
            pipe = _pipe(self._process.stdin)
            with contextlib.suppress(BrokenPipeError):  # it died: `receive` tells
                pipe.write(encode_job(job))
                pipe.flush()

        await self._node.in_thread(write)

    async def receive(self) -> Report | None:
        """The next report; None when there will be no more."""
        line = await self._reports.readline()
        return decode_report(line) if line.endswith(b"\n") else None

    async def end(self) -> None:
        def kill() -> None:
            self._process.kill()
            self._process.wait()
            with contextlib.suppress(BrokenPipeError):
                _pipe(self._process.stdin).close()

        if self._transport is not None:
            self._transport.close()
        await self._node.in_thread(kill)


def _spawn() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "moldau.log.cleaning.worker"]
    # In a group of its own: a Ctrl-C in the terminal is the broker's, which then ends it.
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both were asked for
    return stream
