"""The files of the shared store; elections between processes: tests/integration/cluster/test_metadata_stores.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import moldau.disk
from moldau.errors import FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ProducerIdsRecord, Record
from moldau.metadata.stores.claims import Claim, Claims
from moldau.metadata.stores.shared_store import SharedStore
from moldau.metadata.stores.store import Candidate, ControllerTerm


class Controlled:
    """A store whose controller we are."""

    def __init__(self, folder: Path) -> None:
        self.store = SharedStore(folder)
        self.store.open()
        self.told: list[ControllerTerm | None] = []
        self.store.campaign(Candidate(1, "localhost", 9092), self.told.append)
        self._until_elected()
        self.image = self.store.load(self.epoch)

    @property
    def epoch(self) -> int:
        assert self.told[-1] is not None
        return self.told[-1].epoch

    def append(self, next_producer_id: int) -> None:
        records: list[Record] = [ProducerIdsRecord(next_producer_id)]
        image = self.image.apply(records)
        self.store.append(self.epoch, records, image)
        self.image = image

    def _until_elected(self) -> None:
        deadline_s = time.monotonic() + 10
        while self.told[-1] is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)


@pytest.fixture
def controlled(tmp_path: Path) -> Iterator[Controlled]:
    controller = Controlled(tmp_path)
    yield controller
    controller.store.close()


def reloaded(folder: Path) -> MetadataImage:
    again = Controlled(folder)
    again.store.close()
    return again.image


def depose(folder: Path, epoch: int) -> None:
    claims = Claims(folder / "controllers")
    claims.open()
    assert claims.add(Claim(epoch, 2, "localhost", 9093, "other"))
    claims.close()


def test_each_controller_writes_a_file_of_its_own_and_removes_the_earlier_ones(tmp_path: Path) -> None:
    for life in range(1, 4):
        controller = Controlled(tmp_path)
        controller.append(life)
        controller.store.close()
        assert [path.name for path in tmp_path.glob("metadata-*")] == [f"metadata-{life:010d}.jsonl"]


def test_the_torn_tail_of_a_predecessor_is_left_out(tmp_path: Path, controlled: Controlled) -> None:
    controlled.append(5)
    controlled.store.close()
    (file,) = tmp_path.glob("metadata-*.jsonl")
    whole = file.read_bytes()
    with open(file, "ab") as torn:
        torn.write(whole[-40:-10])
    assert reloaded(tmp_path) == controlled.image


def test_damage_stops_the_next_controller(tmp_path: Path, controlled: Controlled) -> None:
    controlled.append(5)
    controlled.store.close()
    (file,) = tmp_path.glob("metadata-*.jsonl")
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match="is damaged at byte 0"):
        Controlled(tmp_path)
    assert file.read_bytes() == data


def test_who_is_deposed_between_writing_and_looking_acknowledges_nothing(
    tmp_path: Path, controlled: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled.append(1)
    epoch = controlled.epoch
    real = os.fsync

    def fsync_and_be_deposed(fd: int) -> None:
        real(fd)
        depose(tmp_path, epoch + 1)

    monkeypatch.setattr(moldau.disk, "fsync", fsync_and_be_deposed)
    with pytest.raises(FencedControllerError):
        controlled.append(2)


def test_a_deposed_controller_that_goes_on_writing_a_snapshot_disturbs_nobody(tmp_path: Path) -> None:
    old = Controlled(tmp_path)
    old.append(1)
    journal = old.store._journal
    assert journal is not None
    depose(tmp_path, 2)
    successor = tmp_path / "metadata-0000000002.jsonl"
    successor.write_bytes((tmp_path / "metadata-0000000001.jsonl").read_bytes())
    (tmp_path / "metadata-0000000001.jsonl").unlink()
    journal._write_snapshot(old.image.apply([ProducerIdsRecord(99)]), 1)
    old.store.close()
    assert reloaded(tmp_path).next_producer_id == 1


def test_append_before_load_is_refused(tmp_path: Path, controlled: Controlled) -> None:
    controlled.store._journal = None
    with pytest.raises(StorageError, match="has not loaded the metadata"):
        controlled.append(1)
