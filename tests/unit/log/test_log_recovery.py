"""What is left after a crash: the valid prefix, whole, with everything beside it built again."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moldau.errors import CorruptRecordError
from moldau.log import checkpoints
from moldau.log.lookups import max_timestamp, offset_for_timestamp
from moldau.log.partition_log import PartitionLog
from moldau.wire.batch import BatchHeader
from tests.unit.log.log_helpers import (
    NOW_MS,
    TOPIC_ID,
    append,
    batch,
    crash,
    end_transaction,
    files_of,
    load,
    new_log,
    offsets_of,
    opened,
    producer_view,
    read_all,
    restart,
)


def lively_log(directory: Path, **config: Any) -> PartitionLog:
    """Plain, idempotent and transactional batches of several epochs."""
    log = new_log(directory, **config)
    for number in range(4):
        append(log, batch(2, timestamp_ms=NOW_MS + number), leader_epoch=number)
        append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=3 * number), leader_epoch=number)
        append(
            log,
            batch(producer_id=2, producer_epoch=0, base_sequence=number, is_transactional=True),
            leader_epoch=number,
        )
        if number in (1, 2):
            end_transaction(log, 2, abort=number == 1, leader_epoch=number)
    return log


def state_of(log: PartitionLog) -> dict[str, Any]:
    """All that can be seen of a log."""
    for segment in log.segments:
        segment.load_indexes()
    return {
        "batches": read_all(log),
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "stable": log.last_stable_offset,
        "producers": producer_view(log),
        "epochs": log.epochs.entries(),
        "aborted": log.aborted_transactions(0, log.log_end_offset),
        "segments": [(segment.base_offset, segment.size) for segment in log.segments],
        "times": [offset_for_timestamp(log, NOW_MS + number) for number in range(6)],
        "newest": max_timestamp(log),
    }


def prefix_states(directory: Path, batches: list[tuple[BatchHeader, bytes]]) -> list[dict[str, Any]]:
    """The state of a log that was given no more than the first n of `batches`, for every n."""
    log = new_log(directory, segment_bytes=100_000)
    states = [state_of(log)]
    for _, data in batches:
        log.append_as_follower(data, now_ms=NOW_MS)
        states.append(state_of(log))
    log.close_files()
    return states


def test_a_crash_loses_nothing_that_was_written(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=500)
    before = state_of(log)
    assert len(log.segments) > 2
    log = crash(log)
    assert state_of(log) == before
    assert log.recovery_point == 0
    append(log)
    assert log.log_end_offset == before["end"] + 1


def test_crash_and_clean_stop_end_in_the_same_state(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=500)
    expected = state_of(log)
    log.close()
    crashed = load(log, clean=False, recovery_point=0)
    indexes = {path.name: path.read_bytes() for path in log.directory.glob("*index")}
    assert state_of(crashed) == expected
    crashed.close_files()
    stopped = load(log, clean=True)
    assert state_of(stopped) == expected
    assert {path.name: path.read_bytes() for path in log.directory.glob("*index")} == indexes


def test_a_segment_cut_at_any_byte_keeps_exactly_its_whole_batches(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=100_000)
    batches = read_all(log)
    states = prefix_states(tmp_path / "model", batches)
    ends = [0]
    for _, data in batches:
        ends.append(ends[-1] + len(data))
    log.close_files()
    path = Path(log.segments[0].path)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        recovered = load(log, clean=False, recovery_point=0)
        kept = sum(end <= size for end in ends) - 1
        assert state_of(recovered) == states[kept], f"cut at byte {size}"
        assert path.stat().st_size == ends[kept]
        recovered.close_files()
        remove_all_but_the_log(log)


def remove_all_but_the_log(log: PartitionLog) -> None:
    for path in log.directory.iterdir():
        if path.suffix not in (".log", ".metadata"):
            path.unlink()


def test_a_thousand_flipped_bits_never_bring_a_bad_batch_back(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=100_000)
    original = read_all(log)
    log.close_files()
    path = Path(log.segments[0].path)
    whole = path.read_bytes()
    starts = [0]
    for _, data in original:
        starts.append(starts[-1] + len(data))
    rng = random.Random(20240607)
    for _ in range(1000):
        bit = rng.randrange(len(whole) * 8)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        recovered = load(log, clean=False, recovery_point=0)
        found = read_all(recovered)  # checks every CRC
        hit = max(number for number, start in enumerate(starts) if start <= bit // 8)
        assert [data for _, data in found[:hit]] == [data for _, data in original[:hit]], f"bit {bit}"
        if protected(bit // 8 - starts[hit]):
            assert len(found) == hit, f"bit {bit} damaged batch {hit}, and it is still there"
            assert recovered.log_end_offset == original[hit][0].base_offset
        else:
            assert_offsets_ascend([header for header, _ in found])
        check_beside_the_log(recovered)
        recovered.close_files()
        remove_all_but_the_log(log)


def protected(position: int) -> bool:
    """Whether the CRC, or what it is computed over, covers the byte: all but base offset and leader epoch."""
    return position >= 16 or 8 <= position < 12


def assert_offsets_ascend(headers: list[BatchHeader]) -> None:
    for before, after in pairwise(headers):
        assert before.last_offset < after.base_offset


def check_beside_the_log(log: PartitionLog) -> None:
    """Indexes and producer state fit what is in the log."""
    position = 0
    batches = read_all(log)
    for header, data in batches:
        assert log.segments[0].position_of(header.base_offset) == position
        position += len(data)
    written = {header.producer_id for header, _ in batches if header.producer_id >= 0}
    assert set(log.producers.producers) == written


def test_what_follows_a_bad_batch_is_dropped_even_in_later_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(12):
        append(log, batch(size=50))
    assert len(log.segments) > 3
    second = Path(log.segments[1].path)
    first_of_second = log.segments[1].base_offset
    log.close_files()
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    log = load(log, clean=False, recovery_point=0)
    assert offsets_of(log) == list(range(first_of_second + 1))
    assert len(log.segments) == 2
    assert len(list(log.directory.glob("*.log"))) == 2
    assert append(log).base_offset == first_of_second + 1


def test_segments_below_the_recovery_point_are_not_read_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(12):
        append(log, batch(size=50))
    log.flush()
    assert log.recovery_point == 12
    first = Path(log.segments[0].path)
    untouched = first.stat().st_atime_ns, first.with_suffix(".index").stat().st_mtime_ns
    os.utime(first, ns=(untouched[0] - 10**12, first.stat().st_mtime_ns))
    before = first.with_suffix(".index").stat().st_mtime_ns
    log = crash(log)
    assert first.with_suffix(".index").stat().st_mtime_ns == before
    assert offsets_of(log) == list(range(12))


def test_a_torn_tail_after_a_clean_stop_is_found_all_the_same(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(4):
        append(log)
    log.close()
    path = Path(log.segments[0].path)
    os.truncate(path, path.stat().st_size - 5)
    log = load(log, clean=True)
    assert offsets_of(log) == [0, 1, 2]
    assert append(log).base_offset == 3


def test_a_damaged_snapshot_costs_a_scan_and_nothing_else(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=500)
    expected = state_of(log)
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.write_bytes(b"\0\1garbage")
    log = load(log, clean=True)
    assert state_of(log) == expected


def test_damage_in_a_flushed_segment_does_not_keep_the_rest_from_being_served(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for number in range(9):
        append(log, batch(size=50, producer_id=1, producer_epoch=0, base_sequence=number))
    log.close()
    first = Path(log.segments[0].path)
    first.write_bytes(b"\xee" * first.stat().st_size)
    for path in log.directory.glob("*.snapshot"):
        path.write_bytes(b"")
    log = load(log, clean=True)
    with pytest.raises(CorruptRecordError):
        log.read(0, 1000, upto_offset=9, min_one=True)
    assert log.read(4, 1000, upto_offset=9, min_one=True)
    assert log.producers.producers[1].last_sequence == 8


def test_a_damaged_epoch_file_is_built_again_from_the_batches(tmp_path: Path) -> None:
    log = lively_log(tmp_path)
    expected = log.epochs.entries()
    log.close_files()
    (log.directory / "leader-epoch-checkpoint").write_text("0\n9\nnonsense\n")
    assert load(log, clean=False, recovery_point=0).epochs.entries() == expected


def test_epochs_beyond_the_recovered_end_are_forgotten(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, leader_epoch=1)
    append(log, leader_epoch=2)
    log.close_files()
    os.truncate(log.segments[0].path, log.segments[0].size - 1)
    log = load(log, clean=False, recovery_point=0)
    assert log.epochs.entries() == [(1, 0)]


def test_a_damaged_transaction_index_is_built_again(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=500)
    expected = state_of(log)
    assert expected["aborted"]
    log.close()
    for path in log.directory.glob("*.txnindex"):
        path.write_bytes(path.read_bytes()[:-1])
    log = load(log, clean=True)
    assert state_of(log) == expected


def test_files_without_a_segment_and_leftovers_are_removed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    log.close()
    for name in (f"{99:020d}.index", f"{99:020d}.txnindex", f"{5:020d}.log.deleted", f"{5:020d}.log.cleaned"):
        (log.directory / name).write_bytes(b"")
    before = set(files_of(log))
    log = load(log, clean=True)
    gone = before - set(files_of(log))
    assert len(gone) == 4
    assert offsets_of(log) == [0]


@pytest.mark.parametrize("clean", [False, True])
def test_files_that_are_no_segments_are_left_alone(tmp_path: Path, clean: bool) -> None:
    log = new_log(tmp_path)
    append(log)
    names = ["x.index", "x.timeindex", "x.txnindex", "x.log", "x.log.swap", "x.snapshot", "\u00b2.log", "notes"]
    for name in names:
        (log.directory / name).write_text("mine")
    log = restart(log) if clean else crash(log)
    assert offsets_of(log) == [0]
    assert [(log.directory / name).read_text() for name in names] == ["mine"] * len(names)


def test_a_cleaned_segment_takes_the_place_of_those_it_was_made_from(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(9):
        append(log, batch(size=50))
    cleaned = b"".join(data for header, data in read_all(log) if header.base_offset in (0, 3))
    log.close()
    (log.directory / f"{0:020d}.log.swap").write_bytes(cleaned)
    log = load(log, clean=False, recovery_point=0)
    assert offsets_of(log) == [0, 3, *range(4, 9)]
    assert not list(log.directory.glob("*.swap"))


def test_offsets_below_the_log_start_are_never_given_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(5):
        append(log)
    log.delete_records(4)
    log.close_files()
    os.truncate(log.segments[0].path, 0)
    log = load(log, clean=False, recovery_point=0)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    assert append(log).base_offset == 4


def test_a_log_without_files_begins_at_its_start_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(5):
        append(log)
    log.delete_records(3)
    log.close()
    for path in log.directory.glob("0*"):
        path.unlink()
    log = load(log, clean=True)
    assert append(log).base_offset == 3


def test_recovery_can_itself_be_interrupted(tmp_path: Path) -> None:
    log = lively_log(tmp_path, segment_bytes=500)
    expected = state_of(log)
    for _ in range(3):
        log = crash(log, recovery_point=0)
    assert state_of(log) == expected
    log = restart(log)
    assert state_of(log) == expected


# -- what only a power loss leaves


@pytest.mark.parametrize(("policy", "kept"), [("delete", [0]), ("compact", [0, 2])])
def test_a_segment_without_the_end_of_the_one_before_is_dropped(tmp_path: Path, policy: str, kept: list[int]) -> None:
    """Unless the log is compacted, which leaves such gaps too."""
    log = new_log(tmp_path, cleanup_policy=frozenset({policy}))
    append(log)
    size = log.segments[0].size
    append(log)
    log.roll()
    append(log)
    log.close_files()
    os.truncate(log.segments[0].path, size)
    assert offsets_of(crash(log)) == kept


def test_a_segment_that_a_truncation_had_removed_is_dropped(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, leader_epoch=1)
    append(log, leader_epoch=1)
    log.roll()
    append(log, leader_epoch=1)
    log.truncate_to(1)
    append(log, leader_epoch=2)
    log.close_files()
    for path in log.directory.glob("*.deleted"):
        path.rename(path.with_suffix(""))  # it never happened, as far as the disk knows
    log = crash(log)
    assert [(header.base_offset, header.leader_epoch) for header, _ in read_all(log)] == [(0, 1), (1, 2)]


def test_a_truncation_below_the_checkpointed_recovery_point_lowers_that_first(tmp_path: Path) -> None:
    manager = opened(tmp_path, single_replica=False)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(5):
        append(log)
    log.flush()
    log.high_watermark = 4
    manager.checkpoint()
    assert recovery_points(tmp_path) == "0\n1\nt 0 4\n", "a follower may still be cut down to its high watermark"
    log.truncate_to(2)
    assert recovery_points(tmp_path) == "0\n1\nt 0 2\n"
    manager.close()


def recovery_points(folder: Path) -> str:
    return (folder / checkpoints.RECOVERY_POINT).read_text()
