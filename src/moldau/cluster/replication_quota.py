"""The limit on how fast replicas that are behind catch up, so that data that moves leaves room for users (KIP-73).

Each broker has two: what it sends as a leader, and what it fetches as a follower, each over all replicas that their
topics name as throttled. What these move is counted. While the rate over the last seconds is above the limit, those
of them that are not in sync are left out of fetches; an in-sync one never is, or users would wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

WINDOW_MS = 1_000
WINDOWS = 11
"""Kafka's defaults of `replication.quota.window.size.seconds` and `replication.quota.window.num`."""

ALL = "*"


def is_throttled(replicas: Sequence[str], index: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas, as partition:broker or `*`, names this one."""
    return bool(replicas) and (ALL in replicas or f"{index}:{broker_id}" in replicas)


class ReplicationQuota:
    """`rate` is called each time, in bytes per second: it is a dynamic configuration."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._windows: deque[list[int]] = deque()
        """When each began, and its bytes."""

    def record(self, byte_count: int, now_ms: int) -> None:
        if not self._windows or now_ms - self._windows[-1][0] >= WINDOW_MS:
            self._forget(now_ms)
            self._windows.append([now_ms, 0])
        self._windows[-1][1] += byte_count

    def wait_ms(self, now_ms: int) -> int:
        """How long throttled replicas have to wait; 0 while the rate is within the limit."""
        self._forget(now_ms)
        windows = self._windows
        if not windows:
            return 0
        rate, first_ms = self._rate(), windows[0][0]
        total = sum(byte_count for _, byte_count in windows)
        if total * 1_000 <= rate * max(now_ms - first_ms, WINDOW_MS):
            return 0
        # Until the bytes are spread over enough time, or the oldest of them are forgotten.
        forgotten_ms = first_ms + WINDOWS * WINDOW_MS
        spread_ms = first_ms + -(-total * 1_000 // rate) if rate else forgotten_ms
        return min(spread_ms, forgotten_ms) - now_ms

    def _forget(self, now_ms: int) -> None:
        while self._windows and now_ms - self._windows[0][0] >= WINDOWS * WINDOW_MS:
            self._windows.popleft()
