"""What every copy under kills shares: a source filled, a reader of the target who reads along, the verdict."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import confluent_kafka

from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from soak.copier import ABORTED, CLIENT, SOURCE, TARGET

PARTITIONS = 2


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
            self.seen.update(one.value() or b"" for one in consumer.consume(1000, 0.1) if one.error() is None)
        consumer.close()

    def has(self, records: int) -> bool:
        return len(self.seen) >= records

    def stop(self) -> None:
        self._ended.set()
        self.join()


def fill(bootstrap: str, records: int) -> set[bytes]:
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
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


def wait(seconds: float, is_enough: Callable[[], bool]) -> None:
    """The load itself: how long the copiers copy before the next kill."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_enough():
        time.sleep(0.02)


def read_again(bootstrap: str, records: int) -> Counter[bytes]:
    """Everything once more, and for a while: transactions of those who were killed last are still to be aborted."""
    reader = Reader(bootstrap)
    reader.start()
    wait(30, lambda: reader.has(records))
    wait(1, lambda: False)
    reader.stop()
    return reader.seen


def problems(what: str, expected: set[bytes], seen: Counter[bytes]) -> list[str]:
    aborted = sum(value.startswith(ABORTED) for value in seen)
    doubled = sum(count > 1 for count in seen.values())
    lost = len(expected - seen.keys())
    strange = len(seen.keys() - expected) - aborted
    found = {"lost": lost, "doubled": doubled, "of aborted transactions": aborted, "that nobody wrote": strange}
    return [f"{what}: {count} records {name}" for name, count in found.items() if count]
