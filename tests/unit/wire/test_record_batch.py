"""Record batches: what the clients' own codecs write is read, what is written here they read."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import crc32c
import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import default_records as kafka_python_records

from moldau.errors import CorruptRecordError, ErrorCode, KafkaError
from moldau.wire.batch import (
    BatchHeader,
    ControlRecord,
    ControlType,
    Record,
    RecordFields,
    check_batch,
    decode_control_record,
    decode_records,
    encode_batch,
    encode_end_txn_marker,
    iter_headers,
    read_header,
    recompress,
    stamp,
    stamp_log_append_time,
)
from moldau.wire.batch_layout import HEADER_SIZE
from moldau.wire.compression import Codec
from tests.examples import examples

QUICK = settings(max_examples=examples(60), deadline=None)

timestamps = st.integers(0, 2**45)
record_fields = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    timestamps,
    st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3),
)
batches = st.lists(record_fields, min_size=1, max_size=8)

THREE: list[RecordFields] = [
    (b"k1", b"v" * 100, 1_000, [("trace", b"abc"), ("empty", None)]),
    (None, b"", 3_000, []),
    (b"k3", None, 2_000, [("ž", b"")]),
]


def decoded(buf: bytes, pos: int = 0) -> list[Record]:
    header = read_header(buf, pos)
    check_batch(buf, pos, header, strict=False)
    return decode_records(buf, pos, header)


def as_records(fields: list[RecordFields], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + delta, timestamp, key, value, tuple(headers))
        for delta, (key, value, timestamp, headers) in enumerate(fields)
    ]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
@given(fields=batches, base_offset=st.integers(0, 2**62))
@QUICK
def test_records_survive_encoding(codec: Codec, fields: list[RecordFields], base_offset: int) -> None:
    batch = encode_batch(fields, base_offset=base_offset, codec=codec)
    assert decoded(batch) == as_records(fields, base_offset)


@pytest.mark.parametrize("base_timestamp", [0, -(2**63) + 1, 2**63 - 1])
def test_timestamp_deltas_span_64_bits(base_timestamp: int) -> None:
    fields: list[RecordFields] = [(b"k", b"v", base_timestamp, ()), (b"k", b"v", 0, ())]
    assert decoded(encode_batch(fields)) == as_records(fields)


def test_the_header_says_what_was_asked_for() -> None:
    header = read_header(
        encode_batch(
            THREE,
            base_offset=40,
            codec=Codec.ZSTD,
            leader_epoch=5,
            producer_id=9,
            producer_epoch=2,
            base_sequence=2**31 - 2,
            is_transactional=True,
        )
    )
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.count, header.last_offset_delta, header.leader_epoch, header.magic) == (3, 2, 5, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 3_000)
    assert (header.producer_id, header.producer_epoch) == (9, 2)
    assert (header.base_sequence, header.last_sequence) == (2**31 - 2, 0)
    assert header.codec is Codec.ZSTD
    assert header.is_compressed
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert header.delete_horizon_ms is None
    assert header._replace(attributes=header.attributes | 0x40).delete_horizon_ms == 1_000


def test_without_a_sequence_there_is_no_last_sequence() -> None:
    assert read_header(encode_batch(THREE)).last_sequence == -1


def test_an_unknown_codec_number_is_an_invalid_record() -> None:
    header = read_header(encode_batch(THREE))
    with pytest.raises(KafkaError) as raised:
        _ = header._replace(attributes=7).codec
    assert raised.value.code is ErrorCode.INVALID_RECORD


class TestAgainstOtherClients:
    def kafka_python_batch(self, fields: list[RecordFields], codec: Codec) -> bytes:
        builder = kafka_python_records.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=int(codec),
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=10**9,
        )
        for offset, (key, value, timestamp, headers) in enumerate(fields):
            builder.append(offset, timestamp, key, value, list(headers))
        return bytes(builder.build())

    def aiokafka_batch(self, fields: list[RecordFields], codec: Codec) -> bytes:
        builder = aiokafka_records.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=int(codec),
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=10**9,
        )
        for offset, (key, value, timestamp, headers) in enumerate(fields):
            builder.append(offset, timestamp, key, value, list(headers))
        return bytes(builder.build())

    @given(fields=batches)
    @QUICK
    def test_kafka_python_writes_the_same_bytes(self, fields: list[RecordFields]) -> None:
        ours = encode_batch(fields, leader_epoch=0)
        assert self.kafka_python_batch(fields, Codec.NONE) == ours

    @given(fields=batches)
    @QUICK
    def test_aiokafka_writes_the_same_bytes(self, fields: list[RecordFields]) -> None:
        assert self.aiokafka_batch(fields, Codec.NONE) == encode_batch(fields)

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    @given(fields=batches)
    @QUICK
    def test_what_kafka_python_compresses_is_read(self, codec: Codec, fields: list[RecordFields]) -> None:
        assert decoded(self.kafka_python_batch(fields, codec)) == as_records(fields)

    @pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
    @given(fields=batches, copies=st.sampled_from((1, 500)))
    @settings(max_examples=examples(20), deadline=None)
    def test_what_aiokafka_compresses_is_read(self, codec: Codec, fields: list[RecordFields], copies: int) -> None:
        fields = fields * copies
        assert decoded(self.aiokafka_batch(fields, codec)) == as_records(fields)

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    @given(fields=batches)
    @QUICK
    def test_kafka_python_reads_ours(self, codec: Codec, fields: list[RecordFields]) -> None:
        theirs: Any = kafka_python_records.DefaultRecordBatch(encode_batch(fields, codec=codec))
        assert theirs.validate_crc()
        assert [
            (record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in theirs
        ] == as_records(fields)

    @pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
    @given(fields=batches, copies=st.sampled_from((1, 500)))
    @settings(max_examples=examples(20), deadline=None)
    def test_aiokafka_reads_ours(self, codec: Codec, fields: list[RecordFields], copies: int) -> None:
        fields = fields * copies
        theirs: Any = aiokafka_records.DefaultRecordBatch(encode_batch(fields, codec=codec))
        assert theirs.validate_crc()
        assert [
            (record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in theirs
        ] == as_records(fields)


class TestChecks:
    def code_of(self, batch: bytes, *, strict: bool = True) -> ErrorCode:
        header = read_header(batch)
        with pytest.raises(KafkaError) as raised:
            check_batch(batch, 0, header, strict=strict)
        return raised.value.code

    def with_header(self, **changes: int) -> bytes:
        """A batch that says something else in its header, under a CRC that holds."""
        batch = bytearray(encode_batch(THREE))
        header = read_header(batch)._replace(**changes)
        struct.pack_into(">qiibIhiqqqhii", batch, 0, *header)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
        return bytes(batch)

    def test_a_good_batch_passes_wherever_it_stands(self) -> None:
        batch = encode_batch(THREE)
        check_batch(batch, 0, read_header(batch))
        framed = bytearray(b"123" + batch + b"45")
        check_batch(memoryview(framed), 3, read_header(framed, 3))

    def test_any_flipped_bit_after_the_magic_is_corrupt(self) -> None:
        batch = encode_batch(THREE)
        for pos in range(17, len(batch)):
            broken = bytearray(batch)
            broken[pos] ^= 0x10
            assert self.code_of(bytes(broken)) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("length", [1, 2**31 - 1 - 1000])
    def test_a_batch_longer_than_its_bytes_is_no_batch(self, length: int) -> None:
        # A producer is told not to try again, as Kafka does; in a log it is damage.
        batch = bytearray(encode_batch(THREE))
        struct.pack_into(">i", batch, 8, read_header(batch).length + length)
        assert self.code_of(bytes(batch)) is ErrorCode.INVALID_RECORD
        assert self.code_of(bytes(batch), strict=False) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, HEADER_SIZE - 13])
    def test_senseless_lengths_are_corrupt(self, length: int) -> None:
        batch = bytearray(encode_batch(THREE))
        struct.pack_into(">i", batch, 8, length)
        assert self.code_of(bytes(batch)) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_answered_as_kafka_answers_them(self, magic: int) -> None:
        assert self.code_of(self.with_header(magic=magic)) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [-1, 3, 127])
    def test_formats_that_never_were_are_corrupt(self, magic: int) -> None:
        assert self.code_of(self.with_header(magic=magic)) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize(
        "changes",
        [
            {"base_offset": 1},
            {"count": 0},
            {"count": -1},
            {"count": 4},
            {"last_offset_delta": 1},
            {"last_offset_delta": -1},
            {"attributes": 0x20},
            {"attributes": 5},
            {"producer_id": 5, "base_sequence": -1},
        ],
        ids=str,
    )
    def test_what_no_producer_may_send_is_an_invalid_record(self, changes: dict[str, int]) -> None:
        batch = self.with_header(**changes)
        assert self.code_of(batch) is ErrorCode.INVALID_RECORD
        check_batch(batch, 0, read_header(batch), strict=False)  # yet it may stand in a log

    def test_a_buffer_shorter_than_a_header_is_corrupt(self) -> None:
        with pytest.raises(CorruptRecordError, match="too few"):
            read_header(encode_batch(THREE)[: HEADER_SIZE - 1])
        with pytest.raises(CorruptRecordError):
            read_header(b"", 0)


class TestStamping:
    def test_offset_and_epoch_are_written_in_place_and_the_crc_still_holds(self) -> None:
        buf = bytearray(b"xyz" + encode_batch(THREE))
        stamp(memoryview(buf), 3, 2**40, 7)
        header = read_header(buf, 3)
        assert (header.base_offset, header.leader_epoch) == (2**40, 7)
        check_batch(buf, 3, header, strict=False)
        assert decode_records(buf, 3, header) == as_records(THREE, 2**40)

    def test_log_append_time_is_the_time_of_every_record(self) -> None:
        buf = bytearray(b"xyz" + encode_batch(THREE, codec=Codec.LZ4) + b"tail")
        stamp_log_append_time(buf, 3, 123_456)
        header = read_header(buf, 3)
        check_batch(buf, 3, header)
        assert header.is_log_append_time
        assert header.codec is Codec.LZ4
        assert header.max_timestamp == 123_456
        assert {record.timestamp_ms for record in decode_records(buf, 3, header)} == {123_456}


class TestIteration:
    def test_batches_follow_one_another(self) -> None:
        parts = [encode_batch(THREE, base_offset=offset) for offset in (0, 3, 6)]
        buf = b"".join(parts)
        found = list(iter_headers(memoryview(buf)))
        assert [header.base_offset for _, header in found] == [0, 3, 6]
        assert [pos for pos, _ in found] == [0, len(parts[0]), 2 * len(parts[0])]
        assert sum(header.size for _, header in found) == len(buf)

    def test_a_short_tail_ends_the_walk(self) -> None:
        batch = encode_batch(THREE)
        for cut in range(len(batch)):
            assert len(list(iter_headers(batch + batch[:cut]))) == 1

    @pytest.mark.parametrize("length", [-(2**31), -12, 0, 48])
    def test_a_senseless_length_ends_the_walk(self, length: int) -> None:
        batch = encode_batch(THREE)
        broken = bytearray(batch)
        struct.pack_into(">i", broken, 8, length)
        assert len(list(iter_headers(batch + broken))) == 1


class TestHostileRecords:
    @pytest.mark.parametrize("codec", list(Codec)[1:], ids=lambda codec: codec.name)
    def test_a_bomb_is_an_invalid_record(self, codec: Codec) -> None:
        batch = encode_batch([(None, bytes(5_000_000), 0, ())], codec=codec)
        header = read_header(batch)
        with pytest.raises(KafkaError) as raised:
            decode_records(batch, 0, header, max_size=1_000_000)
        assert raised.value.code is ErrorCode.INVALID_RECORD

    def test_records_cut_anywhere_are_invalid(self) -> None:
        batch = encode_batch(THREE)
        for end in range(HEADER_SIZE, len(batch)):
            header = read_header(batch)._replace(length=end - 12)
            with pytest.raises(KafkaError) as raised:
                decode_records(batch[:end], 0, header)
            assert raised.value.code is ErrorCode.INVALID_RECORD

    @given(data=st.data(), codec=st.sampled_from(Codec))
    @settings(max_examples=examples(300), deadline=None)
    def test_mutated_records_parse_or_are_answered_with_a_code(self, data: st.DataObject, codec: Codec) -> None:
        batch = bytearray(encode_batch(THREE, codec=codec))
        header = read_header(batch)
        for _ in range(data.draw(st.integers(1, 4))):
            batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(KafkaError):
            decode_records(batch, 0, header, max_size=100_000)

    @pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
    def test_a_count_that_does_not_fit_is_an_invalid_record(self, count: int) -> None:
        batch = encode_batch(THREE)
        with pytest.raises(KafkaError) as raised:
            decode_records(batch, 0, read_header(batch)._replace(count=count))
        assert raised.value.code is ErrorCode.INVALID_RECORD

    def test_header_names_that_are_no_utf8_survive(self) -> None:
        batch = bytearray(encode_batch([(b"k", b"v", 1, [("name", b"x")])]))
        at = batch.index(b"name")
        batch[at : at + 4] = b"\xff\xfe\x00a"
        header = read_header(batch)
        (record,) = decode_records(batch, 0, header)
        again = encode_batch([(record.key, record.value, record.timestamp_ms, record.headers)])
        assert again[HEADER_SIZE:] == batch[HEADER_SIZE:]


@pytest.mark.parametrize("source", Codec, ids=lambda codec: codec.name)
@pytest.mark.parametrize("target", Codec, ids=lambda codec: codec.name)
def test_recompressing_changes_nothing_but_the_codec(source: Codec, target: Codec) -> None:
    batch = b"??" + encode_batch(
        THREE,
        base_offset=7,
        codec=source,
        leader_epoch=3,
        producer_id=11,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=True,
    )
    header = read_header(batch, 2)
    again = recompress(batch, 2, header, target)
    new_header = read_header(again)
    check_batch(again, 0, new_header, strict=False)
    assert new_header.codec is target
    assert new_header.size == len(again)
    same = {"length": 0, "crc": 0, "attributes": 0}
    assert new_header._replace(**same) == header._replace(**same)
    assert (new_header.attributes ^ header.attributes) & ~7 == 0
    assert decode_records(again, 0, new_header) == as_records(THREE, 7)


class TestControlRecords:
    @pytest.mark.parametrize("marker", ControlType)
    def test_markers_survive_encoding(self, marker: ControlType) -> None:
        batch = encode_end_txn_marker(
            marker, coordinator_epoch=4, producer_id=8, producer_epoch=2, timestamp_ms=99, base_offset=17
        )
        header = read_header(batch)
        check_batch(batch, 0, header, strict=False)
        assert header.is_control
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, -1)
        (record,) = decode_records(batch, 0, header)
        assert (record.offset, record.timestamp_ms) == (17, 99)
        assert decode_control_record(record) == ControlRecord(marker, 4)

    def test_kafka_python_sees_a_commit(self) -> None:
        batch = encode_end_txn_marker(
            ControlType.COMMIT, coordinator_epoch=4, producer_id=8, producer_epoch=2, timestamp_ms=99
        )
        (record,) = kafka_python_records.DefaultRecordBatch(batch)
        assert record.commit
        assert not record.abort

    def test_a_type_of_kraft_passes_as_its_number(self) -> None:
        assert decode_control_record(Record(0, 0, b"\x00\x00\x00\x02", b"")) == ControlRecord(2, -1)

    def test_a_later_version_is_read_by_its_first_fields(self) -> None:
        record = Record(0, 0, b"\x00\x01\x00\x01more", b"\x00\x01\x00\x00\x00\x09more")
        assert decode_control_record(record) == ControlRecord(ControlType.COMMIT, 9)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, b"\x00\x00\x00\x00\x00\x04"),
            (b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x04"),
            (b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x04"),
            (b"\x00\x00\x00\x01", None),
            (b"\x00\x00\x00\x01", b"\x00\x00"),
            (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x04"),
        ],
    )
    def test_malformed_control_records_are_invalid(self, key: bytes | None, value: bytes | None) -> None:
        with pytest.raises(KafkaError) as raised:
            decode_control_record(Record(0, 0, key, value))
        assert raised.value.code is ErrorCode.INVALID_RECORD


def test_the_header_is_61_bytes_in_kafkas_order() -> None:
    batch = encode_batch(THREE)
    assert BatchHeader._fields.index("magic") == 3
    assert batch[16] == 2
    assert HEADER_SIZE == 61
