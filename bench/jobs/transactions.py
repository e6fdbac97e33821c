"""Transactions: written by librdkafka, and read with and without their guarantee."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import CONNECT_TIMEOUT_S, STALL_TIMEOUT_S, raise_on_failure, read_all, reader
from bench.payloads import payloads

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


def transact(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Transaction after transaction: begin, some records, commit; one more, of one record, comes first."""
    topic: str = parameters["topic"]
    values = payloads(parameters["record_bytes"])
    records = range(parameters["records"])
    producer = Producer(
        {
            "bootstrap.servers": parameters["bootstrap"],
            "transactional.id": parameters["transactional_id"],
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(CONNECT_TIMEOUT_S)
    _transaction(producer, topic, values[:1])
    ready()
    started = time.perf_counter()
    for number in range(parameters["transactions"]):
        _transaction(producer, topic, [values[(number + each) % len(values)] for each in records])
    return {"seconds": time.perf_counter() - started}


def _transaction(producer: Producer, topic: str, values: list[bytes]) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, on_delivery=raise_on_failure)
    producer.commit_transaction(STALL_TIMEOUT_S)


def consume_transactions(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """All records of the topic, several times over, with one isolation level and the other in turns.

    Markers take offsets, too, so only records are counted.
    """
    records: int = parameters["records"]
    # A fetch at the end of the log waits at the broker, and the next pass waits behind it.
    settings = {"fetch.wait.max.ms": 2}
    readers = {level: reader(parameters, **settings, **{"isolation.level": level}) for level in ISOLATION_LEVELS}
    level_s = dict.fromkeys(ISOLATION_LEVELS, 0.0)
    ready()
    started = time.perf_counter()
    for number in range(1 + parameters["passes"]):
        # Who goes first changes, in case the first one pays for something.
        for level in ISOLATION_LEVELS if number % 2 == 0 else reversed(ISOLATION_LEVELS):
            consumer, partitions = readers[level]
            before = time.perf_counter()
            read_all(consumer, partitions, records)
            # The first pass pays for connections.
            if number > 0:
                level_s[level] += time.perf_counter() - before
            consumer.unassign()
    seconds = time.perf_counter() - started
    for consumer, partitions in readers.values():
        consumer.assign(partitions)
        _expect_no_more(consumer, records)
    return {"seconds": seconds, "level_s": level_s}


def _expect_no_more(consumer: Consumer, records: int) -> None:
    seen = 0
    while messages := consumer.consume(10_000, timeout=0.5):
        seen += len(messages)
    consumer.close()
    if seen != records:
        raise ValueError(f"the topic holds {seen} records where {records} were produced")
