"""Jobs of real clients: librdkafka through confluent-kafka, as most Python services use Kafka."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.jobs.job import Parameters, Ready
from bench.payloads import payloads

CONNECT_TIMEOUT_S = 30
# No record for so long means that the broker lost one or stands still: the run must fail, not hang.
STALL_TIMEOUT_S = 30


def raise_on_failure(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def connected_producer(parameters: Parameters, **settings: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": parameters["bootstrap"],
            "acks": "all",
            "enable.idempotence": True,
            **settings,
        }
    )
    # The first record waits for the connection and the producer id, half a second at times: librdkafka asks
    # for it on a timer. That belongs to no measured record.
    producer.produce(parameters["topic"], b"first", on_delivery=raise_on_failure)
    if producer.flush(CONNECT_TIMEOUT_S):
        raise TimeoutError("the producer could not deliver its first record")
    return producer


def produce(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """As many records as asked for, as fast as they go; done when the last one is acknowledged.

    One more comes first, see `connected_producer`.
    """
    topic: str = parameters["topic"]
    records: int = parameters["records"]
    values = payloads(parameters["record_bytes"])
    producer = connected_producer(
        parameters,
        **{
            "compression.type": parameters["codec"],
            "queue.buffering.max.messages": 500_000,
            # A callback per record would measure Python; failures are still reported.
            "delivery.report.only.error": True,
        },
    )
    ready()
    started = time.perf_counter()
    for number in range(records):
        value = values[number % len(values)]
        while True:
            try:
                producer.produce(topic, value, on_delivery=raise_on_failure)
                break
            except BufferError:
                producer.poll(0.002)
    if producer.flush(STALL_TIMEOUT_S):
        raise TimeoutError("the producer could not deliver its records")
    return {"seconds": time.perf_counter() - started}


def consume(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """All records of the topic from its beginning; the count is the proof that none is missing or doubled."""
    wanted: int = parameters["records"]
    consumer, partitions = reader(parameters)
    ready()
    started = time.perf_counter()
    read_all(consumer, partitions, wanted)
    seconds = time.perf_counter() - started
    held = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
    consumer.close()
    if held != wanted:
        raise ValueError(f"the topic holds {held} records where {wanted} were produced")
    return {"seconds": seconds}


def reader(parameters: Parameters, **settings: Any) -> tuple[Consumer, list[TopicPartition]]:
    """A consumer that knows the topic, and the beginning of each of its partitions."""
    topic: str = parameters["topic"]
    consumer = Consumer(
        {
            "bootstrap.servers": parameters["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # The queue never runs dry while the broker could still send.
            "queued.min.messages": 1_000_000,
            "fetch.wait.max.ms": 100,
            **settings,
        }
    )
    consumer.list_topics(topic, timeout=CONNECT_TIMEOUT_S)
    return consumer, [TopicPartition(topic, index, 0) for index in range(parameters["partitions"])]


def read_all(consumer: Consumer, partitions: list[TopicPartition], wanted: int) -> None:
    last_progress = time.perf_counter()
    consumer.assign(partitions)
    seen = 0
    while seen < wanted:
        # Never more than are left: consume() would wait out its timeout for records that do not exist.
        messages = consumer.consume(min(10_000, wanted - seen), timeout=0.2)
        if messages:
            if (error := messages[-1].error()) is not None:
                raise KafkaException(error)
            seen += len(messages)
            last_progress = time.perf_counter()
        elif time.perf_counter() - last_progress > STALL_TIMEOUT_S:
            raise TimeoutError(f"consumed {seen} of {wanted} records, then nothing")


def produce_one_by_one(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """One record, wait for its acknowledgement, the next: what a synchronous caller feels."""
    topic: str = parameters["topic"]
    value = payloads(parameters["record_bytes"], count=1)[0]
    producer = connected_producer(parameters, **{"linger.ms": 0, "socket.nagle.disable": True})
    ready()
    latencies_ms: list[float] = []
    started = time.perf_counter()
    for _ in range(parameters["records"]):
        before = time.perf_counter()
        producer.produce(topic, value, on_delivery=raise_on_failure)
        if producer.flush(STALL_TIMEOUT_S):
            raise TimeoutError("a record was not acknowledged")
        latencies_ms.append((time.perf_counter() - before) * 1000)
    return {"seconds": time.perf_counter() - started, "latencies_ms": latencies_ms}
