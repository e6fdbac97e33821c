"""The counters of a broker: plain numbers on the hot path, formatted for Prometheus only during a scrape.

`metrics_table.py` has the name and description of each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from moldau.errors import ErrorCode

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of all histograms. A Fetch that waits for records takes up to `fetch.max.wait.ms`."""


class Histogram:
    """How many observations fell between the bounds: some 300 ns each, on the loop; anybody may read it meanwhile."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds


class Metrics:
    __slots__ = (
        "bytes_cleaned",
        "bytes_fetched",
        "bytes_in",
        "cleanings",
        "isr_expands",
        "isr_shrinks",
        "latencies",
        "leader_elections",
        "loop_delay",
        "produce_errors",
        "records_in",
        "requests",
        "unclean_leader_elections",
        "unexpected_errors",
    )

    def __init__(self) -> None:
        self.requests: defaultdict[int, int] = defaultdict(int)
        self.latencies: defaultdict[int, Histogram] = defaultdict(Histogram)
        """By API key; of requests that were answered."""
        self.loop_delay = Histogram()
        self.cleanings = 0
        self.bytes_cleaned = 0
        self.bytes_in = 0
        self.bytes_fetched = 0
        self.records_in = 0
        self.unexpected_errors = 0
        self.leader_elections = 0
        self.unclean_leader_elections = 0
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.produce_errors: Counter[ErrorCode] = Counter()

    def produce_failed(self, code: ErrorCode) -> int:
        """Counts a refused batch; returns how many of its kind there were."""
        self.produce_errors[code] += 1
        return self.produce_errors[code]
