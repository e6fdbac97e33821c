from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from moldau.errors import CorruptRecordError, ErrorCode, KafkaError
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import decode_records, encode_batch, read_header
from moldau.wire.compression import Codec
from tests.unit.log.log_helpers import NOW_MS, Clock, append, batch, files_of, new_log, offsets_of, read_all, restart

HOUR_MS = 3_600_000


def refused(log: PartitionLog, records: bytearray) -> ErrorCode:
    """The code of the refusal; and nothing of the batch is in the log."""
    before = (log.log_end_offset, log.size_bytes)
    with pytest.raises(KafkaError) as caught:
        append(log, records)
    assert (log.log_end_offset, log.size_bytes) == before
    return caught.value.code


def test_records_get_the_offsets_that_follow(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first = append(log, batch(3))
    second = append(log, batch(2))
    assert (first.base_offset, first.last_offset, first.count) == (0, 2, 3)
    assert (second.base_offset, second.last_offset, second.log_start_offset) == (3, 4, 0)
    assert first.log_append_time_ms == -1
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 5


def test_a_batch_is_stored_as_sent_but_for_offset_and_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    sent = batch(2)
    original = bytes(sent)
    append(log, sent, leader_epoch=7)
    header, stored = read_all(log)[1]
    assert (header.base_offset, header.leader_epoch) == (1, 7)
    assert stored[16:] == original[16:]
    assert stored[8:12] == original[8:12]


def test_a_memoryview_into_a_larger_frame_is_taken(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    one = batch()
    frame = bytearray(b"head" + one + b"tail")
    log.append(memoryview(frame)[4:-4], leader_epoch=0, now_ms=NOW_MS)
    assert offsets_of(log) == [0]
    assert frame[:4] == b"head"
    assert frame[-4:] == b"tail"


@pytest.mark.parametrize("position", [16, 17, 22, 30, 61, -1])
def test_a_damaged_batch_is_refused(tmp_path: Path, position: int) -> None:
    log = new_log(tmp_path)
    one = batch()
    one[position] ^= 0xFF
    assert refused(log, one) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 1, 60, 61, 85])
def test_a_short_batch_is_refused(tmp_path: Path, size: int) -> None:
    log = new_log(tmp_path)
    assert refused(log, batch()[:size]) is ErrorCode.CORRUPT_MESSAGE


def test_two_batches_at_once_are_refused(tmp_path: Path) -> None:
    assert refused(new_log(tmp_path), batch() + batch()) is ErrorCode.INVALID_RECORD


def test_the_old_message_format_is_refused(tmp_path: Path) -> None:
    one = batch()
    one[16] = 1
    assert refused(new_log(tmp_path), one) is ErrorCode.INVALID_RECORD


def test_a_batch_above_max_message_bytes_is_refused(tmp_path: Path) -> None:
    one = batch(size=500)
    log = new_log(tmp_path, max_message_bytes=len(one) - 1)
    assert refused(log, one) is ErrorCode.MESSAGE_TOO_LARGE
    assert append(new_log(tmp_path / "x", max_message_bytes=len(one)), one).base_offset == 0


def test_a_batch_above_segment_bytes_is_refused(tmp_path: Path) -> None:
    assert refused(new_log(tmp_path, segment_bytes=300), batch(size=500)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    one = batch()
    one[22] |= 7
    assert refused(new_log(tmp_path), with_crc(one)) is ErrorCode.INVALID_RECORD


def with_crc(one: bytearray) -> bytearray:
    one[17:21] = crc32c(bytes(one[21:])).to_bytes(4, "big")
    return one


def test_timestamps_must_be_near_the_brokers_clock(tmp_path: Path) -> None:
    log = new_log(tmp_path, message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS)
    append(log, batch(timestamps=[NOW_MS - HOUR_MS, NOW_MS + HOUR_MS]))
    late = batch(timestamps=[NOW_MS, NOW_MS - HOUR_MS - 1, NOW_MS])
    assert refused(log, late) is ErrorCode.INVALID_TIMESTAMP
    assert refused(log, batch(timestamps=[NOW_MS, NOW_MS + HOUR_MS + 1])) is ErrorCode.INVALID_TIMESTAMP
    append(log, batch(timestamps=[-1]))


def test_a_producer_cannot_play_broker_with_the_timestamp_type(tmp_path: Path) -> None:
    assert refused(new_log(tmp_path), batch(log_append_time=True)) is ErrorCode.INVALID_TIMESTAMP


def test_log_append_time_is_the_brokers_clock(tmp_path: Path) -> None:
    log = new_log(tmp_path, message_timestamp_type="LogAppendTime")
    info = append(log, batch(3, timestamp_ms=5))
    assert info.log_append_time_ms == NOW_MS
    header, stored = read_all(log)[0]
    assert [record.timestamp_ms for record in decode_records(stored, 0, header)] == [NOW_MS] * 3


def test_a_compacted_topic_needs_keys(tmp_path: Path) -> None:
    log = new_log(tmp_path, cleanup_policy=frozenset({"compact"}))
    assert refused(log, batch(key=None)) is ErrorCode.INVALID_RECORD
    append(log, batch(key=b""))


def claiming(count: int, codec: Codec) -> bytearray:
    """A batch of one record whose header speaks of `count`."""
    one = batch(codec=codec)
    one[23:27] = (count - 1).to_bytes(4, "big")
    one[57:61] = count.to_bytes(4, "big")
    return with_crc(one)


def test_a_batch_of_more_records_than_max_message_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, max_message_bytes=1_400_000)
    assert refused(log, claiming(200_001, Codec.ZSTD)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refused(log, claiming(2**31 - 1, Codec.ZSTD)) is ErrorCode.MESSAGE_TOO_LARGE
    append(log, claiming(200_000, Codec.ZSTD))
    small = new_log(tmp_path / "small", max_message_bytes=1000)
    assert refused(small, claiming(100_001, Codec.ZSTD)) is ErrorCode.MESSAGE_TOO_LARGE
    append(small, claiming(100_000, Codec.ZSTD))


def test_a_batch_of_more_records_than_its_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert refused(log, claiming(50, Codec.NONE)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("config", [{"cleanup_policy": frozenset({"compact"})}, {"compression_type": "gzip"}])
def test_a_batch_that_swells_beyond_measure_is_refused_where_it_is_decompressed(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    bomb = bytearray(encode_batch([(b"k", bytes(17 << 20), NOW_MS, ())], codec=Codec.ZSTD))
    log = new_log(tmp_path, segment_bytes=10_000, max_message_bytes=5000, **config)
    assert refused(log, bomb) is ErrorCode.INVALID_RECORD
    append(log, batch(500, size=0, codec=Codec.ZSTD))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_is_applied(tmp_path: Path, codec: str) -> None:
    log = new_log(tmp_path, compression_type=codec, segment_bytes=100_000)
    sent = batch(20, size=100)
    values = [record.value for record in decode_records(sent, 0, read_header(sent))]
    append(log, sent)
    append(log, batch(2, codec=Codec.ZSTD))
    header, stored = read_all(log)[0]
    assert header.codec is Codec[codec.upper()]
    assert [record.value for record in decode_records(stored, 0, header)] == values
    assert [record.offset for record in decode_records(stored, 0, header)] == list(range(20))
    assert {header.codec for header, _ in read_all(log)} == {Codec[codec.upper()]}


def test_a_changed_configuration_holds_from_the_next_batch_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=100_000)
    append(log, batch(size=500))
    log.update_config(dataclasses.replace(log.config, max_message_bytes=200))
    assert refused(log, batch(size=500)) is ErrorCode.MESSAGE_TOO_LARGE


# -- rolling


def test_a_full_segment_is_followed_by_a_new_one(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=500)
    sizes = [len(one) for one in (batch(size=100) for _ in range(9)) if append(log, one)]
    assert all(segment.size <= 500 for segment in log.segments)
    assert len(log.segments) == 5
    assert log.size_bytes == sum(sizes)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert f"{2:020d}.snapshot" in files_of(log)


def test_a_segment_is_rolled_when_its_records_span_segment_ms(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_ms=1000)
    append(log, batch(timestamp_ms=NOW_MS))
    append(log, batch(timestamp_ms=NOW_MS + 1000))
    assert len(log.segments) == 1
    append(log, batch(timestamp_ms=NOW_MS + 1001))
    assert len(log.segments) == 2
    append(log, batch(timestamp_ms=NOW_MS + 1001 + 1000))
    assert len(log.segments) == 2


def test_the_age_of_a_segment_is_known_after_a_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_ms=1000)
    append(log, batch(timestamp_ms=NOW_MS))
    log = restart(log)
    append(log, batch(timestamp_ms=NOW_MS + 1001))
    assert len(log.segments) == 2


def test_without_timestamps_the_age_goes_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    log = new_log(tmp_path, clock, segment_ms=1000)
    append(log, batch(timestamps=[-1]))
    clock.now_ms += 1001
    append(log, batch(timestamps=[-1]))
    assert len(log.segments) == 2


def test_a_full_index_rolls_the_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=100_000, index_interval_bytes=0, segment_index_bytes=48)
    for _ in range(30):
        append(log)
    assert len(log.segments) > 3
    for segment in log.segments:
        assert len(segment.offset_index) <= 6
        assert len(segment.time_index) <= 4
    assert offsets_of(log) == list(range(30))


def test_a_segment_never_spans_more_offsets_than_its_index_can_count(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=100_000)
    far = 2**31 + 5
    log.append_as_follower(batch(base_offset=0), now_ms=NOW_MS)
    log.append_as_follower(batch(base_offset=2**31 - 1), now_ms=NOW_MS)
    log.append_as_follower(batch(base_offset=far), now_ms=NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    assert offsets_of(log) == [0, 2**31 - 1, far]
    log = restart(log)
    assert offsets_of(log) == [0, 2**31 - 1, far]


def test_an_empty_segment_too_low_for_the_next_offset_is_replaced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    far = 2**40
    log.append_as_follower(batch(2, base_offset=far), now_ms=NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [far]
    assert restart(log).log_end_offset == far + 2


def test_a_follower_keeps_the_leaders_bytes_and_refuses_to_go_back(tmp_path: Path) -> None:
    leader = new_log(tmp_path / "leader", segment_bytes=10_000)
    for number in range(10):
        append(leader, batch(2, producer_id=4, producer_epoch=0, base_sequence=2 * number), leader_epoch=number // 4)
    data = leader.read(0, 1 << 20, upto_offset=20, min_one=True)
    follower = new_log(tmp_path / "follower")
    assert follower.append_as_follower(data, now_ms=NOW_MS) == 20
    assert read_all(follower) == read_all(leader)
    assert follower.epochs.entries() == leader.epochs.entries() == [(0, 0), (1, 8), (2, 16)]
    assert follower.producers.encode() == leader.producers.encode()
    with pytest.raises(KafkaError, match="ends at offset 20"):
        follower.append_as_follower(data, now_ms=NOW_MS)
    damaged = bytearray(batch(base_offset=20))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        follower.append_as_follower(damaged, now_ms=NOW_MS)
    assert follower.log_end_offset == 20
