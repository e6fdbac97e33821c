"""What cleaning keeps and what it drops, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from moldau.log.cleaning.job import Failed
from moldau.log.cleaning.offset_map import BYTES_PER_KEY, OffsetMap
from moldau.log.cleaning.plan import CleaningLimits, look_at
from moldau.log.lookups import max_timestamp
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import BatchHeader, decode_records, stamp
from moldau.wire.compression import Codec
from tests.unit.log.cleaning.clean_helpers import clean_log, keyed, pairs_of, put, rows, work
from tests.unit.log.log_helpers import NOW_MS, Clock, append, end_transaction, new_log, offsets_of, read_all, restart

HOUR_MS = 3_600_000
TRANSACTIONAL: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}


def compacted(directory: Path, clock: Clock | None = None, **config: Any) -> PartitionLog:
    return new_log(directory, clock or Clock(), **{"cleanup_policy": frozenset({"compact"}), **config})


def headers(log: PartitionLog) -> list[BatchHeader]:
    return [header for header, _ in read_all(log)]


def test_of_each_key_the_last_record_stays_at_its_offset(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"2"))
    put(log, (b"a", b"3"), (b"c", b"4"), (b"a", b"5"))
    put(log, (b"b", b"6"))
    clean_log(log)
    assert rows(log) == [(3, b"c", b"4"), (4, b"a", b"5"), (5, b"b", b"6")]
    assert rows(restart(log)) == [(3, b"c", b"4"), (4, b"a", b"5"), (5, b"b", b"6")]


def test_a_reader_goes_on_over_a_gap(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(20):
        put(log, (b"k", b"%d" % number))
    clean_log(log)
    for offset in range(20):
        data = log.read(offset, 1, upto_offset=log.log_end_offset, min_one=True)
        assert decode_records(data, 0, headers(log)[0])[0].offset == 19


def test_the_active_segment_is_never_touched(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), roll=False)
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"1"), (b"a", b"2")]
    assert log.first_dirty_offset == 1


def test_records_of_an_open_transaction_are_not_judged(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), base_sequence=0, **TRANSACTIONAL)
    put(log, (b"a", b"3"))
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")]
    end_transaction(log, 7, abort=False)
    log.roll()
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"3")]


def test_an_aborted_record_neither_stays_nor_replaces_another(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), base_sequence=0, **TRANSACTIONAL)
    put(log, (b"b", b"3"), base_sequence=1, **TRANSACTIONAL)
    end_transaction(log, 7, abort=True)
    log.roll()
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"1")]


def test_a_committed_transaction_after_an_aborted_one_of_the_same_producer_stays(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"0"))
    put(log, (b"a", b"1"), base_sequence=0, **TRANSACTIONAL)
    end_transaction(log, 7, abort=True)
    log.roll()
    clean_log(log)
    put(log, (b"a", b"2"), base_sequence=1, **TRANSACTIONAL)
    end_transaction(log, 7, abort=False)
    log.roll()
    put(log, (b"z", b"3"))
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"2"), (b"z", b"3")]


def test_the_transaction_index_tells_of_aborts_as_long_as_a_batch_is_left(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), base_sequence=0, **TRANSACTIONAL)
    end_transaction(log, 7, abort=True)
    log.roll()
    put(log, (b"b", b"1"))
    clean_log(log)
    assert [header.count for header in headers(log)][:2] == [0, 1]  # its producer is still remembered
    assert log.aborted_transactions(0, log.log_end_offset) == [(7, 0)]
    put(log, (b"a", b"2"), base_sequence=1, **TRANSACTIONAL)
    end_transaction(log, 7, abort=False)
    log.roll()
    clean_log(log)  # drops the batch
    clean_log(log)  # finds none
    assert log.aborted_transactions(0, log.log_end_offset) == []
    assert not log.segments[0].txn_index.exists


def test_a_tombstone_is_there_for_delete_retention_ms_after_it_was_met(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, delete_retention_ms=HOUR_MS)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), (b"c", b"1"), step_ms=5)
    clock.now_ms += 10 * HOUR_MS
    clean_log(log)
    assert pairs_of(log) == [(b"b", b"1"), (b"a", None), (b"c", b"1")]
    header, data = read_all(log)[1]
    assert header.delete_horizon_ms == clock() + HOUR_MS
    assert [record.timestamp_ms for record in decode_records(data, 0, header)] == [NOW_MS, NOW_MS + 5]
    clock.now_ms += HOUR_MS - 1
    clean_log(log)
    assert (b"a", None) in pairs_of(log)
    clock.now_ms += 1
    clean_log(log)
    assert pairs_of(log) == [(b"b", b"1"), (b"c", b"1")]
    header, data = read_all(log)[1]
    assert [record.timestamp_ms for record in decode_records(data, 0, header)] == [NOW_MS + 5]
    assert header.max_timestamp == NOW_MS + 5


def test_the_marker_of_a_transaction_without_records_goes_after_delete_retention_ms(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, delete_retention_ms=HOUR_MS)
    put(log, (b"a", b"1"), base_sequence=0, **TRANSACTIONAL)
    end_transaction(log, 7, abort=False)
    put(log, (b"a", b"2"), base_sequence=1, producer_id=7, producer_epoch=0)
    put(log, (b"b", b"1"))

    def markers() -> list[BatchHeader]:
        return [header for header in headers(log) if header.is_control]

    clean_log(log)  # drops the record
    assert [header.delete_horizon_ms for header in markers()] == [None]
    clean_log(log)  # meets a marker without any
    assert [header.delete_horizon_ms for header in markers()] == [clock() + HOUR_MS]
    clock.now_ms += HOUR_MS
    clean_log(log)
    assert markers() == []


def test_a_record_without_a_key_goes(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, (None, b"1"), (b"a", b"1"))
    log.update_config(compacted(tmp_path / "other").config)
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"1")]


def test_the_last_sequence_of_a_producer_is_kept_in_an_empty_batch(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"1"), producer_id=9, producer_epoch=3, base_sequence=5)
    put(log, (b"a", b"2"), (b"b", b"2"))
    clean_log(log)
    empty = headers(log)[0]
    assert (empty.count, empty.producer_id, empty.producer_epoch, empty.last_sequence) == (0, 9, 3, 6)
    assert (empty.base_offset, empty.last_offset, empty.size) == (0, 1, 61)
    put(log, (b"c", b"1"), producer_id=9, producer_epoch=3, base_sequence=7)
    clean_log(log)
    assert [header.producer_id for header in headers(log)] == [-1, 9]


def test_the_last_offset_of_what_was_cleaned_is_kept_in_an_empty_batch(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"), base_sequence=0, **TRANSACTIONAL)
    log.producers.producers.pop(7)  # long silent
    end_transaction(log, 7, abort=False)
    log.producers.producers.pop(7)
    log.roll()
    put(log, (b"b", b"2"))
    put(log, (b"a", b"2"), roll=False)
    clean_log(log)
    assert headers(log)[-2].next_offset == log.segments[-1].base_offset


@pytest.mark.parametrize("codec", Codec)
def test_compression_sequences_and_epochs_of_a_batch_stay(tmp_path: Path, codec: Codec) -> None:
    log = compacted(tmp_path)
    log.append(three_records(codec), leader_epoch=4, now_ms=log.clock())
    before = headers(log)[0]
    log.roll()
    put(log, (b"a", b"x"))
    clean_log(log)
    after = headers(log)[0]
    assert after.codec is codec
    assert after.count == 2
    same = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert pairs_of(log)[:2] == [(b"b", b"2" * 100), (b"c", b"3" * 100)]


def three_records(codec: Codec) -> bytearray:
    return keyed(
        (b"a", b"1" * 100), (b"b", b"2" * 100), (b"c", b"3" * 100), codec=codec,
        producer_id=9, producer_epoch=3, base_sequence=5,
    )  # fmt: skip


def test_an_untouched_batch_is_copied_byte_by_byte(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    put(log, (b"c", b"1"))
    before = read_all(log)
    clean_log(log)
    assert read_all(log) == before
    assert len(log.segments) == 2


def test_small_neighbours_become_one_segment_and_large_ones_do_not(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=1000)
    for number in range(6):
        put(log, (b"%d" % number, bytes(300)))
    clean_log(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    assert all(segment.size <= 1000 for segment in log.segments)


def test_a_map_that_is_full_ends_a_cleaning_and_the_next_one_goes_on(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for _ in range(2):
        for number in range(6):
            put(log, (b"%d" % number, b"v"))
    limits = CleaningLimits(dedupe_buffer_bytes=4 * BYTES_PER_KEY)
    ends: list[int] = []
    while not ends or ends[-1] < 12:
        assert clean_log(log, limits) <= 4
        ends.append(log.first_dirty_offset)
    assert ends == [4, 8, 12]
    assert offsets_of(log) == [6, 7, 8, 9, 10, 11]


def test_long_keys_are_told_apart(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=100_000)
    keys = [bytes(size) for size in (0, 1, 63, 64, 65, 8191, 8192, 20_000)]
    put(log, *((key, b"1") for key in keys))
    put(log, *((key, b"2") for key in keys[::2]))
    clean_log(log)
    assert pairs_of(log) == [*((key, b"1") for key in keys[1::2]), *((key, b"2") for key in keys[::2])]


def test_the_newest_timestamp_of_a_batch_is_that_of_a_record_it_still_has(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), step_ms=5)
    put(log, (b"c", b"2"))
    clean_log(log)
    assert headers(log)[0].max_timestamp == NOW_MS + 5
    assert max_timestamp(log) == (NOW_MS + 5, 1, 0)


def test_log_append_time_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, message_timestamp_type="LogAppendTime", delete_retention_ms=HOUR_MS)
    put(log, (b"a", b"1"), (b"b", None), timestamp_ms=5)
    put(log, (b"a", b"2"), timestamp_ms=6)
    clock.now_ms += 77
    clean_log(log)
    times = [record.timestamp_ms for header, data in read_all(log) for record in decode_records(data, 0, header)]
    assert times == [NOW_MS, NOW_MS]


def test_a_corrupt_batch_is_reported_and_nothing_is_changed(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    path = Path(log.segments[0].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (report,) = work(look_at(log, log.clock()))
    assert isinstance(report, Failed)
    assert report.is_corrupt
    assert "crc" in report.reason


def test_records_that_do_not_fit_their_batch_are_corrupt(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    batch = three_records(Codec.NONE)
    batch[61] ^= 0x10  # the length of the first record
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    stamp(batch, 0, 0, 0)
    log.append_as_follower(batch, now_ms=NOW_MS)
    log.roll()
    (report,) = work(look_at(log, log.clock()))
    assert isinstance(report, Failed)
    assert report.is_corrupt


def test_offsets_out_of_order_in_a_batch_lose_no_value(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    batch = keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    size = (len(batch) - 61) // 3
    batch[61 : 61 + 2 * size] = batch[61 + size : 61 + 2 * size] + batch[61 : 61 + size]  # 1, 0, 2
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    log.update_config(compacted(tmp_path / "other").config)
    clean_log(log)
    assert rows(log) == [(1, b"b", b"2"), (2, b"a", b"3")]


def test_both_policies_compact_and_delete(tmp_path: Path) -> None:
    clock = Clock()
    log = compacted(tmp_path, clock, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"), timestamp_ms=NOW_MS + 2 * HOUR_MS // 3)
    put(log, (b"c", bytes(900)), timestamp_ms=NOW_MS + 2 * HOUR_MS // 3)
    clean_log(log)
    assert [offset for offset, _, _ in rows(log)] == [1, 2, 3]
    clock.now_ms += 2 * HOUR_MS
    log.enforce_retention(clock())
    assert rows(log) == []
    assert append(log).base_offset == 4


def test_a_transaction_index_with_half_an_entry_behind_its_end_hinders_nobody(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"), base_sequence=0, **TRANSACTIONAL)
    end_transaction(log, 7, abort=True)
    log.roll()
    put(log, (b"a", b"2"))
    with open(log.segments[1].txn_index.path, "ab") as file:
        file.write(bytes(5))  # as a full disk leaves it, or an append that is under way
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"2")]


def test_a_key_is_the_same_however_its_length_is_written(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))
    batch = keyed((b"a", b"2"))
    (at,) = (number for number in range(61, len(batch)) if batch[number : number + 2] == b"\x02a")
    batch[at : at + 1] = b"\x82\x00"  # 1 in two bytes
    batch[61] += 2
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    clean_log(log)
    assert pairs_of(log) == [(b"a", b"2")]


def test_a_log_that_nobody_knows_what_to_make_of_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = compacted(tmp_path)
    put(log, (b"a", b"1"))

    def fail(*args: object) -> None:
        raise RuntimeError("out of the blue")

    monkeypatch.setattr(OffsetMap, "add_batches", fail)
    (report,) = work(look_at(log, log.clock()))
    assert isinstance(report, Failed)
    assert report.is_corrupt
    assert "out of the blue" in report.reason
    assert "Traceback" in capsys.readouterr().err
