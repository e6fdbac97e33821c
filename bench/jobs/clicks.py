"""Clicks for the pipeline scenarios, and the users who made them."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Producer

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import STALL_TIMEOUT_S, raise_on_failure

PAGES = 1_000
USERS = 10_000
COUNTRIES = ("CZ", "SK", "PL", "AT", "DE", "HU", "SI", "UA")
FIRST_MS = 1_767_225_600_000  # 2026-01-01


def produce_clicks(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """First all users, then so many clicks, `span_s` of event time apart altogether, in its order."""
    records, span_s = parameters["records"], parameters["span_s"]
    producer = Producer(
        {
            "bootstrap.servers": parameters["bootstrap"],
            "enable.idempotence": True,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
    )
    ready()
    started = time.perf_counter()
    for number in range(USERS):
        user = b"u%d" % number
        value = b'{"user": "%s", "country": "%s"}' % (user, COUNTRIES[number % len(COUNTRIES)].encode())
        _produce(producer, parameters["users"], value, user)
    _flush(producer)
    second = -1
    prefix = ""
    for number in range(records):
        at_ms = FIRST_MS + number * span_s * 1000 // records
        if at_ms // 1000 != second:
            second = at_ms // 1000
            prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        # Multiplied by numbers that divide neither: pages and users look random, and are the same in each run.
        page, user_number = number * 7919 % PAGES, number * 104_729 % USERS
        at = f"{prefix}.{at_ms % 1000:03}Z"
        click = f'{{"page": "/p/{page}", "user": "u{user_number}", "ms": {number % 997}, "at": "{at}"}}'
        _produce(producer, parameters["clicks"], click.encode(), b"u%d" % user_number)
    _flush(producer)
    return {"seconds": time.perf_counter() - started}


def _produce(producer: Producer, topic: str, value: bytes, key: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=raise_on_failure)
            return
        except BufferError:
            producer.poll(0.002)


def _flush(producer: Producer) -> None:
    if producer.flush(STALL_TIMEOUT_S):
        raise TimeoutError("the producer could not deliver its records")
