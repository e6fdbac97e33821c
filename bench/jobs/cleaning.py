"""Compacted topics: written with many keys over and over, cleaned while a small request asks for the broker's
attention every millisecond, and read back to see that the last value of every key is still there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import CONNECT_TIMEOUT_S, STALL_TIMEOUT_S, raise_on_failure, reader
from bench.logs import cleaned_up_to
from bench.payloads import payloads
from bench.raw import RawConnection
from bench.stats import percentile
from moldau.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.apis import ApiKey

PROBE_INTERVAL_S = 0.001
# Reading the checkpoint must not take the core from the broker.
LOOK_INTERVAL_S = 0.01
CLEANING_TIMEOUT_S = 120.0

TOPIC_RESOURCE = 2
SET = 0


def _keys(parameters: Parameters) -> Iterator[bytes]:
    """The key of each record, in order: the same ones for the writer and for the reader that checks."""
    source = random.Random(1)
    keys = [b"key-%08d" % number for number in range(parameters["keys"])]
    return (source.choice(keys) for _ in range(parameters["records"]))


def produce_keyed(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Records whose values begin with their number, with keys drawn by chance."""
    topic: str = parameters["topic"]
    values = payloads(parameters["record_bytes"] - 8)
    producer = Producer({"bootstrap.servers": parameters["bootstrap"], "delivery.report.only.error": True})
    ready()
    started = time.perf_counter()
    for number, key in enumerate(_keys(parameters)):
        value = b"%08d" % number + values[number % len(values)]
        producer.produce(topic, value, key, on_delivery=raise_on_failure)
        # Before the producer's queue is full.
        if number % 50_000 == 0:
            producer.flush(STALL_TIMEOUT_S)
    if producer.flush(STALL_TIMEOUT_S):
        raise TimeoutError("the producer could not deliver its records")
    return {"seconds": time.perf_counter() - started}


def clean(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Allow the cleaner to clean, and wait until its checkpoint says that it did."""
    topic, offset = parameters["topic"], parameters["dirty_end"]
    checkpoint = Path(parameters["checkpoint"])
    build = messages.request_schema(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
    change = build.AlterableConfig(name="min.compaction.lag.ms", config_operation=SET, value="0")
    resource = build.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=(change,))
    request = build.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

    def is_clean() -> bool:
        return checkpoint.exists() and cleaned_up_to(checkpoint.read_text(), topic, 0) >= offset

    with RawConnection(parameters["bootstrap"]) as connection:
        connection.greet()
        ready()
        started = time.perf_counter()
        (answer,) = connection.ask(request).responses
        if answer.error_code != ErrorCode.NONE:
            raise RuntimeError(f"the topic's configuration could not be changed: {answer.error_message}")
        latencies_ms = _probe(connection, is_clean)
        return {"seconds": time.perf_counter() - started, **_told(latencies_ms)}


def probe(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """The same small requests for some seconds, with nothing to clean."""
    with RawConnection(parameters["bootstrap"]) as connection:
        connection.greet()
        ready()
        deadline = time.perf_counter() + parameters["seconds"]
        return {"seconds": parameters["seconds"], **_told(_probe(connection, lambda: time.perf_counter() > deadline))}


def _probe(connection: RawConnection, is_over: Callable[[], bool]) -> list[float]:
    """Latencies of ApiVersions, asked every millisecond; the longest is the longest pause of the broker."""
    latencies_ms: list[float] = []
    started = looked_at = time.perf_counter()
    while True:
        before = time.perf_counter()
        connection.greet()
        now = time.perf_counter()
        latencies_ms.append((now - before) * 1000)
        if now - looked_at > LOOK_INTERVAL_S:
            looked_at = now
            if is_over():
                return latencies_ms
            if now - started > CLEANING_TIMEOUT_S:
                raise TimeoutError(f"not clean after {CLEANING_TIMEOUT_S:.0f} s")
        time.sleep(max(before + PROBE_INTERVAL_S - time.perf_counter(), 0.0))


def _told(latencies_ms: list[float]) -> dict[str, float]:
    return {"longest_ms": max(latencies_ms), "p99_ms": percentile(latencies_ms, 99)}


def check_keys(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Read the topic to its end and hold the last value of each key against what was written."""
    expected = {key: b"%08d" % number for number, key in enumerate(_keys(parameters))}
    consumer, partitions = reader({**parameters, "partitions": 1}, **{"auto.offset.reset": "earliest"})
    ready()
    started = time.perf_counter()
    consumer.assign(partitions)
    _, end = consumer.get_watermark_offsets(partitions[0], CONNECT_TIMEOUT_S)
    held: dict[bytes | None, bytes] = {}
    records, position = 0, 0
    while position < end:
        batch = consumer.consume(10_000, timeout=1.0)
        for message in batch:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            held[message.key()] = (message.value() or b"")[:8]
        if not batch:
            raise TimeoutError(f"read up to {position} of {end}, then nothing")
        records += len(batch)
        position = (batch[-1].offset() or 0) + 1
    consumer.close()
    if held != expected:
        raise ValueError(f"{len(expected)} keys were written, {len(held)} are held, or with other values")
    return {"seconds": time.perf_counter() - started, "records": records}
