"""Rows find the partitions that Kafka's own producer would give them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from moldau.spark.columns.encode import nulls, texts
from moldau.spark.columns.partitioner import NO_PARTITION, assign

# From Kafka's own test of its hash: keys and what they hash to, as a signed number.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def assigned(
    keys: list[bytes | None],
    partitions: int,
    *,
    chosen: list[int] | None = None,
    value_size: int = 10,
    batch_bytes: int = 100,
    available: list[int] | None = None,
) -> list[int]:
    out = np.array(chosen or [NO_PARTITION] * len(keys), np.int32)
    places = np.array(available or range(partitions), np.int32)
    sizes = np.full(len(keys), value_size, np.int64)
    column = texts(pa.array(keys, pa.binary())) if keys else nulls(0)
    assign(*column, sizes, partitions, places, batch_bytes, np.zeros(2, np.int64), out)
    return list(out)


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES.items())
def test_keys_hash_as_in_java(key: bytes, expected: int) -> None:
    assert assigned([key], 1000) == [(expected & 0x7FFFFFFF) % 1000]


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 200))
def test_keys_hash_as_in_other_clients(keys: list[bytes], partitions: int) -> None:
    assert assigned(list(keys), partitions) == [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


def test_a_chosen_partition_wins_over_the_key() -> None:
    assert assigned([b"21", None, b"21"], 7, chosen=[3, 6, NO_PARTITION])[:2] == [3, 6]


def test_rows_without_a_key_stick_to_a_partition_until_its_batch_is_full() -> None:
    assert assigned([None] * 25, 3, value_size=10, batch_bytes=100) == [0] * 10 + [1] * 10 + [2] * 5


def test_rows_without_a_key_avoid_partitions_without_a_leader() -> None:
    assert set(assigned([None] * 50, 4, available=[1, 3])) == {1, 3}


def test_an_empty_key_is_a_key() -> None:
    assert assigned([b""] * 20, 50) == [(murmur2(b"") & 0x7FFFFFFF) % 50] * 20
