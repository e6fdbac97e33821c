"""Lines of a range of bytes, a block at a time, with the position of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.errors import DataLossError

_BLOCK_BYTES = 4 * 1024 * 1024


class LineBlock(NamedTuple):
    lines: pa.Array  # binary, without line breaks
    positions: npt.NDArray[np.int64]  # of the first byte of each
    cut: int  # lines that were longer than allowed


def line_blocks(file: BinaryIO, begin: int, end: int, line_bytes_max: int) -> Iterator[LineBlock]:
    """The lines of [begin, end). Memory is bounded, however long a line is."""
    at = line_begin = begin
    kept = b""  # the beginning of a line whose end is not read yet
    while at < end:
        block = os.pread(file.fileno(), min(_BLOCK_BYTES, end - at), at)
        if not block:
            raise DataLossError(f"{file.name} was truncated while it was read")
        at += len(block)
        last = block.rfind(b"\n") + 1
        if not last:
            kept += block[: max(line_bytes_max + 2 - len(kept), 0)]  # and a line break
            continue
        first = block.find(b"\n") + 1
        block_begin = at - len(block)
        if kept or line_begin < block_begin:  # the line that began before this block
            kept += block[: min(first, max(line_bytes_max + 2 - len(kept), 0))]
            yield _block(kept if kept.endswith(b"\n") else kept + b"\n", line_begin, line_bytes_max)
            if first < last:
                yield _block(block[first:last], block_begin + first, line_bytes_max)
        else:
            yield _block(block[:last], block_begin, line_bytes_max)
        kept, line_begin = block[last : last + line_bytes_max + 2], block_begin + last
    if line_begin < end:
        yield _block(kept + b"\n", line_begin, line_bytes_max)


def _block(text: bytes, begin: int, line_bytes_max: int) -> LineBlock:
    """Of a text that ends with a line break."""
    lines = pc.split_pattern(pa.array([text], pa.binary()), pattern=b"\n").values[:-1]
    if b"\r\n" in text:
        lines = pc.replace_substring_regex(lines, pattern=rb"\r\z", replacement=b"")
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    positions = np.concatenate([[0], breaks[:-1] + 1]).astype(np.int64) + begin
    cut = pc.sum(pc.greater(pc.binary_length(lines), line_bytes_max)).as_py() or 0
    if cut:
        lines = pc.binary_slice(lines, 0, line_bytes_max)
    return LineBlock(lines, positions, cut)


def as_text(lines: pa.Array) -> pa.Array:
    """Bytes that are not UTF-8 become `�`."""
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([line.decode("utf-8", "replace") for line in lines.to_pylist()], pa.string())
