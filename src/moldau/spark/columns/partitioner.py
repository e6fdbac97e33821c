"""Which partition a row goes to, as Kafka's own producer decides.

A row's `partition` column wins. Otherwise a key is hashed, `toPositive(murmur2(key)) % partitions`, so that it
finds the same partition from every Kafka client of Java's school. Rows without a key stick to one partition
until a batch of it is full, then to the next (KIP-480, KIP-794): few large batches instead of many small ones.
"""

from __future__ import annotations

import numpy as np

from moldau.spark.columns.jit import helper, kernel
from moldau.spark.columns.kernels import Bytes, Int32s, Int64s

NO_PARTITION = -1  # of a row that leaves the choice to its key

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


@helper
def _murmur2(data: Bytes, start: int, length: int) -> int:
    """Of `data[start : start + length]`: 32 bits, unsigned."""
    mask = np.uint32(0xFFFFFFFF)
    m = np.uint32(_MULTIPLIER)
    h = np.uint32(_SEED) ^ np.uint32(length)
    whole = length & ~3
    for at in range(start, start + whole, 4):
        k = (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        k = np.uint32(k * m) & mask
        k ^= k >> np.uint32(24)
        k = np.uint32(k * m) & mask
        h = np.uint32(h * m) & mask
        h ^= k
    rest = start + whole
    left = length - whole
    if left == 3:
        h ^= np.uint32(data[rest + 2]) << np.uint32(16)
    if left >= 2:
        h ^= np.uint32(data[rest + 1]) << np.uint32(8)
    if left >= 1:
        h ^= np.uint32(data[rest])
        h = np.uint32(h * m) & mask
    h ^= h >> np.uint32(13)
    h = np.uint32(h * m) & mask
    h ^= h >> np.uint32(15)
    return int(h)


@kernel("void(Array(u1, 1, 'C', True), i8[::1], i8[::1], i8[::1], i8, i4[::1], i8, i8[::1], i4[::1])")
def assign(  # noqa: PLR0917  # kernels have no keywords
    key_data: Bytes,
    key_starts: Int64s,
    key_lengths: Int64s,
    value_lengths: Int64s,
    partitions: int,
    available: Int32s,
    batch_bytes: int,
    sticky: Int64s,
    out: Int32s,
) -> None:
    """Fill in `out` where it says NO_PARTITION. `sticky` is kept between calls: the place in `available`, and the
    bytes that the partition there got so far."""
    for row in range(len(out)):
        if out[row] != NO_PARTITION:
            continue
        length = key_lengths[row]
        if length >= 0:
            out[row] = (_murmur2(key_data, key_starts[row], length) & 0x7FFFFFFF) % partitions
            continue
        if sticky[1] >= batch_bytes:
            sticky[0] += 1
            sticky[1] = 0
        out[row] = available[sticky[0] % len(available)]
        sticky[1] += max(value_lengths[row], 0)
