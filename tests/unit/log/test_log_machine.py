"""Any order of appends, flushes, deletions, stops, crashes and torn tails, against a list that does the same."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moldau.errors import DuplicateSequenceError
from tests.examples import examples
from tests.unit.log.log_helpers import NOW_MS, Clock, append, batch, crash, new_log, producer_view, read_all, restart


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.log = new_log(self.directory, self.clock, segment_bytes=500, retention_ms=100, pool_limit=2)
        self.batches: list[tuple[int, bytes]] = []  # last offset, what is stored
        self.sequence = 0
        self.flushed = 0

    def teardown(self) -> None:
        self.log.close_files()
        shutil.rmtree(self.directory)

    def note(self) -> None:
        offset = self.batches[-1][0] + 1 if self.batches else self.log.log_start_offset
        data = self.log.read(self.log.log_end_offset - 1, 1 << 20, upto_offset=self.log.log_end_offset, min_one=True)
        assert offset <= self.log.log_end_offset - 1
        self.batches.append((self.log.log_end_offset - 1, bytes(data)))

    @rule(count=st.integers(1, 4), age=st.integers(0, 50))
    def append_records(self, count: int, age: int) -> None:
        append(self.log, batch(count, timestamp_ms=self.clock.now_ms - age))
        self.note()

    @rule(count=st.integers(1, 3))
    def append_and_retry(self, count: int) -> None:
        one = batch(count, producer_id=9, producer_epoch=0, base_sequence=self.sequence)
        first = append(self.log, bytearray(one))
        self.note()
        self.sequence += count
        with pytest.raises(DuplicateSequenceError) as retry:
            append(self.log, bytearray(one))
        assert retry.value.base_offset == first.base_offset

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.log_end_offset
        assert self.log.recovery_point == self.flushed

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        span = self.log.high_watermark - self.log.log_start_offset
        self.log.delete_records(self.log.log_start_offset + int(span * share))

    @rule(elapsed_ms=st.integers(0, 80))
    def time_passes(self, elapsed_ms: int) -> None:
        self.clock.now_ms += elapsed_ms
        self.log.enforce_retention(self.clock.now_ms)
        self.log.segments.purge_deleted(self.clock.now_ms)

    @rule()
    def stop_and_start(self) -> None:
        before = producer_view(self.log)
        self.log = restart(self.log)
        self.flushed = self.log.log_end_offset
        assert producer_view(self.log) == before

    @rule()
    def crash_and_start(self) -> None:
        before = producer_view(self.log)
        self.log = crash(self.log)
        assert producer_view(self.log) == before

    @rule(lost=st.integers(1, 400))
    def lose_power(self, lost: int) -> None:
        """Bytes that were not flushed are gone from the end of the last segment."""
        last = self.log.segments[-1]
        kept_batches = [(end, data) for end, data in self.batches if end < self.flushed]
        safe = last.position_of(self.flushed) if self.flushed > last.base_offset else 0
        self.log.close_files()
        os.truncate(last.path, max(safe, last.size - lost))
        self.log = crash(self.log)
        survivors = [pair for pair in self.batches if pair[0] < self.log.log_end_offset]
        assert survivors[: len(kept_batches)] == kept_batches
        self.batches = survivors
        entry = self.log.producers.producers.get(9)
        self.sequence = entry.last_sequence + 1 if entry is not None else self.sequence

    @invariant()
    def holds_exactly_what_it_should(self) -> None:
        start = self.log.log_start_offset
        expected = [data for end, data in self.batches if end >= start]
        assert [data for _, data in read_all(self.log, max_bytes=300)] == expected
        assert start <= self.log.last_stable_offset <= self.log.high_watermark <= self.log.log_end_offset
        assert self.log.recovery_point <= self.log.log_end_offset
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)
        assert sum(segment.file is not None for segment in self.log.segments) <= 2
        if self.batches:
            assert self.log.log_end_offset == max(start, self.batches[-1][0] + 1)
        assert self.clock.now_ms >= NOW_MS


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(deadline=None, max_examples=examples(25), stateful_step_count=30)
