"""Consumers that subscribe and wait for their first record: what a service feels at its start."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaException

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import CONNECT_TIMEOUT_S, STALL_TIMEOUT_S

# After its first metadata librdkafka connects anew, on a timer of its own: to the broker by its id, to the coordinator.
SETTLE_S = 0.3


def subscribe(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """One consumer after the other, each connected already and the first of a new group."""
    settings = {
        "bootstrap.servers": parameters["bootstrap"],
        "group.protocol": parameters["protocol"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    topic: str = parameters["topic"]
    ready()
    waits_ms: list[float] = []
    started = time.perf_counter()
    for number in range(parameters["consumers"]):
        consumer = Consumer({**settings, "group.id": f"{parameters['group']}-{number}"})
        consumer.list_topics(topic, timeout=CONNECT_TIMEOUT_S)
        time.sleep(SETTLE_S)
        before = time.perf_counter()
        consumer.subscribe([topic])
        message = consumer.poll(STALL_TIMEOUT_S)
        waits_ms.append((time.perf_counter() - before) * 1000)
        if message is None:
            raise TimeoutError(f"no record within {STALL_TIMEOUT_S} s of subscribe()")
        if (error := message.error()) is not None:
            raise KafkaException(error)
        consumer.close()
    return {"seconds": time.perf_counter() - started, "waits_ms": waits_ms}
