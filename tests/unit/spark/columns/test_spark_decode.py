"""Record batches as Arrow columns: the same records that the wire core reads, and no byte beyond them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from moldau.errors import CorruptRecordError, ErrorCode, KafkaError
from moldau.spark.columns import batches, decode
from moldau.spark.columns.decode import RAW_FIELDS, Decoder
from moldau.spark.columns.kernels import LAST_OFFSET
from moldau.spark.source.read_plan import RAW_COLUMNS
from moldau.wire.batch import (
    BatchHeader,
    ControlType,
    assemble,
    decode_records,
    encode_batch,
    encode_end_txn_marker,
    iter_headers,
    read_header,
    records_data,
)
from moldau.wire.compression import Codec, compress
from tests.examples import examples

ALL = tuple(RAW_FIELDS)
END = 1 << 62
QUICK = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

contents = st.one_of(st.none(), st.binary(max_size=300))
names = st.text(max_size=8)
rows = st.tuples(
    contents, contents, st.integers(-1, 1 << 41), st.lists(st.tuples(names, contents), max_size=3).map(tuple)
)
record_batches = st.lists(st.tuples(st.lists(rows, min_size=1, max_size=20), st.sampled_from(Codec)), max_size=5)

PAGE = mmap.PAGESIZE


class Fence:
    """Memory that ends, and begins, where the process may not read: a byte too far is a crash, not a wrong row."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        start = self._bytes.ctypes.data
        for guard in (start, start + (pages + 1) * PAGE):
            assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0

    def before_the_end(self, data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
        inside = self._bytes[PAGE:-PAGE]
        place = inside[len(inside) - len(data) :]
        place[:] = np.frombuffer(data, np.uint8)
        return place


@pytest.fixture(scope="module")
def fence() -> Fence:
    return Fence(64)


def as_array(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def read(
    data: np.ndarray[Any, np.dtype[np.uint8]],
    *,
    columns: Sequence[str] = ALL,
    first: int = 0,
    end: int = END,
    aborted: Sequence[tuple[int, int]] = (),
    rows_max: int = 7,
    crcs: bool = True,
) -> Iterator[pa.RecordBatch]:
    decoder = Decoder("topic", 3, columns, rows_max)
    table = batches.index(data)
    if crcs:
        batches.check_crcs(data, table)
    for plain in batches.plain(data, batches.visible(data, table, aborted, first, end)):
        yield from decoder.decode(plain, first, end)


def read_rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    found = list(read(as_array(data), **options))
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


def expected(data: bytes) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "topic",
            "partition": 3,
            "offset": record.offset,
            "timestamp": datetime.fromtimestamp(record.timestamp_ms // 1000, UTC).replace(
                microsecond=record.timestamp_ms % 1000 * 1000
            ),
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for pos, header in iter_headers(data)
        for record in decode_records(data, pos, header)
    ]


def log_of(*parts: tuple[Sequence[Any], Codec]) -> bytes:
    log, offset = b"", 100
    for records, codec in parts:
        log += encode_batch(records, base_offset=offset, codec=codec)
        offset += len(records) + 2  # with gaps, as a compacted log has them
    return log


def values(data: bytes, **options: Any) -> list[bytes]:
    return [row["value"] for row in read_rows(data, columns=("value",), **options)]


def one(value: bytes | None = b"v", *, offset: int = 0, **options: Any) -> bytes:
    return encode_batch([(None, value, 0, ())], base_offset=offset, **options)


def test_columns_are_typed_as_spark_types_them() -> None:
    header = types.StructType().add("key", "string").add("value", "binary")
    struct = types.StructType().add("key", "binary").add("value", "binary").add("topic", "string")
    struct.add("partition", "integer").add("offset", "long").add("timestamp", "timestamp")
    struct.add("timestampType", "integer").add("headers", types.ArrayType(header))
    spark = to_arrow_schema(struct, timezone="UTC")
    assert pa.schema(list(RAW_FIELDS.values())) == spark
    assert tuple(RAW_FIELDS) == RAW_COLUMNS


@given(parts=record_batches, rows_max=st.integers(1, 40))
@QUICK
def test_columns_hold_what_the_wire_core_reads(parts: list[Any], rows_max: int) -> None:
    data = log_of(*parts)
    assert read_rows(data, rows_max=rows_max) == expected(data)


@given(
    parts=record_batches, columns=st.permutations(ALL).flatmap(lambda all_: st.integers(1, 8).map(lambda n: all_[:n]))
)
@QUICK
def test_any_columns_in_any_order_are_the_same_records(parts: list[Any], columns: list[str]) -> None:
    data = log_of(*parts)
    assert read_rows(data, columns=columns) == [{name: row[name] for name in columns} for row in expected(data)]


@given(parts=record_batches, first=st.integers(90, 200), size=st.integers(0, 60))
@QUICK
def test_a_range_is_exactly_its_offsets(parts: list[Any], first: int, size: int) -> None:
    data = log_of(*parts)
    wanted = [row for row in expected(data) if first <= row["offset"] < first + size]
    assert read_rows(data, first=first, end=first + size) == wanted


def test_batches_have_no_more_rows_than_asked_for_and_large_records_make_them_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = as_array(log_of(([(None, bytes(100), 0, ())] * 25, Codec.NONE)))
    assert [batch.num_rows for batch in read(data, rows_max=10)] == [10, 10, 5]
    monkeypatch.setattr(decode, "BATCH_BYTES_MAX", 350)
    assert [batch.num_rows for batch in read(data, rows_max=10)] == [4, 4, 4, 4, 4, 4, 1]
    data = as_array(log_of(([(None, None, 0, (("name", bytes(100)),))] * 5, Codec.NONE)))
    assert [batch.num_rows for batch in read(data, rows_max=10)] == [4, 1]


def test_decompressed_batches_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log_of(*[([(None, b"%d" % number * 100, 0, ())] * 3, Codec.ZSTD) for number in range(9)])
    monkeypatch.setattr(batches, "PLAIN_BYTES_MAX", 1000)
    pieces = list(batches.plain(as_array(data), batches.index(as_array(data))))
    assert len(pieces) > 2
    assert max(len(piece.data) for piece in pieces) < 2000
    assert read_rows(data) == expected(data)


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_is_the_batchs_for_all_its_records(codec: Codec) -> None:
    data = encode_batch([(None, b"a", 5, ()), (None, b"b", 9_000, ())], codec=codec, log_append_time=True)
    found = read_rows(data, columns=("timestamp", "timestampType"))
    assert found == [{"timestamp": datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC), "timestampType": 1}] * 2


def test_timestamps_that_microseconds_cannot_say_become_the_nearest() -> None:
    for timestamp_ms in (-(1 << 62), 1 << 62):
        (batch,) = read(as_array(encode_batch([(None, None, timestamp_ms, ())])), columns=("timestamp",))
        micros = batch.column(0).cast(pa.int64())[0].as_py()
        assert abs(micros) > 9.2e18
        assert (micros < 0) == (timestamp_ms < 0)


def test_a_header_name_that_is_no_text_has_replacement_characters_as_in_java() -> None:
    data = encode_batch([(None, None, 0, (("fine", b"1"), ("bad-\udcff", b"2"), ("fine", None)))])
    (row,) = read_rows(data, columns=("headers",))
    assert row["headers"] == [
        {"key": "fine", "value": b"1"},
        {"key": "bad-�", "value": b"2"},
        {"key": "fine", "value": None},
    ]


def test_aborted_transactions_are_left_out_and_committed_ones_are_not() -> None:
    def sent(value: bytes, offset: int, producer: int) -> bytes:
        return one(value, offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True)

    def ended(marker: ControlType, offset: int, producer: int) -> bytes:
        return encode_end_txn_marker(
            marker, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp_ms=0, base_offset=offset
        )

    log = b"".join(
        [
            sent(b"7 committed", 0, 7),
            ended(ControlType.COMMIT, 1, 7),
            sent(b"7 aborted", 2, 7),
            sent(b"8 committed", 3, 8),
            one(b"plain", offset=4),
            ended(ControlType.ABORT, 5, 7),
            sent(b"7 committed again", 6, 7),
            ended(ControlType.COMMIT, 7, 8),
            sent(b"8 aborted", 8, 8),
            ended(ControlType.ABORT, 9, 8),
            ended(ControlType.COMMIT, 10, 7),
        ]
    )
    seen = [b"7 committed", b"8 committed", b"plain", b"7 committed again"]
    assert values(log, aborted=[(8, 8), (7, 2)]) == seen
    everything = [b"7 committed", b"7 aborted", b"8 committed", b"plain", b"7 committed again", b"8 aborted"]
    assert values(log) == everything


def test_a_marker_that_compaction_took_out_of_its_batch_ends_nothing() -> None:
    marker = encode_end_txn_marker(
        ControlType.ABORT, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp_ms=0, base_offset=1
    )
    emptied = assemble(read_header(marker)._replace(count=0), b"")
    aborted = one(
        b"a", offset=2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    ) + marker.replace(marker[:8], (3).to_bytes(8, "big"), 1)
    assert values(emptied + aborted + one(b"plain", offset=4), aborted=[(7, 0)]) == [b"plain"]


def test_a_batch_that_fails_its_crc_is_refused_unless_crcs_are_not_looked_at() -> None:
    data = bytearray(one(b"a") + one(b"b", offset=1))
    data[-2] ^= 1
    with pytest.raises(CorruptRecordError, match="offset 1 fails its CRC"):
        read_rows(bytes(data))
    assert values(bytes(data), crcs=False)[0] == b"a"


def test_an_old_message_format_is_named() -> None:
    data = bytearray(one())
    data[16] = 1
    with pytest.raises(KafkaError, match="message format 1") as raised:
        read_rows(bytes(data))
    assert raised.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_cut_off_last_batch_is_left_for_the_next_answer() -> None:
    data = one(b"a") + one(b"b", offset=1)
    assert values(data[:-1]) == [b"a"]
    assert batches.index(as_array(data[:-1]))[LAST_OFFSET].tolist() == [0]
    assert batches.index(as_array(data[:60])).shape[1] == 0


def with_records(data: bytes, codec: Codec = Codec.NONE, **header: Any) -> bytes:
    """A batch with a right CRC around any bytes."""
    template: BatchHeader = read_header(one(offset=40))
    return assemble(template._replace(**{"attributes": int(codec), **header}), compress(codec, data))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x00",
        b"\x01",  # a size of -1
        b"\x0e\x00\x00\x00\x01\x01",  # more than there is
        b"\x0c\x00\x00\x02\x01\x01\x00",  # an offset behind the batch's last
        b"\x0c\x00\x00\x01\x01\x01\x00",  # an offset before the batch's first
        b"\x0c\x00\x00\x00\x01\x08\x00",  # a value that ends behind the record
        b"\x0c\x00\x00\x00\x01\x01\x02",  # a header that is not there
        b"\x0c\x00\x00\x00\x01\x01\x01",  # -1 headers
        b"\x0e\x00\x00\x00\x01\x01\x00\x00",  # a byte too many within the record
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",  # and behind it
        b"\xff" * 20,
        b"\x0e\x00" + b"\x80" * 10 + b"\x00",
    ],
)
def test_malformed_records_are_corrupt_and_say_where(record: bytes, codec: Codec, fence: Fence) -> None:
    data = with_records(record, codec)
    with pytest.raises(CorruptRecordError, match="batch at offset 40"):
        list(read(fence.before_the_end(data)))


def test_malformed_headers_are_corrupt_only_to_those_who_read_them() -> None:
    record = b"\x12\x00\x00\x00\x01\x01\x02\x01\x00\x00"  # a header without a name
    with pytest.raises(CorruptRecordError, match="headers at offset 40"):
        read_rows(with_records(record))
    assert values(with_records(record)) == [None]


def test_an_unknown_codec_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="compression type, 7"):
        read_rows(with_records(b"", attributes=7))


def test_counts_and_offsets_from_strangers_reserve_no_memory() -> None:
    strange: list[dict[str, Any]] = [{"count": 0x7FFF_FFFF}, {"count": -1}, {"last_offset_delta": -5}, {"count": 0}]
    for header in strange:
        with pytest.raises(CorruptRecordError):
            read_rows(with_records(b"\x0c\x00\x00\x00\x01\x01\x00", **header))


def test_a_batch_that_compaction_emptied_has_no_rows() -> None:
    assert read_rows(with_records(b"", count=0, last_offset_delta=9) + one(b"next", offset=50))[0]["value"] == b"next"


@given(data=st.data(), parts=record_batches.filter(len))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_batches_decode_or_are_refused_and_nothing_outside_is_read(
    fence: Fence, data: st.DataObject, parts: list[Any]
) -> None:
    log = bytearray(log_of(*parts))
    for _ in range(data.draw(st.integers(1, 8))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    _read_or_refuse(fence, bytes(log))


@given(data=st.data(), parts=record_batches.filter(len))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_records_under_a_right_crc_decode_or_are_refused(
    fence: Fence, data: st.DataObject, parts: list[Any]
) -> None:
    log = b""
    whole = log_of(*parts)
    for pos, header in iter_headers(whole):
        plain = bytearray(records_data(whole, pos, header))
        for _ in range(data.draw(st.integers(0, 4))):
            plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
        log += assemble(header, compress(header.codec, bytes(plain)))
    _read_or_refuse(fence, log)


def _read_or_refuse(fence: Fence, log: bytes) -> None:
    try:
        found = list(read(fence.before_the_end(log[: 60 * PAGE]), crcs=False))
    except KafkaError:
        return
    for batch in found:
        batch.validate(full=True)
