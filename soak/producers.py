"""An idempotent producer of librdkafka that doubles nothing: one for each partition, used like a single one.

When a leader goes away, librdkafka may send a later request to the new leader before the earlier one, which is then
out of order there; it takes a new epoch and numbers everything anew that waits, in all partitions (its issue 4953).
What another partition's old leader had taken, but not acknowledged, is written a second time, and no broker can tell.
With one partition nothing else waits, and what is out of order was not taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka


class PartitionProducers:
    def __init__(self, options: Mapping[str, Any], partitions: int) -> None:
        self._producers = [confluent_kafka.Producer({**options, "enable.idempotence": True}) for _ in range(partitions)]
        self._last = self._producers[0]

    def __len__(self) -> int:
        """Records that have no answer yet."""
        return sum(map(len, self._producers))

    def produce(self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        self._last = self._producers[partition]
        self._last.produce(topic, value, partition=partition, on_delivery=on_delivery)

    def poll(self, timeout_s: float) -> None:
        """Answers of all; waits for one of the last that was written to."""
        for producer in self._producers:
            producer.poll(0)
        self._last.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """How many records still have no answer then."""
        deadline_s = time.monotonic() + timeout_s
        for producer in self._producers:
            producer.flush(max(0.0, deadline_s - time.monotonic()))
        return len(self)
