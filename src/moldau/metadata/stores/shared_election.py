"""The election among the brokers of one machine, in a folder that they share.

A broker keeps `broker-<id>.lock` locked as long as it runs, and touches it while it is the controller. A candidate
checks 20 times a second that the controller is alive: the kernel frees the lock of a process that died; one that hangs
does not touch its file any more, and is replaced after a timeout. Whoever finds it dead claims the next epoch.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from pathlib import Path

from moldau.errors import ConfigError
from moldau.metadata.stores.claims import NO_BROKER, Claim, Claims
from moldau.metadata.stores.store import Candidate, ControllerTerm, OnChange

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_AFTER_ERROR_S = 1.0
# Other candidates take the lock for an instant to see whether this broker is alive: that is not a second broker of
# the same id.
_LOCK_TIMEOUT_S = 1.0
_RENEWALS_PER_TIMEOUT = 5


class SharedElection:
    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._claims = Claims(folder / "controllers")
        self._token = secrets.token_hex(8)
        self._epoch_floor = 0
        self._candidate = Candidate(NO_BROKER, "", 0)
        self._on_change: OnChange = lambda _: None
        self._is_candidate = False
        self._reported: Claim | None = None
        self._taken_over_epoch = -1
        self._lock_fd = -1
        self._renewed_s = 0.0
        self._watch = _ControllerWatch()
        self._wake = threading.Event()
        self._closing = False
        self._watcher = threading.Thread(target=self._run, name="moldau-election", daemon=True)

    def open(self, epoch_floor: int) -> None:
        """Epochs up to `epoch_floor` are known to have been, whatever the claims say."""
        self._epoch_floor = epoch_floor
        self._claims.open()

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._candidate = candidate
        self._on_change = on_change
        self._lock_fd = _take_lock(self._lock_path(candidate.node_id))
        self._is_candidate = True
        self._reported = self._claims.newest()
        self._report(self._reported)
        self._watcher.start()

    def leads(self, epoch: int) -> bool:
        newest = self._claims.newest()
        return newest is not None and newest.epoch == epoch and self._is_ours(newest)

    def take_over(self, epoch: int) -> None:
        self._taken_over_epoch = epoch
        self._wake.set()

    def resign(self) -> None:
        self._is_candidate = False
        newest = self._claims.newest()
        if newest is not None and self._is_ours(newest):
            self._withdraw(newest)
        self._wake.set()

    def campaign_again(self) -> None:
        self._is_candidate = True
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        self._claims.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._closing:
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                self._check_controller()
                wait_s = _POLL_S
            except Exception as error:  # without this thread the broker would never learn of another controller
                logger.error("cannot take part in the controller election, will retry", extra={"why": str(error)})
                self._report_if_new(None)
                wait_s = _AFTER_ERROR_S
        self._watch.forget()

    def _check_controller(self) -> None:
        newest = self._claims.newest()
        self._report_if_new(newest)
        if newest is not None and self._is_ours(newest):
            if self._is_candidate:
                self._renew()
            else:
                self._withdraw(newest)  # elected while it resigned
        elif self._is_candidate and (newest is None or self._is_lost(newest)):
            epoch = max(newest.epoch if newest is not None else 0, self._epoch_floor) + 1
            if self._claims.add(Claim(epoch, *self._candidate, self._token)):
                self._renew()
            self._report_if_new(self._claims.newest())

    def _withdraw(self, claim: Claim) -> None:
        self._claims.add(Claim(claim.epoch + 1, NO_BROKER, "", 0, self._token))

    def _is_ours(self, claim: Claim) -> bool:
        return claim.token == self._token and claim.node_id != NO_BROKER

    def _is_lost(self, claim: Claim) -> bool:
        if claim.node_id == NO_BROKER or self._is_previous_process(claim) or claim.epoch == self._taken_over_epoch:
            return True
        return self._watch.is_lost(claim, self._lock_path(claim.node_id), self._timeout_s)

    def _renew(self) -> None:
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self._timeout_s / _RENEWALS_PER_TIMEOUT:
            os.utime(self._lock_fd)
            self._renewed_s = now_s

    def _report_if_new(self, claim: Claim | None) -> None:
        if claim != self._reported:
            self._reported = claim
            self._report(claim)

    def _report(self, claim: Claim | None) -> None:
        if claim is None or claim.node_id == NO_BROKER or self._is_previous_process(claim):
            self._on_change(None)
        else:
            self._on_change(ControllerTerm(*claim[:4]))

    def _is_previous_process(self, claim: Claim) -> bool:
        """Claimed by an earlier process of this broker, which has ended."""
        return claim.node_id == self._candidate.node_id and claim.token != self._token

    def _lock_path(self, node_id: int) -> Path:
        return self._folder / f"broker-{node_id}.lock"


class _ControllerWatch:
    """What a candidate sees of the present controller."""

    def __init__(self) -> None:
        self._claim: Claim | None = None
        self._fd = -1
        self._touched_ns = 0
        self._seen_s = 0.0

    def is_lost(self, claim: Claim, lock_path: Path, timeout_s: float) -> bool:
        if claim != self._claim:
            self.forget()
            self._fd = os.open(lock_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._claim = claim
        now_s = time.monotonic()
        touched_ns = os.fstat(self._fd).st_mtime_ns
        if touched_ns != self._touched_ns:
            self._touched_ns, self._seen_s = touched_ns, now_s
        if _try_lock(self._fd, fcntl.LOCK_SH):
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            return True
        return now_s - self._seen_s > timeout_s

    def forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._touched_ns, self._claim = -1, 0, None


def _take_lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while not _try_lock(fd, fcntl.LOCK_EX):
        if time.monotonic() > deadline_s:
            os.close(fd)
            raise ConfigError(
                f"another broker with this node.id is running (it has locked {path}): stop it, or use another node.id"
            )
        time.sleep(_POLL_S / 2)
    return fd


def _try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
