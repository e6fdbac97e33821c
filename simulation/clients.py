"""Producers and consumers: what they write, what they were promised, what they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.metadata.image import MetadataImage
from simulation.log import Batch, TopicPartition
from simulation.network import Answer, Failure
from simulation.services import Produce, Read
from simulation.world import MS, Process

if TYPE_CHECKING:
    from simulation.cluster import Cluster

TIMEOUT_US = 1_500 * MS
BACKOFF_US = 60 * MS
IN_FLIGHT_MAX = 5
POLL_US = 150 * MS


class Client(Process):
    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.world, name)
        self.cluster = cluster
        self.image = MetadataImage()

    @property
    def is_done(self) -> bool:
        return True

    def start(self) -> None:
        raise NotImplementedError

    def refresh(self) -> None:
        """Asks somebody for the metadata; what comes may be older than what is known."""

        def told(image: MetadataImage | Failure) -> None:
            if isinstance(image, MetadataImage) and image.version > self.image.version:
                self.image = image

        self.ask_any("metadata", None, told)

    def ask_any(self, what: str, request: Any, answer: Answer) -> None:
        self._ask(self.world.random.choice(sorted(self.cluster.brokers)), what, request, answer)

    def ask_leader(self, where: TopicPartition, what: str, request: Any, answer: Answer) -> None:
        topic = self.image.topics.get(where[0])
        leader = topic.partitions[where[1]].leader if topic is not None else -1
        if leader < 0:
            self.refresh()
            self.after(BACKOFF_US, answer, Failure.REFUSED)
        else:
            self._ask(leader, what, request, answer)

    def _ask(self, broker_id: int, what: str, request: Any, answer: Answer) -> None:
        broker = self.cluster.brokers[broker_id]
        self.cluster.network.ask(self, broker, what, request, answer, timeout_us=TIMEOUT_US, connection="client")


class Producer(Client):
    """Idempotent, acks=all, several in flight; after a failure one at a time until all of those are acknowledged."""

    def __init__(
        self, cluster: Cluster, name: str, where: TopicPartition, total: int, *, idempotent: bool = True
    ) -> None:
        super().__init__(cluster, name)
        self.where = where
        self.total = total
        self._is_idempotent = idempotent
        self._producer_id = -1
        self._first = self._next = self._due = 0
        """Not acknowledged yet; not sent yet; not written yet."""
        self._acknowledged: set[int] = set()
        self._careful_until = 1  # a log that does not know the producer takes any first sequence
        self._attempt = 0
        self._in_flight: set[int] = set()

    @property
    def is_done(self) -> bool:
        return self._first == self.total

    def start(self) -> None:
        def told(producer_id: Any) -> None:
            if isinstance(producer_id, int):
                self._producer_id = producer_id
                self.refresh()
                self._write()
            else:
                self.after(BACKOFF_US, self.start)

        self.ask_any("producer_id", None, told)

    def _write(self) -> None:
        if self._due < self.total:
            self._due += 1
            self._pump()
            self.after(self.world.between_ms(2, 250), self._write)

    def _pump(self) -> None:
        if self._first < self._careful_until:
            if not self._in_flight and self._first < self._due:
                self._send(self._first)
            return
        while self._next < min(self._due, self._first + IN_FLIGHT_MAX):
            self._send(self._next)

    def _send(self, number: int) -> None:
        self._next = max(self._next, number + 1)
        self._in_flight.add(number)
        attempt = self._attempt
        batch = Batch(("u", self.name, number))
        if self._is_idempotent:
            batch = Batch(("n", self.name, number), self._producer_id, 0, number)

        def answered(offset: Any) -> None:
            if attempt == self._attempt:
                self._in_flight.discard(number)
            if isinstance(offset, int):
                self.cluster.checker.acknowledged(self.where, offset, batch.payload)
                self._acknowledged.add(number)
                while self._first in self._acknowledged:
                    self._first += 1
                self._pump()
            elif attempt == self._attempt:
                self._attempt += 1
                self._in_flight.clear()
                self._careful_until = self._next
                self.refresh()
                self.after(BACKOFF_US, self._pump)

        self.ask_leader(self.where, "produce", Produce(self.where, batch), answered)


class Consumer(Client):
    """Reads committed transactions, partition after partition, to the end of what there is."""

    def __init__(self, cluster: Cluster, name: str, where: TopicPartition) -> None:
        super().__init__(cluster, name)
        self.where = where
        self.position = 0

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.cluster.checker.ledger.get(self.where, ()))

    def start(self) -> None:
        self.refresh()
        self._poll()

    def _poll(self) -> None:
        def told(read: Any) -> None:
            if isinstance(read, Read):
                for entry in read.entries:
                    self.cluster.history.shown(self.where, entry)
                self.position = max(self.position, read.next_offset)
            else:
                self.refresh()
            self.after(POLL_US, self._poll)

        self.ask_leader(self.where, "consume", (self.where, self.position), told)
