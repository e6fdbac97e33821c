"""Logs as they lie on disk, the same for both servers: segments by their base offsets, the cleaner's checkpoint."""

from __future__ import annotations

from pathlib import Path

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"


def segments(log_directory: Path) -> dict[int, int]:
    """The sizes of the log's segments in bytes, by base offset, the active one last."""
    paths = sorted(log_directory.glob("*.log"))
    return {int(path.stem): path.stat().st_size for path in paths}


def cleaned_up_to(checkpoint: str, topic: str, partition: int) -> int:
    """The first offset that is not clean; 0 when the checkpoint does not know the partition.

    A checkpoint is its version, the number of entries, then `topic partition offset` on a line each.
    """
    for line in checkpoint.splitlines()[2:]:
        name, index, offset = line.split()
        if (name, int(index)) == (topic, partition):
            return int(offset)
    return 0
