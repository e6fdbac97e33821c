"""What the broker counts: plain integers on the hot path, turned into Prometheus text only when somebody asks."""

from __future__ import annotations

from collections import Counter, defaultdict

from moldau.errors import ErrorCode


class Metrics:
    __slots__ = (
        "bytes_cleaned",
        "bytes_fetched",
        "bytes_in",
        "cleanings",
        "produce_errors",
        "records_in",
        "requests",
        "unexpected_errors",
    )

    def __init__(self) -> None:
        self.requests: defaultdict[int, int] = defaultdict(int)
        self.cleanings = 0
        self.bytes_cleaned = 0
        self.bytes_in = 0
        self.bytes_fetched = 0
        self.records_in = 0
        self.unexpected_errors = 0
        self.produce_errors: Counter[ErrorCode] = Counter()

    def produce_failed(self, code: ErrorCode) -> int:
        """Counts a refused batch; returns how many of its kind there were."""
        self.produce_errors[code] += 1
        return self.produce_errors[code]
