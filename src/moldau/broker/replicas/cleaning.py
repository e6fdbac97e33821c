"""Log compaction in the background: rounds, worker processes, what becomes of a cleaning.

The event loop chooses a log, hands the work to a process (`moldau.log.cleaning`) and swaps in what comes back, a
group of segments at a time. The choice is made bit by bit: there may be thousands of logs. Anything that changes the
log meanwhile, its deletion, a truncation, retention, simply makes the swap impossible: the cleaning is given up and a
later round begins it anew. So is one whose worker dies. Workers are started when there is something to clean and end
when there is nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from typing import IO, Protocol

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.threads import Lane, Threads
from moldau.clocks import Clock
from moldau.errors import KafkaError
from moldau.log.cleaning.job import Cleaned, CleaningJob, Done, Failed, Report, decode_report, encode_job
from moldau.log.cleaning.plan import CleaningLimits, LogToClean, filthiest
from moldau.log.cleaning.swap import discard, swap_in
from moldau.log.manager import LogManager
from moldau.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.05
LOGS_AT_A_TIME = 50
"""So many are looked at before others get their turn: some microseconds each, a tenth of a millisecond when their
segments have to be opened."""
IO_BUFFER_BYTES_MIN = 64 * 1024
"""Below it, system calls would cost more than the work between them."""


class CleaningCounters(Protocol):
    cleanings: int
    bytes_cleaned: int


class Cleaner:
    def __init__(
        self,
        me: LocalBroker,
        logs: LogManager,
        threads: Threads,
        *,
        metrics: CleaningCounters,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self._me = me
        self._logs = logs
        self._threads = threads
        self._metrics = metrics
        self._loop = loop
        self._clock = clock
        self._rounds = 0
        self._choosing = asyncio.Lock()
        self._in_progress: set[PartitionLog] = set()
        self._uncleanable: set[PartitionLog] = set()

    async def run(self) -> None:
        """Rounds, `log.cleaner.backoff.ms` after each other, until cancelled.

        `log.cleaner.threads` of them may run side by side, so that none waits for the large log of another.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                while self._rounds < self._me.config.log_cleaner_threads:
                    self._rounds += 1
                    group.create_task(self._run_round())
                await asyncio.sleep(max(self._me.config.log_cleaner_backoff_ms / 1000, BACKOFF_MIN_S))

    async def _run_round(self) -> None:
        try:
            await self._clean_due()
        except Exception:
            logger.exception("internal error in a round of log cleaning (please report it)")
        finally:
            self._rounds -= 1

    async def _clean_due(self) -> None:
        """Cleans until no log is due, the filthiest first."""
        self._uncleanable.intersection_update(list(self._logs.logs.values()))
        failed: set[PartitionLog] = set()  # in this round: another try would fail the same way
        worker: _Worker | None = None
        try:
            while (todo := await self._choose(failed)) is not None:
                try:
                    worker = worker or await _Worker.start(self._threads.cleaning, self._loop)
                    if not await self._try_to_clean(todo, worker):
                        failed.add(todo.log)
                        await worker.end()  # without waiting for what it is doing
                        worker = None
                        await self._threads.disk(todo.log.log_dir.path)(
                            discard, todo.log.log_dir.disk, todo.log.directory
                        )
                finally:
                    self._in_progress.remove(todo.log)
        finally:
            if worker is not None:
                await worker.end()

    async def _choose(self, failed: set[PartitionLog]) -> LogToClean | None:
        """The filthiest of all that are due, which is then in progress."""
        async with self._choosing:
            logs = list(self._logs.logs.values())  # another thread may be adding some
            due = []
            for start in range(0, len(logs), LOGS_AT_A_TIME):
                busy = self._in_progress | failed | self._uncleanable
                idle = [
                    one for one in logs[start : start + LOGS_AT_A_TIME] if one not in busy and not one.log_dir.offline
                ]
                todo = filthiest(idle, self._clock())
                if todo is not None:
                    due.append(todo)
                await asyncio.sleep(0)
            chosen = max(due, key=lambda todo: todo.dirty_ratio, default=None)
            if chosen is not None:
                self._in_progress.add(chosen.log)
            return chosen

    async def _try_to_clean(self, todo: LogToClean, worker: _Worker) -> bool:
        """False when the cleaning came to nothing, or ended half-way."""
        try:
            return await self._clean(todo, worker)
        except OSError as error:
            failure: KafkaError = todo.log.log_dir.storage_error(f"cannot clean {todo.log.name}", error)
        except KafkaError as error:
            failure = error
        logger.error("cannot compact a log", extra={"partition": todo.log.name, "why": failure.message})
        return False

    async def _clean(self, todo: LogToClean, worker: _Worker) -> bool:
        started_s = self._loop.time()
        log_dir = todo.log.log_dir.path
        bytes_before = bytes_after = 0
        await worker.send(todo.job(self._clock(), self._limits()))
        while True:
            report = await worker.receive()
            if self._is_gone(todo.log) or todo.is_void:
                return False
            match report:
                case Cleaned():
                    if not swap_in(todo, report):
                        return False
                    await self._threads.disk(log_dir)(todo.log.log_dir.disk.sync, todo.log.directory)
                    bytes_before += report.bytes_before
                    bytes_after += report.bytes_after
                case Done(end_offset, keys):
                    todo.log.compacted_upto(end_offset)
                    self._metrics.cleanings += 1
                    self._metrics.bytes_cleaned += bytes_before
                    logger.info(
                        "compacted a log",
                        extra={
                            "partition": todo.log.name, "upto_offset": end_offset, "keys": keys,
                            "bytes_before": bytes_before, "bytes_after": bytes_after,
                            "seconds": round(self._loop.time() - started_s, 3),
                        },
                    )  # fmt: skip
                    await self._threads.disk(log_dir)(self._logs.checkpoint_dirty_offsets, log_dir)
                    return True
                case Failed(reason, is_corrupt):
                    self._note_failure(todo.log, reason, is_corrupt)
                    return False
                case None:
                    logger.warning(
                        "the worker process of the log cleaner died, will retry", extra={"partition": todo.log.name}
                    )
                    return False

    def _note_failure(self, partition_log: PartitionLog, reason: str, is_corrupt: bool) -> None:
        if is_corrupt:
            self._uncleanable.add(partition_log)
            logger.error(
                "a log cannot be compacted: it is corrupt", extra={"partition": partition_log.name, "why": reason}
            )
        else:
            logger.warning(
                "compaction of a log failed, will retry", extra={"partition": partition_log.name, "why": reason}
            )

    def _is_gone(self, partition_log: PartitionLog) -> bool:
        return self._logs.get(partition_log.topic, partition_log.partition) is not partition_log

    def _limits(self) -> CleaningLimits:
        config = self._me.config
        workers = max(1, config.log_cleaner_threads)
        return CleaningLimits(
            dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size // workers,
            io_buffer_bytes=max(IO_BUFFER_BYTES_MIN, config.log_cleaner_io_buffer_size // workers // 2),
            bytes_per_second_max=max(1.0, config.log_cleaner_io_max_bytes_per_second / workers),
        )


class _Worker:
    """A process of `moldau.log.cleaning.worker`. What may block is done in threads: to start, write to and end it."""

    def __init__(self, in_thread: Lane, process: subprocess.Popen[bytes]) -> None:
        self._in_thread = in_thread
        self._process = process
        self._reports = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def start(cls, in_thread: Lane, loop: asyncio.AbstractEventLoop) -> _Worker:
        worker = cls(in_thread, await in_thread(_spawn))
        worker._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(worker._reports), _pipe(worker._process.stdout)
        )
        return worker

    async def send(self, job: CleaningJob) -> None:
        def write() -> None:
            pipe = _pipe(self._process.stdin)
            with contextlib.suppress(BrokenPipeError):  # it died: `receive` tells
                pipe.write(encode_job(job))
                pipe.flush()

        await self._in_thread(write)

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
        await self._in_thread(kill)


def _spawn() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "moldau.log.cleaning.worker"]
    # In a group of its own: a Ctrl-C in the terminal is the broker's, which then ends it.
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both were asked for
    return stream
