from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.errors import StorageError
from moldau.metadata.stores.claims import Claim, Claims


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "controllers"


@pytest.fixture
def claims(path: Path) -> Iterator[Claims]:
    opened = Claims(path)
    opened.open()
    yield opened
    opened.close()


def claim(epoch: int, node_id: int = 1) -> Claim:
    return Claim(epoch, node_id, "localhost", 9092, f"token-{node_id}")


def test_nobody_has_claimed_anything_at_first(claims: Claims) -> None:
    assert claims.newest() is None


def test_the_first_claim_of_an_epoch_has_it(claims: Claims) -> None:
    assert claims.add(claim(1, node_id=1))
    assert not claims.add(claim(1, node_id=2))
    assert claims.newest() == claim(1, node_id=1)


def test_a_later_epoch_ends_an_earlier_one_for_good(claims: Claims) -> None:
    assert claims.add(claim(1))
    assert claims.add(claim(2, node_id=2))
    assert not claims.add(claim(1))
    assert claims.newest() == claim(2, node_id=2)


def test_whoever_opens_the_file_later_agrees(claims: Claims, path: Path) -> None:
    for epoch in range(1, 200):
        claims.add(claim(epoch, node_id=epoch % 3))
        claims.add(claim(epoch, node_id=7))
    other = Claims(path)
    other.open()
    assert other.newest() == claims.newest() == claim(199, node_id=1)
    other.close()


def test_of_many_that_claim_at_once_one_wins(path: Path) -> None:
    rivals = [Claims(path) for _ in range(8)]
    for rival in rivals:
        rival.open()
    for epoch in range(1, 30):
        won: list[int] = []
        barrier = threading.Barrier(len(rivals))

        def stand(node_id: int, epoch: int = epoch, won: list[int] = won, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            if rivals[node_id].add(claim(epoch, node_id)):
                won.append(node_id)

        threads = [threading.Thread(target=stand, args=(node_id,)) for node_id in range(len(rivals))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert {rival.newest() for rival in rivals} == {claim(epoch, won[0])}
    for rival in rivals:
        rival.close()


@pytest.mark.parametrize("torn", [b"0", b"00000000 [5,1", b"\n12345678", b"\0" * 40, b"ffffffff [9,9,9,9,9]\n"])
def test_a_line_cut_short_counts_for_nothing_and_harms_none_behind_it(claims: Claims, path: Path, torn: bytes) -> None:
    claims.add(claim(1))
    with open(path, "ab") as file:
        file.write(torn)
    assert claims.newest() == claim(1)
    assert claims.add(claim(2, node_id=2))
    other = Claims(path)
    other.open()
    assert other.newest() == claim(2, node_id=2)
    other.close()


def test_a_full_disk_is_told(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, data: real(fd, data[:9]))
        with pytest.raises(StorageError, match="No space left"):
            claims.add(claim(1))
    assert claims.newest() is None
    assert claims.add(claim(1, node_id=2))


def test_a_file_that_was_removed_is_noticed(claims: Claims, path: Path) -> None:
    claims.add(claim(1))
    path.unlink()
    with pytest.raises(StorageError, match="was removed while the broker was running"):
        claims.newest()
