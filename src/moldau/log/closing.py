"""Closes one log directory: everything to disk, then the clean shutdown file, which makes the next start quick.

Each directory has its own threads, and they are daemons: a disk that hangs holds up neither the other directories nor
the end of the process. Logs that were not closed are recovered at the next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from moldau.errors import StorageError
from moldau.log import checkpoints
from moldau.log.dir_checkpoints import DirCheckpoints
from moldau.log.files import LogDir
from moldau.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

CLOSING_THREADS = 8
"""They wait for the disk, which makes one commit of many fsyncs."""

StartThread = Callable[[Callable[[], None], str], object]
"""Runs the work in a thread of that name, or at once."""


def start_daemon_thread(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


class Closing:
    def __init__(
        self,
        log_dir: LogDir,
        logs: Sequence[PartitionLog],
        dir_checkpoints: DirCheckpoints,
        broker_epoch: int,
        start_thread: StartThread,
    ) -> None:
        self.log_dir = log_dir
        self.error: StorageError | None = None
        """Why there is no clean shutdown file, though every log was closed."""
        self._logs = logs
        self._checkpoints = dir_checkpoints
        self._broker_epoch = broker_epoch
        self._left: SimpleQueue[PartitionLog] = SimpleQueue()
        self._failures: list[StorageError] = []
        self._closed = 0
        self._finished = threading.Semaphore(0)
        self._is_done = threading.Event()
        self._start_thread = start_thread
        start_thread(self._run, "moldau-close")

    def wait(self, timeout_s: float | None) -> bool:
        """False when no further log was closed within the timeout."""
        closed = self._closed
        while not self._is_done.wait(timeout_s):
            if self._closed == closed:
                return False
            closed = self._closed
        return True

    def _run(self) -> None:
        try:
            self._close_logs()
            try:
                self._checkpoints.write_last(self._logs)
            except StorageError as error:
                self._failures.append(error)
            for failure in self._failures:
                logger.error("%s", failure.message)
            if not self._failures and not self.log_dir.offline:
                checkpoints.write_clean_shutdown(self.log_dir.disk, self.log_dir.path, broker_epoch=self._broker_epoch)
        except OSError as failure:
            self.error = StorageError(f"cannot write the clean shutdown file: {failure}")
        except Exception:
            logger.exception("cannot close the logs", extra={"folder": str(self.log_dir.path)})
        finally:
            self._is_done.set()

    def _close_logs(self) -> None:
        for log in self._logs:
            self._left.put(log)
        count = min(CLOSING_THREADS, len(self._logs))
        for number in range(count):
            self._start_thread(self._close_some, f"moldau-close-{number}")
        for _ in range(count):
            self._finished.acquire()

    def _close_some(self) -> None:
        with suppress(Empty):
            while True:
                log = self._left.get_nowait()
                try:
                    log.close()
                except StorageError as error:
                    self._failures.append(error)
                except Exception as error:  # an internal error: the next start recovers the logs
                    self._failures.append(StorageError(f"cannot close {log.name}: {error!r}"))
                self._closed += 1
        self._finished.release()
