"""Clients of a cluster that write down what they asked and what they were told: writers, transactions, readers, askers.

Each is a thread with a client of its own, from `start` to `stop`; the history is common to all of them.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import confluent_kafka

from soak.history import End, History, Outcome, Read, Transaction, Write
from soak.log_end import AWAY, log_end
from soak.producers import PartitionProducers

TIMEOUT_S = 120.0
"""Longer than any fault: a writer that gives up says nothing about the cluster."""
CLIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 2_000,
    # What was sent to a broker that is paused then finds its successor while the fault still lasts.
    "socket.timeout.ms": 4_000,
    "log_level": 0,
}
OUTSTANDING_MAX = 200
TRANSACTION_WRITES_MAX = 8
TRANSACTION_TIMEOUT_MS = 60_000
"""Longer than a fault: librdkafka also gives up writes of a transaction by it, and then cannot always abort."""
ABORT_PROBABILITY = 0.2
SEEK_PROBABILITY = 0.02
READ_MAX = 500
_ANY = -1
"""All partitions together, in `AckClock`."""


class Place(NamedTuple):
    bootstrap: str
    topic: str
    partitions: int


class Worker(ABC):
    """`surprises` is what a client was told that no good cluster tells."""

    def __init__(self, name: str, place: Place, history: History, seed: int) -> None:
        self.name = name
        self.surprises: list[str] = []
        self._bootstrap, self._topic, self._partitions = place
        self._history = history
        self._rng = random.Random(f"{seed} {name}")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def join(self) -> None:
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # one that dies must not look like one that saw nothing wrong
            self.surprises.append(f"{self.name}: ended by {error!r}")

    @abstractmethod
    def _run(self) -> None: ...

    def _client(self, **options: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrap, "client.id": self.name, **CLIENT, **options}


class AckClock:
    """When writes were acknowledged: how long none was, and how long none of one partition."""

    def __init__(self, partitions: int = 0) -> None:
        self._last_s = dict.fromkeys((_ANY, *range(partitions)), time.monotonic())
        self._longest_s: dict[int, float] = {}
        self._lock = threading.Lock()

    def tick(self, partition: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            for each in (_ANY, partition):
                gap_s = now_s - self._last_s.get(each, now_s)
                self._longest_s[each] = max(self._longest_s.get(each, 0.0), gap_s)
                self._last_s[each] = now_s

    def lap_s(self) -> float:
        """The longest time without an acknowledgement since the last lap, one that still lasts included."""
        return self.lap()[0]

    def lap(self) -> tuple[float, float]:
        """As `lap_s`, and the longest time in which a single partition had none."""
        with self._lock:
            now_s = time.monotonic()
            gaps_s = {
                each: max(self._longest_s.get(each, 0.0), now_s - last_s) for each, last_s in self._last_s.items()
            }
            self._longest_s.clear()
            return gaps_s[_ANY], max(gaps_s.values())

    def all_since(self, moment_s: float) -> bool:
        """Whether every partition had an acknowledgement after that moment."""
        with self._lock:
            return all(last_s > moment_s for last_s in self._last_s.values())


class Writer(Worker):
    """Idempotent producers, acks=all, to all partitions in turn."""

    def __init__(self, *args: Any, clock: AckClock, rate_per_s: float) -> None:
        super().__init__(*args)
        self._clock = clock
        self._pause_s = 1 / rate_per_s
        self._numbers = itertools.count()

    def _run(self) -> None:
        producer = PartitionProducers(self._client(**self._options()), self._partitions)
        while not self._over.is_set():
            self._write(producer, self._rng.randrange(self._partitions))
            producer.poll(self._rng.uniform(0, 2 * self._pause_s))
            while len(producer) > OUTSTANDING_MAX and not self._over.is_set():
                producer.poll(0.05)
        if producer.flush(TIMEOUT_S):
            self.surprises.append(f"{self.name}: {len(producer)} writes got no answer in {TIMEOUT_S:.0f} s")

    def _options(self) -> dict[str, Any]:
        return {"linger.ms": 1, "message.timeout.ms": int(TIMEOUT_S * 1000)}

    def _write(self, producer: Any, partition: int, transaction: Transaction | None = None) -> Write:
        number = next(self._numbers)
        write = Write(self.name, number, partition, f"{self.name}:{number}", time.monotonic(), transaction)
        if transaction is not None:
            transaction.writes.append(write)
        self._history.writes.append(write)
        producer.produce(self._topic, write.value.encode(), partition=partition, on_delivery=self._delivered(write))
        return write

    def _delivered(self, write: Write) -> Callable[[Any, Any], None]:
        def done(error: Any, message: Any) -> None:
            if error is None:
                write.outcome, write.offset, write.completed_s = Outcome.OK, message.offset(), time.monotonic()
                self._clock.tick(write.partition)
            elif write.transaction is None:
                self.surprises.append(f"{write.value} was not delivered: {error}")

        return done


class TransactionWriter(Writer):
    """Transactions of a few writes, one in five aborted on purpose."""

    def _run(self) -> None:
        count = itertools.count()
        producer = None
        while not self._over.is_set():
            if producer is None:
                producer = self._new_producer()
                continue
            transaction = Transaction(f"{self.name}/{next(count)}")
            self._history.transactions.append(transaction)
            try:
                self._transaction(producer, transaction)
            except confluent_kafka.KafkaException as failure:
                if failure.args[0].code() != confluent_kafka.KafkaError._TIMED_OUT:
                    self.surprises.append(f"{transaction.name}: {failure}")
                producer = None

    def _options(self) -> dict[str, Any]:
        return {
            "transactional.id": self.name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 1,
        }

    def _new_producer(self) -> Any:
        producer = confluent_kafka.Producer(self._client(**self._options()))
        while not self._over.is_set():
            try:
                producer.init_transactions(10)
                return producer
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
        return None

    def _transaction(self, producer: Any, transaction: Transaction) -> None:
        aborts = self._rng.random() < ABORT_PROBABILITY
        producer.begin_transaction()
        for _ in range(self._rng.randrange(1, TRANSACTION_WRITES_MAX + 1)):
            self._write(producer, self._rng.randrange(self._partitions), transaction)
            producer.poll(self._rng.uniform(0, 2 * self._pause_s))
        try:
            if not aborts:
                _persist(lambda: producer.commit_transaction(TIMEOUT_S))
                transaction.outcome = Outcome.OK
                return
            producer.flush(TIMEOUT_S)
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
        _persist(lambda: producer.abort_transaction(TIMEOUT_S))
        transaction.outcome = Outcome.FAIL


class Reader(Worker):
    """Reads all partitions over and over: from where it is, now and then from somewhere before."""

    def __init__(self, *args: Any, committed: bool) -> None:
        super().__init__(*args)
        self._committed = committed

    def _run(self) -> None:
        level = "read_committed" if self._committed else "read_uncommitted"
        options = {"group.id": "none", "isolation.level": level, "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        consumer = confluent_kafka.Consumer(self._client(**options, **{"auto.offset.reset": "error"}))
        following = dict.fromkeys(range(self._partitions), 0)
        for run in itertools.count():
            consumer.assign([confluent_kafka.TopicPartition(self._topic, *where) for where in following.items()])
            while not self._over.is_set() and self._rng.random() >= SEEK_PROBABILITY:
                if not self._read(consumer, run, following):
                    break
            if self._over.is_set():
                break
            following = {partition: self._rng.randrange(end + 1) for partition, end in following.items()}
        consumer.close()

    def _read(self, consumer: Any, run: int, following: dict[int, int]) -> bool:
        """False when the position is no longer a good one."""
        got: dict[int, list[tuple[int, str]]] = defaultdict(list)
        is_good = True
        for message in consumer.consume(READ_MAX, 0.2):
            error = message.error()
            if error is None:
                got[message.partition()].append((message.offset(), message.value().decode()))
            elif not error.retriable() and error.code() not in AWAY:
                self.surprises.append(f"{self.name}: {error}; it was at {following}")
                is_good = False
        for partition, records in got.items():
            self._history.reads.append(Read(self.name, run, partition, self._committed, records))
            following[partition] = records[-1][0] + 1
        return is_good


class EndAsker(Worker):
    """Asks for the end of one partition after the other."""

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(self._client(**{"group.id": "none", "isolation.level": "read_uncommitted"}))
        while not self._over.is_set():
            partition = self._rng.randrange(self._partitions)
            invoked_s = time.monotonic()
            try:
                _, end = consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition(self._topic, partition), timeout=2, cached=False
                )
            except confluent_kafka.KafkaException:
                continue
            self._history.ends.append(End(partition, invoked_s, end))
            self._over.wait(self._rng.uniform(0, 0.05))
        consumer.close()


def _persist(ask: Callable[[], object]) -> None:
    """Asks again what may be asked again."""
    while True:
        try:
            ask()
            return
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].retriable():
                raise


def read_all(bootstrap: str, topic: str, partition: int, *, committed: bool) -> Read:
    """A whole partition at rest, as a reader of that level has it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **CLIENT,
        }
    )
    records: list[tuple[int, str]] = []
    try:
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        end = log_end(consumer, where)
        consumer.assign([where])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message: Any
            for message in consumer.consume(READ_MAX, 1.0):
                error = message.error()
                if error is None:
                    records.append((message.offset(), message.value().decode()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF and message.offset() >= end:
                    return Read("final", 0, partition, committed, records)
                elif error.code() not in AWAY and error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                    raise RuntimeError(f"{topic}-{partition}: {error}")
        raise TimeoutError(f"{topic}-{partition}: not read to its end, {end}, in {TIMEOUT_S:.0f} s")
    finally:
        consumer.close()


def end_of(bootstrap: str, topic: str, partition: int, *, committed: bool) -> int:
    """The high watermark, or the last stable offset."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": level, **CLIENT}
    )
    try:
        return log_end(consumer, confluent_kafka.TopicPartition(topic, partition))
    finally:
        consumer.close()
