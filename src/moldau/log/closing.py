"""The end of one log directory: everything to disk, then the mark that makes the next start quick.

Each directory has its own threads, and they are daemons: a disk that hangs keeps neither the other directories nor the
process from their end. What has not reached such a disk is looked through at the next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
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


class Closing:
    def __init__(
        self, log_dir: LogDir, logs: Sequence[PartitionLog], dir_checkpoints: DirCheckpoints, broker_epoch: int
    ) -> None:
        self.log_dir = log_dir
        self.error: StorageError | None = None
        """Why there is no mark of a clean stop, though every log was closed."""
        self._logs = logs
        self._checkpoints = dir_checkpoints
        self._broker_epoch = broker_epoch
        self._left: SimpleQueue[PartitionLog] = SimpleQueue()
        self._failures: list[StorageError] = []
        self._closed = 0
        self._is_done = threading.Event()
        threading.Thread(target=self._run, name="moldau-close", daemon=True).start()

    def wait(self, timeout_s: float | None) -> bool:
        """False when nothing more was closed for so long."""
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
            self.error = StorageError(f"cannot mark a clean stop: {failure}")
        except Exception:
            logger.exception("cannot close the logs", extra={"folder": str(self.log_dir.path)})
        finally:
            self._is_done.set()

    def _close_logs(self) -> None:
        for log in self._logs:
            self._left.put(log)
        threads = [
            threading.Thread(target=self._close_some, name=f"moldau-close-{number}", daemon=True)
            for number in range(min(CLOSING_THREADS, len(self._logs)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _close_some(self) -> None:
        with suppress(Empty):
            while True:
                log = self._left.get_nowait()
                try:
                    log.close()
                except StorageError as error:
                    self._failures.append(error)
                except Exception as error:  # a slip of ours: the next start looks through the logs
                    self._failures.append(StorageError(f"cannot close {log.name}: {error!r}"))
                self._closed += 1
