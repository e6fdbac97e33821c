"""One process of a broker, and what it knows of the previous one.

The controller asks whether a broker that registers may have lost records it had acknowledged. A process that was
killed has not: the kernel kept what it had written. Only a machine that went down may have, or a new folder. So each
process saves its broker epoch together with the kernel's boot id.
"""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path
from typing import NamedTuple

from moldau.cluster.replica import UNKNOWN_EPOCH
from moldau.disk import Disk, read_file, replace_file
from moldau.log.files import LogDir
from moldau.log.manager import LogManager

logger = logging.getLogger(__name__)

EPOCH_FILE = "moldau-broker-epoch.json"

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Incarnation(NamedTuple):
    incarnation_id: uuid.UUID
    previous_broker_epoch: int
    """-1: records may have been lost since."""
    directories: tuple[Path, ...]
    boot_id: str
    disk: Disk

    @classmethod
    def load(cls, logs: LogManager, incarnation_id: uuid.UUID, boot_id: str) -> Incarnation:
        previous = {_previous_epoch(logs.disk, directory, logs.was_clean, boot_id) for directory in logs.directories}
        # Folders that do not agree are of different processes: one of them may be empty.
        is_whole = len(previous) == 1 and not logs.offline_dirs
        epoch = previous.pop() if is_whole else UNKNOWN_EPOCH
        return cls(incarnation_id, epoch, tuple(logs.directories), boot_id, logs.disk)

    def save_epoch(self, broker_epoch: int) -> None:
        """Saves the epoch that the controller gave to this process.

        A directory that failed keeps none: this broker works without it, but its next process may have lost records.
        """
        text = json.dumps({"broker_epoch": broker_epoch, "boot_id": self.boot_id})
        for directory in self.directories:
            try:
                replace_file(self.disk, directory / EPOCH_FILE, text.encode())
            except OSError as error:
                logger.error("cannot save the broker epoch", extra={"directory": directory, "why": str(error)})


def forget_epoch(log_dir: LogDir) -> None:
    """For a disk that failed, perhaps before the kernel wrote everything: the next process may have lost records."""
    try:
        log_dir.disk.remove(log_dir.path / EPOCH_FILE)
    except OSError as error:
        logger.debug("cannot remove the saved broker epoch", extra={"directory": log_dir.path, "why": str(error)})


def _previous_epoch(disk: Disk, directory: Path, was_clean: bool, present_boot_id: str) -> int:
    try:
        saved = json.loads(read_file(disk, directory / EPOCH_FILE))
        epoch, boot_id = int(saved["broker_epoch"]), saved["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN_EPOCH
    return epoch if was_clean or (boot_id and boot_id == present_boot_id) else UNKNOWN_EPOCH


def kernel_boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""  # no such file on this system: every crash counts as the machine's
