from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptFileError, DuplicateSequenceError, ErrorCode, KafkaError
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import ProducerState, decode_snapshot, without_transactions
from moldau.wire.batch import BatchHeader, iter_headers, read_header
from tests.unit.log.log_helpers import (
    NOW_MS,
    append,
    batch,
    crash,
    end_transaction,
    marker,
    new_log,
    producer_view,
    properties,
    restart,
)

TOP = 2**31 - 1
Stop = Callable[[PartitionLog], PartitionLog]


def header_of(
    sequence: int, count: int, *, producer_id: int = 7, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return read_header(batch(count, is_transactional=transactional, **fields))


def code_of(state: ProducerState, header: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(header)
    return caught.value.code


# -- against a model that remembers everything


@dataclass
class ModelProducer:
    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first and last sequence, offset


def model_outcome(model: dict[int, ModelProducer], header: BatchHeader) -> int | ErrorCode | None:
    """None: new data; an int: retry of the batch at that offset; a code: refused."""
    known = model.get(header.producer_id)
    if known is None:
        return None
    if header.producer_epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if header.producer_epoch > known.epoch:
        return None if header.base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for first, last, offset in known.batches[-5:]:
        if (first, last) == (header.base_sequence, header.last_sequence):
            return offset
    following = (known.batches[-1][1] + 1) % 2**31
    return None if header.base_sequence == following else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def actual_outcome(state: ProducerState, header: BatchHeader) -> int | ErrorCode | None:
    try:
        state.check(header)
    except DuplicateSequenceError as retry:
        return retry.base_offset
    except KafkaError as refused:
        return refused.code
    return None


step = st.tuples(
    st.integers(1, 2),  # producer
    st.sampled_from([0, 0, 0, 0, 0, 1, -1]),  # epoch, from the current one
    st.one_of(st.just("next"), st.just("next"), st.integers(1, 8), st.sampled_from([0, 1, TOP])),
    st.integers(1, 4),  # records
)


@properties
@given(st.sampled_from([0, 5, TOP - 3, TOP]), st.lists(step, max_size=40))
def test_each_batch_is_taken_as_new_as_retry_or_refused_as_the_rules_say(
    first_sequence: int, steps: list[tuple[int, int, str | int, int]]
) -> None:
    state = ProducerState(1 << 60)
    model: dict[int, ModelProducer] = {}
    offset = 0
    for producer_id, epoch_step, choice, wanted in steps:
        known = model.get(producer_id)
        epoch = max(0, (known.epoch if known else 3) + epoch_step)
        sequence, count = first_sequence, wanted
        if known is not None and known.batches:
            if choice == "next":
                sequence = (known.batches[-1][1] + 1) % 2**31
            elif isinstance(choice, int) and choice <= len(known.batches):
                first, last, _ = known.batches[-choice]
                sequence, count = first, (last - first) % 2**31 + 1
            elif isinstance(choice, int):
                sequence = choice
        header = header_of(sequence, count, producer_id=producer_id, epoch=epoch)
        expected = model_outcome(model, header)
        assert actual_outcome(state, header) == expected
        if expected is None:
            state.append(header, offset)
            if known is None or known.epoch != epoch:
                model[producer_id] = known = ModelProducer(epoch)
            known.batches.append((header.base_sequence, header.last_sequence, offset))
            offset += count


@properties
@given(
    st.dictionaries(
        st.integers(0, 2**63 - 1),
        st.tuples(st.integers(0, 2**15 - 1), st.integers(0, TOP), st.integers(1, 5), st.booleans()),
        max_size=20,
    )
)
def test_a_snapshot_brings_back_the_last_batch_of_every_producer(
    producers: dict[int, tuple[int, int, int, bool]],
) -> None:
    state = ProducerState(1 << 60)
    for number, (producer_id, (epoch, sequence, count, transactional)) in enumerate(producers.items()):
        header = header_of(sequence, count, producer_id=producer_id, epoch=epoch, transactional=transactional)
        state.append(header, number * 10)
    again = ProducerState(1 << 60)
    again.load(decode_snapshot(state.encode()), 1000, NOW_MS)
    assert again.encode() == state.encode()
    assert again.first_unstable_offset() == state.first_unstable_offset()
    assert again.end_offset == 1000


def test_every_damaged_byte_of_a_snapshot_is_noticed() -> None:
    state = ProducerState(1 << 60)
    state.append(header_of(0, 3), 0)
    whole = state.encode()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptFileError):
            decode_snapshot(bytes(damaged))
        with pytest.raises(CorruptFileError):
            decode_snapshot(whole[:position])


def test_the_snapshot_is_kafkas_layout() -> None:
    state = ProducerState(1 << 60)
    state.append(header_of(4, 3, producer_id=9, epoch=2, transactional=True), 100)
    data = state.encode()
    assert data[:2] == b"\0\1"
    assert struct.unpack_from(">i", data, 6) == (1,)
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (9, 2, 6, 102, 2, NOW_MS, -1, 100)
    assert len(data) == 10 + 46


# -- in a log


def test_a_retry_is_answered_with_the_first_appends_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = [batch(2, producer_id=1, producer_epoch=0, base_sequence=2 * number) for number in range(6)]
    for one in sent:
        append(log, bytearray(one))
    for number in range(1, 6):
        with pytest.raises(DuplicateSequenceError) as retry:
            append(log, bytearray(sent[number]))
        assert (retry.value.base_offset, retry.value.last_offset) == (2 * number, 2 * number + 1)
        assert retry.value.timestamp_ms == NOW_MS
    with pytest.raises(KafkaError) as too_old:
        append(log, bytearray(sent[0]))
    assert too_old.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 12


def test_sequences_wrap_around(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(4, producer_id=1, producer_epoch=0, base_sequence=TOP - 1))
    append(log, batch(1, producer_id=1, producer_epoch=0, base_sequence=2))
    with pytest.raises(DuplicateSequenceError) as retry:
        append(log, batch(4, producer_id=1, producer_epoch=0, base_sequence=TOP - 1))
    assert retry.value.base_offset == 0


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=3, base_sequence=0))
    state = log.producers
    assert code_of(state, header_of(5, 1, producer_id=1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, batch(producer_id=1, producer_epoch=4, base_sequence=0))
    assert code_of(state, header_of(1, 1, producer_id=1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.log_end_offset == 2


def test_a_forgotten_producer_may_go_on_anywhere(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=3, base_sequence=77))
    append(log, batch(producer_id=1, producer_epoch=3, base_sequence=78))
    assert log.log_end_offset == 2


def test_silent_producers_are_forgotten_but_not_in_a_transaction(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, batch(producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.producers.remove_expired(NOW_MS + 86_399_999)
    assert set(log.producers.producers) == {1, 2}
    log.producers.remove_expired(NOW_MS + 86_400_000)
    assert set(log.producers.producers) == {2}


@pytest.mark.parametrize("stop", [restart, crash])
def test_producers_are_remembered_over_a_restart(tmp_path: Path, stop: Stop) -> None:
    log = new_log(tmp_path, segment_bytes=400)
    for number in range(10):
        append(log, batch(producer_id=number % 3, producer_epoch=1, base_sequence=number // 3))
    assert len(log.segments) > 2
    before = producer_view(log)
    log = stop(log)
    assert producer_view(log) == before
    with pytest.raises(DuplicateSequenceError) as retry:
        append(log, batch(producer_id=0, producer_epoch=1, base_sequence=3))
    assert retry.value.base_offset == 9


@pytest.mark.parametrize("stop", [restart, crash])
@pytest.mark.parametrize("segment_bytes", [250, 400, 100_000])
def test_retries_of_batches_in_flight_are_known_after_a_restart(tmp_path: Path, stop: Stop, segment_bytes: int) -> None:
    log = new_log(tmp_path, segment_bytes=segment_bytes)
    offsets = []
    for number in range(8):
        append(log, batch(producer_id=2, producer_epoch=0, base_sequence=number))
        offsets.append(append(log, batch(2, producer_id=1, producer_epoch=1, base_sequence=2 * number)).base_offset)
    log.flush()
    log = stop(log)
    append(log, batch(2, producer_id=1, producer_epoch=1, base_sequence=16))  # one that is new does not ask the log
    if stop is restart:
        assert len(log.producers.producers[1].batches) == 2
    for number in range(4, 8):
        with pytest.raises(DuplicateSequenceError) as retry:
            append(log, batch(2, producer_id=1, producer_epoch=1, base_sequence=2 * number))
        assert retry.value.base_offset == offsets[number]
    for number in (3, 10):  # too old, too new
        with pytest.raises(KafkaError) as refused:
            append(log, batch(2, producer_id=1, producer_epoch=1, base_sequence=2 * number))
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, batch(2, producer_id=1, producer_epoch=1, base_sequence=18)).base_offset == 26


def test_batches_of_another_epoch_are_no_retries_after_a_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=1))
    append(log, batch(producer_id=1, producer_epoch=1, base_sequence=0))
    log = restart(log)
    with pytest.raises(KafkaError) as refused:
        append(log, batch(producer_id=1, producer_epoch=1, base_sequence=2))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(log.producers.producers[1].batches) == 1


# -- transactions


def transactional(log: PartitionLog, producer_id: int, sequence: int) -> None:
    append(log, batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True))


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    transactional(log, 1, 0)
    transactional(log, 2, 0)
    append(log)
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    end_transaction(log, 2, abort=False)
    assert log.last_stable_offset == 1
    end_transaction(log, 1, abort=True)
    assert log.last_stable_offset == log.high_watermark == 6


def test_a_marker_above_the_high_watermark_does_not_count_yet(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.single_replica = False
    transactional(log, 1, 0)
    end_transaction(log, 1, abort=False)
    log.high_watermark = 1
    assert log.last_stable_offset == 0
    log.high_watermark = 2
    assert log.last_stable_offset == 2


def test_a_batch_outside_its_producers_open_transaction_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    transactional(log, 1, 0)
    with pytest.raises(KafkaError) as refused:
        append(log, batch(producer_id=1, producer_epoch=0, base_sequence=1))
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_markers_of_old_epochs_are_fenced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=5, base_sequence=0, is_transactional=True))
    with pytest.raises(KafkaError) as refused:
        end_transaction(log, 1, abort=True, producer_epoch=4)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end_transaction(log, 1, abort=True, producer_epoch=5, coordinator_epoch=3)
    with pytest.raises(KafkaError) as fenced:
        end_transaction(log, 1, abort=True, producer_epoch=5, coordinator_epoch=2)
    assert fenced.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_client_cannot_write_markers(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(KafkaError) as refused:
        append(log, marker(1, abort=True))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


@pytest.mark.parametrize("stop", [restart, crash])
def test_transactions_survive_a_restart(tmp_path: Path, stop: Stop) -> None:
    log = new_log(tmp_path, segment_bytes=400)
    sequences = dict.fromkeys(range(4), 0)
    for number in range(24):
        producer_id = number % 4
        transactional(log, producer_id, sequences[producer_id])
        sequences[producer_id] += 1
        if number % 5 == 4:
            end_transaction(log, producer_id, abort=number % 10 == 9)
    before = (log.last_stable_offset, log.aborted_transactions(0, log.log_end_offset), producer_view(log))
    assert before[0] < log.log_end_offset
    assert before[1]
    log = stop(log)
    assert (log.last_stable_offset, log.aborted_transactions(0, log.log_end_offset), producer_view(log)) == before


@properties
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["data", "data", "abort", "commit"])), max_size=40),
    st.integers(0, 40),
    st.integers(0, 1000),
)
def test_aborted_transactions_are_those_that_overlap_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]], start: int, max_bytes: int
) -> None:
    log = new_log(tmp_path_factory.mktemp("log"), segment_bytes=300)
    open_at: dict[int, int] = {}
    sequences = dict.fromkeys(range(4), 0)
    aborted: list[tuple[int, int, int]] = []
    for producer_id, action in steps:
        offset = log.log_end_offset
        if action == "data":
            transactional(log, producer_id, sequences[producer_id])
            sequences[producer_id] += 1
            open_at.setdefault(producer_id, offset)
        else:
            end_transaction(log, producer_id, abort=action == "abort")
            first = open_at.pop(producer_id, None)
            if first is not None and action == "abort":
                aborted.append((producer_id, first, offset))
    assert log.last_stable_offset == min(open_at.values(), default=log.log_end_offset)
    start = min(start, log.log_end_offset)
    data, found = log.read_committed(start, max_bytes, min_one=True)
    headers = [header for _, header in iter_headers(data)]
    upto = headers[-1].next_offset if headers else start
    assert bool(headers) == (start < log.last_stable_offset)
    wanted = {(pid, first) for pid, first, last in aborted if last >= start and first < upto}
    assert set(found) == (wanted if headers else set())
    assert len(found) == len(set(found))
    log.close_files()


def test_a_snapshot_without_its_transactions_tells_the_rest_unchanged() -> None:
    state = ProducerState(1000)
    for producer_id in range(5):
        state.append(header_of(0, 2, producer_id=producer_id, transactional=producer_id % 2 == 1), 10 * producer_id)
    before = decode_snapshot(state.encode())
    after = decode_snapshot(without_transactions(state.encode()))
    assert [entry.txn_first_offset for entry in before] == [-1, 10, -1, 30, -1]
    assert [entry.txn_first_offset for entry in after] == [-1] * 5
    for one, other in zip(before, after, strict=True):
        assert (one.producer_id, one.epoch, one.batches) == (other.producer_id, other.epoch, other.batches)
    assert without_transactions(ProducerState(1000).encode()) == ProducerState(1000).encode()
    with pytest.raises(CorruptFileError):
        without_transactions(state.encode()[:-1])
