"""Transactions: written by librdkafka, and read with and without their guarantee."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Producer

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import CONNECT_TIMEOUT_S, STALL_TIMEOUT_S, raise_on_failure, read_all, reader
from bench.payloads import payloads


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
    """All records of the topic, several times over; markers take offsets, too, so only records are counted."""
    consumer, partitions = reader(parameters, **{"isolation.level": parameters["isolation_level"]})
    ready()
    started = time.perf_counter()
    for _ in range(parameters["passes"]):
        read_all(consumer, partitions, parameters["records"])
    seconds = time.perf_counter() - started
    surplus = consumer.consume(1, timeout=0.5)
    consumer.close()
    if surplus:
        raise ValueError(f"there are more than the {parameters['records']} records that were produced")
    return {"seconds": seconds}
