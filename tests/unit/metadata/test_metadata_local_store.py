from __future__ import annotations

import errno
import os
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import moldau.disk
from moldau.errors import FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, PartitionRecord, ProducerIdsRecord, Record, TopicRecord
from moldau.metadata.stores.local_store import LocalStore
from moldau.metadata.stores.store import Candidate, ControllerTerm

ME = Candidate(1, "localhost", 9092)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.log"


def topic(number: int, partitions: int = 2) -> list[Record]:
    topic_id = uuid.UUID(int=number)
    return [
        TopicRecord(f"topic-{number}", topic_id),
        *(PartitionRecord(topic_id, index, (1,), (1,), leader=1) for index in range(partitions)),
    ]


class Controlled:
    """A store whose controller we are, and the image of it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = LocalStore(path, **options)
        self.store.open()
        told: list[ControllerTerm | None] = []
        self.store.campaign(ME, told.append)
        assert told[-1] is not None
        self.epoch = told[-1].epoch
        self.image = self.store.load(self.epoch)

    def append(self, records: list[Record]) -> MetadataImage:
        image = self.image.apply(records)
        self.store.append(self.epoch, records, image)
        self.image = image
        return image

    def close(self) -> None:
        self.store.close()


def filled(path: Path, topics: int) -> list[tuple[int, MetadataImage]]:
    """A store of some topics; for every append the file's size behind it and the image with it."""
    store = Controlled(path)
    steps = [(path.stat().st_size, store.image)]
    for number in range(1, topics + 1):
        image = store.append(topic(number))
        steps.append((path.stat().st_size, image))
    store.close()
    return steps


def reopened(path: Path) -> MetadataImage:
    store = Controlled(path)
    store.close()
    return store.image


def test_a_new_store_is_empty_and_stays_so(path: Path) -> None:
    assert reopened(path) == MetadataImage()
    assert reopened(path).version == 0


def test_what_was_appended_is_there_after_a_restart(path: Path) -> None:
    (_, image) = filled(path, 3)[-1]
    assert reopened(path) == image
    assert image.version == 9
    assert list(image.topics) == ["topic-1", "topic-2", "topic-3"]


def test_append_continues_after_a_restart(path: Path) -> None:
    filled(path, 2)
    store = Controlled(path)
    image = store.append([ConfigRecord("topic", "topic-1", "retention.ms", "5")])
    store.close()
    assert image.version == 7
    assert reopened(path) == image


def test_nothing_to_append_writes_nothing(path: Path) -> None:
    store = Controlled(path)
    image = store.image
    size = path.stat().st_size
    assert store.append([]) == image
    assert path.stat().st_size == size
    store.close()


def test_append_is_fsynced_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Controlled(path)
    synced: list[int] = []
    monkeypatch.setattr(moldau.disk, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    store.append(topic(1))
    assert synced == [path.stat().st_size]
    store.close()


def test_a_torn_last_append_is_cut_off_wherever_it_tore(path: Path) -> None:
    steps = filled(path, 3)
    data = path.read_bytes()
    (second, image), (end, last) = steps[-2], steps[-1]
    for length in range(second, end):
        path.write_bytes(data[:length])
        store = Controlled(path)
        assert store.image == image, length
        assert path.stat().st_size == second
        assert store.append(topic(3)) == last
        store.close()
        assert path.read_bytes()[:second] == data[:second]
        assert reopened(path) == last


def test_a_last_append_with_holes_is_cut_off(path: Path) -> None:
    steps = filled(path, 2)
    data = path.read_bytes()
    (first, image), (end, _) = steps[-2], steps[-1]
    for hole in (
        slice(first, end),
        slice(first, first + 10),
        slice(end - 10, end),
        slice(first + 5, end - 1),
    ):
        broken = bytearray(data)
        broken[hole] = bytes(hole.stop - hole.start)
        path.write_bytes(broken)
        assert reopened(path) == image


def test_damage_before_the_last_append_stops_the_start_and_changes_nothing(path: Path) -> None:
    steps = filled(path, 3)
    data = path.read_bytes()
    for position in range(steps[-2][0]):
        broken = bytearray(data)
        broken[position] ^= 0x04
        path.write_bytes(broken)
        with pytest.raises(StorageError, match="is damaged at byte") as caught:
            LocalStore(path).open()
        assert str(path) in caught.value.message
        assert path.read_bytes() == broken


def test_damage_in_the_last_append_is_not_taken_for_a_torn_one(path: Path) -> None:
    steps = filled(path, 2)
    data = path.read_bytes()
    (start, _), (end, _) = steps[-2], steps[-1]
    for position in range(start, end - 1):
        broken = bytearray(data)
        broken[position] ^= 0x04
        path.write_bytes(broken)
        with pytest.raises(StorageError, match=f"is damaged at byte {start}: its checksum does not match"):
            LocalStore(path).open()


def test_a_missing_append_is_noticed(path: Path) -> None:
    steps = filled(path, 3)
    data = path.read_bytes()
    path.write_bytes(data[: steps[1][0]] + data[steps[2][0] :])
    with pytest.raises(StorageError, match=f"damaged at byte {steps[1][0]}: expected version 6, found 9"):
        LocalStore(path).open()


def test_an_empty_file_is_not_taken_for_a_new_store(path: Path) -> None:
    path.touch()
    with pytest.raises(StorageError, match="it is empty"):
        LocalStore(path).open()


def test_a_file_of_a_later_format_is_refused(path: Path) -> None:
    body = b'{"format":2,"version":0,"records":[]}'
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    with pytest.raises(StorageError, match="unsupported format 2, expected 1"):
        LocalStore(path).open()


def test_records_that_do_not_fit_are_not_written(path: Path) -> None:
    store = Controlled(path)
    store.append(topic(1))
    data = path.read_bytes()
    with pytest.raises(StorageError):
        store.append(topic(1))
    assert path.read_bytes() == data
    assert store.append(topic(2)).version == 6
    store.close()


def test_a_controller_that_does_not_know_all_records_cannot_append(path: Path) -> None:
    store = Controlled(path)
    store.append(topic(1))
    data = path.read_bytes()
    with pytest.raises(StorageError, match="3 records after version 3 do not lead to version 3"):
        store.store.append(store.epoch, topic(2), MetadataImage().apply(topic(2)))
    assert path.read_bytes() == data
    store.close()


class TestEpochs:
    def test_they_grow_over_restarts(self, path: Path) -> None:
        epochs = []
        for number in range(1, 4):
            store = Controlled(path)
            store.append(topic(number))
            store.close()
            epochs.append(store.epoch)
        assert epochs == [1, 2, 3]

    def test_a_snapshot_keeps_them(self, path: Path) -> None:
        for number in range(1, 4):
            store = Controlled(path, snapshot_min_bytes=0)
            store.append(topic(number))
            store.close()
        assert store.epoch == 3

    def test_a_file_from_before_there_were_epochs_is_read(self, path: Path) -> None:
        body = b'{"format":1,"version":0,"records":[]}'
        path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
        store = Controlled(path)
        assert store.epoch == 1
        store.close()

    def test_a_start_writes_nothing_to_a_file_that_is_there(self, path: Path) -> None:
        filled(path, 1)
        before = path.stat()
        reopened(path)
        assert path.stat() == before

    def test_another_epoch_reads_and_writes_nothing(self, path: Path) -> None:
        store = Controlled(path)
        data = path.read_bytes()
        image = store.image.apply(topic(1))
        for epoch in (store.epoch - 1, store.epoch + 1):
            with pytest.raises(FencedControllerError):
                store.store.append(epoch, topic(1), image)
            with pytest.raises(FencedControllerError):
                store.store.load(epoch)
        assert path.read_bytes() == data
        store.close()

    def test_who_resigned_can_write_no_more(self, path: Path) -> None:
        store = Controlled(path)
        store.store.resign()
        with pytest.raises(FencedControllerError):
            store.append(topic(1))
        store.close()


class TestSnapshots:
    def test_a_long_file_becomes_a_short_one(self, path: Path) -> None:
        store = Controlled(path, snapshot_min_bytes=2_000)
        sizes = []
        for number in range(1, 400):
            image = store.append([ProducerIdsRecord(number * 1000)])
            sizes.append(path.stat().st_size)
        store.close()
        assert max(sizes) < 3_000
        assert image.version == 399
        assert reopened(path) == image

    def test_the_snapshot_holds_everything(self, path: Path) -> None:
        store = Controlled(path, snapshot_min_bytes=0)
        for number in range(1, 20):
            image = store.append([*topic(number), ConfigRecord("topic", f"topic-{number}", "x", "é\n")])
            assert reopened(path) == image
        store.close()
        assert not path.with_name(path.name + ".tmp").exists()

    def test_a_crash_while_writing_one_leaves_the_file_in_force(self, path: Path) -> None:
        (_, image) = filled(path, 2)[-1]
        beside = path.with_name(path.name + ".tmp")
        beside.write_bytes(b"half a snap")
        assert reopened(path) == image
        assert not beside.exists()

    @pytest.mark.parametrize("function", ["replace", "open"])
    def test_one_that_fails_does_not_fail_the_append(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        store = Controlled(path, snapshot_min_bytes=0)
        with monkeypatch.context() as patched:
            patched.setattr(os, function, _fails(errno.ENOSPC))
            store.append(topic(1))
            store.append(topic(2))
        image = store.append(topic(3))
        store.close()
        assert reopened(path) == image
        assert len(image.topics) == 3


class TestFailingDisk:
    def test_a_full_disk_leaves_the_store_as_it_was(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Controlled(path)
        before = store.append(topic(1))
        data = path.read_bytes()
        real = os.pwrite
        calls = 0

        def half_then_full(fd: int, line: bytes, position: int) -> int:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, line[: len(line) // 2], position)

        with monkeypatch.context() as patched:
            patched.setattr(moldau.disk, "pwrite", half_then_full)
            with pytest.raises(StorageError, match="No space left on device"):
                store.append(topic(2))
        assert path.read_bytes() == data
        assert store.append([]) == before
        after = store.append(topic(2))
        store.close()
        assert reopened(path) == after

    def test_short_writes_are_continued(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Controlled(path)
        real = os.pwrite
        with monkeypatch.context() as patched:
            patched.setattr(moldau.disk, "pwrite", lambda fd, line, position: real(fd, line[:7], position))
            image = store.append(topic(1))
        store.close()
        assert reopened(path) == image

    def test_after_a_failed_fsync_nothing_is_promised_any_more(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Controlled(path)
        with monkeypatch.context() as patched:
            patched.setattr(moldau.disk, "fsync", _fails(errno.EIO))
            with pytest.raises(StorageError, match="restart"):
                store.append(topic(1))
        with pytest.raises(StorageError, match="is not open"):
            store.append(topic(2))

    def test_a_line_that_cannot_be_taken_back_ends_the_writing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Controlled(path)
        before = store.image
        real = os.pwrite
        with monkeypatch.context() as patched:
            patched.setattr(moldau.disk, "ftruncate", _fails(errno.EIO))

            def half(fd: int, line: bytes, position: int) -> int:
                real(fd, line[:20], position)
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            patched.setattr(moldau.disk, "pwrite", half)
            with pytest.raises(StorageError, match="cannot write metadata"):
                store.append(topic(1))
        with pytest.raises(StorageError, match="is not open"):
            store.append(topic(2))
        assert reopened(path) == before

    def test_a_closed_store_says_so(self, path: Path) -> None:
        store = Controlled(path)
        store.close()
        store.close()
        with pytest.raises(StorageError, match="is not open"):
            store.append(topic(1))


def _fails(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail
