"""Files that grow, are renamed, truncated and deleted: every line is read once."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from moldau.pipelines.connectors.readers.line_blocks import as_text, line_blocks
from moldau.pipelines.connectors.readers.tailed_files import Entries, Entry, TailedFiles, open_entry

ALL = 2**40


class Reader:
    """Reads as a query does: plans a batch, stores it, reads it."""

    def __init__(self, *patterns: Path, unfinished_ms: int = 10**12) -> None:
        self._patterns, self._unfinished_ms = [str(pattern) for pattern in patterns], unfinished_ms
        self.offset: Entries = {}
        self.restart()

    def restart(self) -> None:
        self.files = TailedFiles(self._patterns, self._unfinished_ms)
        stored = json.loads(json.dumps(self.offset))
        self.offset = {key: Entry(*entry) for key, entry in stored.items()}

    def plan(self, bytes_max: int = ALL) -> bool:
        found = self.files.next(self.offset, bytes_max)
        is_new, self.offset = found is not self.offset, found
        return is_new

    def batch(self) -> list[str]:
        """What the last planned batch has; the same as often as it is asked."""
        lines: list[str] = []
        for key, entry in self.offset.items():
            file = open_entry(key, entry) if entry.has_bytes else None
            if file is not None:
                with file:
                    for block in line_blocks(file, entry.begin, entry.end, 1000):
                        lines += as_text(block.lines).to_pylist()
        return lines

    def all(self, bytes_max: int = ALL) -> list[str]:
        lines: list[str] = []
        while self.plan(bytes_max):
            lines += self.batch()
        return lines


def append(path: Path, text: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_a_file_may_appear_later_and_its_last_line_may_be_half_written(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    reader = Reader(log)
    assert not reader.plan()
    append(log, "one\ntw")
    assert reader.all() == ["one"]
    assert not reader.plan()
    append(log, "o\n")
    assert reader.all() == ["two"]


def test_an_unfinished_line_is_read_when_its_file_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "one\nunfinished")
    os.utime(log, (0, 0))
    reader = Reader(log, unfinished_ms=60_000)
    assert reader.all() == ["one", "unfinished"]
    append(log, " rest\n")
    assert reader.all() == [" rest"]


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "1\n")
    reader = Reader(log)
    assert reader.all() == ["1"]
    append(log, "2\n")
    log.rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", "3\n")
    append(log, "4\n")
    reader.restart()
    assert reader.all() == ["2", "3", "4"]
    append(tmp_path / "a.log.1", "5\n")  # by a writer that has not noticed yet
    assert reader.all() == ["5"]


@pytest.mark.parametrize("size", [10, 4000])
def test_a_truncated_file_is_read_from_its_beginning_even_if_it_is_longer_than_before(
    tmp_path: Path, size: int
) -> None:
    log = tmp_path / "a.log"
    append(log, "".join(f"old {number}\n" for number in range(100)))
    reader = Reader(log)
    assert len(reader.all()) == 100
    os.truncate(log, 0)
    new = [f"new {number}" for number in range(size)]
    append(log, "\n".join(new) + "\n")
    assert reader.all() == new


def test_equal_lines_after_a_truncation_that_was_seen_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "same\n" * 500)
    reader = Reader(log)
    assert len(reader.all()) == 500
    os.truncate(log, 0)
    reader.plan()
    append(log, "same\n" * 501)
    assert len(reader.all()) == 501


def test_a_deleted_file_whose_inode_is_used_again_is_another_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "old\n")
    reader = Reader(log)
    assert reader.all() == ["old"]
    (entry,) = reader.offset.values()
    log.unlink()
    append(log, "new and longer\n")
    status = log.stat()
    reader.offset = {f"{status.st_dev}:{status.st_ino}": entry}
    assert reader.all() == ["new and longer"]


def test_a_device_with_another_number_is_the_same_disk(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "one\n")
    reader = Reader(log)
    assert reader.all() == ["one"]
    reader.offset = {f"999:{key.partition(':')[2]}": entry for key, entry in reader.offset.items()}
    append(log, "two\n")
    assert reader.all() == ["two"]


def test_batches_are_limited_and_a_line_longer_than_the_limit_still_gets_through(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    append(log, "".join(f"{number:09d}\n" for number in range(100)) + "x" * 500 + "\nend\n")
    append(other, "other\n")
    reader = Reader(tmp_path / "*.log")
    assert reader.plan(100)
    assert "other" in reader.batch()  # a large file does not keep the others waiting
    assert len(reader.batch()) <= 10
    rest = reader.all(100)
    assert rest[-2:] == ["x" * 500, "end"]


def test_an_unfinished_line_is_searched_once_not_with_every_look(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"x" * 3_000_000)
    reader = Reader(log)
    for _ in range(3):
        assert not reader.plan(100)
        append(log, b"y" * 10)
    append(log, b"\nend\n")
    assert reader.all(100) == ["x" * 1000, "end"]


def test_bytes_that_are_no_text_and_windows_line_breaks(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"caf\xe9\r\n\xff\n\r\n\nend\r\n")
    assert Reader(log).all() == ["caf�", "�", "", "", "end"]


def test_positions_are_those_of_the_lines_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.pipelines.connectors.readers.line_blocks._BLOCK_BYTES", 64)
    draw = random.Random(3)
    log = tmp_path / "a.log"
    lines = [b"x" * draw.choice([0, 1, 5, 63, 64, 65, 200, 500]) + b"%d" % number for number in range(300)]
    append(log, b"\n".join(lines) + b"\n")
    with open(log, "rb") as file:
        found = [
            pair
            for block in line_blocks(file, 0, log.stat().st_size, 100)
            for pair in zip(block.positions.tolist(), block.lines.to_pylist(), strict=True)
        ]
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    assert found == [(start, line[:100]) for start, line in zip(starts, lines, strict=True)]


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_to_the_file_each_line_is_read_once(tmp_path: Path, seed: int) -> None:
    """Rotation by rename at any time; truncation when all is read; kills at any time."""
    draw = random.Random(seed)
    log = tmp_path / "a.log"
    reader = Reader(tmp_path / "a.log*")
    number, rotated, got = 0, 0, list[str]()
    is_half_written = False
    for _ in range(400):
        match draw.choice(["write", "write", "half", "rotate", "truncate", "read", "read", "kill"]):
            case "write":
                count = draw.randrange(1, 30)
                lines = "".join(f"line {number + index}\n" for index in range(count))
                append(log, lines[4:] if is_half_written else lines)
                number, is_half_written = number + count, False
            case "half" if not is_half_written:
                append(log, "line")
                is_half_written = True
            case "rotate" if log.exists() and not is_half_written:
                rotated += 1
                log.rename(tmp_path / f"a.log.{rotated}")
                if draw.random() < 0.5:  # by a writer that has not noticed yet
                    append(tmp_path / f"a.log.{rotated}", f"line {number}\n")
                    number += 1
            case "truncate" if log.exists() and not is_half_written:
                got += reader.all()
                os.truncate(log, 0)
            case "read":
                if reader.plan(draw.choice([50, 1000, ALL])):
                    if draw.random() < 0.3:  # killed while it read: the batch is repeated
                        reader.restart()
                    got += reader.batch()
            case "kill":
                reader.restart()
    got += reader.all()
    assert sorted(got, key=lambda line: int(line.split()[1])) == [f"line {index}" for index in range(number)]
