"""Consume, transform, produce, exactly once, while broker and programs are killed at random moments.

source ──▶ copiers (processes; read a group's share, write, commit offsets and records in one transaction) ──▶ target

holds when   every record of the source is in the target once, to a reader of committed records,
             who reads along all the time and never sees a record of a transaction that was aborted
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import confluent_kafka

from moldau.client.admin import create_topic
from moldau.client.cluster import Cluster
from moldau.client.config import ClientConfig, parse_servers
from soak.broker_process import BrokerProcess
from soak.copier import ABORTED, CLIENT, SOURCE, TARGET
from soak.programs import Programs

PARTITIONS = 2
COPIERS = 2
DEADLINE_S = 300.0
KILLS_MIN = 5
"""Or nearly: copiers make progress in transactions, so some kills come later than asked for."""


class Outcome(NamedTuple):
    records: int  # of the target, as the reader who read along has them
    problems: list[str]
    broker_kills: int
    copier_kills: int
    elapsed_s: float


class Reader(threading.Thread):
    """Reads committed records of the target from its beginning, over all kills."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[bytes] = Counter()
        self._servers = bootstrap
        self._ended = threading.Event()

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "nobody",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **CLIENT,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(TARGET, index, 0) for index in range(PARTITIONS)])
        while not self._ended.is_set():
            self.seen.update(one.value() for one in consumer.consume(1000, 0.1) if one.error() is None)
        consumer.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()


def run_exactly_once(
    broker: BrokerProcess,
    *,
    records: int,
    seed: int,
    pause_s: tuple[float, float] = (0.3, 2.0),
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """`broker` is running. Kills go on until the target is whole."""
    rng = random.Random(seed)
    expected = _fill(broker.bootstrap, records)
    reader = Reader(broker.bootstrap)
    copiers = Programs("soak.copier", COPIERS, broker.bootstrap, rng, broker.folder / "copiers.log")
    reader.start()
    kills = Counter[str]()
    started = time.monotonic()
    try:
        while len(reader.seen) < records and time.monotonic() - started < DEADLINE_S:
            copiers.keep_alive()
            # By time or by progress, whichever is first: a fast machine must not be done before the first kill.
            enough = min(records, len(reader.seen) + rng.randrange(1, records // KILLS_MIN))
            _wait(rng.uniform(*pause_s), partial(_has_seen, reader, enough))
            if rng.random() < 0.5:
                kills["broker"] += 1
                broker.kill()
                broker.start()
            else:
                kills["copier"] += 1
                copiers.kill_one()
            report(f"{len(reader.seen):>8,} of {records:,}; kills: {dict(kills)}")
        copiers.kill_all()
        fresh = _read_again(broker.bootstrap, records)
    finally:
        copiers.kill_all()
        reader.stop()
    problems = _problems("read along", expected, reader.seen) + _problems("read afterwards", expected, fresh)
    elapsed_s = time.monotonic() - started
    return Outcome(sum(reader.seen.values()), problems, kills["broker"], kills["copier"], elapsed_s)


def _fill(bootstrap: str, records: int) -> set[bytes]:
    with Cluster(ClientConfig(parse_servers(bootstrap))) as cluster:
        for topic in (SOURCE, TARGET):
            create_topic(cluster, topic, partitions=PARTITIONS, configs={"segment.bytes": str(1 << 20)})
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **CLIENT})
    values = {b"%d" % number for number in range(records)}
    for value in sorted(values, key=int):
        producer.produce(SOURCE, value, partition=int(value) % PARTITIONS)
        producer.poll(0)
    if producer.flush(60):
        raise TimeoutError("the source could not be filled")
    return values


def _has_seen(reader: Reader, records: int) -> bool:
    return len(reader.seen) >= records


def _wait(seconds: float, is_enough: Callable[[], bool]) -> None:
    """The load itself: how long the copiers copy before the next kill."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_enough():
        time.sleep(0.02)


def _read_again(bootstrap: str, records: int) -> Counter[bytes]:
    """Everything once more, and for a while: transactions of those who were killed last are still to be aborted."""
    reader = Reader(bootstrap)
    reader.start()
    _wait(30, lambda: len(reader.seen) >= records)
    _wait(1, lambda: False)
    reader.stop()
    return reader.seen


def _problems(what: str, expected: set[bytes], seen: Counter[bytes]) -> list[str]:
    aborted = sum(value.startswith(ABORTED) for value in seen)
    doubled = sum(count > 1 for count in seen.values())
    lost = len(expected - seen.keys())
    strange = len(seen.keys() - expected) - aborted
    found = {"lost": lost, "doubled": doubled, "of aborted transactions": aborted, "that nobody wrote": strange}
    return [f"{what}: {count} records {name}" for name, count in found.items() if count]
