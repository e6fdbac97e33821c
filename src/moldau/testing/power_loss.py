"""A disk that loses its power: only what was forced to it is left.

    disk = PowerLossDisk(data_dir, tmp_path / "synced")
    with disk.installed():                    # from here on, fsync is noted instead of done
        ...                                   # append, flush, roll, truncate
    disk.left_over(tmp_path / "after")        # what a machine finds when it comes back

The files themselves are real. A file that was fsynced is left as it was then, whatever was written, cut or overwritten
since; one that never was is left empty. A name exists if its folder was fsynced after the file was created or renamed,
and a deleted file is back unless its folder was fsynced after that. That is what POSIX promises; real file systems
keep more, so `left_over` takes a `Random` to keep some of the rest as well: the newer content or a part of it, a tail
of zeros, the newer names.

What is synced is noted in a folder, so a process can be killed and its disk cut off afterwards. For a whole broker:

    process = BrokerProcess(…)
    process.command = broker_command(data_dir, shadow)
    hold(shadow)                              # no fsync ends from here on
    process.kill()
    replace_by_left_over(data_dir, shadow)

Each shadow folder stands for one boot of the machine: the broker has to see that it is another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import moldau.disk
from moldau.broker.cluster import incarnation

_PATCHED: tuple[Any, ...] = (os, moldau.disk)
_LOCK_FILES = frozenset({".lock"})
_HOLD = "hold"
_HOLD_POLL_S = 0.005
Listing = dict[str, tuple[bool, int]]
"""Of a folder: name → whether it is a folder, inode."""


class PowerLossDisk:
    def __init__(self, root: Path, shadow: Path) -> None:
        """What is in `root` now counts as synced."""
        self.root = root.resolve()
        self._hold_file = shadow / _HOLD
        self._inodes, self._synced, self._folders = (shadow / name for name in ("inodes", "synced", "folders"))
        for folder in (self._inodes, self._synced, self._folders):
            folder.mkdir(parents=True)
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        self._begun = 0
        self._ended: dict[int, int] = {}
        self.root.mkdir(parents=True, exist_ok=True)
        (shadow / "root").write_text(str(self.root.stat().st_ino))
        for path, _, names in os.walk(self.root):
            for name in names:
                self._note(Path(path) / name)
            self._note(Path(path))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """fsync of whatever lies in the folder is noted here; of everything else it is done."""
        real = os.fsync

        def fsync(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            if path != self.root and self.root not in path.parents:
                real(fd)
                return
            self._note(path, number)

        for module in _PATCHED:
            module.fsync = fsync
        try:
            yield
        finally:
            for module in _PATCHED:
                module.fsync = real
            for fd in self._held.values():
                os.close(fd)
            self._held.clear()

    def _note(self, path: Path, fd: int = -1) -> None:
        """What is there when the fsync begins is on the disk when it ends; what comes meanwhile is not."""
        if path.name in _LOCK_FILES:
            return
        with self._lock:
            inode, is_folder = _identity(path, fd)
            if is_folder:
                if inode not in self._held:  # or the next folder may get its inode
                    self._held[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                data = json.dumps(self._listing(path)).encode()
            else:
                self._hold(path, inode)
                data = _read(path, fd)
            self._begun += 1
            number = self._begun
        while self._hold_file.exists():
            time.sleep(_HOLD_POLL_S)
        with self._lock:
            if number > self._ended.get(inode, 0):  # else a later one was quicker
                self._ended[inode] = number
                self._write(self._folders if is_folder else self._synced, inode, data)

    def _listing(self, folder: Path) -> Listing:
        listing: Listing = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name not in _LOCK_FILES:
                    with contextlib.suppress(FileNotFoundError):  # another thread deleted it
                        if not entry.is_dir():
                            self._hold(Path(entry.path), entry.inode())
                        listing[entry.name] = (entry.is_dir(), entry.inode())
        return listing

    def _hold(self, path: Path, inode: int) -> None:
        """A second name, so that no later file gets the inode, and that its newest content can be found."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(path, self._inodes / str(inode))

    @staticmethod
    def _write(folder: Path, inode: int, data: bytes) -> None:
        """In one step: the process may be killed at any time."""
        temporary = folder / f"{inode}.tmp"
        temporary.write_bytes(data)
        temporary.replace(folder / str(inode))

    def left_over(self, target: Path, random: Random | None = None) -> None:
        """Makes `target` what a power loss would leave; with `random`, and some of what was not synced."""
        left_over(self._inodes.parent, target, random, self.root)


def left_over(shadow: Path, target: Path, random: Random | None = None, root: Path | None = None) -> None:
    """The same for a process that is gone, by what it noted in `shadow`."""
    inode = int((shadow / "root").read_text())
    _restore_folder(shadow, inode, target, random, root)


def _restore_folder(shadow: Path, inode: int, target: Path, random: Random | None, newest: Path | None) -> None:
    target.mkdir()
    try:
        listing: Listing = json.loads((shadow / "folders" / str(inode)).read_bytes())
    except FileNotFoundError:
        listing = {}
    now: Listing = {}
    if random is not None and newest is not None and newest.is_dir() and newest.stat().st_ino == inode:
        with os.scandir(newest) as entries:
            now = {entry.name: (entry.is_dir(), entry.inode()) for entry in entries if entry.name not in _LOCK_FILES}
        if random.random() < 0.5:
            listing = now
    for name, (is_folder, number) in listing.items():
        if is_folder:
            _restore_folder(shadow, number, target / name, random, newest / name if newest is not None else None)
        else:
            newest_file = newest / name if newest is not None and now.get(name) == (False, number) else None
            (target / name).write_bytes(_content(shadow, number, random, newest_file))


def _content(shadow: Path, inode: int, random: Random | None, newest: Path | None) -> bytes:
    try:
        synced = (shadow / "synced" / str(inode)).read_bytes()
    except FileNotFoundError:
        synced = b""
    if random is None:
        return synced
    try:
        written = (shadow / "inodes" / str(inode)).read_bytes()
    except FileNotFoundError:
        written = newest.read_bytes() if newest is not None else synced
    if not written.startswith(synced):
        return random.choice((synced, written))
    kept = written[: random.randint(len(synced), len(written))]
    # The size may reach the disk before the data does.
    return random.choice((synced, written, kept, kept + bytes(len(written) - len(kept))))


def _identity(path: Path, fd: int) -> tuple[int, bool]:
    status = os.stat(path if fd < 0 else fd)
    return status.st_ino, stat.S_ISDIR(status.st_mode)


def _read(path: Path, fd: int) -> bytes:
    if fd < 0:
        return path.read_bytes()
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        return file.read()


def replace_by_left_over(data_dir: Path, shadow: Path) -> None:
    """After the broker of `broker_command` was killed: its folder is what a power loss would leave."""
    beside = data_dir.with_name(f"{data_dir.name}.left-over")
    left_over(shadow, beside)
    shutil.rmtree(data_dir)
    beside.rename(data_dir)


def broker_command(data_dir: Path, shadow: Path) -> Sequence[str]:
    """Runs `moldau` with its data on such a disk."""
    return (sys.executable, "-m", "moldau.testing.power_loss", str(data_dir), str(shadow))


def hold(shadow: Path) -> None:
    """From now on no fsync ends, and nothing more is synced."""
    (shadow / _HOLD).touch()


def _main(data_dir: str, shadow: str, *arguments: str) -> None:
    disk = PowerLossDisk(Path(data_dir), Path(shadow))
    boot_id = Path(shadow) / "boot_id"
    boot_id.write_text(shadow)
    incarnation.BOOT_ID_FILE = boot_id
    sys.argv = ["moldau", *arguments]
    with disk.installed():
        runpy.run_module("moldau", run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
