"""The journal of webhooks: what was appended can be read again, whatever a kill has left at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import DataLossError
from moldau.pipelines.connectors.readers.request_journal import Journal, Request, read_requests


def request(number: int) -> Request:
    return Request("/in", {"x-number": str(number)}, number, f"body\n{number}".encode())


def filled(folder: Path, *numbers: int, file_bytes: int = 10**6) -> Journal:
    journal = Journal(str(folder), file_bytes)
    for number in numbers:
        journal.append([request(number).encoded()])
    return journal


def read(folder: Path, begin: int, end: int) -> list[Request]:
    return [one for _, one in read_requests(str(folder), begin, end)]


def test_requests_are_read_again_from_any_position(tmp_path: Path) -> None:
    journal = filled(tmp_path, 0, 1, 2, 3, 4, file_bytes=100)
    assert len(list(tmp_path.iterdir())) > 1
    assert read(tmp_path, 0, journal.end) == [request(number) for number in range(5)]
    positions = [position for position, _ in read_requests(str(tmp_path), 0, journal.end)]
    for number, position in enumerate(positions):
        assert read(tmp_path, position, journal.end) == [request(left) for left in range(number, 5)]
        assert read(tmp_path, 0, position) == [request(before) for before in range(number)]


@pytest.mark.parametrize("cut", [1, 4, 9, 20])
def test_a_torn_end_is_cut_off_and_positions_go_on(tmp_path: Path, cut: int) -> None:
    journal = filled(tmp_path, 0, 1)
    (file,) = tmp_path.iterdir()
    with file.open("ab") as damaged:
        damaged.write(request(2).encoded()[:-cut])
    again = filled(tmp_path, 3)
    assert again.end > journal.end
    assert read(tmp_path, 0, again.end) == [request(0), request(1), request(3)]


def test_committed_files_are_deleted_but_for_the_last(tmp_path: Path) -> None:
    journal = filled(tmp_path, *range(10), file_bytes=100)
    positions = [position for position, _ in read_requests(str(tmp_path), 0, journal.end)]
    journal.forget(positions[6])
    assert read(tmp_path, positions[6], journal.end) == [request(number) for number in range(6, 10)]
    journal.forget(journal.end)
    assert len(list(tmp_path.iterdir())) == 1
    assert filled(tmp_path).end == journal.end


def test_lost_requests_are_an_error_and_new_ones_come_after_them(tmp_path: Path) -> None:
    journal = filled(tmp_path, 0)
    with pytest.raises(DataLossError, match=f"has no requests from position {journal.end} to 5000"):
        read(tmp_path, 0, 5000)
    journal.begin_at(5000)
    journal.append([request(7).encoded()])
    assert read(tmp_path, 5000, journal.end) == [request(7)]
