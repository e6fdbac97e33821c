"""Readers of committed records read along while transactions commit and abort, and the cleaner works on the log."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from soak.broker_process import BrokerProcess
from tests.integration.clients import present
from tests.integration.conftest import make_topic
from tests.integration.waiting import eventually

SETTINGS = {"log.cleaner.backoff.ms": 50, "log.segment.delete.delay.ms": 100}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 20_000,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 0,
}
PARTITIONS = 3
PRODUCERS = 2
ROUNDS_MIN = 60
CLEANINGS = 6
PADDING = b"." * 500

Key = tuple[int, bytes]


class Writer(threading.Thread):
    """Transactions over all partitions, each record with the number of its transaction; the last one is committed."""

    def __init__(self, bootstrap: str, topic: str, number: int) -> None:
        super().__init__(daemon=True)
        self.committed: dict[Key, int] = {}
        self.aborts = self.rounds = 0
        self.may_end = threading.Event()
        self._topic, self._number = topic, number
        self._random = random.Random(number)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}", "linger.ms": 0}
        )

    def run(self) -> None:
        self._producer.init_transactions(30)
        while not self.may_end.is_set() or self.rounds < ROUNDS_MIN:
            self._transaction(commits=self._random.random() < 0.5)
        self._transaction(commits=True)

    def _transaction(self, *, commits: bool) -> None:
        self.rounds += 1
        self._producer.begin_transaction()
        written: dict[Key, int] = {}
        for partition in range(PARTITIONS):
            for _ in range(self._random.randint(1, 4)):
                key = b"%d-%d" % (self._number, self._random.randrange(5))
                value = b"%s %d %s" % (b"kept" if commits else b"aborted", self.rounds, PADDING)
                self._producer.produce(self._topic, value, key, partition)
                written[(partition, key)] = self.rounds
        if commits:
            self._producer.commit_transaction(30)
            self.committed |= written
        else:
            self._producer.flush(30)
            self._producer.abort_transaction(30)
            self.aborts += 1


class Reader(threading.Thread):
    """What a reader of committed records is told, and whether that was ever wrong."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.table: dict[Key, int] = {}
        self.problems: list[str] = []
        self._offsets: dict[int, int] = {}
        self._ended = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": 5000,  # many fetches that begin and end within transactions
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self._take(message)
        self._consumer.close()

    def _take(self, message: confluent_kafka.Message) -> None:
        partition, offset, key = present(message.partition()), present(message.offset()), present(message.key())
        fate, number, _ = present(message.value()).split(b" ")
        where = f"{partition}, offset {offset}: {fate!r} {number!r} of {key!r}"
        if fate != b"kept":
            self.problems.append(f"aborted: {where}")
        if offset <= self._offsets.get(partition, -1) or int(number) < self.table.get((partition, key), 0):
            self.problems.append(f"backwards: {where}")
        self._offsets[partition] = offset
        self.table[(partition, key)] = int(number)

    def stop(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def reading(bootstrap: str, topic: str) -> Iterator[Reader]:
    reader = Reader(bootstrap, topic)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def test_readers_of_committed_records_see_no_aborted_one_while_their_topic_is_cleaned(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker.bootstrap, PARTITIONS, configs=COMPACTED)
        writers = [Writer(broker.bootstrap, topic, number) for number in range(PRODUCERS)]
        with reading(broker.bootstrap, topic) as along:
            for writer in writers:
                writer.start()
            eventually(lambda: broker.metrics()["moldau_cleanings_total"] >= CLEANINGS // 2, "what is read is cleaned")
            with reading(broker.bootstrap, topic) as behind:
                eventually(lambda: broker.metrics()["moldau_cleanings_total"] >= CLEANINGS, "and cleaned again")
                for writer in writers:
                    writer.may_end.set()
                    writer.join()
                committed = {key: number for writer in writers for key, number in writer.committed.items()}
                eventually(lambda: along.table == committed, "who read along has the last committed values")
                eventually(lambda: behind.table == committed, "who began later has them, too")
                with reading(broker.bootstrap, topic) as late:
                    eventually(lambda: late.table == committed, "and who comes afterwards")
        assert all(writer.aborts > ROUNDS_MIN // 4 for writer in writers)
        for reader in (along, behind, late):
            assert reader.problems == []
