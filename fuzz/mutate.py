"""Ways to damage a frame. Each takes the payload behind the size and returns another one."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

# API key, version and correlation id: most mutations leave them alone, or few frames would reach a parser.
_HEADER_SIZE = 8
_EVIL = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\x7f\xff",
    b"\xff\xff",
    b"\xff",
    b"\x00",
)

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], bytearray]


def _flip_bits(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        data[_place(data, rng)] ^= 1 << rng.randrange(8)
    return data


def _truncate(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    return data[: _place(data, rng)]


def _edit_length(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    evil = rng.choice(_EVIL)
    at = _place(data, rng)
    data[at : at + len(evil)] = evil
    return data


def _insert(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    at = _place(data, rng)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 60)))
    return data


def _delete(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    at = _place(data, rng)
    del data[at : at + rng.choice((1, 2, 4, 16))]
    return data


def _repeat(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    at = _place(data, rng)
    piece = data[at : at + rng.randint(1, 32)]
    data[at:at] = piece * rng.randint(1, 20)
    return data


def _splice(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    other = rng.choice(corpus)[4:]
    return data[: _place(data, rng)] + other[rng.randrange(len(other)) :]


def _other_version(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    struct.pack_into(">h", data, 2, rng.choice((rng.randrange(20), -1, 32767)))
    return data


def _other_key(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    struct.pack_into(">h", data, 0, rng.choice((rng.randrange(100), -1, 32767)))
    return data


def _nothing(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> bytearray:
    return data


_MUTATIONS: dict[Mutation, int] = {
    _flip_bits: 30,
    _truncate: 10,
    _edit_length: 20,
    _insert: 8,
    _delete: 8,
    _repeat: 5,
    _splice: 10,
    _other_version: 3,
    _other_key: 1,
    _nothing: 5,
}
_CHOICES = [*_MUTATIONS]
_WEIGHTS = [*_MUTATIONS.values()]


def mutated(frame: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A damaged copy of a whole frame."""
    data = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if len(data) > _HEADER_SIZE:
            data = rng.choices(_CHOICES, _WEIGHTS)[0](data, rng, corpus)
    size = len(data)
    if rng.random() < 0.02:
        size = rng.choice((size + 1, size - 1, 0, -1, 2**31 - 1, -(2**31), 100 << 20))
    return struct.pack(">i", size) + data


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(_HEADER_SIZE if rng.random() < 0.95 else 0, len(data))
