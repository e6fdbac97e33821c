"""Logs on disk as the bench reads them."""

from __future__ import annotations

from pathlib import Path

from bench.logs import cleaned_up_to, segments

CHECKPOINT = "0\n2\norders 0 1500\norders 1 20\n"


def test_the_cleaner_s_checkpoint_says_how_far_a_partition_is_clean() -> None:
    assert cleaned_up_to(CHECKPOINT, "orders", 0) == 1500
    assert cleaned_up_to(CHECKPOINT, "orders", 1) == 20


def test_a_partition_that_the_checkpoint_does_not_know_is_not_clean() -> None:
    assert cleaned_up_to(CHECKPOINT, "orders", 2) == 0
    assert cleaned_up_to(CHECKPOINT, "payments", 0) == 0
    assert cleaned_up_to("", "orders", 0) == 0


def test_segments_come_by_base_offset_with_the_active_one_last(tmp_path: Path) -> None:
    for base_offset, size in ((300, 3), (0, 1), (20, 2)):
        (tmp_path / f"{base_offset:020d}.log").write_bytes(bytes(size))
    (tmp_path / f"{0:020d}.index").write_bytes(bytes(10))
    assert list(segments(tmp_path).items()) == [(0, 1), (20, 2), (300, 3)]
