"""The throttle on replicas that catch up: who is named, and how fast they may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.replication_quota import WINDOW_MS, WINDOWS, ReplicationQuota, is_throttled

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("replicas", "named"),
    [((), False), (("*",), True), (("3:1",), True), (("2:1", "3:1"), True), (("3:2", "1:3", "3:11", "13:1"), False)],
)
def test_a_topic_names_its_throttled_replicas_by_partition_and_broker(replicas: tuple[str, ...], named: bool) -> None:
    assert is_throttled(replicas, 3, 1) is named


def test_nothing_waits_before_anything_moved_nor_below_the_rate() -> None:
    quota = ReplicationQuota(lambda: 100)
    assert quota.wait_ms(NOW_MS) == 0
    quota.record(100, NOW_MS)
    assert quota.wait_ms(NOW_MS) == 0


def test_too_much_waits_until_it_is_spread_over_enough_time() -> None:
    quota = ReplicationQuota(lambda: 100)
    quota.record(350, NOW_MS)
    assert quota.wait_ms(NOW_MS) == 3_500
    assert quota.wait_ms(NOW_MS + 3_499) == 1
    assert quota.wait_ms(NOW_MS + 3_500) == 0


def test_nobody_waits_for_longer_than_the_windows_remember() -> None:
    quota = ReplicationQuota(lambda: 1)
    quota.record(1_000_000, NOW_MS)
    assert quota.wait_ms(NOW_MS) == WINDOWS * WINDOW_MS
    assert quota.wait_ms(NOW_MS + WINDOWS * WINDOW_MS) == 0


def test_another_rate_counts_at_once_and_none_at_all_lets_nothing_go_on() -> None:
    rate = 0
    quota = ReplicationQuota(lambda: rate)
    quota.record(500, NOW_MS)
    assert quota.wait_ms(NOW_MS) == WINDOWS * WINDOW_MS
    rate = 100
    assert quota.wait_ms(NOW_MS) == 5_000
    rate = 2**63 - 1
    assert quota.wait_ms(NOW_MS) == 0


@given(st.integers(1_000, 10_000_000), st.integers(1, 1_000_000), st.integers(0, 300))
def test_who_always_waits_as_told_moves_at_the_rate(rate: int, chunk: int, late_ms: int) -> None:
    quota = ReplicationQuota(lambda: rate)
    now_ms, moved = NOW_MS, 0
    while now_ms < NOW_MS + 20_000:
        wait_ms = quota.wait_ms(now_ms)
        if wait_ms:
            now_ms += wait_ms + late_ms
        else:
            quota.record(chunk, now_ms)
            moved += chunk
            now_ms += 50
    # Chunks that are larger than what the windows may hold pass one at a time, as in Kafka.
    assert moved <= (now_ms - NOW_MS) / 1_000 * max(rate, chunk / WINDOWS) * 1.2 + 2 * max(chunk, rate)
    if rate / 10 < chunk < rate / 2:
        assert moved >= (now_ms - NOW_MS) / 1_000 * rate * 0.5
