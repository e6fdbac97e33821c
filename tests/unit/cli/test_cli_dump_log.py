"""Dumps tell what is in a file as Kafka's own tool does, and find what is wrong with it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from moldau.cli.records.dump_log import main
from moldau.wire.batch import ControlType, encode_batch, encode_end_txn_marker
from moldau.wire.compression import Codec

NAME = "00000000000000000005"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three batches from offset 5 on, and an index that points at the second and third."""
    first = encode_batch([(None, b"v", 1000, ())], base_offset=5, leader_epoch=2)
    second = encode_batch(
        [(b"k1", b"v1", 2000, [("h", b"1"), ("i", None)]), (b"k2", None, 2001, ())],
        base_offset=6, codec=Codec.GZIP, leader_epoch=2, producer_id=9, producer_epoch=1, base_sequence=2**31 - 1,
        is_transactional=True,
    )  # fmt: skip
    third = encode_end_txn_marker(
        ControlType.ABORT, coordinator_epoch=3, producer_id=9, producer_epoch=1, timestamp_ms=3000, base_offset=8,
        leader_epoch=2,
    )  # fmt: skip
    (tmp_path / f"{NAME}.log").write_bytes(first + second + third)
    at_second, at_third = len(first), len(first) + len(second)
    (tmp_path / f"{NAME}.index").write_bytes(struct.pack(">iiii", 2, at_second, 3, at_third) + bytes(64))
    (tmp_path / f"{NAME}.timeindex").write_bytes(struct.pack(">qiqi", 2001, 2, 3000, 3) + bytes(60))
    (tmp_path / f"{NAME}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 9, 6, 8, 9))
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n2 5\n")
    return tmp_path / f"{NAME}.log"


def _dump(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: int = 0) -> tuple[list[str], str]:
    assert main(["--files", *map(str, argv)]) == code
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


def test_batches_are_told_in_kafkas_words(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment)
    assert lines[:2] == [f"Dumping {segment}", "Log starting offset: 5"]
    assert lines[2].startswith(
        "baseOffset: 5 lastOffset: 5 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: 2 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        "position: 0 CreateTime: 1000 size: 69 magic: 2 compresscodec: none crc: "
    )
    assert lines[2].endswith(" isvalid: true")
    assert "baseSequence: 2147483647 lastSequence: 0 producerId: 9" in lines[3]
    assert "compresscodec: gzip" in lines[3]
    assert "isTransactional: true isControl: true" in lines[4]
    assert len(lines) == 5


def test_records_are_told_with_keys_and_payloads(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment, "--print-data-log")
    assert [line for line in lines if line.startswith("|")] == [
        "| offset: 5 CreateTime: 1000 keySize: -1 valueSize: 1 sequence: -1 headerKeys: [] payload: v",
        "| offset: 6 CreateTime: 2000 keySize: 2 valueSize: 2 sequence: 2147483647 headerKeys: [h,i] "
        "key: k1 payload: v1",
        "| offset: 7 CreateTime: 2001 keySize: 2 valueSize: -1 sequence: 0 headerKeys: [] key: k2",
        "| offset: 8 CreateTime: 3000 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: ABORT coordinatorEpoch: 3",
    ]


def test_records_without_contents_and_contents_alone(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment, "--deep-iteration")
    assert not any("payload" in line for line in lines)
    lines, _ = _dump(capsys, segment, "--print-data-log", "--skip-record-metadata")
    assert [line for line in lines if line.startswith("|")] == ["| payload: v", "| key: k1 payload: v1", "| key: k2"]


def test_values_are_decoded_on_demand(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment, "--value-decoder-class", "kafka.serializer.DefaultDecoder")
    assert "payload: 7631" in "\n".join(lines)
    _, error = _dump(capsys, segment, "--value-decoder-class", "LongDecoder", code=1)
    assert "cannot decode b'v'" in error
    with pytest.raises(SystemExit):
        main(["--files", str(segment), "--key-decoder-class", "com.example.Mine"])


def test_indexes_are_told_and_agree_with_the_log(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, timeindex = segment.with_suffix(".index"), segment.with_suffix(".timeindex")
    lines, error = _dump(capsys, f"{index},{timeindex}")
    second = struct.unpack(">i", index.read_bytes()[4:8])[0]
    third = struct.unpack(">i", index.read_bytes()[12:16])[0]
    assert lines == [
        f"Dumping {index}",
        f"offset: 7 position: {second}",
        f"offset: 8 position: {third}",
        f"Dumping {timeindex}",
        "timestamp: 2001 offset: 7",
        "timestamp: 3000 offset: 8",
    ]
    assert error == ""


def test_only_verifying_prints_no_entries(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment.with_suffix(".index"), "--verify-index-only")
    assert lines == [f"Dumping {segment.with_suffix('.index')}"]


def test_an_index_that_points_astray_fails(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 1, 0))
    _, error = _dump(capsys, index, "--verify-index-only", code=1)
    assert error == f"Mismatches in :{index}\n  Index offset: 6, log offset: 5\n"


def test_a_time_index_that_lies_fails(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeindex = segment.with_suffix(".timeindex")
    timeindex.write_bytes(struct.pack(">qiqi", 2002, 2, 1999, 4))
    _, error = _dump(capsys, timeindex, code=1)
    assert f"Found timestamp mismatch in :{timeindex}\n  Index timestamp: 2002, log timestamp: 2001\n" in error
    assert f"Found out of order timestamp in :{timeindex}\n" in error
    assert "not found in the log.\n  Indexed offset: 9, found log offset: -1\n" in error


def test_the_sanity_check_is_the_brokers(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, timeindex = segment.with_suffix(".index"), segment.with_suffix(".timeindex")
    lines, _ = _dump(capsys, f"{index},{timeindex}", "--index-sanity-check")
    assert [line for line in lines if "passed" in line] == [
        f"{index} passed sanity check.",
        f"{timeindex} passed sanity check.",
    ]
    index.write_bytes(struct.pack(">ii", 2, 10**6))
    _dump(capsys, index, "--index-sanity-check", code=1)


def test_aborted_transactions_and_epochs_are_told(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment.with_suffix(".txnindex"))
    assert lines[1] == "version: 0 producerId: 9 firstOffset: 6 lastOffset: 8 lastStableOffset: 9"
    lines, _ = _dump(capsys, segment.parent / "leader-epoch-checkpoint")
    assert lines[1] == "epoch: 2 startOffset: 5"


def test_producer_snapshots_are_told(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from crc32c import crc32c

    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 1, 0, 7, 1, 2001, 3, -1)
    snapshot = segment.with_suffix(".snapshot")
    snapshot.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
    lines, _ = _dump(capsys, snapshot)
    assert lines[1] == (
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 2001 firstSequence: 2147483647 lastSequence: 0 lastOffset: 7 offsetDelta: 1 timestamp: 2001"
    )
    snapshot.write_bytes(b"\0\1" + bytes(12))
    _, error = _dump(capsys, snapshot, code=1)
    assert "CRC" in error


def test_a_flipped_bit_is_found_and_reading_goes_on(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(segment.read_bytes())
    data[68] ^= 1
    segment.write_bytes(data)
    lines, error = _dump(capsys, segment, "--print-data-log", code=1)
    assert lines[2].endswith("isvalid: false")
    assert "batch at position 0" in error
    assert any("key: k1" in line for line in lines)


def test_a_torn_tail_is_counted(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(segment.read_bytes()[:-10])
    lines, _ = _dump(capsys, segment)
    assert lines[-1] == f"Found 68 invalid bytes at the end of {NAME}.log"
    lines, _ = _dump(capsys, segment, "--max-bytes", "100")
    assert lines[-1].startswith("baseOffset: 5")


def test_gaps_in_the_offsets_are_told_but_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(
        encode_batch([(None, b"a", 1, ())], base_offset=0) + encode_batch([(None, b"b", 1, ())], base_offset=4)
    )
    _, error = _dump(capsys, segment, "--deep-iteration")
    assert error == f"Non-consecutive offsets in {segment}\n  0 is followed by 4\n"


def test_an_empty_log_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.touch()
    assert _dump(capsys, segment)[0] == [f"Dumping {segment}", "Log starting offset: 0"]


def test_old_formats_and_unknown_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "00000000000000000000.log"
    old.write_bytes(struct.pack(">qiIbb", 0, 100, 0, 1, 0) + bytes(200))
    _, error = _dump(capsys, old, code=1)
    assert "magic 1 at position 0" in error
    for name in ("notes.txt", "orders.log"):
        _, error = _dump(capsys, tmp_path / name, code=1)
        assert f"{name}: No such file" in error
        (tmp_path / name).touch()
    _, error = _dump(capsys, tmp_path / "notes.txt", code=1)
    assert "Ignoring unknown file" in error
    _, error = _dump(capsys, tmp_path / "00000000000000000009.log", code=1)
    assert "No such file" in error
    _, error = _dump(capsys, tmp_path / "orders.log", code=1)
    assert "not named after an offset" in error


def test_json_has_the_same_facts(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = _dump(capsys, segment, "--print-data-log", "--json")
    rows = [json.loads(line) for line in lines]
    assert [row["kind"] for row in rows] == ["note", "batch", "record", "batch", "record", "record", "batch", "record"]
    assert rows[4]["headerKeys"] == ["h", "i"]
    assert rows[1]["deleteHorizonMs"] is None
    assert rows[1]["isvalid"] is True


def test_decoders_that_are_not_here_yet_are_refused_not_ignored(segment: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--files", str(segment), "--cluster-metadata-decoder"])
    assert exit_.value.code == 2
