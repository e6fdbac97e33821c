"""The cleaner's quick look into a batch agrees with the decoder that everybody else uses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError
from moldau.log.cleaning.records import newest_delta, pick_records, scan_records, shift_timestamps
from moldau.log.cleaning.throttle import Throttle
from moldau.wire.batch import Record, assemble, decode_records, encode_batch, read_header, records_data
from moldau.wire.batch_layout import DELETE_HORIZON
from tests.unit.log.log_helpers import NOW_MS, properties

field = st.none() | st.binary(max_size=80) | st.integers(0, 3).map(lambda n: bytes([64, 200, 9000, 0][n]))
row = st.tuples(field, field, st.integers(NOW_MS - 2**40, NOW_MS + 2**20), st.just(()) | st.just((("h", b"v"),)))
short = st.integers(0, 255).map(lambda n: bytes([n] * 3))
times = st.integers(NOW_MS, NOW_MS + 50)
# Runs of records of one size, with others of another layout but as long among them.
alike = st.lists(
    st.tuples(short, st.just(b"value"), times, st.just(()))
    | st.tuples(short, st.none(), times, st.just((("h", b""),)))
    | st.tuples(st.none(), st.just(b"8 bytes!"), times, st.just(())),
    min_size=1,
    max_size=200,
)
rows = st.lists(row, min_size=1, max_size=150) | alike


def taken_apart(fields: list[tuple[bytes | None, bytes | None, int, tuple[()]]]) -> tuple[bytes, list[Record]]:
    batch = encode_batch(fields)
    header = read_header(batch)
    return records_data(batch, 0, header), decode_records(batch, 0, header)


@properties
@given(rows)
def test_the_scan_finds_what_the_decoder_finds(fields: list[tuple[bytes | None, bytes | None, int, tuple[()]]]) -> None:
    data, decoded = taken_apart(fields)
    records = scan_records(data, len(decoded))
    assert records.offset_deltas == [record.offset for record in decoded]
    for key, record in zip(records.keys, decoded, strict=True):
        assert key == record.key or (record.key is not None and len(record.key) >= 64 == len(key or b""))
    assert records.tombstones == [number for number, record in enumerate(decoded) if record.value is None]
    assert records.starts[-1] == len(data)
    assert newest_delta(data, records.starts[:-1]) == max(record.timestamp_ms for record in decoded) - fields[0][2]


@properties
@given(rows, st.data())
def test_picked_records_are_those_that_were_asked_for(
    fields: list[tuple[bytes | None, bytes | None, int, tuple[()]]], choice: st.DataObject
) -> None:
    data, decoded = taken_apart(fields)
    numbers = sorted(choice.draw(st.sets(st.integers(0, len(decoded) - 1))))
    starts = scan_records(data, len(decoded)).starts
    assert pick_records(data, numbers) == b"".join(data[starts[number] : starts[number + 1]] for number in numbers)
    with pytest.raises(CorruptRecordError):
        pick_records(data, [*numbers, len(decoded)])


@properties
@given(rows, st.integers(-(2**40), 2**40))
def test_timestamps_stay_when_the_base_moves(
    fields: list[tuple[bytes | None, bytes | None, int, tuple[()]]], horizon_ms: int
) -> None:
    batch = encode_batch(fields)
    header = read_header(batch)
    data = shift_timestamps(records_data(batch, 0, header), header.base_timestamp - horizon_ms)
    moved = assemble(header._replace(base_timestamp=horizon_ms, attributes=header.attributes | DELETE_HORIZON), data)
    assert decode_records(moved, 0, read_header(moved)) == decode_records(batch, 0, header)


@properties
@given(rows, st.data())
def test_damaged_records_are_corrupt_and_nothing_worse(
    fields: list[tuple[bytes | None, bytes | None, int, tuple[()]]], choice: st.DataObject
) -> None:
    data = bytearray(taken_apart(fields)[0])
    for _ in range(choice.draw(st.integers(1, 4))):
        data[choice.draw(st.integers(0, len(data) - 1))] = choice.draw(st.integers(0, 255))
    cut = choice.draw(st.integers(0, len(data)))
    try:
        records = scan_records(bytes(data[:cut]), len(fields))
    except CorruptRecordError:
        return
    assert len(records.keys) == len(records.offset_deltas) == len(fields)


def test_bytes_left_over_are_corrupt() -> None:
    data, _ = taken_apart([(b"k", b"v", NOW_MS, ())])
    with pytest.raises(CorruptRecordError):
        scan_records(data + b"\0", 1)
    with pytest.raises(CorruptRecordError):
        scan_records(data, 2)


def test_the_throttle_holds_the_rate() -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    throttle = Throttle(1000.0, clock=lambda: now_s, sleep=sleep)
    for _ in range(50):
        throttle.spend(100)
    assert now_s == pytest.approx(5.0)
