"""The disk of the simulation: it does what the real one does, and loses what a real one may lose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from moldau.disk import OS_DISK, Disk, File, LockedError, read_file, replace_file, write_file
from moldau.testing.simulation.disk import Mount, SimulatedDisk

NAMES = ("a", "b", "a/x", "a/y", "b/x", "a/c", "a/c/x", "missing/x")


class Twin:
    """The same operations on a real folder and on a simulated disk; both must answer alike."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.simulated: Disk = SimulatedDisk().mount()
        self.simulated.make_directory(root, parents=True)
        self.disks = (OS_DISK, self.simulated)
        self.handles: list[tuple[File, File]] = []

    def both(self, operation: Callable[[Disk], Any]) -> Any:
        outcomes = [_outcome(operation, disk) for disk in self.disks]
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def step(self, rng: Random) -> None:
        path, other = (self.root / rng.choice(NAMES) for _ in range(2))
        data, size = rng.randbytes(rng.randrange(2000)), rng.randrange(3000)
        sync = rng.random() < 0.05  # it takes time
        operations: dict[str, Callable[[Disk], Any]] = {
            "write_file": lambda disk: write_file(disk, path, data, sync=sync),
            "replace_file": lambda disk: replace_file(disk, path, data, sync=sync),
            "read_file": lambda disk: read_file(disk, path),
            "exclusive": lambda disk: disk.open(path, write=True, create=True, exclusive=True).close(),
            "make_directory": lambda disk: disk.make_directory(path),
            "make_parents": lambda disk: disk.make_directory(path, parents=True),
            "remove": lambda disk: disk.remove(path),
            "remove_tree": lambda disk: disk.remove_tree(path),
            "rename": lambda disk: disk.rename(path, other),
            "truncate": lambda disk: disk.truncate(path, size),
            "exists": lambda disk: disk.exists(path),
            "names": lambda disk: sorted(disk.names(path)),
            "subdirectories": lambda disk: sorted(disk.subdirectories(path)),
        }
        name = rng.choice([*operations, "open", "open", *["use"] * 10])
        if name == "open" and all(disk.exists(path) and not _is_directory(disk, path) for disk in self.disks):
            self.handles.append((OS_DISK.open(path, write=True), self.simulated.open(path, write=True)))
        elif name in operations:
            if name == "rename" and str(other).startswith(f"{path}/"):
                return  # a directory into itself
            self.both(operations[name])
        elif self.handles:
            self.use(rng, rng.choice(self.handles), data, size)

    def use(self, rng: Random, pair: tuple[File, File], data: bytes, position: int) -> None:
        work: Callable[[File], Any] = rng.choice([
            lambda file: file.write(data, position), lambda file: file.write(memoryview(data), file.size()),
            lambda file: file.read(len(data), position), lambda file: file.truncate(position),
            lambda file: file.size(),
        ])  # fmt: skip
        assert work(pair[0]) == work(pair[1])

    def check(self) -> None:
        files = {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        assert {str(path): read_file(self.simulated, path) for path in map(Path, files)} == files
        directories = {path for path in self.root.rglob("*") if path.is_dir()}
        for path in (self.root, *directories):
            assert self.simulated.names(path) == sorted(each.name for each in path.iterdir())

    def close(self) -> None:
        for pair in self.handles:
            for file in pair:
                file.close()


def _is_directory(disk: Disk, path: Path) -> bool:
    try:
        disk.names(path)
    except NotADirectoryError:
        return False
    return True


def _outcome(operation: Callable[[Disk], Any], disk: Disk) -> Any:
    try:
        return operation(disk)
    except OSError as error:
        # Which of several reasons a kernel names first is not what anybody goes by.
        return "missing" if isinstance(error, FileNotFoundError) else "refused"


@pytest.mark.parametrize("seed", range(25))
def test_it_does_what_the_real_disk_does(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    twin = Twin(tmp_path / "root")
    twin.root.mkdir()
    for _ in range(150):
        twin.step(rng)
    twin.check()
    twin.close()
    shutil.rmtree(twin.root)


def disk_with(path: str = "/data/file", content: bytes = b"old") -> tuple[SimulatedDisk, Mount]:
    """A file that is on the disk for good."""
    disk = SimulatedDisk()
    mount = disk.mount()
    mount.make_directory("/data", parents=True)
    write_file(mount, path, content, sync=True)
    mount.sync("/data")
    return disk, mount


def test_a_killed_process_leaves_what_it_wrote() -> None:
    disk, mount = disk_with()
    write_file(mount, "/data/new", b"unsynced")
    disk.kill()
    assert disk.contents() == {"/data/file": b"old", "/data/new": b"unsynced"}


@pytest.mark.parametrize("end", ["kill", "lose_power", "mount"])
def test_what_is_left_of_a_dead_process_can_do_nothing(end: str) -> None:
    disk, mount = disk_with()
    file = mount.open("/data/file", write=True)
    lock = mount.lock("/data/.lock")
    getattr(disk, end)()
    before = disk.contents()
    attempts: list[Callable[[], object]] = [
        lambda: file.write(b"late", 0), lambda: file.read(1, 0), lambda: file.truncate(0), file.sync,
        file.size, lambda: file.set_modified(1.0), lambda: mount.open("/data/file"),
        lambda: mount.open("/data/new", write=True, create=True), lambda: mount.remove("/data/file"),
        lambda: mount.rename("/data/file", "/data/other"), lambda: mount.truncate("/data/file", 0),
        lambda: mount.make_directory("/data/d"), lambda: mount.make_directory("/x/y", parents=True),
        lambda: mount.exists("/data/file"), lambda: mount.names("/data"), lambda: mount.subdirectories("/data"),
        lambda: mount.size("/data/file"), lambda: mount.modified_s("/data/file"), lambda: mount.space("/data"),
        lambda: mount.sync("/data"), lambda: mount.lock("/data/.other"),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(OSError, match="Stale"):
            attempt()
    mount.remove_tree("/data")
    file.close()
    assert disk.contents() == before
    now = disk.mount()
    held = now.lock("/data/.lock")  # the dead one's is free
    lock.release()
    with pytest.raises(LockedError):
        now.lock("/data/.lock")
    held.release()
    now.lock("/data/.lock")


def test_without_power_only_what_was_synced_is_left() -> None:
    disk, mount = disk_with()
    write_file(mount, "/data/unnamed", b"synced, but not its name", sync=True)
    file = mount.open("/data/file", write=True)
    file.write(b"+ synced", 3)
    file.sync()
    file.write(b"+ not synced", 11)
    mount.make_directory("/data/lost")
    mount.remove("/data/file")
    disk.lose_power()
    assert disk.contents() == {"/data/file": b"old+ synced"}
    assert disk.mount().names("/data") == ["file"]


def test_a_file_that_was_cut_or_replaced_is_back_without_power() -> None:
    disk, mount = disk_with()
    replace_file(mount, "/data/file", b"new", sync=False)
    disk.lose_power()
    assert disk.contents() == {"/data/file": b"old"}
    disk.mount().truncate("/data/file", 1)
    disk.lose_power()
    assert disk.contents() == {"/data/file": b"old"}


def test_a_replaced_file_that_was_synced_is_there_without_power() -> None:
    disk, mount = disk_with()
    replace_file(mount, "/data/file", b"new")
    disk.lose_power()
    assert disk.contents() == {"/data/file": b"new"}


def test_what_was_not_synced_may_be_lost_kept_or_torn() -> None:
    outcomes = set()
    for seed in range(300):
        disk, mount = disk_with()
        mount.open("/data/file", write=True).write(b"x" * 2000, 3)
        disk.lose_power(Random(seed))
        content = disk.contents()["/data/file"]
        assert content.startswith(b"old")
        assert set(content[3:]) <= set(b"x\0")
        if 3 < len(content) < 2003:
            outcomes.add("sector" if len(content) % 512 == 0 else "byte")
        elif len(content) == 2003:
            outcomes.add("zeros" if 0 in content else "kept")
        else:
            outcomes.add("lost")
    assert outcomes == {"lost", "kept", "byte", "sector", "zeros"}


def test_changes_of_a_directory_are_lost_from_the_end() -> None:
    seen = set()
    for seed in range(50):
        disk, mount = disk_with()
        mount.rename("/data/file", "/data/renamed")
        write_file(mount, "/data/second", b"", sync=True)
        disk.lose_power(Random(seed))
        seen.add(tuple(disk.contents()))
    assert seen == {("/data/file",), ("/data/renamed",), ("/data/renamed", "/data/second")}


def test_the_same_seed_leaves_the_same() -> None:
    def left(seed: int) -> dict[str, bytes]:
        disk, mount = disk_with()
        for number in range(20):
            write_file(mount, f"/data/{number}", bytes([number]) * 1000, sync=number % 3 == 0)
        disk.lose_power(Random(seed))
        return disk.contents()

    assert left(1) == left(1)
    assert left(1) != left(2)


def test_a_full_disk_takes_what_fits_and_more_when_something_is_deleted() -> None:
    disk, mount = disk_with()
    disk.fill(5)
    file = mount.open("/data/file", write=True)
    file.write(b"OLD", 0)  # in place
    with pytest.raises(OSError, match="No space left"):
        file.write(b"123456789", 3)
    assert disk.contents() == {"/data/file": b"OLD12345"}
    assert mount.space("/data").usable_bytes == 0
    file.truncate(3)
    file.write(b"12345", 3)
    mount.remove("/data/file")
    write_file(mount, "/data/other", b"12345678")
    disk.heal()
    write_file(mount, "/data/file", bytes(100))


@pytest.mark.parametrize("reads", [True, False])
def test_a_failing_disk_fails_until_it_is_healed(reads: bool) -> None:
    disk, mount = disk_with()
    file = mount.open("/data/file", write=True)
    disk.fail(reads=reads)
    attempts: list[Callable[[], object]] = [lambda: file.write(b"x", 0), file.sync, lambda: mount.sync("/data")]
    attempts.append(lambda: mount.remove("/data/file"))
    for attempt in attempts:
        with pytest.raises(OSError, match="Input/output"):
            attempt()
    if reads:
        with pytest.raises(OSError, match="Input/output"):
            file.read(3, 0)
    else:
        assert file.read(3, 0) == b"old"
    with pytest.raises(OSError, match="Input/output"):
        disk.mount().make_directory("/data/d")  # a new process finds it no better
    disk.heal()
    assert read_file(disk.mount(), "/data/file") == b"old"


def test_a_process_can_die_between_two_operations() -> None:
    disk = SimulatedDisk()
    mount = disk.mount()
    mount.make_directory("/data", parents=True)
    file = mount.open("/data/file", write=True, create=True)
    disk.kill_after(2, disk.kill)

    def write() -> None:
        for number in range(5):
            file.write(b"x", number)

    with pytest.raises(OSError, match=r"[Ss]tale"):
        write()
    assert disk.contents() == {"/data/file": b"xx"}
