"""The end of a partition, asked for while brokers come and go."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka

from moldau.errors import RETRIABLE

TIMEOUT_S = 120.0
RETRY_PAUSE_S = 0.05

AWAY = frozenset(
    (
        confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
        confluent_kafka.KafkaError._TIMED_OUT,
    )
)
"""The cluster is away for a while: that is what the faults are for."""


def log_end(consumer: Any, where: Any) -> int:
    """The high watermark or the last stable offset. librdkafka does not ask again while a leader moves; this does."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(where, timeout=30, cached=False)[1])
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() not in AWAY | RETRIABLE or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_PAUSE_S)
