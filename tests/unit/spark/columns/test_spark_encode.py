"""Arrow columns become the batches that the record-by-record encoder makes of the same records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import ErrorCode, KafkaError
from moldau.spark.columns.encode import (
    Batch,
    Rows,
    encode,
    headers,
    no_headers,
    nulls,
    seal,
    texts,
    timestamps_ms,
)
from moldau.wire.batch import RecordFields, check_batch, decode_records, encode_batch, read_header
from moldau.wire.compression import Codec

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

header = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))
record = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.integers(0, 1 << 42),
    st.lists(header, max_size=3),
)


def rows_of(records: list[RecordFields], kind: Any = None) -> Rows:
    listed = [[{"key": name, "value": value} for name, value in found] or None for *_, found in records]
    kind = kind or pa.binary()
    return Rows(
        texts(pa.array([key for key, *_ in records], kind)),
        texts(pa.array([value for _, value, *_ in records], kind)),
        headers(pa.array(listed, HEADERS)),
        np.array([timestamp for _, _, timestamp, _ in records], np.int64),
    )


def encoded(
    rows: Rows, partitions: list[int], *, batch_bytes: int = 1 << 20, record_bytes_max: int = 1 << 20
) -> list[Batch]:
    count = max(partitions, default=0) + 1
    return encode(
        rows, np.array(partitions, np.int32), count, batch_bytes=batch_bytes, record_bytes_max=record_bytes_max
    )


def sealed(batch: Batch, codec: Codec = Codec.NONE, sequence: int = 5) -> memoryview:
    return seal(
        batch, codec=codec, level=None, producer_id=77, producer_epoch=3, base_sequence=sequence, is_transactional=True
    )


def values(batch: Batch) -> list[bytes | None]:
    data = sealed(batch)
    return [found.value for found in decode_records(data, 0, read_header(data))]


def plain(value: bytes, key: bytes | None = None, timestamp: int = NOW_MS) -> RecordFields:
    return key, value, timestamp, ()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@given(records=st.lists(record, min_size=1, max_size=20))
def test_batches_are_byte_for_byte_those_of_the_other_encoder(kind: Any, records: list[RecordFields]) -> None:
    (batch,) = encoded(rows_of(records, kind), [0] * len(records))
    expected = encode_batch(records, producer_id=77, producer_epoch=3, base_sequence=5, is_transactional=True)
    assert bytes(sealed(batch)) == expected


@given(st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 4)), min_size=1, max_size=100), st.integers(80, 500))
def test_rows_of_a_partition_keep_their_order_in_batches_within_the_limit(
    rows: list[tuple[bytes, int]], batch_bytes: int
) -> None:
    batches = encoded(rows_of([plain(value) for value, _ in rows]), [p for _, p in rows], batch_bytes=batch_bytes)
    for partition in range(5):
        mine = [batch for batch in batches if batch.partition == partition]
        assert [value for batch in mine for value in values(batch)] == [value for value, p in rows if p == partition]
        assert all(len(batch.data) <= batch_bytes or batch.records == 1 for batch in mine)


@pytest.mark.parametrize("batch_bytes", [1, 61, 62, 80, 100, 120, 127, 130, 200, 300])
def test_many_small_batches_have_room(batch_bytes: int) -> None:
    expected = [b"%07d" % number for number in range(2000)]
    batches = encoded(rows_of([plain(value) for value in expected]), [0] * 2000, batch_bytes=batch_bytes)
    assert [value for batch in batches for value in values(batch)] == expected


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_can_be_read_back(codec: Codec) -> None:
    records = [plain(b"value %d" % number, b"key") for number in range(1000)]
    (batch,) = encoded(rows_of(records), [0] * 1000)
    data = sealed(batch, codec)
    found = read_header(data)
    check_batch(data, 0, found)
    assert found.codec is codec
    assert [read.value for read in decode_records(data, 0, found)] == [value for _, value, *_ in records]


def test_a_slice_of_an_array_is_read_from_its_own_start() -> None:
    column = pa.array([b"zero", b"one", None, b"three"], pa.binary())[1:]
    listed = pa.array([[{"key": "a", "value": b"1"}], None, [{"key": "b", "value": None}], []], HEADERS)[1:]
    rows = Rows(nulls(3), texts(column), headers(listed), np.zeros(3, np.int64))
    (batch,) = encoded(rows, [0, 0, 0])
    data = sealed(batch)
    found = [(read.value, read.headers) for read in decode_records(data, 0, read_header(data))]
    assert found == [(b"one", ()), (None, (("b", None),)), (b"three", ())]


def test_strings_are_written_as_utf_8() -> None:
    rows = Rows(nulls(1), texts(pa.array(["žluťoučký"])), no_headers(1), np.zeros(1, np.int64))
    (batch,) = encoded(rows, [0])
    assert values(batch) == ["žluťoučký".encode()]


def test_a_record_over_the_limit_is_refused_by_the_name_of_the_limit() -> None:
    with pytest.raises(KafkaError, match=r"kafka\.max\.request\.size=1000") as refusal:
        encoded(rows_of([plain(b"small"), plain(bytes(2000))]), [0, 0], record_bytes_max=1000)
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_header_without_a_key_is_refused() -> None:
    with pytest.raises(KafkaError, match="header has no key"):
        headers(pa.array([[{"key": None, "value": b"1"}]], HEADERS))


def test_timestamps_are_milliseconds_and_null_is_now() -> None:
    column = pa.array([1_234_567_891, None, 0], pa.timestamp("us", "UTC"))
    assert list(timestamps_ms(column, NOW_MS)) == [1_234_567, NOW_MS, 0]


def test_timestamps_before_1970_are_refused() -> None:
    with pytest.raises(KafkaError, match="begin with 1970"):
        timestamps_ms(pa.array([-1], pa.timestamp("us", "UTC")), NOW_MS)


def test_a_batch_knows_its_earliest_and_latest_timestamp_in_the_way_of_kafka() -> None:
    (batch,) = encoded(rows_of([plain(b"", timestamp=stamp) for stamp in (50, 10, 70)]), [0, 0, 0])
    data = sealed(batch)
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (50, 70)
    assert [read.timestamp_ms for read in decode_records(data, 0, read_header(data))] == [50, 10, 70]
