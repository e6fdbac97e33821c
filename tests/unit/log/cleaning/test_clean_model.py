"""Hundreds of random histories of a compacted log, against a model that keeps every record ever written.

The model knows of each record what it is and how its transaction ended. After every cleaning, restart and crash the
log must tell readers the same story: nothing changed, nothing back from the dead, the last committed value of each key
there, nothing aborted; and what was due to go is gone.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import moldau.disk
from moldau.log.cleaning.offset_map import BYTES_PER_KEY
from moldau.log.cleaning.plan import CleaningLimits, look_at
from moldau.log.lookups import offset_for_timestamp
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import read_marker
from moldau.wire.batch import decode_records, stamp
from moldau.wire.compression import Codec
from tests.unit.log.cleaning.clean_helpers import clean_log, keyed
from tests.unit.log.log_helpers import Clock, crash, end_transaction, new_log, read_all, restart

HISTORIES = int(os.environ.get("HISTORIES", "300"))  # `make soak` runs a thousand
CHUNKS = 20
KEYS = [b"a", b"b", b"c", b"d" * 70, b""]
DELETE_RETENTION_MS = 1000
MEMORY = "/dev/shm"  # thousands of small files: half of the time goes into them on a disk


@dataclass
class Written:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    producer_id: int = -1
    fate: str = "committed"  # or open, aborted
    first_cleaned_ms: int | None = None


@dataclass
class Producer:
    is_transactional: bool
    next_sequence: int = 0
    open: list[Written] = field(default_factory=list)


class History:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.log = new_log(
            directory, self.clock, cleanup_policy=frozenset({"compact"}), segment_bytes=self.random.choice([600, 1500]),
            delete_retention_ms=DELETE_RETENTION_MS, min_compaction_lag_ms=self.random.choice([0, 0, 300]),
        )  # fmt: skip
        self.written: list[Written] = []
        self.producers = {1: Producer(True), 2: Producer(True), 3: Producer(False)}
        self.ever_gone: set[int] = set()
        self.values = 0

    # -- what happens

    def step(self) -> None:
        self.clock.now_ms += self.random.choice([0, 1, 50, 400])
        actions = {
            self.append: 8, self.append_in_transaction: 6, self.end: 4, self.roll: 3,
            self.clean: 3, self.reload: 1, self.delete_records: 0.2,
        }  # fmt: skip
        self.random.choices(list(actions), list(actions.values()))[0]()

    def append(self) -> None:
        producer_id = self.random.choice([-1, -1, 3])
        without_keys = producer_id < 0 and self.random.random() < 0.1
        self.write(producer_id, without_keys=without_keys)

    def append_in_transaction(self) -> None:
        self.write(self.random.choice([1, 2]))

    def write(self, producer_id: int, *, without_keys: bool = False) -> None:
        rows = []
        for _ in range(self.random.randint(1, 4)):
            self.values += 1
            key = None if without_keys and self.random.random() < 0.5 else self.random.choice(KEYS)
            value = None if self.random.random() < 0.25 else b"%d" % self.values * self.random.randint(1, 20)
            rows.append((key, value))
        fields: dict[str, object] = {"codec": self.random.choice([Codec.NONE, Codec.NONE, *Codec])}
        producer = self.producers.get(producer_id)
        if producer is not None:
            fields |= {
                "producer_id": producer_id, "producer_epoch": 0, "base_sequence": producer.next_sequence,
                "is_transactional": producer.is_transactional,
            }  # fmt: skip
            producer.next_sequence += len(rows)
        step_ms = self.random.choice([0, 1, -1])
        batch = keyed(*rows, timestamp_ms=self.clock.now_ms, step_ms=step_ms, **fields)
        base_offset = self.log.log_end_offset
        if without_keys:  # as they came in before the topic was compacted
            stamp(batch, 0, base_offset, 0)
            self.log.append_as_follower(batch, now_ms=self.clock())
        else:
            self.log.append(batch, leader_epoch=0, now_ms=self.clock())
        written = [
            Written(base_offset + number, key, value, self.clock.now_ms + number * step_ms, producer_id)
            for number, (key, value) in enumerate(rows)
        ]
        self.written += written
        if producer is not None and producer.is_transactional:
            producer.open += written
            for one in written:
                one.fate = "open"

    def end(self) -> None:
        producer_id = self.random.choice([1, 2])
        abort = self.random.random() < 0.5
        end_transaction(self.log, producer_id, abort=abort)
        for one in self.producers[producer_id].open:
            one.fate = "aborted" if abort else "committed"
        self.producers[producer_id].open.clear()

    def roll(self) -> None:
        self.log.roll()

    def clean(self) -> None:
        todo = look_at(self.log, self.clock())
        keys_max = self.random.choice([1, 3, 1000])
        clean_log(self.log, CleaningLimits(keys_max * BYTES_PER_KEY, io_buffer_bytes=self.random.choice([61, 4096])))
        end_offset = self.log.first_dirty_offset
        assert todo.first_dirty_offset <= end_offset <= todo.first_uncleanable_offset
        if keys_max == 1000:
            assert end_offset == todo.first_uncleanable_offset
        for one in self.written:
            if one.offset < end_offset and one.first_cleaned_ms is None:
                one.first_cleaned_ms = self.clock()
        self.check()
        if end_offset == todo.first_uncleanable_offset:
            self.check_clean(end_offset)

    def reload(self) -> None:
        before = sequences(self.log)
        kind = self.random.choice(["restart", "crash", "replay"])
        dirty_offset = self.log.first_dirty_offset
        if kind == "restart":
            self.log = restart(self.log)
        else:
            self.log = crash(self.log, recovery_point=0 if kind == "replay" else None)
        self.log.compacted_upto(dirty_offset)
        first_offset = self.log.segments[0].base_offset
        after = sequences(self.log)
        for producer_id, state in before.items():
            if state[-1] >= first_offset:
                assert after[producer_id] == state
        self.check()

    def delete_records(self) -> None:
        self.log.delete_records(self.random.randint(self.log.log_start_offset, self.log.high_watermark))

    # -- what must be true

    def check(self) -> None:
        log = self.log
        assert log.log_end_offset == (self.log.producers.end_offset)
        committed, found = read_committed(log)
        by_offset = {one.offset: one for one in self.written}
        for offset, key, value, timestamp_ms in found:
            one = by_offset[offset]
            assert (one.key, one.value, one.timestamp_ms) == (key, value, timestamp_ms)
        offsets = [row[0] for row in found]
        assert offsets == sorted(set(offsets))
        gone = {one.offset for one in self.written if one.offset >= log.log_start_offset}.difference(offsets)
        assert gone >= {offset for offset in self.ever_gone if offset >= log.log_start_offset}
        self.ever_gone = gone
        self.check_committed(committed)

    def check_committed(self, offsets: list[int]) -> None:
        log = self.log
        last_stable_offset = log.last_stable_offset
        alive = [one for one in self.written if one.fate == "committed" and one.offset < last_stable_offset]
        alive = [one for one in alive if one.offset >= log.log_start_offset]
        assert set(offsets) <= {one.offset for one in alive}
        present = set(offsets)
        latest = {one.key: one for one in alive if one.key is not None}
        for one in latest.values():
            if one.offset not in present:
                assert one.value is None, f"the last value of {one.key!r}, at {one.offset}, is lost"
                assert one.first_cleaned_ms is not None
                assert self.clock() >= one.first_cleaned_ms + DELETE_RETENTION_MS
                older = [other for other in alive if other.key == one.key and other.offset < one.offset]
                assert present.isdisjoint(other.offset for other in older), f"{one.key!r} is back from the dead"
        for one in alive:
            if one.first_cleaned_ms is None:
                is_latest = one.key is None or one is latest[one.key]
                assert one.offset in present or one.offset < log.first_dirty_offset or not is_latest

    def check_clean(self, end_offset: int) -> None:
        """All below `end_offset` has been judged with all keys in the map."""
        _, found = read_committed(self.log)
        below = [row for row in found if row[0] < end_offset]
        keys = [key for _, key, _, _ in below]
        assert len(keys) == len(set(keys))
        assert None not in keys
        fates = {one.offset: one.fate for one in self.written}
        assert {fates[row[0]] for row in below} <= {"committed"}

    def check_lookups(self) -> None:
        log = self.log
        for offset in range(log.log_start_offset, log.log_end_offset):
            assert log.read(offset, 1, upto_offset=log.log_end_offset, min_one=True), offset
        records = [
            record
            for header, data in read_all(log)
            for record in decode_records(data, 0, header)
            if record.offset >= log.log_start_offset
        ]
        for timestamp_ms in {record.timestamp_ms for record in records[::3]}:
            first = next(record for record in records if record.timestamp_ms >= timestamp_ms)
            answer = offset_for_timestamp(log, timestamp_ms)
            assert answer is not None
            assert answer[:2] == (first.timestamp_ms, first.offset)


def sequences(log: PartitionLog) -> dict[int, tuple[int, int, int, int]]:
    """What a producer that goes on depends on: epoch, open transaction, last sequence and offset."""
    return {
        entry.producer_id: (entry.epoch, entry.txn_first_offset, entry.last_sequence, entry.batches[-1].last_offset)
        for entry in log.producers.producers.values()
        if entry.batches
    }


Row = tuple[int, bytes | None, bytes | None, int]


def read_committed(log: PartitionLog) -> tuple[list[int], list[Row]]:
    """The offsets a read_committed consumer delivers, and all rows another one does."""
    upto_offset = log.last_stable_offset
    aborted = sorted(log.aborted_transactions(log.log_start_offset, upto_offset), key=lambda txn: txn[1])
    skipping: set[int] = set()
    committed: list[int] = []
    found: list[Row] = []
    for header, data in read_all(log):
        while aborted and aborted[0][1] <= header.last_offset:
            skipping.add(aborted.pop(0)[0])
        if header.is_control:
            marker = read_marker(data, header)
            if marker is not None and marker.is_abort:
                skipping.discard(header.producer_id)
            continue
        is_skipped = header.is_transactional and header.producer_id in skipping
        for record in decode_records(data, 0, header):
            if record.offset >= log.log_start_offset:
                found.append((record.offset, record.key, record.value, record.timestamp_ms))
                if not is_skipped and record.offset < upto_offset:
                    committed.append(record.offset)
    return committed, found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_readers_of_a_compacted_log_are_told_the_same_story(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moldau.disk, "fsync", lambda fd: None)  # the machine does not lose its power here
    for seed in range(chunk, HISTORIES, CHUNKS):
        directory = Path(tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None))
        try:
            history = History(directory, seed)
            for _ in range(history.random.randint(10, 60)):
                history.step()
            history.clock.now_ms += 2 * DELETE_RETENTION_MS
            history.clean()
            history.reload()
            history.check_lookups()
            history.log.close_files()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            shutil.rmtree(directory)
