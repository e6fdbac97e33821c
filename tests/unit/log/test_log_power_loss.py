"""The power fails: whatever a log said to be on the disk is there afterwards, and nothing else than was written.

Real logs on a disk that keeps what was forced to it, and of the rest none or anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from moldau.disk import OS_DISK, Disk
from moldau.log.manager import LogManager
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import AppendOrigin, read_marker
from moldau.testing.power_loss import PowerLossDisk
from moldau.testing.simulation.disk import SimulatedDisk
from tests.unit.log.log_helpers import (
    NOW_MS,
    TOPIC_ID,
    Clock,
    batch,
    log_of,
    manager_of,
    marker,
    read_all,
    topic_config,
)

BOOTS, STEPS = 4, 25


class Machine:
    """One log, through several losses of power, and what has to be true of it after each of them."""

    def __init__(self, folder: Path, random: Random, *, flush_messages: int, is_strict: bool) -> None:
        self.folder = folder
        self.random = random
        self.config = topic_config(segment_bytes=600, flush_messages=flush_messages, file_delete_delay_ms=0)
        self.is_strict = is_strict
        """Nothing of what was not synced is left."""
        self.clock = Clock()
        self.data = folder / "boot-0"
        self.epoch = self.boots = self.safe_offset = 0
        self.sequence: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.ever: dict[int, set[bytes]] = {}
        """Every batch that was ever written at an offset."""
        self.expected: list[tuple[int, int, bytes]] = []
        """First and next offset of each batch that the log holds now, and its bytes."""

    def boot(self) -> None:
        self.disk = PowerLossDisk(self.data, self.folder / f"synced-{self.boots}")
        with self.disk.installed():
            manager = self.run(OS_DISK)
            for each in manager.logs.values():
                each.close_files()
            manager._unlock()
        self.boots += 1
        following = self.folder / f"boot-{self.boots}"
        self.disk.left_over(following, None if self.is_strict else self.random)
        self.data = following

    def run(self, disk: Disk) -> LogManager:
        manager = manager_of(self.data, config=self.config, clock=self.clock, single_replica=False, disk=disk)
        manager.open()
        if manager.get("t", 0) is None:
            assert not self.safe_offset
            manager.create("t", 0, TOPIC_ID, self.config)
        log = log_of(manager)
        self.check(log)
        for _ in range(STEPS):
            self.step(manager, log)
        return manager

    # -- what happens

    def step(self, manager: LogManager, log: PartitionLog) -> None:
        kinds = {self.append: 10, self.end_transaction: 3, self.flush: 4, self.roll: 1, self.truncate: 1,
                 self.delete: 1, self.new_epoch: 1}  # fmt: skip
        (step,) = self.random.choices(list(kinds), list(kinds.values()))
        step(log)
        if self.random.random() < 0.1:
            manager.checkpoint()
        assert log.durable_end_offset <= log.recovery_point or log.unflushed_messages < self.config.flush_messages

    def append(self, log: PartitionLog) -> None:
        producer = self.random.randrange(4)
        count = self.random.randint(1, 3)
        sequence = self.sequence.get(producer, 0)
        if producer:
            self.open_transactions.add(producer)
        records = batch(
            count,
            size=self.random.randint(1, 60),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=producer > 0,
        )
        self.sequence[producer] = sequence + count
        self._append(log, records, AppendOrigin.COORDINATOR)

    def end_transaction(self, log: PartitionLog) -> None:
        if self.open_transactions:
            producer = self.random.choice(sorted(self.open_transactions))
            self.open_transactions.discard(producer)
            records = marker(producer, abort=self.random.random() < 0.7)
            self._append(log, records, AppendOrigin.COORDINATOR)

    def _append(self, log: PartitionLog, records: bytearray, origin: AppendOrigin) -> None:
        info = log.append(records, leader_epoch=self.epoch, now_ms=NOW_MS, origin=origin)
        self.commit(log)
        self.expected.append((info.base_offset, info.last_offset + 1, bytes(records)))
        self.ever.setdefault(info.base_offset, set()).add(bytes(records))

    def commit(self, log: PartitionLog) -> None:
        """Other replicas have some of it."""
        if log.high_watermark < log.durable_end_offset:
            log.high_watermark = self.random.randint(log.high_watermark, log.durable_end_offset)

    def flush(self, log: PartitionLog) -> None:
        log.flush()
        self.commit(log)
        self.safe_offset = log.log_end_offset

    def roll(self, log: PartitionLog) -> None:
        log.roll()

    def truncate(self, log: PartitionLog) -> None:
        """A follower whose leader changed."""
        self.new_epoch(log)
        is_unclean = self.random.random() < 0.3
        bounds = [first for first, _, _ in self.expected[-4:] if is_unclean or first >= log.high_watermark]
        if bounds:
            log.truncate_to(self.random.choice(bounds))
            self.safe_offset = min(self.safe_offset, log.log_end_offset)
            self.forget(log)

    def forget(self, log: PartitionLog) -> None:
        """What is beyond the end, with all that producers remember of it."""
        self.expected = [one for one in self.expected if one[1] <= log.log_end_offset]
        self.sequence = {each.producer_id: each.last_sequence + 1 for each in log.producers.producers.values()}
        self.open_transactions = {
            each.producer_id for each in log.producers.producers.values() if each.txn_first_offset >= 0
        }

    def delete(self, log: PartitionLog) -> None:
        start = log.log_start_offset
        log.delete_records(self.random.randint(start, max(start, log.high_watermark)))

    def new_epoch(self, log: PartitionLog) -> None:
        self.epoch += 1

    # -- what has to be true

    def check(self, log: PartitionLog) -> None:
        found = [(header.base_offset, header.next_offset, data) for header, data in read_all(log)]
        kept = [one for one in self.expected if one[1] <= self.safe_offset and one[1] > log.log_start_offset]
        assert log.log_end_offset >= self.safe_offset
        below = [one for one in found if one[1] <= self.safe_offset and one[1] > log.log_start_offset]
        assert below == kept, f"of {self.safe_offset} safe offsets"
        for first, _, data in found:
            assert data in self.ever[first]
        self.check_aborted(log)
        self.expected = found
        produced = [header for header, _ in read_all(log) if not header.is_control]
        last_sequences = {header.producer_id: header.last_sequence for header in produced}
        for producer_id, last_sequence in last_sequences.items():
            entry = log.producers.producers.get(producer_id)
            assert entry is not None
            assert entry.last_sequence == last_sequence
        self.forget(log)

    def check_aborted(self, log: PartitionLog) -> None:
        """Without its entry in the index, an aborted transaction would pass for a committed one."""
        aborted, began = set(), dict[int, int]()
        for header, data in read_all(log):
            if not header.is_transactional:
                continue
            if not header.is_control:
                began.setdefault(header.producer_id, header.base_offset)
            elif header.producer_id in began:
                first_offset = began.pop(header.producer_id)
                ending = read_marker(data, header)
                if ending is not None and ending.is_abort:
                    aborted.add((header.producer_id, first_offset))
        known = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        for producer_id, first_offset in aborted:  # its first record here: earlier ones may be deleted
            assert any(each == producer_id and first <= first_offset for each, first in known), (producer_id, known)


@pytest.mark.parametrize("is_strict", [True, False], ids=["only what was synced", "and some of the rest"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("POWER_LOSS_SEEDS", "4"))))
def test_what_was_flushed_survives_any_schedule(tmp_path: Path, seed: int, is_strict: bool) -> None:
    random = Random(seed)
    machine = Machine(tmp_path, random, flush_messages=random.choice([1, 1, 5, 2**63 - 1]), is_strict=is_strict)
    for _ in range(BOOTS):
        machine.boot()


@pytest.mark.parametrize("is_strict", [True, False], ids=["only what was synced", "and some of the rest"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("POWER_LOSS_SEEDS", "60"))))
def test_what_was_flushed_survives_any_schedule_on_a_simulated_disk(seed: int, is_strict: bool) -> None:
    random = Random(seed)
    machine = Machine(Path("/"), random, flush_messages=random.choice([1, 1, 5, 2**63 - 1]), is_strict=is_strict)
    disk = SimulatedDisk()
    for _ in range(BOOTS):
        machine.run(disk.mount())
        disk.lose_power(None if is_strict else random)


def test_without_a_flush_nothing_is_left(tmp_path: Path) -> None:
    """The disk itself: it forgets what a test must not count on."""
    disk = PowerLossDisk(tmp_path / "data", tmp_path / "synced")
    with disk.installed():
        manager = manager_of(tmp_path / "data", config=topic_config())
        manager.open()
        log = manager.create("t", 0, TOPIC_ID)
        log.append(batch(), leader_epoch=0, now_ms=NOW_MS)
        log.flush()
        log.append(batch(), leader_epoch=0, now_ms=NOW_MS)
        manager.create("other", 0, TOPIC_ID).append(batch(), leader_epoch=0, now_ms=NOW_MS)
        disk.left_over(tmp_path / "after")
        for each in manager.logs.values():
            each.close_files()
        manager._unlock()
    manager = manager_of(tmp_path / "after", config=topic_config())
    manager.open()
    assert [log.name for log in manager.logs.values()] == ["t-0"]
    assert log_of(manager).log_end_offset == 1
    manager.close()
