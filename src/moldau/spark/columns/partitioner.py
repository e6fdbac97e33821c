"""Chooses the partition of a row like Kafka's own producer.

A value in the `partition` column takes precedence. Otherwise the partition is `toPositive(murmur2(key)) % partitions`,
the same as with the Java client. Rows without a key go to one partition until its batch is full, then to the next
(KIP-480, KIP-794). This makes a few large batches instead of many small ones.
"""

from __future__ import annotations

from moldau.spark.columns.jit import address_of, byte_at, helper, kernel
from moldau.spark.columns.kernels import Bytes, Int32s, Int64s

NO_PARTITION = -1  # the partitioner chooses

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFF_FFFF


@helper
def _murmur2(at: int, length: int) -> int:
    """The hash of `length` bytes: 32 bits, unsigned. Products fit into 64 bits, so numbers need no other type."""
    whole_end = at + (length & ~3)
    h = _SEED ^ length
    while at < whole_end:
        k = byte_at(at) | byte_at(at + 1) << 8 | byte_at(at + 2) << 16 | byte_at(at + 3) << 24
        k = k * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ k
        at += 4
    left = length & 3
    if left == 3:
        h ^= byte_at(at + 2) << 16
    if left >= 2:
        h ^= byte_at(at + 1) << 8
    if left >= 1:
        h = (h ^ byte_at(at)) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


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
    """Replace NO_PARTITION in `out`. `sticky` is kept between calls: the index in `available`, and the bytes that this
    partition has received so far."""
    for row in range(len(out)):
        if out[row] != NO_PARTITION:
            continue
        length = key_lengths[row]
        if length >= 0:
            out[row] = (_murmur2(address_of(key_data) + key_starts[row], length) & 0x7FFFFFFF) % partitions
            continue
        if sticky[1] >= batch_bytes:
            sticky[0] += 1
            sticky[1] = 0
        out[row] = available[sticky[0] % len(available)]
        if value_lengths[row] > 0:
            sticky[1] += value_lengths[row]
