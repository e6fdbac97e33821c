"""Idempotent writers of three clients that number their records and go on through every restart.

Record n of a writer goes to partition n modulo the partitions, its value names writer and number. So what a
log must hold is known without keeping it: every number once, in order, up to the last acknowledged one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import aiokafka
import kafka

from soak.producers import PartitionProducers

# Few enough that a kill hits them in flight, many enough that the broker is busy.
OUTSTANDING_MAX = 1000
# Longer than any restart: a writer that gives up would leave a gap that is nobody's fault.
DELIVERY_TIMEOUT_MS = 120_000
# A broker that neither answers nor goes away is left for another then.
REQUEST_TIMEOUT_MS = 5_000
RECONNECT_MAX_MS = 200
VALUE_SIZE = 200


class Writer(ABC):
    """Writes in a thread of its own from `start` to `stop`."""

    client: str

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = name
        self.acked = 0
        self.acked_upto = -1
        self.failures: list[str] = []
        self.longest_gap_s = 0.0
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._next = 0
        self._last_ack_s = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)

    def start(self) -> None:
        self._last_ack_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything sent is acknowledged or given up."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # a writer that dies must not look like one that lost nothing
            self.failures.append(repr(error))

    @abstractmethod
    def _write(self) -> None: ...

    def _record(self) -> tuple[int, int, bytes]:
        """Number, partition, value."""
        number = self._next
        self._next += 1
        return number, number % self._partitions, f"{self.name}:{number}:".encode().ljust(VALUE_SIZE, b".")

    def _done(self, number: int, error: object) -> None:
        if error is not None:
            self.failures.append(f"{number}: {error}")
            return
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_ack_s)
        self._last_ack_s = now_s
        self.acked += 1
        self.acked_upto = max(self.acked_upto, number)


class ConfluentWriter(Writer):
    client = "confluent-kafka"

    def _write(self) -> None:
        producer = PartitionProducers(
            {
                "bootstrap.servers": self._bootstrap,
                "linger.ms": 1,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
                "retry.backoff.max.ms": RECONNECT_MAX_MS,
                "log_level": 0,
            },
            self._partitions,
        )

        def delivered(number: int) -> Any:
            return lambda error, _message: self._done(number, error)

        while not self._stopping.is_set():
            number, partition, value = self._record()
            producer.produce(self._topic, value, partition=partition, on_delivery=delivered(number))
            producer.poll(0)
            while len(producer) > OUTSTANDING_MAX:
                producer.poll(0.01)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000)


class KafkaPythonWriter(Writer):
    client = "kafka-python"

    def _write(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            linger_ms=1,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=RECONNECT_MAX_MS,
        )
        slots = threading.Semaphore(OUTSTANDING_MAX)

        def sent(number: int) -> Any:
            def done(error: object) -> None:
                slots.release()
                self._done(number, error)

            return done

        while not self._stopping.is_set():
            slots.acquire()
            number, partition, value = self._record()
            done = sent(number)
            future = producer.send(self._topic, value, partition=partition)
            future.add_callback(lambda _meta, done=done: done(None))
            future.add_errback(done)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000)
        producer.close()


class AioKafkaWriter(Writer):
    client = "aiokafka"

    def _write(self) -> None:
        asyncio.run(self._write_async())

    async def _write_async(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            linger_ms=1,
            request_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        await producer.start()
        slots = asyncio.Semaphore(OUTSTANDING_MAX)

        def sent(number: int) -> Any:
            def done(future: asyncio.Future[Any]) -> None:
                slots.release()
                self._done(number, future.exception())

            return done

        while not self._stopping.is_set():
            await slots.acquire()
            number, partition, value = self._record()
            future = await producer.send(self._topic, value, partition=partition)
            future.add_done_callback(sent(number))
        await producer.stop()


WRITERS: Sequence[type[Writer]] = (ConfluentWriter, KafkaPythonWriter, AioKafkaWriter)
