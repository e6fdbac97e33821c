"""Jobs for a cluster: many partitions, records at a steady pace, the write that meets a dead leader.

librdkafka, idempotent, acks=all.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient, NewTopic

from bench.jobs.job import Parameters, Ready
from bench.jobs.librdkafka import STALL_TIMEOUT_S, connected_producer, raise_on_failure
from bench.payloads import payloads

# Far beyond any session timeout: a record that is given up is a failed run, not a slow one.
FAILOVER_TIMEOUT_S = 120
# Apache Kafka took more than 180 s for 3,000 partitions on a machine that was busy with other things.
CREATE_TIMEOUT_S = 600
WRITES_BEFORE_THE_KILL = 50
SYNCHRONOUS = {"linger.ms": 0, "socket.nagle.disable": True}


def create_and_write(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """A topic of many partitions; done when each of them has acknowledged a record.

    Metadata that tells of leaders and in-sync replicas says what shall be: only a write shows that they are there.
    """
    partitions: int = parameters["partitions"]
    topic = NewTopic(parameters["new_topic"], partitions, parameters["replicas"], config=parameters["config"])
    admin = AdminClient({"bootstrap.servers": parameters["bootstrap"], "log_level": 3})
    producer = connected_producer(parameters, **{"message.timeout.ms": CREATE_TIMEOUT_S * 1000})
    value = payloads(parameters["record_bytes"], count=1)[0]
    ready()
    started = time.perf_counter()
    admin.create_topics([topic], request_timeout=CREATE_TIMEOUT_S)[topic.topic].result(CREATE_TIMEOUT_S)
    for partition in range(partitions):
        producer.produce(topic.topic, value, partition=partition, on_delivery=raise_on_failure)
    if producer.flush(CREATE_TIMEOUT_S):
        raise TimeoutError(f"{partitions} partitions did not take a record each within {CREATE_TIMEOUT_S} s")
    return {"seconds": time.perf_counter() - started}


def produce_paced(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """So many records a second, each as it is due, however long the one before takes.

    A record that was late because an earlier one blocked counts from when it was due. `due_at` is on the clock that
    all processes of a machine share, so that the runner can tell what happened when.
    """
    topic: str = parameters["topic"]
    rate: int = parameters["rate"]
    value = payloads(parameters["record_bytes"], count=1)[0]
    producer = connected_producer(parameters, **SYNCHRONOUS)
    latencies_ms: list[tuple[float, float]] = []

    def acknowledged(due: float, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        latencies_ms.append((due, (time.perf_counter() - due) * 1000))

    ready()
    started = time.perf_counter()
    for number in range(int(rate * parameters["seconds"])):
        due = started + number / rate
        # Waits for acknowledgements until the next record is due; never less than one look.
        while True:
            producer.poll(max(due - time.perf_counter(), 0.0))
            if time.perf_counter() >= due:
                break
        producer.produce(topic, value, on_delivery=partial(acknowledged, due))
    if producer.flush(STALL_TIMEOUT_S):
        raise TimeoutError("the producer could not deliver its records")
    due_at, waited_ms = zip(*sorted(latencies_ms), strict=True)
    return {"seconds": time.perf_counter() - started, "due_at": due_at, "latencies_ms": waited_ms}


def fail_over(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Kill the leader that has just acknowledged a write; `seconds` until the next one to its partition is."""
    topic: str = parameters["topic"]
    partition: int = parameters["partition"]
    value = payloads(parameters["record_bytes"], count=1)[0]
    producer = connected_producer(parameters, **SYNCHRONOUS, **{"retry.backoff.ms": 20, "retry.backoff.max.ms": 100})

    def write() -> None:
        producer.produce(topic, value, partition=partition, on_delivery=raise_on_failure)
        if producer.flush(FAILOVER_TIMEOUT_S):
            raise TimeoutError("no write was acknowledged after the leader's death")

    for _ in range(WRITES_BEFORE_THE_KILL):
        write()
    ready()
    started = time.perf_counter()
    os.kill(parameters["leader_pid"], signal.SIGKILL)
    write()
    return {"seconds": time.perf_counter() - started}
