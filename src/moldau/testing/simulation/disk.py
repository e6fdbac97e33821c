"""A disk in memory that dies as real ones do: with its process, without power, full, or failing.

    disk = SimulatedDisk()
    logs = LogManager([Path("/data")], …, disk=disk.mount())
    ...
    disk.kill()                  # the process is gone: what it wrote stays, its files and locks are void
    disk.lose_power(rng)         # the machine is: only what was synced stays for sure
    logs = LogManager([Path("/data")], …, disk=disk.mount())

What POSIX promises after a power loss, and what it leaves open:

    file content     as of its last sync, or with the changes since then: all of them, or a part, cut at any byte or
                     sector, or with zeros in some sectors. What was cut off or overwritten never follows newer data:
                     file systems write the size and the data of a file in an order that prevents it.
    names            as of the last sync of their directory. Of the later changes in a directory the first few may
                     have been made: a rename is made whole or not at all.

Without `rng`, nothing is left of what was not synced. Directories made with `parents=True` are durable at once, as if
somebody had made them before the broker came. Listings are sorted, and nothing depends on real time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from random import Random

from moldau.disk import AnyPath, Data, File, Lock, LockedError, Space

SECTOR_BYTES = 512
TOTAL_BYTES = 1 << 40
_CLEAN = 1 << 62
"""No byte of the file was changed since its last sync."""


class SimulatedDisk:
    def __init__(self, clock_s: Callable[[], float] = lambda: 0.0) -> None:
        self.clock_s = clock_s
        """For the times at which files were modified."""
        self.root = _Directory()
        self.locks: set[str] = set()
        self.bytes_left: int | None = None
        """What fits before the disk is full; None: anything."""
        self.can_write = self.can_read = True
        self._mount: Mount | None = None

    def mount(self) -> Mount:
        """The disk as one process sees it: void once that is killed, or another process mounts it."""
        self.kill()
        self._mount = Mount(self)
        return self._mount

    def kill(self) -> None:
        """The process dies. Nothing that still runs of it can change the disk, or read it."""
        if self._mount is not None:
            self._mount.is_dead = self._mount.is_faulty = True
            self._mount = None
        self.locks.clear()

    def lose_power(self, rng: Random | None = None) -> None:
        """The machine dies, and with it what was not synced: all of that, or what `rng` chooses."""
        self.kill()
        _lose_unsynced(self.root, rng)

    # -- faults

    def fill(self, bytes_left: int = 0) -> None:
        """After so many bytes more, writes fail with ENOSPC; what is deleted makes room."""
        self.bytes_left = bytes_left

    def fail(self, *, reads: bool = True) -> None:
        """Writes and syncs fail with EIO, and `reads` too, until `heal`."""
        self.can_write, self.can_read = False, not reads
        self._note_faults()

    def heal(self) -> None:
        """Neither full nor failing, and nobody dies of an operation."""
        self.bytes_left = None
        if self._mount is not None:
            self._mount.last_operations = None
        self.can_write = self.can_read = True
        self._note_faults()

    def kill_after(self, operations: int, kill: Callable[[], None]) -> None:
        """The process dies in the middle of what it does: after so many operations more `kill` is called."""
        if self._mount is not None:
            self._mount.last_operations = (operations, kill)
            self._note_faults()

    def _note_faults(self) -> None:
        mount = self._mount
        if mount is not None:
            mount.is_faulty = not self.can_write or not self.can_read or mount.last_operations is not None

    def contents(self) -> dict[str, bytes]:
        """Every file, as a process sees it now."""
        return dict(_walk(self.root, ""))

    def take(self, wanted: int) -> int:
        """How many of the bytes fit."""
        if self.bytes_left is None:
            return wanted
        taken = min(wanted, self.bytes_left)
        self.bytes_left -= taken
        return taken

    def give_back(self, count: int) -> None:
        if self.bytes_left is not None:
            self.bytes_left += count


class _File:
    __slots__ = ("data", "dirty_from", "modified_s", "synced")

    def __init__(self, modified_s: float) -> None:
        self.data = bytearray()
        self.synced = bytearray()
        self.dirty_from = _CLEAN
        self.modified_s = modified_s

    def sync(self) -> None:
        if self.dirty_from != _CLEAN:
            self.synced[self.dirty_from :] = memoryview(self.data)[self.dirty_from :]
            self.dirty_from = _CLEAN

    def lose_unsynced(self, rng: Random | None) -> None:
        if self.dirty_from != _CLEAN:
            self.data = self.synced if rng is None else bytearray(self._left_over(rng))
            self.synced = self.data[:]
            self.dirty_from = _CLEAN

    def _left_over(self, rng: Random) -> bytearray:
        data, start = self.data, self.dirty_from
        kind = rng.choice(("lost", "kept", "torn", "holes"))
        if kind in {"lost", "kept"}:
            return self.synced if kind == "lost" else data
        size = rng.randint(start, len(data))
        if rng.random() < 0.5:
            size = max(start, size - size % SECTOR_BYTES)
        left = data[:size]
        if kind == "holes":  # the new size reaches the disk before all of the data does
            left += bytes(len(data) - size)
            for sector in range(start - start % SECTOR_BYTES, size, SECTOR_BYTES):
                if rng.random() < 0.3:
                    first, end = max(sector, start), min(sector + SECTOR_BYTES, size)
                    left[first:end] = bytes(end - first)
        return left


class _Directory:
    __slots__ = ("entries", "pending", "synced")

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.synced: dict[str, _Node] = {}
        self.pending: list[dict[str, _Node | None]] = []
        """Each of the changes since the last sync: names that came, and None for those that went."""

    def change(self, names: dict[str, _Node | None]) -> None:
        self.pending.append(names)
        _apply(names, self.entries)

    def sync(self) -> None:
        for names in self.pending:
            _apply(names, self.synced)
        self.pending.clear()


_Node = _File | _Directory


def _apply(names: dict[str, _Node | None], entries: dict[str, _Node]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _lose_unsynced(directory: _Directory, rng: Random | None) -> None:
    if rng is not None and directory.pending:
        del directory.pending[rng.randint(0, len(directory.pending)) :]
        directory.sync()
    directory.pending.clear()
    directory.entries = dict(directory.synced)
    for _, node in sorted(directory.entries.items()):
        if isinstance(node, _Directory):
            _lose_unsynced(node, rng)
        else:
            node.lose_unsynced(rng)


def _walk(directory: _Directory, path: str) -> Iterator[tuple[str, bytes]]:
    for name, node in sorted(directory.entries.items()):
        if isinstance(node, _Directory):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", bytes(node.data)


def _error(number: int, path: AnyPath | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [os.fspath(path)]))


class Mount:
    """A `Disk` for one life of a process."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.is_dead = False
        self.is_faulty = not disk.can_write or not disk.can_read
        self.last_operations: tuple[int, Callable[[], None]] | None = None
        """How many are left to it, and what happens then."""

    def check(self, *, is_read: bool = False) -> None:
        """OSError if the process is dead or the disk fails; callers look at `is_faulty` first."""
        if self.last_operations is not None and not self.is_dead:
            left, kill = self.last_operations
            self.last_operations = (left - 1, kill)
            if left <= 0:
                kill()
                self.is_dead = True
        if self.is_dead:
            raise _error(errno.ESTALE)
        if not (self._disk.can_read if is_read else self._disk.can_write):
            raise _error(errno.EIO)

    # -- finding

    def _find(self, path: AnyPath) -> _Node:
        node: _Node = self._disk.root
        for name in os.fspath(path).split("/"):
            if name:
                if not isinstance(node, _Directory):
                    raise _error(errno.ENOTDIR, path)
                found = node.entries.get(name)
                if found is None:
                    raise _error(errno.ENOENT, path)
                node = found
        return node

    def _find_to_read(self, path: AnyPath) -> _Node:
        if self.is_faulty:
            self.check(is_read=True)
        return self._find(path)

    def _find_file(self, path: AnyPath) -> _File:
        node = self._find_to_read(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _find_directory(self, path: AnyPath) -> _Directory:
        node = self._find_to_read(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: AnyPath) -> tuple[_Directory, str]:
        """The directory to change, and the name in it."""
        if self.is_faulty:
            self.check()
        parent, _, name = os.fspath(path).rpartition("/")
        return self._find_directory(parent), name

    # -- files

    def open(
        self,
        path: AnyPath,
        *,
        write: bool = False,
        create: bool = False,
        truncate: bool = False,
        exclusive: bool = False,
    ) -> File:
        if create or truncate:
            self._prepare(path, create=create, truncate=truncate, exclusive=exclusive)
        return _Handle(self, self._disk, self._find_file(path))

    def _prepare(self, path: AnyPath, *, create: bool, truncate: bool, exclusive: bool) -> None:
        parent, name = self._place(path)
        node = parent.entries.get(name)
        if node is None and create:
            parent.change({name: _File(self._disk.clock_s())})
        elif node is not None and exclusive:
            raise _error(errno.EEXIST, path)
        elif isinstance(node, _File) and truncate:
            _Handle(self, self._disk, node).truncate(0)

    def sync(self, path: AnyPath) -> None:
        if self.is_faulty:
            self.check()
        try:
            node = self._find(path)
        except FileNotFoundError:
            return
        node.sync()

    def truncate(self, path: AnyPath, size: int) -> None:
        self.open(path, write=True).truncate(size)

    def size(self, path: AnyPath) -> int:
        return len(self._find_file(path).data)

    def modified_s(self, path: AnyPath) -> float:
        return self._find_file(path).modified_s

    # -- names

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        parent, name = self._place(source)
        other, new_name = self._place(target)
        node, replaced = parent.entries.get(name), other.entries.get(new_name)
        if node is None:
            raise _error(errno.ENOENT, source)
        if replaced is node:
            return
        if isinstance(replaced, _Directory):
            if isinstance(node, _File):
                raise _error(errno.EISDIR, target)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        elif replaced is not None:
            if isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, target)
            self._disk.give_back(len(replaced.data))
        if parent is other:
            parent.change({name: None, new_name: node})
        else:
            parent.change({name: None})
            other.change({new_name: node})

    def remove(self, path: AnyPath) -> None:
        try:
            parent, name = self._place(path)
        except FileNotFoundError:
            return
        node = parent.entries.get(name)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is not None:
            parent.change({name: None})
            self._disk.give_back(len(node.data))

    def exists(self, path: AnyPath) -> bool:
        if self.is_dead:
            self.check()
        try:
            self._find_to_read(path)
        except OSError:  # of any kind, as `os.path.exists` has it
            return False
        return True

    def names(self, directory: AnyPath) -> list[str]:
        return sorted(self._find_directory(directory).entries)

    def subdirectories(self, directory: AnyPath) -> list[str]:
        entries = self._find_directory(directory).entries
        return sorted(name for name, node in entries.items() if isinstance(node, _Directory))

    def make_directory(self, directory: AnyPath, *, parents: bool = False) -> None:
        if parents:
            self._make_parents(directory)
            return
        parent, name = self._place(directory)
        if name in parent.entries:
            raise _error(errno.EEXIST, directory)
        parent.change({name: _Directory()})

    def _make_parents(self, directory: AnyPath) -> None:
        if self.is_faulty:
            self.check()
        node: _Node = self._disk.root
        for name in filter(None, os.fspath(directory).split("/")):
            if isinstance(node, _Directory):
                if name not in node.entries:
                    node.entries[name] = node.synced[name] = _Directory()
                node = node.entries[name]
        if isinstance(node, _File):
            raise _error(errno.EEXIST, directory)

    def remove_tree(self, directory: AnyPath) -> None:
        try:
            parent, name = self._place(directory)
            gone = self._find_directory(directory)
        except OSError:
            return
        parent.change({name: None})
        self._disk.give_back(sum(len(data) for _, data in _walk(gone, "")))

    # -- the disk

    def space(self, directory: AnyPath) -> Space:
        self._find_directory(directory)
        left = self._disk.bytes_left
        return Space(TOTAL_BYTES, TOTAL_BYTES if left is None else left)

    def lock(self, path: AnyPath) -> Lock:
        if self.is_faulty:
            self.check()
        key = os.fspath(path)
        if key in self._disk.locks:
            raise LockedError(None)
        self.open(path, write=True, create=True).close()
        self._disk.locks.add(key)
        return _Lock(self, self._disk, key)


class _Lock:
    def __init__(self, mount: Mount, disk: SimulatedDisk, key: str) -> None:
        self._mount = mount
        self._disk = disk
        self._key = key

    def release(self) -> None:
        if not self._mount.is_dead:  # else its lock is gone, and this one is another's
            self._disk.locks.discard(self._key)


class _Handle:
    """A `File`."""

    __slots__ = ("_disk", "_file", "_is_closed", "_mount")

    def __init__(self, mount: Mount, disk: SimulatedDisk, file: _File) -> None:
        self._mount = mount
        self._disk = disk
        self._file = file
        self._is_closed = False

    def _check(self, *, is_read: bool = False) -> None:
        if self._mount.is_faulty:
            self._mount.check(is_read=is_read)
        if self._is_closed:
            raise _error(errno.EBADF)

    def read(self, size: int, position: int) -> bytes:
        if self._mount.is_faulty or self._is_closed:
            self._check(is_read=True)
        return bytes(memoryview(self._file.data)[position : position + size])

    def write(self, data: Data, position: int) -> None:
        if self._mount.is_faulty or self._is_closed:
            self._check()
        disk, file = self._disk, self._file
        content, wanted = file.data, len(data)
        size = len(content)
        growth = position + wanted - size
        if growth > 0 and disk.bytes_left is not None:
            data = memoryview(data)[: max(0, wanted - growth + disk.take(growth))]
        if position < size:
            content[position : position + len(data)] = data
        else:
            content += bytes(position - size)
            content += data
        file.dirty_from = min(file.dirty_from, position, size)
        file.modified_s = disk.clock_s()
        if len(data) < wanted:
            raise _error(errno.ENOSPC)

    def truncate(self, size: int) -> None:
        self._check()
        file = self._file
        before = len(file.data)
        if size < before:
            del file.data[size:]
            self._disk.give_back(before - size)
        elif size > before:
            if self._disk.take(size - before) < size - before:
                raise _error(errno.ENOSPC)
            file.data += bytes(size - before)
        if size != before:
            file.dirty_from = min(file.dirty_from, size, before)
            file.modified_s = self._disk.clock_s()

    def size(self) -> int:
        self._check(is_read=True)
        return len(self._file.data)

    def set_modified(self, modified_s: float) -> None:
        self._check()
        self._file.modified_s = modified_s

    def sync(self) -> None:
        self._check()
        self._file.sync()

    def close(self) -> None:
        self._is_closed = True
